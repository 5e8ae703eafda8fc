package checkapi_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/server/internal/edge/checkapi"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newLimiter(tb testing.TB, store counter.Store, rules weir.Rules) *weir.Limiter {
	tb.Helper()
	set, err := weir.Compile(rules)
	if err != nil {
		tb.Fatal(err)
	}
	return weir.NewLimiter(store, set, weir.Options{Secret: []byte("of the tests")})
}

func newStore() *memstore.Store { return memstore.New(memstore.Options{MemoryCap: 4 << 20}) }

// newAPI returns the check API with its own store.
func newAPI(tb testing.TB, rules ...weir.Rule) http.Handler {
	return checkapi.New(newLimiter(tb, newStore(), weir.Rules{Version: 42, Rules: rules}), nil, checkapi.Options{})
}

func perHour(n int64) []weir.Limit { return []weir.Limit{weir.PerHour(n)} }

func post(h http.Handler, path, body string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, strings.NewReader(body)))
	return w
}

// dump returns a whole response as text: status, sorted headers and body.
func dump(w *httptest.ResponseRecorder) string {
	var b strings.Builder
	fmt.Fprintln(&b, w.Code)
	for _, name := range slices.Sorted(maps.Keys(w.Header())) {
		for _, v := range w.Header()[name] {
			fmt.Fprintf(&b, "%s: %s\n", name, v)
		}
	}
	return b.String() + w.Body.String()
}

var errGone = errors.New("the shard of sk_secret is gone")

// brokenStore is a store that fails for the counters of some rules, or for all receipts.
type brokenStore struct {
	*memstore.Store
	rules    []string
	receipts bool
}

func (s *brokenStore) Take(ctx context.Context, charges []counter.Charge, results []counter.Result) {
	if !slices.ContainsFunc(charges, func(c counter.Charge) bool { return slices.Contains(s.rules, c.Policy.Rule) }) {
		s.Store.Take(ctx, charges, results)
		return
	}
	for i, c := range charges {
		if slices.Contains(s.rules, c.Policy.Rule) {
			results[i] = counter.Result{Err: errGone}
		} else {
			s.Store.Take(ctx, charges[i:i+1], results[i:i+1])
		}
	}
}

func (s *brokenStore) GiveBack(ctx context.Context, once counter.Once, keep time.Duration, returns []counter.Return) error {
	if s.receipts {
		return errGone
	}
	return s.Store.GiveBack(ctx, once, keep, returns)
}
