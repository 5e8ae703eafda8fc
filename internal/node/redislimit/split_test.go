package redislimit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/private"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/storetest"
)

// clock is a virtual clock.
type clock struct{ now time.Time }

func (c *clock) store() *memstore.Store {
	return memstore.New(memstore.Options{Now: func() time.Time { return c.now }})
}

func newClock() *clock { return &clock{storetest.Start} }

type fataler interface {
	Helper()
	Fatal(...any)
}

func compiled(t fataler, r ...weir.Rule) *weir.RuleSet {
	t.Helper()
	rs, err := weir.Compile(weir.Rules{Rules: r})
	if err != nil {
		t.Fatal(err)
	}
	return rs
}

var splitAlgorithms = []counter.Algorithm{weir.TokenBucket, weir.LeakyBucket, weir.FixedWindow, weir.SlidingCounter}

// policyOf returns the policy of a split rule.
func policyOf(t fataler, parts int, l weir.Limit) *counter.Policy {
	t.Helper()
	r := weir.Rule{ID: "hot", By: []string{}, Strict: true, Split: parts, Algorithm: l.Algorithm, Limits: []weir.Limit{l}}
	return compiled(t, r).Explain(&weir.Request{}).Rules[0].Limits[0]
}

func charge(p *counter.Policy, n int64) []counter.Charge {
	return []counter.Charge{{Counter: counter.Counter{Policy: p, Subject: []byte("hot")}, N: n}}
}

func take(s counter.Store, c []counter.Charge) counter.Result {
	results := make([]counter.Result, len(c))
	s.Take(context.Background(), c, results)
	return results[0]
}

// TestSplitNeverAdmitsMore checks that, for any sequence of requests, returns and time steps, the parts together never
// admit more than the whole limit could.
func TestSplitNeverAdmitsMore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		parts := rapid.IntRange(2, 64).Draw(t, "parts")
		l := weir.Limit{Algorithm: rapid.SampledFrom(splitAlgorithms).Draw(t, "algorithm"), Count: rapid.Int64Range(int64(parts), 3000).Draw(t, "limit"), Window: rapid.SampledFrom([]time.Duration{10 * time.Millisecond, time.Second, time.Minute}).Draw(t, "window")}
		if l.Algorithm <= weir.LeakyBucket {
			if rapid.Bool().Draw(t, "burst") {
				l.Burst = rapid.Int64Range(int64(parts), 2000).Draw(t, "tokens")
			}
			if rapid.Bool().Draw(t, "refill") {
				l.Refill = rapid.Float64Range(0.01, 1000).Draw(t, "rate")
			}
		}
		p := policyOf(t, parts, l)
		c := newClock()
		inner := c.store()
		nodes := []*splitter{newSplitter(inner, time.Second), newSplitter(inner, time.Second)}
		var truth truth
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			c.now = c.now.Add(time.Duration(rapid.Int64Range(0, 2*l.Window.Microseconds()).Draw(t, "µs")) * time.Microsecond / time.Duration(rapid.SampledFrom([]int64{1, 10, 1000}).Draw(t, "of"))).Truncate(time.Microsecond)
			cost := rapid.SampledFrom([]int64{1, 1, 2, l.Max() / 20, l.Max() / 3, l.Max()}).Draw(t, "cost")
			for range rapid.IntRange(1, 100).Draw(t, "requests") {
				s := nodes[rapid.IntRange(0, 1).Draw(t, "node")]
				if r := take(s, charge(p, max(1, cost))); r.Allowed {
					truth = append(truth, admission{c.now.UnixMicro(), max(1, cost)})
					if over := truth.over(p); over != "" {
						t.Fatalf("%s split into %d: %s", l, parts, over)
					}
				}
			}
		}
	})
}

type admission struct{ at, n int64 }

// truth is the list of everything that was admitted.
type truth []admission

