package redislimit

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/redistest"
)

// TestKnownCountersOutliveRedis checks that while Redis is lost, default rules still refuse clients that the node knows
// to have used up their limit, for all algorithms. Clients that the node doesn't know pass.
func TestKnownCountersOutliveRedis(t *testing.T) {
	t.Parallel()                        // the first check after the loss waits for its timeout
	const window = 300 * 24 * time.Hour // nothing refills during the test
	shapes := map[string]func(*weir.Rule){
		"token_bucket":   func(*weir.Rule) {},
		"leaky_bucket":   func(r *weir.Rule) { r.Algorithm = weir.LeakyBucket },
		"fixed_window":   func(r *weir.Rule) { r.Algorithm = weir.FixedWindow },
		"log":            func(r *weir.Rule) { r.Algorithm = weir.SlidingLog },
		"counter":        func(r *weir.Rule) { r.Algorithm = weir.SlidingCounter },
		"strict":         func(r *weir.Rule) { r.Strict = true },
		"one":            func(r *weir.Rule) { r.Limits[0].Count = 1 },
		"by_status":      func(r *weir.Rule) { r.Statuses = []int{401} },
		"counts_refused": func(r *weir.Rule) { r.Algorithm, r.CountRefused = weir.FixedWindow, true },
	}
	var rules []weir.Rule
	for id, shape := range shapes {
		r := weir.Rule{ID: id, Match: weir.Match{Endpoint: "/" + id}, Limits: []weir.Limit{{Count: 20, Window: window}}}
		shape(&r)
		rules = append(rules, r)
	}
	server := redistest.New(t, redistest.Options{})
	l := open(t, "redis://"+server.Addr, "rules: []")
	set, err := weir.Compile(weir.Rules{Rules: rules})
	if err != nil {
		t.Fatal(err)
	}
	l.SetRules(set)
	request := func(key, id string) *weir.Request { return &weir.Request{APIKey: key, Path: "/" + id} }
	for id := range shapes {
		n := 0
		for ; healthy(t, l, request("warm", id)).Allowed; n++ {
		}
		if n == 0 {
			t.Fatalf("%s: nothing was admitted", id)
		}
		healthy(t, l, request("half", id)) // this leaves most of the limit, or, for a limit of 1, nothing
		healthy(t, l, request("half", id))
	}
	server.Kill()
	for id := range shapes {
		for i := range 100 {
			if d, _ := l.Check(t.Context(), request("warm", id)); d.Allowed || d.Reason != weir.ReasonLimited {
				t.Errorf("%s: request %d of a client with nothing left: %+v", id, i+1, d)
				break
			}
		}
		for range 100 {
			if d, _ := l.Check(t.Context(), request("new", id)); !d.Allowed || !d.Degraded {
				t.Errorf("%s: a client that the node doesn't know: %+v", id, d)
				break
			}
		}
		n := 0
		for ; n < 100; n++ {
			d, _ := l.Check(t.Context(), request("half", id))
			// Redis itself has refused the client of "one", and a node trusts a refusal for a second.
			if !d.Degraded && id != "one" {
				t.Errorf("%s: not degraded: %+v", id, d)
			}
			if !d.Allowed {
				break
			}
			if err := l.Finish(t.Context(), &d, weir.Outcome{Status: 200}); err != nil {
				t.Errorf("%s: %v", id, err)
			}
		}
		want := 18
		switch id {
		case "one":
			want = 0
		case "by_status":
			want = 100 // the rule counts none of these responses
		}
		if n != want {
			t.Errorf("%s: %d more requests of a client that had 18 left, want %d", id, n, want)
		}
	}
}

func healthy(t *testing.T, l *Limiter, req *weir.Request) weir.Decision {
	t.Helper()
	d, err := l.Check(t.Context(), req)
	if err != nil {
		t.Fatal(fmt.Errorf("while Redis is there: %w", err))
	}
	return d
}
