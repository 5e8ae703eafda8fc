//go:build !race

// The race detector uses memory and allocates, so these tests run without it.

package memstore

import (
	"runtime"
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
)

func heap() int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestAllocsPerTakeAreNone(t *testing.T) {
	for _, a := range []counter.Algorithm{counter.TokenBucket, counter.LeakyBucket, counter.LeakyQueue, counter.FixedWindow, counter.SlidingCounter} {
		s := New(Options{})
		p := policy(t, counter.Limit{Algorithm: a, Count: 500, Window: time.Hour})
		q, err := counter.NewPolicy("q", counter.Limit{Algorithm: a, Count: 100, Window: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		id := []byte("client")
		charges := []counter.Charge{
			{Counter: counter.Counter{Policy: p, Subject: id}, N: 1},
			{Counter: counter.Counter{Policy: q, Subject: id}, N: 1},
		}
		results := make([]counter.Result, 2)
		s.Take(t.Context(), charges, results)
		for n := 1; n <= 2; n++ { // first one counter, then two; first allowed, then refused
			if got := testing.AllocsPerRun(1000, func() { s.Take(t.Context(), charges[:n], results[:n]) }); got != 0 {
				t.Errorf("%s: %v allocations for %d charges", a, got, n)
			}
		}
	}
}

func TestMemoryPerCounter(t *testing.T) {
	before := heap()
	s := New(Options{MemoryCap: 4 << 30})
	p := policy(t, counter.Limit{Count: 100, Window: time.Hour})
	var buf []byte
	worst := 0.0
	const million, all = 1_000_000, 5_000_000 // the table doubles twice on the way; it is as full as at ten million
	for i := range all {
		buf = subject(buf, i)
		s.takeN(p, buf, 1)
		if n := i + 1; n >= million && n%(million/20) == 0 {
			worst = max(worst, float64(s.table.pageUse.Load())/float64(n))
		}
	}
	runtime.GC()
	per := float64(heap()-before) / all
	t.Logf("%.1f bytes a counter at 5 M, %.1f at worst on the way", per, worst)
	if per > 40 || worst > 60 {
		t.Errorf("%.1f bytes a counter at 5 M, %.1f at worst on the way; want 40 and 60", per, worst)
	}
	runtime.KeepAlive(s)
}

func TestMemoryStaysBelowTheCapInAFlood(t *testing.T) {
	runtime.GC()
	before := heap()
	const cap, clients = 64 << 20, 5_000_000
	s := New(Options{MemoryCap: cap})
	p := policy(t, counter.Limit{Count: 10, Window: time.Hour})
	s.takeN(p, []byte("blocked"), 10)
	var buf []byte
	peak := int64(0)
	for i := range clients {
		buf = subject(buf, i)
		if !s.takeN(p, buf, 1).Allowed {
			t.Fatalf("new client %d refused", i)
		}
		if i%100_000 == 0 {
			peak = max(peak, heap()-before)
		}
	}
	t.Logf("heap at most %d MiB, %+v", peak>>20, s.Stats())
	if peak > cap+cap/4 {
		t.Errorf("the heap reached %d MiB at a cap of %d MiB", peak>>20, int64(cap)>>20)
	}
	if s.takeN(p, []byte("blocked"), 1).Allowed {
		t.Error("the blocked client was forgotten")
	}
}

// The memory that the store accounts for holds is slightly more than they really use.
func TestMemoryPerHold(t *testing.T) {
	for _, c := range []struct{ counters, each int }{{50_000, 1}, {10_000, 8}, {10_000, 9}, {1, 100_000}} {
		for name, p := range map[string]*counter.Policy{"slot": slotPolicy(t, 100_000), "reservation": amountPolicy(t, 1_000_000)} {
			runtime.GC()
			before := heap()
			s := New(Options{MemoryCap: 1 << 30})
			var buf []byte
			for i := range c.counters {
				buf = subject(buf, i)
				for j := range c.each {
					s.holdN(p, buf, 1, i<<20|j)
				}
			}
			runtime.GC()
			n := float64(c.counters * c.each)
			took, booked := float64(heap()-before)/n, float64(s.Bytes())/n
			t.Logf("%s, %d of each of %d counters: %.0f bytes, booked %.0f", name, c.each, c.counters, took, booked)
			if took > booked+5 || booked > 2*took {
				t.Errorf("%s, %d of each of %d counters: %.0f bytes, booked %.0f", name, c.each, c.counters, took, booked)
			}
			runtime.KeepAlive(s)
		}
	}
}