// over says by how much the newest admission exceeds the limit, or "".
func (t truth) over(p *counter.Policy) string {
	switch p.Limit.Algorithm {
	case weir.TokenBucket, weir.LeakyBucket: // in any time T, at most burst + rate · T
		rate := p.Limit.Refill
		if rate == 0 {
			rate = float64(p.Limit.Count) / p.Limit.Window.Seconds()
		}
		sum, last := int64(0), t[len(t)-1].at
		for i := len(t) - 1; i >= 0; i-- {
			sum += t[i].n
			if most := float64(p.Limit.Max()) + rate*float64(last-t[i].at)/1e6; float64(sum) > most+1e-6 {
				return fmt.Sprintf("%d admitted in %d µs, and %f may be", sum, last-t[i].at, most)
			}
		}
	default: // the whole limit must admit all of it, too
		var s counter.State
		for _, a := range t {
			var ok bool
			if s, ok = p.Try(s, a.at, a.n); !ok {
				return fmt.Sprintf("%d at %d don't fit the whole limit: %+v", a.n, a.at, s)
			}
		}
	}
	return ""
}

// TestSplitAdmitsAll checks that clients that send one request at a time get the whole limit, whichever parts they use.
func TestSplitAdmitsAll(t *testing.T) {
	for _, a := range splitAlgorithms {
		for _, cost := range []int64{1, 7, 100} {
			p := policyOf(t, 9, weir.Limit{Algorithm: a, Count: 10_000, Window: time.Hour})
			s := newSplitter(newClock().store(), time.Second)
			admitted := int64(0)
			for range 30_000 / cost {
				r := take(s, charge(p, cost))
				if r.Allowed {
					admitted += cost
				}
				if left := 10_000 - admitted; r.Remaining > left+50*cost || r.Allowed && r.Remaining < left-50*cost || r.Allowed == (r.RetryAfter > 0) {
					t.Fatalf("%s, cost %d: %d are left, and the result is %+v", a, cost, left, r)
				}
			}
			if admitted > 10_000 || admitted < 10_000-9*cost {
				t.Errorf("%s, cost %d: %d of 10,000 admitted", a, cost, admitted)
			}
		}
	}
}

// TestSplitFalseRefusals measures how much a limit of 10,000 a second in nine parts, used by three nodes, refuses of
// what the same limit in one part admits, with the same arrivals.
func TestSplitFalseRefusals(t *testing.T) {
	const seconds, parts = 2, 9
	for _, a := range splitAlgorithms {
		for _, load := range []float64{0.9, 1, 1.2} {
			for _, bursty := range []bool{false, true} {
				p := policyOf(t, parts, weir.Limit{Algorithm: a, Count: 10_000, Window: time.Second})
				random := rand.New(rand.NewPCG(1, uint64(load*100)))
				c := newClock()
				exact, inner := c.store(), c.store()
				var nodes [3]*splitter
				for i := range nodes {
					nodes[i] = newSplitter(inner, time.Second)
				}
				if a <= weir.LeakyBucket { // a full bucket would admit everything for seconds
					take(exact, charge(p, 10_000))
					take(nodes[0], charge(p, 10_000))
				}
				want, got := 0, 0
				begin := c.now
				for c.now.Sub(begin) < seconds*time.Second {
					gap := random.ExpFloat64() / (load * 10_000)
					n := 1
					if bursty { // bursts of fifty requests
						gap, n = gap*50, 50
					}
					c.now = c.now.Add(time.Duration(gap * 1e9))
					for range n {
						if take(exact, charge(p, 1)).Allowed {
							want++
						}
						if take(nodes[random.IntN(3)], charge(p, 1)).Allowed {
							got++
						}
					}
				}
				lost := 100 * float64(want-got) / float64(want)
				t.Logf("%-22s load %4.2f, bursty %-5v: %6d by one counter, %6d by nine parts: %.3f%% falsely refused", a, load, bursty, want, got, lost)
				if lost >= 0.5 {
					t.Errorf("%s at %v of its limit: %.3f%% falsely refused", a, load, lost)
				}
			}
		}
	}
}

