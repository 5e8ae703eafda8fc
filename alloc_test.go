//go:build !race

// The race detector allocates, so these tests run without it.

package weir

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
)

func TestAllocsPerMatchAreNone(t *testing.T) {
	rs := manyRules(t, 1000)
	for _, req := range matchRequests(1000) {
		m := new(match)
		if got := testing.AllocsPerRun(1000, func() { rs.run(&req, m) }); got != 0 {
			t.Errorf("%v allocations to match %s", got, req.Path)
		}
	}
}

// yes is a store that admits every charge and allocates nothing, so that the test measures the Limiter alone.
type yes struct{}

func (yes) Take(_ context.Context, _ []counter.Charge, results []counter.Result) {
	for i := range results {
		results[i] = counter.Result{Allowed: true, Remaining: 1}
	}
}
func (yes) GiveBack(context.Context, counter.Once, time.Duration, []counter.Return) error { return nil }
func (yes) Reset(context.Context, []counter.Counter) error                                { return nil }

func TestAllocsPerCheckAreNone(t *testing.T) {
	rs, err := Compile(Rules{Rules: []Rule{
		{ID: "a", Limits: []Limit{PerMinute(10)}},
		{ID: "b", By: []string{"ip", "endpoint", "path"}, IPv4Prefix: 24, Limits: []Limit{PerMinute(10), PerSecond(5)}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	l := NewLimiter(yes{}, rs, Options{Observe: func(*Observation) {}})
	req := &Request{APIKey: "sk_prod_1", IP: netip.AddrFrom4([4]byte{203, 0, 113, 7}), Method: "GET", Path: "/v1/orders/17"}
	if got := testing.AllocsPerRun(1000, func() {
		if d, err := l.Check(t.Context(), req); !d.Allowed || err != nil {
			t.Error(d, err)
		}
	}); got != 0 {
		t.Errorf("%v allocations a check", got)
	}
	p, err := counter.NewPolicy("p", PerMinute(10))
	if err != nil {
		t.Fatal(err)
	}
	subject := []byte("acme")
	if got := testing.AllocsPerRun(1000, func() {
		if d, err := l.take(t.Context(), req, []counter.Charge{{Counter: counter.Counter{Policy: p, Subject: subject}, N: 1}}, nil); !d.Allowed || err != nil {
			t.Error(d, err)
		}
	}); got != 0 {
		t.Errorf("%v allocations a take", got)
	}
}

func TestAllocsPerAllowAreNone(t *testing.T) {
	limit := New(PerMinute(1 << 30))
	if got := testing.AllocsPerRun(1000, func() {
		if !limit.Allow("sk_prod_1") {
			t.Error("refused")
		}
	}); got != 0 {
		t.Errorf("%v allocations an Allow", got)
	}
}
