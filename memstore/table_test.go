package memstore

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func policy(t testing.TB, l counter.Limit) *counter.Policy {
	t.Helper()
	p, err := counter.NewPolicy("p", l)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// subject returns the i-th of many subjects without allocating.
func subject(buf []byte, i int) []byte {
	return binary.BigEndian.AppendUint64(append(buf[:0], "client-"...), uint64(i))
}

func (s *Store) takeN(p *counter.Policy, subject []byte, n int64) counter.Result {
	c := [1]counter.Charge{{Counter: counter.Counter{Policy: p, Subject: subject}, N: n}}
	var r [1]counter.Result
	s.Take(context.Background(), c[:], r[:])
	return r[0]
}

// check verifies the invariants of the table: a search finds every counter, in the segment that owns it; the number of counters
// is right; and the memory outside the pages is accounted for.
func (t *table) check(tb testing.TB) {
	tb.Helper()
	booked := int64(0)
	defer func() {
		if use := t.besideUse.Load(); use != booked {
			tb.Fatalf("logs and holds take %d bytes, and %d are booked", booked, use)
		}
	}()
	t.each(func(g *segment) {
		l := g.layout
		for h, b := range g.beside {
			if booked += b.bytes; !l.owns(h) || b.log == nil && b.holds == nil || b.holds != nil && b.holds.len() == 0 {
				tb.Fatalf("%+v of %x stands in segment %x/%d", b, h, l.prefix, l.depth)
			}
		}
		for k, p := range l.pages[:l.npages] {
			n := 0
			for i := range p {
				h := p[i].tag
				if h == 0 {
					continue
				}
				n++
				if h&busy != 0 {
					tb.Fatalf("hash %x was left locked", h)
				}
				if !l.owns(h) || l.pageOf(h) != k {
					tb.Fatalf("hash %x stands in page %d of segment %x/%d", h, k, l.prefix, l.depth)
				}
				if at, ok := p.search(h); !ok || at != i {
					tb.Fatalf("hash %x stands at %d, a search finds %d, %v", h, i, at, ok)
				}
			}
			if n != int(g.counts[k]) {
				tb.Fatalf("page has %d counters, counted %d", n, g.counts[k])
			}
		}
	})
}

func TestPageAgreesWithMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p page
		want := map[uint64]uint64{}
		for range rapid.IntRange(1, 400).Draw(t, "steps") {
			// Use few hashes, so that runs grow long and wrap around the end.
			h := uint64(rapid.IntRange(1, 30).Draw(t, "hash"))<<9 | uint64(rapid.SampledFrom([]int{0, 1, 2, 128, 253, 254, 255}).Draw(t, "home"))<<1
			i, found := p.search(h)
			if _, ok := want[h]; ok != found {
				t.Fatalf("hash %x found %v, want %v", h, found, ok)
			}
			switch {
			case !found && len(want) < pageFull:
				v := rapid.Uint64().Draw(t, "value")
				s := p.insert(h)
				s.level = v
				s.unlock(h)
				want[h] = v
			case found && rapid.Bool().Draw(t, "remove"):
				p[i].lock(h)
				p.remove(i)
				delete(want, h)
			}
		}
		for h, v := range want {
			if i, ok := p.search(h); !ok || p[i].level != v {
				t.Fatalf("hash %x lost", h)
			}
		}
	})
}