// TestSplitParts checks that the parts of a limit's numbers add up to the whole, or, for rates, to no more than that,
// and that each part is a separate counter.
func TestSplitParts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 64).Draw(t, "parts")
		l := weir.Limit{Algorithm: rapid.SampledFrom(splitAlgorithms).Draw(t, "algorithm"), Count: rapid.Int64Range(int64(n), 2_000_000_000).Draw(t, "limit"), Window: time.Duration(rapid.Int64Range(1000, 6e8).Draw(t, "µs")) * time.Microsecond}
		if l.Algorithm <= weir.LeakyBucket {
			l.Burst = rapid.SampledFrom([]int64{0, int64(n), 1_000_003}).Draw(t, "burst")
		}
		p := policyOf(t, n, l)
		numbers := p.Numbers()
		var count, burst, capacity int64
		ids, places, rate := map[uint64]bool{p.ID: true}, map[uint16]bool{}, 0.0
		for _, q := range p.Parts {
			count, burst, capacity = count+q.Limit.Count, burst+q.Limit.Burst, capacity+q.Numbers()[0]
			ids[q.ID], places[q.Place] = true, true
			if x := q.Numbers(); l.Algorithm <= weir.LeakyBucket {
				rate += float64(x[1]) / float64(x[2])
			}
			if !q.Strict || q.Rule != p.Rule || len(q.Parts) > 0 {
				t.Fatalf("a part of %+v is %+v", p, q)
			}
		}
		if count != l.Count || burst != l.Burst || capacity != numbers[0] {
			t.Fatalf("%d parts of %+v: %d, burst %d, capacity %d of %d", n, l, count, burst, capacity, numbers[0])
		}
		if whole := float64(numbers[1]) / float64(numbers[2]); l.Algorithm <= weir.LeakyBucket && (rate > whole*(1+1e-12) || rate < whole*0.999) {
			t.Fatalf("%d parts of %+v refill %g a second, and the whole %g", n, l, rate, whole)
		}
		if len(p.Parts) != n || len(ids) != n+1 || len(places) != n {
			t.Fatalf("%d parts, %d counters with the whole, %d places", len(p.Parts), len(ids), len(places))
		}
		total := p.Limit.Max()
		cost, first := rapid.Int64Range(1, total).Draw(t, "cost"), rapid.IntRange(0, n-1).Draw(t, "first")
		for i, q := range p.Parts {
			part := p.Portion(first, i, cost)
			if total -= part; part < 0 || part > q.Limit.Max() {
				t.Fatalf("part %d of %d holds %d and is asked for %d of %d", i, n, q.Limit.Max(), part, cost)
			}
		}
		if total != p.Limit.Max()-cost {
			t.Fatalf("%d were asked for of %d", p.Limit.Max()-total, cost)
		}
	})
}

// scripted is a store in which some parts refuse and some can't be reached.
type scripted struct {
	counter.Store
	refuse, lose map[uint64]bool
	asked        [][]uint64
}

func (s *scripted) Take(ctx context.Context, charges []counter.Charge, results []counter.Result) {
	var ids []uint64
	var kept []counter.Charge
	for _, c := range charges {
		ids = append(ids, c.Policy.ID)
		if !s.lose[c.Policy.ID] {
			if s.refuse[c.Policy.ID] {
				c.N = c.Policy.Limit.Max() + 1
			}
			kept = append(kept, c)
		}
	}
	s.asked = append(s.asked, ids)
	inner := make([]counter.Result, len(kept))
	s.Store.Take(ctx, kept, inner)
	for i, c := range charges {
		if s.lose[c.Policy.ID] {
			results[i] = counter.Result{Err: errLost}
			continue
		}
		if results[i], inner = inner[0], inner[1:]; s.refuse[c.Policy.ID] {
			results[i].RetryAfter = time.Second
		}
	}
}

var errLost = errors.New("lost")

