//go:build !race

// The race detector allocates, so these tests run without it.

package httplimit_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
)

// sink is a writer that discards everything, so that the test counts only the middleware's allocations.
type sink struct {
	header http.Header
	status int
}

func (s *sink) Header() http.Header         { return s.header }
func (s *sink) Write(b []byte) (int, error) { return len(b), nil }
func (s *sink) WriteHeader(status int)      { s.status = status }

// elsewhere is a rule that doesn't apply.
func elsewhere(r weir.Rule) weir.Rule {
	r.Match.Endpoint = "/elsewhere"
	return r
}

func TestAllocsPerRequest(t *testing.T) {
	nothing := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	plenty, spent := per(1e9, time.Hour), per(1, 366*24*time.Hour)
	silent := httplimit.Answers{Dialects: []httplimit.Dialect{}}
	for _, c := range []struct {
		name    string
		rules   weir.Rules
		answers httplimit.Answers
		status  int
		most    float64
	}{
		{"headers off", rules(weir.Rule{ID: "a", Limits: plenty}), silent, 0, 0},
		{"both dialects", rules(weir.Rule{ID: "a", Limits: plenty}), httplimit.Answers{}, 0, 4}, // the values, and the list of them
		{"both dialects, three limits", rules(weir.Rule{ID: "a", Limits: plenty}, weir.Rule{ID: "b", By: []string{"ip"}, Limits: []weir.Limit{plenty[0], {Count: 1e9, Window: time.Minute}}}), httplimit.Answers{}, 0, 6},
		{"slots and amounts elsewhere", rules(weir.Rule{ID: "a", Limits: plenty}, elsewhere(slots(1)), elsewhere(daily("tokens", 1))), silent, 0, 0},
		{"refused, headers off", rules(weir.Rule{ID: "a", Limits: spent}), silent, 429, 9},
		{"refused, both dialects", rules(weir.Rule{ID: "a", Limits: spent}), httplimit.Answers{}, 429, 12},
	} {
		h := wrap(limiter(t, c.rules), httplimit.Options{Answers: c.answers}, nothing)
		r := request("/v1/orders/17?x=y", "X-API-Key", "sk_prod_1", "Accept", "*/*")
		w := &sink{header: http.Header{}}
		h.ServeHTTP(w, r)
		got := testing.AllocsPerRun(1000, func() {
			clear(w.header)
			h.ServeHTTP(w, r)
		})
		t.Logf("%s: %v allocations", c.name, got)
		if got > c.most || w.status != c.status {
			t.Errorf("%s: %v allocations, want at most %v (status %d)", c.name, got, c.most, w.status)
		}
	}
}

func TestAllocsPerIdentity(t *testing.T) {
	type source = httplimit.Source
	l := limiter(t, rules(weir.Rule{ID: "a", By: []string{"ip", "header:X-Org"}, Limits: per(1e9, time.Hour)}))
	nothing := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	for name, c := range map[string]struct {
		id httplimit.Identity
		r  *http.Request
	}{
		"the default":    {httplimit.Identity{}, request("/v1/orders/17", "X-API-Key", "sk_prod_1")},
		"nobody":         {httplimit.Identity{}, request("/")},
		"a known key":    {httplimit.Identity{KnownKeys: known("sk_prod_1")}, request("/", "X-API-Key", "sk_prod_1")},
		"a parameter":    {httplimit.Identity{APIKey: source{Query: "key"}}, request("/?a=1&b=2&key=sk_prod_1")},
		"a bearer":       {httplimit.Identity{APIKey: source{Bearer: true}}, request("/", "Authorization", "Bearer sk_prod_1")},
		"four headers":   {httplimit.Identity{User: source{Header: "X-User"}, Org: source{Header: "X-Org"}, Tier: source{Header: "X-Tier"}}, request("/", "X-User", "u", "X-Org", "o")},
		"behind proxies": {httplimit.Identity{}, request("/", "X-Forwarded-For", "1.1.1.1, 198.51.100.1, 10.0.0.2")},
	} {
		c.r.RemoteAddr = "10.0.0.1:1234"
		h := wrap(l, httplimit.Options{
			Identity: c.id, TrustedProxies: prefixes("10.0.0.0/8"), Answers: httplimit.Answers{Dialects: []httplimit.Dialect{}},
		}, nothing)
		w := &sink{}
		if got := testing.AllocsPerRun(1000, func() { h.ServeHTTP(w, c.r) }); got != 0 {
			t.Errorf("%s: %v allocations", name, got)
		}
	}
}

// TestAllocsOfOneThatIsShed: shedding a request allocates less than deciding it, which is the point of shedding.
func TestAllocsOfOneThatIsShed(t *testing.T) {
	entered, goOn := make(chan struct{}), make(chan struct{})
	defer close(goOn)
	l := limiter(t, rules(weir.Rule{ID: "a", Limits: per(1e9, time.Hour)}))
	h := wrap(l, httplimit.Options{MaxInFlight: 1, Identify: func(*http.Request, *weir.Request) { close(entered); <-goOn }},
		http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	go h.ServeHTTP(&sink{header: http.Header{}}, request("/"))
	<-entered
	gone, leave := context.WithCancel(t.Context())
	leave() // so that it doesn't wait
	r := request("/", "Accept", "*/*").WithContext(gone)
	w := &sink{header: http.Header{}}
	got := testing.AllocsPerRun(1000, func() {
		clear(w.header)
		h.ServeHTTP(w, r)
	})
	t.Logf("%v allocations", got)
	if got >= 9 || w.status != http.StatusServiceUnavailable {
		t.Errorf("%v allocations, of a refusal 9 (status %d)", got, w.status)
	}
}
