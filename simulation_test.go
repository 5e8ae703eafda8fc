package weir_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/memstore"
)

// flight is a request in the model.
type flight struct {
	weir.Decision
	node     int
	took     int64     // reserved
	goesBack time.Time // when a reservation that isn't settled is given back
	slot     time.Time // when its slot ends; in the past if it has none
	used     int64     // -1 until it is settled
	lost     bool      // it will never be settled
}

// This test simulates 10,000 short sequences on three nodes that reserve, renew, settle once or twice, and die. The counters
// always agree with a model. At the end all slots are free. The limits have booked the usage of settled requests, and the
// estimates of the others unless their rule gives those back.
func TestNothingLeaksSimulated(t *testing.T) {
	const (
		ttl, reserve = 10 * time.Second, 25 * time.Second
		inFlight     = 4
		budget       = 1_000_000
	)
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	clock := func() time.Time { return now }
	store := memstore.New(memstore.Options{Now: clock})
	rs := compile(t, weir.Rules{Rules: []weir.Rule{
		slots(inFlight, ttl),
		{ID: "keep", Amount: "tokens", Limits: monthly(budget)},
		{ID: "back", Amount: "tokens", GiveBackUnsettled: true, Limits: monthly(budget)},
	}})
	var nodes [3]*weir.Limiter
	for i := range nodes {
		nodes[i] = weir.NewLimiter(store, rs, weir.Options{Secret: nodesSecret, Now: clock})
	}
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 1))
	begun, refused, settled, deaths, late := 0, 0, 0, 0, 0
	for run := range 10_000 {
		req := weir.Request{APIKey: fmt.Sprint("k", run)}
		var all []*flight
		want := func() string {
			free, keep, back := int64(inFlight), int64(budget), int64(budget)
			for _, f := range all {
				if f.slot.After(now) {
					free--
				}
				if f.used >= 0 {
					keep, back = keep-f.used, back-f.used
					continue
				}
				if keep -= f.took; f.goesBack.After(now) {
					back -= f.took
				}
			}
			return fmt.Sprint(free, " ", keep, " ", back)
		}
		look := func(when string) {
			t.Helper()
			if got := leftOf(t, nodes[random.IntN(len(nodes))], weir.Request{APIKey: req.APIKey, Amounts: tokens(1)}); got != want() {
				t.Fatalf("seed %d, run %d, %s: %s are left, want %s", seed, run, when, got, want())
			}
		}
		live := func() (some []*flight) {
			for _, f := range all {
				if f.used < 0 && !f.lost {
					some = append(some, f)
				}
			}
			return some
		}
		settle := func(f *flight) {
			by := nodes[f.node]
			d := &f.Decision
			if f.Receipt != "" { // any node, and twice
				by, d = nodes[random.IntN(len(nodes))], &weir.Decision{Receipt: f.Receipt}
			}
			f.used = random.Int64N(2 * f.took)
			f.slot = time.Time{}
			if settled++; !f.goesBack.After(now) {
				late++
			}
			o := weir.Outcome{Status: 200, Amounts: tokens(f.used)}
			if random.IntN(5) == 0 { // the usage is unknown
				f.used, o = f.took, weir.Outcome{}
			} else if random.IntN(5) == 0 {
				f.used, o = 0, weir.Outcome{Abandoned: true}
			}
			if err := by.Finish(t.Context(), d, o); err != nil {
				t.Fatalf("seed %d, run %d: %v", seed, run, err)
			}
			if err := by.Finish(t.Context(), d, o); f.Receipt != "" && err != counter.ErrUsed || f.Receipt == "" && err != nil {
				t.Fatalf("seed %d, run %d: settled twice: %v", seed, run, err)
			}
		}
		for range 8 {
			some := live()
			switch act := random.IntN(10); {
			case act < 4 || len(some) == 0:
				n := 1 + random.Int64N(100)
				i := random.IntN(len(nodes))
				req.Amounts, req.Reserve, req.Receipt = tokens(n), reserve, random.IntN(5) == 0
				d := check(t, nodes[i], req)
				if !d.Allowed {
					refused++
					break
				}
				begun++
				all = append(all, &flight{Decision: d, node: i, took: n, goesBack: now.Add(reserve), slot: now.Add(ttl), used: -1})
			case act < 6: // requests in flight renew their slots in time
				for _, f := range some {
					if !f.slot.After(now) {
						continue
					}
					if err := nodes[f.node].Renew(t.Context(), &f.Decision); err != nil {
						t.Fatalf("seed %d, run %d: %v", seed, run, err)
					}
					f.slot = now.Add(ttl)
				}
			case act < 8:
				settle(some[random.IntN(len(some))])
			case act < 9: // a node dies with all its requests
				i := random.IntN(len(nodes))
				for _, f := range some {
					if f.node == i {
						f.lost = true
						deaths++
					}
				}
			default:
				now = now.Add(time.Duration(random.Int64N(int64(ttl))))
			}
			if random.IntN(8) == 0 {
				look("on the way")
			}
		}
		if now = now.Add(ttl); run%2 == 0 {
			now = now.Add(reserve)
		}
		for _, f := range all {
			f.slot = time.Time{} // by now
		}
		look("when all slots have ended")
		for _, f := range live() {
			settle(f)
		}
		now = now.Add(reserve)
		look("at the end")
		if run%700 == 0 {
			now = now.Add(counter.RecordTime)
			look("when the records have ended")
		}
	}
	if min(begun, refused, settled, deaths, late) < 1000 {
		t.Errorf("%d begun, %d refused, %d settled, %d of them late, %d lost: that is not what it was for",
			begun, refused, settled, late, deaths)
	}
}