// TestSplitSecondPart checks that if one part refuses, a second one is asked, and that a second part that is lost
// doesn't let a request pass the limit. A refused request takes nothing from a limit that isn't split.
func TestSplitSecondPart(t *testing.T) {
	enforced := policyOf(t, 2, weir.PerHour(1000))
	plain, err := counter.NewPolicy("plain", weir.PerHour(1000))
	if err != nil {
		t.Fatal(err)
	}
	one, two := enforced.Parts[0].ID, enforced.Parts[1].ID
	for _, c := range []struct {
		name         string
		refuse, lose []uint64
		shadow       bool
		allowed      int // of 10 requests; -1 means any number
		most         int // the most asks for one request
	}{
		{"nothing is wrong", nil, nil, false, 10, 1},
		{"one part refuses", []uint64{one}, nil, false, 10, 2},
		{"both do", []uint64{one, two}, nil, false, 0, 2},
		{"one refuses, the other is lost", []uint64{one}, []uint64{two}, false, -1, 2},
		{"the other limit refuses", []uint64{plain.ID}, nil, false, 10, 1}, // the split limit would have allowed them
		{"all refuse", []uint64{plain.ID, one, two}, nil, false, 0, 1},
		{"one part refuses, in shadow", []uint64{one}, nil, true, 10, 2},
		{"both do, in shadow", []uint64{one, two}, nil, true, 0, 2},
	} {
		inner := newClock().store()
		store := &scripted{Store: inner, refuse: map[uint64]bool{}, lose: map[uint64]bool{}}
		for _, id := range c.refuse {
			store.refuse[id] = true
		}
		for _, id := range c.lose {
			store.lose[id] = true
		}
		p := enforced.With(func(d *counter.Definition) { d.Shadow = c.shadow })
		s := newSplitter(store, time.Second)
		allowed, decided, plains := 0, 0, int64(0)
		for range 10 {
			charges := append(charge(p, 1), charge(plain, 1)...)
			results := make([]counter.Result, 2)
			asked := len(store.asked)
			s.Take(t.Context(), charges, results)
			if len(store.asked)-asked > c.most {
				t.Errorf("%s: asked %d times", c.name, len(store.asked)-asked)
			}
			if r := results[0]; r.Err == nil {
				if decided++; r.Allowed {
					allowed++
				}
			}
			if results[0].Err != nil || results[0].Allowed || c.shadow {
				plains++
			}
		}
		if c.allowed >= 0 && (allowed != c.allowed || decided != 10) || c.allowed < 0 && (allowed != 0 || decided == 0) {
			t.Errorf("%s: %d allowed of %d decided", c.name, allowed, decided)
		}
		if store.refuse[plain.ID] {
			plains = 0
		}
		peek := charge(plain, 1)
		peek[0].Peek = true
		if r := take(inner, peek); r.Remaining != 1000-plains {
			t.Errorf("%s: the other limit has %d left, want %d", c.name, r.Remaining, 1000-plains)
		}
	}
}

