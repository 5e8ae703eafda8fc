package test

import (
	"bufio"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"
	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/memstore"
	"pgregory.net/rapid"
)

// The golden files of httplimit contain every kind of response, as sent. A parser of structured fields (RFC 9651) can
// read RateLimit and RateLimit-Policy in all of them.
func TestGoldenAnswersHaveStructuredFields(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../httplimit/testdata/*.http")
	if err != nil {
		t.Fatal(err)
	}
	answers, withFields := 0, 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		// Request lines start with "> ", so a line that starts with the HTTP version starts a response.
		for _, answer := range strings.Split(string(text), "\nHTTP/1.1 ")[1:] {
			resp, err := http.ReadResponse(bufio.NewReader(strings.NewReader("HTTP/1.1 "+answer)), nil)
			if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			resp.Body.Close()
			answers++
			if names := checkFields(t, resp.Header); names != nil {
				withFields++
			}
			if t.Failed() {
				t.Fatalf("%s has the answer:\nHTTP/1.1 %s", file, answer)
			}
		}
	}
	if withFields == 0 || withFields == answers {
		t.Errorf("%d of %d answers in %d files have the fields: expected some with and some without", withFields, answers, len(files))
	}
}

// checkFields parses the structured fields of a response and returns the names of its policies, or nil if it has no
// such fields.
func checkFields(t rapid.TB, h http.Header) (policies []string) {
	t.Helper()
	all, one := h.Values("RateLimit-Policy"), h.Values("RateLimit")
	if (len(all) == 0) != (len(one) == 0) || len(all) > 1 || len(one) > 1 {
		t.Errorf("RateLimit-Policy %q, RateLimit %q", all, one)
	}
	if len(all) == 0 {
		return nil
	}
	policies, quotas := fieldNames(t, h, "RateLimit-Policy", "q", "w"), fieldNames(t, h, "RateLimit", "r", "t")
	if len(quotas) != 1 || policies[0] != quotas[0] {
		t.Errorf("the policy that binds, %v, isn't the first of %v", quotas, policies)
	}
	return policies
}

// fieldNames parses a field, which is a list of strings with parameters, and returns the strings. All parameters are
// integers, except for a policy's unit.
func fieldNames(t rapid.TB, h http.Header, field string, params ...string) (names []string) {
	t.Helper()
	list, err := httpsfv.UnmarshalList(h.Values(field))
	if err != nil {
		t.Fatalf("%s: %v in %q", field, err, h.Values(field))
	}
	for _, m := range list {
		item, isItem := m.(httpsfv.Item)
		name, isString := item.Value.(string)
		if !isItem || !isString {
			t.Errorf("%s: %v is not a string", field, m)
		}
		names = append(names, name)
		for _, p := range item.Params.Names() {
			v, _ := item.Params.Get(p)
			if p == "qu" && slices.Contains([]any{"concurrent-requests", "tokens", "usd"}, v) && field == "RateLimit-Policy" {
				continue
			}
			if n, isInt := v.(int64); !isInt || n < 0 || !slices.Contains(params, p) {
				t.Errorf("%s: ;%s=%v", field, p, v)
			}
		}
	}
	return names
}

// lostStore is a store whose calls all fail.
type lostStore struct{ *memstore.Store }

func (lostStore) Take(_ context.Context, _ []counter.Charge, results []counter.Result) {
	for i := range results {
		results[i] = counter.Result{Err: errors.New("can't be reached")}
	}
}

// Rule files allow only some characters in an id, but programs can give policies any name. Clients can parse the fields
// anyway: each byte that isn't printable ASCII is sent as a question mark.
func TestFieldsOfAnyPolicyName(t *testing.T) {
	t.Parallel()
	rules, err := weir.Compile(weir.Rules{Rules: []weir.Rule{{ID: "orders", Limits: []weir.Limit{weir.PerMinute(2)}}}})
	if err != nil {
		t.Fatal(err)
	}
	var handler http.Handler
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handler.ServeHTTP(w, r) }))
	defer srv.Close()
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.OneOf(
			rapid.String(), rapid.StringMatching(`["\\a]*`), rapid.StringMatching(`[ -~]*`), rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }),
		).Draw(t, "name")
		emergency, err := counter.NewPolicy(name, weir.Limit{Count: 9, Window: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		l := weir.NewLimiter(lostStore{memstore.New(memstore.Options{})}, rules, weir.Options{Local: memstore.New(memstore.Options{}), Emergency: emergency})
		handler = httplimit.New(l, httplimit.Options{}).Wrap(http.NotFoundHandler())
		resp, err := srv.Client().Get(srv.URL)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		want := []byte(name)
		for i, c := range want {
			if c < ' ' || c > '~' {
				want[i] = '?'
			}
		}
		if got := checkFields(t, resp.Header); !slices.Equal(got, []string{string(want), "orders"}) {
			t.Errorf("%q: the fields name %q, want %q and orders: %q", name, got, want, resp.Header.Values("RateLimit-Policy"))
		}
	})
}