func TestGrowthLosesNothing(t *testing.T) {
	s := New(Options{MemoryCap: 1 << 30})
	p := policy(t, counter.Limit{Count: 3, Window: time.Hour})
	const workers, each = 8, 12_000
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			var buf []byte
			for i := range each {
				for n := range 4 { // the fourth must be refused, whatever moved meanwhile
					buf = subject(buf, w*each+i)
					if r := s.takeN(p, buf, 1); r.Allowed != (n < 3) {
						t.Errorf("client %d, take %d: %+v", w*each+i, n, r)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	s.table.check(t)
	if st := s.Stats(); st.Counters != workers*each || st.Evicted != 0 {
		t.Fatalf("%+v, want %d counters", st, workers*each)
	}
	var buf []byte
	for i := range workers * each {
		buf = subject(buf, i)
		if s.takeN(p, buf, 1).Allowed {
			t.Fatalf("client %d was forgotten", i)
		}
	}
}

func TestIdleCountersAreReclaimed(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	s := New(Options{MemoryCap: 1 << 30, Now: func() time.Time { return now }})
	p := policy(t, counter.PerSecond(10))
	var buf []byte
	const batch = 60_000
	fill := func(from int) {
		for i := range batch {
			buf = subject(buf, from+i)
			s.takeN(p, buf, 10)
		}
	}
	fill(0)
	full := s.Stats().Bytes
	for round := 1; round < 20; round++ {
		now = now.Add(2 * time.Second)
		fill(round * batch)
	}
	s.table.check(t)
	if st := s.Stats(); st.Bytes > 2*full || st.Evicted != 0 {
		t.Fatalf("after 20 batches of idle clients the store has %d bytes, after one it had %d (%+v)", st.Bytes, full, st)
	}
}

func TestAtTheCapBlockedClientsStay(t *testing.T) {
	for _, a := range []counter.Algorithm{counter.TokenBucket, counter.LeakyBucket, counter.FixedWindow, counter.SlidingCounter, counter.SlidingLog} {
		t.Run(a.String(), func(t *testing.T) {
			s := New(Options{MemoryCap: 2 << 20})
			p := policy(t, counter.Limit{Algorithm: a, Count: 10, Window: 24 * time.Hour})
			s.takeN(p, []byte("blocked"), 10)
			var buf []byte
			for i := range 200_000 {
				buf = subject(buf, i)
				if r := s.takeN(p, buf, 1); !r.Allowed {
					t.Fatalf("new client %d refused: %+v", i, r)
				}
			}
			s.table.check(t)
			if s.takeN(p, []byte("blocked"), 1).Allowed {
				t.Error("the blocked client was forgotten")
			}
			if st := s.Stats(); st.Bytes > 2<<20 || st.Evicted == 0 {
				t.Errorf("%+v at a cap of %d", st, 2<<20)
			}
		})
	}
}

func TestLogsAndPagesShareTheCap(t *testing.T) {
	const cap = 4 << 20
	s := New(Options{MemoryCap: cap})
	log := policy(t, counter.Limit{Algorithm: counter.SlidingLog, Count: 1000, Window: time.Hour})
	bucket := policy(t, counter.Limit{Count: 1000, Window: time.Hour})
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 1))
			var buf []byte
			for range 30_000 {
				buf = subject(buf, rng.IntN(100_000))
				s.takeN(log, buf, 1)
				s.takeN(bucket, buf, 1)
				s.takeN(log, []byte("busy"), 1)
			}
		})
	}
	wg.Wait()
	s.table.check(t)
	// A log is booked after it was written, so each worker may be one log ahead.
	if st := s.Stats(); st.Bytes > cap+cap/64 {
		t.Errorf("%+v at a cap of %d", st, cap)
	}
}

func TestSlotRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.SampledFrom([]counter.Algorithm{counter.TokenBucket, counter.LeakyQueue, counter.FixedWindow, counter.SlidingCounter}).Draw(t, "algorithm")
		count := rapid.Int64Range(1, 1<<31-1).Draw(t, "count")
		p, err := counter.NewPolicy("p", counter.Limit{Algorithm: a, Count: count, Window: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		epoch := int64(1_700_000_000_000_000)
		st := counter.State{Time: epoch + rapid.Int64Range(1, maxTime).Draw(t, "time"), Level: rapid.Int64Range(0, count).Draw(t, "level")}
		if a == counter.SlidingCounter {
			st.Prev = rapid.Int64Range(0, count).Draw(t, "prev")
		}
		var s cell
		s.encode(p, st, epoch)
		if got := s.decode(p, epoch); got != st {
			t.Fatalf("got %+v, want %+v", got, st)
		}
		// A counter's worth doesn't reach zero before the counter is full again.
		if _, whole := p.Spent(st); s.worth(st.Time+whole-1, epoch) == 0 {
			t.Fatalf("worthless %d µs after its time, whole after %d", whole-1, whole)
		}
	})
}

func TestSpanCodeRoundsUpByAFourthAtMost(t *testing.T) {
	for _, us := range []int64{1, 3, 4, 5, 7, 8, 1000, 999_999, 60_000_000, 86_400_000_000, 1 << 48} {
		if got := spanLength(spanCode(us)); got <= us && us >= 4 || got > us+us/4+4 {
			t.Errorf("span of %d µs is read as %d", us, got)
		}
	}
}

func TestClockFollowsTheWallClockWithinASecond(t *testing.T) {
	var c clock
	c.init()
	c.offset.Add(-time.Hour.Microseconds()) // as if the wall clock had been set an hour ahead since
	if d := time.Now().UnixMicro() - c.now(); d < 3599e6 {
		t.Fatalf("off by %d µs before it has looked", d)
	}
	c.synced.Add(-syncEvery)
	if d := time.Now().UnixMicro() - c.now(); d > 1e6 || d < -1e6 {
		t.Fatalf("off by %d µs after it has looked", d)
	}
}

func ExampleStore_Stats() {
	s := New(Options{MemoryCap: 64 << 20})
	p, _ := counter.NewPolicy("api", counter.PerMinute(100))
	for i := range 3 {
		s.takeN(p, subject(nil, i), 1)
	}
	fmt.Println(s.Stats().Counters)
	// Output: 3
}