// TestSplitHolds checks that a repeated request is charged once, and that a request that is refused because a part of
// its limit is lost keeps no slot of another limit.
func TestSplitHolds(t *testing.T) {
	p := policyOf(t, 3, weir.PerHour(900))
	slots, err := counter.NewPolicy("slots", weir.Limit{Algorithm: weir.Concurrency, Count: 1000, Window: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	inner := newClock().store()
	store := &scripted{Store: inner, refuse: map[uint64]bool{}, lose: map[uint64]bool{}}
	s := newSplitter(store, time.Second)
	used := func(p *counter.Policy) int64 {
		c := charge(p, 1)
		c[0].Peek = true
		return p.Limit.Count - take(s, c).Remaining
	}
	hold := func(i int) *counter.Hold {
		return &counter.Hold{ID: counter.Once{7: byte(i * 101), 8: byte(i * 59), 15: byte(i)}, For: time.Minute}
	}
	request := func(i int) []counter.Result {
		charges := append(charge(p, 1), charge(slots, 1)...)
		charges[0].Hold, charges[1].Hold = hold(i), hold(i)
		results := make([]counter.Result, 2)
		s.Take(t.Context(), charges, results)
		return results
	}
	for i := range 200 {
		if r := request(i % 50); !r[0].Allowed || !r[1].Allowed {
			t.Fatalf("%+v", r)
		}
	}
	if used(p) != 50 || used(slots) != 50 {
		t.Errorf("%d tokens and %d slots are taken by 50 requests", used(p), used(slots))
	}
	store.refuse[p.Parts[0].ID], store.lose[p.Parts[1].ID], store.lose[p.Parts[2].ID] = true, true, true
	refused := 0
	for i := range 50 {
		switch r := request(100 + i)[0]; {
		case r.Err != nil: // the request continues without this limit
			back := counter.Return{Counter: charge(slots, 1)[0].Counter, N: 1, Hold: hold(100 + i)}
			if err := s.GiveBack(t.Context(), counter.Once{}, 0, []counter.Return{back}); err != nil {
				t.Fatal(err)
			}
		case r.Allowed:
			t.Errorf("%+v", r)
		default:
			refused++
		}
		if n := used(slots); n != 50 {
			t.Fatalf("%d slots are taken by 50 requests", n)
		}
	}
	if refused == 0 {
		t.Error("no request met the part that refuses")
	}
}

// TestSplitWhole checks that people see a split limit as a whole, and that giving back and resetting affect the whole.
func TestSplitWhole(t *testing.T) {
	for _, a := range splitAlgorithms {
		for _, cost := range []int64{1, 7, 300} {
			c := newClock()
			rs := compiled(t, weir.Rule{ID: "hot", Strict: true, Split: 3, Algorithm: a, Limits: []weir.Limit{{Count: 1000, Window: time.Hour}}, Candidate: []weir.Limit{{Count: 2000, Window: time.Hour}}})
			inner := c.store()
			one, two := weir.NewLimiter(newSplitter(inner, time.Second), rs, weir.Options{Secret: []byte("s")}), weir.NewLimiter(newSplitter(inner, time.Second), rs, weir.Options{Secret: []byte("s")})
			left := func(want int64) {
				t.Helper()
				for i, l := range []*weir.Limiter{one, two} {
					d, err := l.Check(t.Context(), &weir.Request{APIKey: "k", Peek: true})
					if candidate := d.Limits()[1]; err != nil || d.Remaining != want || d.Policy.Limit.Count != 1000 || candidate.Remaining != want+1000 {
						t.Errorf("%s, cost %d, node %d: %d of %s left, want %d; and %d of the candidate; %v", a, cost, i, d.Remaining, d.Policy.Limit, want, candidate.Remaining, err)
					}
				}
			}
			var receipts []string
			for range 3 {
				d, err := one.Check(t.Context(), &weir.Request{APIKey: "k", Cost: cost, Receipt: true})
				if err != nil || !d.Allowed {
					t.Fatalf("%s: %+v %v", a, d, err)
				}
				receipts = append(receipts, d.Receipt)
			}
			left(1000 - 3*cost)
			for i, r := range receipts {
				if err := two.Finish(t.Context(), &weir.Decision{Receipt: r}, weir.Outcome{Abandoned: true}); err != nil {
					t.Fatal(err)
				}
				if err := one.Finish(t.Context(), &weir.Decision{Receipt: r}, weir.Outcome{Abandoned: true}); !errors.Is(err, counter.ErrUsed) {
					t.Errorf("%s: a receipt twice: %v", a, err)
				}
				left(1000 - int64(2-i)*cost)
			}
			for range 3 {
				if d, err := one.Check(t.Context(), &weir.Request{APIKey: "k", Cost: cost}); err != nil || !d.Allowed {
					t.Fatalf("%s: %+v %v", a, d, err)
				}
			}
			if n, err := two.Reset(t.Context(), &weir.Request{APIKey: "k"}); n != 2 || err != nil {
				t.Errorf("reset %d, %v", n, err)
			}
			left(1000)
			if d, _ := one.Check(t.Context(), &weir.Request{APIKey: "k", Cost: 1001}); d.Allowed || d.RetryAfter != weir.Never {
				t.Errorf("%s: a cost above the limit: %+v", a, d)
			}
			if d, _ := one.Check(t.Context(), &weir.Request{APIKey: "k", Cost: 1000}); !d.Allowed || d.Remaining != 0 {
				t.Errorf("%s: the whole limit at once: %+v", a, d)
			}
			left(0)
			if err := private.Credit(one, t.Context(), &weir.Request{APIKey: "k", Cost: 300}); err != nil {
				t.Error(err)
			}
			left(300)
		}
	}
}
