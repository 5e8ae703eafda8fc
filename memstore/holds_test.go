package memstore

import (
	"context"
	"encoding/binary"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
)

// once returns the i-th of many idempotency keys.
func once(i int) (o counter.Once) {
	binary.BigEndian.PutUint64(o[:], uint64(i)+1)
	return o
}

// holdN takes n, and leaves a hold behind.
func (s *Store) holdN(p *counter.Policy, subject []byte, n int64, i int) counter.Result {
	c := [1]counter.Charge{{Counter: counter.Counter{Policy: p, Subject: subject}, N: n, Hold: &counter.Hold{ID: once(i), For: time.Hour}}}
	var r [1]counter.Result
	s.Take(context.Background(), c[:], r[:])
	return r[0]
}

func (s *Store) settleN(p *counter.Policy, subject []byte, n int64, i int) {
	back := []counter.Return{{Counter: counter.Counter{Policy: p, Subject: subject}, N: n, Hold: &counter.Hold{ID: once(i)}}}
	_ = s.GiveBack(context.Background(), counter.Once{}, 0, back)
}

func slotPolicy(t testing.TB, n int64) *counter.Policy {
	return policy(t, counter.Limit{Algorithm: counter.Concurrency, Count: n, Window: time.Hour})
}

func amountPolicy(t testing.TB, n int64) *counter.Policy {
	return policy(t, counter.Limit{Count: n, Window: 24 * time.Hour, Decimal: true})
}

// Settling a request without a record writes nothing that counters share. The race detector would report it.
func TestSettlementsWithoutARecordShareNothing(t *testing.T) {
	amount := amountPolicy(t, 1000)
	var wg sync.WaitGroup
	for range 2 {
		s := New(Options{}) // with locks of its own
		wg.Go(func() {
			for i := range 100 {
				s.settleN(amount, subject(nil, i), 1, i)
			}
		})
	}
	wg.Wait()
}

func TestHoldsMoveWithTheirSegments(t *testing.T) {
	s := New(Options{MemoryCap: 1 << 30})
	slots, amount := slotPolicy(t, 1), amountPolicy(t, 1000)
	bucket := policy(t, counter.Limit{Algorithm: counter.LeakyBucket, Count: 3, Window: time.Hour})
	const workers, each, filling = 8, 500, 40
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			var buf []byte
			for i := range each {
				buf = subject(buf, w*each+i)
				if !s.holdN(slots, buf, 1, i).Allowed || !s.holdN(amount, buf, 600_000_000, i).Allowed {
					t.Errorf("client %d is refused", w*each+i)
				}
				for j := range filling { // has segments split
					buf = subject(buf, 1_000_000+(w*each+i)*filling+j)
					s.takeN(bucket, buf, 1)
				}
			}
		})
	}
	wg.Wait()
	s.table.check(t)
	if d := s.table.dir.Load(); len(d.layouts) == 1<<rootBits {
		t.Fatal("no segment was split")
	}
	var buf []byte
	for i := range workers * each {
		buf = subject(buf, i)
		if s.holdN(slots, buf, 1, -2).Allowed {
			t.Fatalf("the slot of client %d is lost", i)
		}
		s.settleN(slots, buf, 1, i%each)
		if !s.holdN(slots, buf, 1, -2).Allowed {
			t.Fatalf("the slot of client %d wasn't released", i)
		}
		s.settleN(amount, buf, 600_000_000, i%each)
		if !s.holdN(amount, buf, 600_000_000, -2).Allowed {
			t.Fatalf("the reservation of client %d didn't go back", i)
		}
	}
	s.table.check(t)
}

func TestHoldsThatEndLeaveNothing(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	s := New(Options{Now: func() time.Time { return now }})
	slots, amount := slotPolicy(t, 10), amountPolicy(t, 1000)
	log := policy(t, counter.Limit{Algorithm: counter.SlidingLog, Count: 10, Window: time.Hour})
	take := func() {
		for i := range 5 {
			for _, p := range []*counter.Policy{slots, amount, log} {
				if !s.holdN(p, []byte("s"), 1, i).Allowed {
					t.Fatal("refused")
				}
			}
		}
	}
	empty := func(how string) {
		t.Helper()
		s.table.check(t)
		if n := s.table.besideUse.Load(); n != 0 {
			t.Fatalf("%s: %d bytes are left", how, n)
		}
	}
	take()
	if st := s.Stats(); st.Counters != 3 {
		t.Errorf("%d counters, want 3: slots, an amount and a log", st.Counters)
	}
	for i := range 5 {
		for _, p := range []*counter.Policy{slots, amount, log} {
			s.settleN(p, []byte("s"), 1, i)
		}
	}
	empty("settled")
	take()
	for _, p := range []*counter.Policy{slots, amount, log} {
		_ = s.Reset(t.Context(), []counter.Counter{{Policy: p, Subject: []byte("s")}})
	}
	empty("reset")
	if st := s.Stats(); st.Counters != 0 {
		t.Errorf("%d counters after a reset", st.Counters)
	}
	take()
	now = now.Add(time.Hour)
	for _, p := range []*counter.Policy{slots, amount, log} { // looks, and returns of what isn't there
		s.settleN(p, []byte("s"), 1, 99)
	}
	s.takeN(log, []byte("s"), 100)
	empty("expired")
}

// At the memory cap, records are evicted first, then logs that are hardly used, and slots in use last.
func TestAtTheCapSlotsInUseStay(t *testing.T) {
	const cap = 2 << 20
	s := New(Options{MemoryCap: cap})
	slots, amount := slotPolicy(t, 1), amountPolicy(t, 1000)
	log := policy(t, counter.Limit{Algorithm: counter.SlidingLog, Count: 10, Window: time.Hour})
	var buf []byte
	const inUse = 500
	for i := range inUse {
		buf = subject(buf, i)
		s.holdN(slots, buf, 1, i)
	}
	for i := range 50_000 {
		buf = subject(buf, i)
		if !s.holdN(amount, buf, 1_000_000, i).Allowed || !s.takeN(log, buf, 1).Allowed {
			t.Fatalf("client %d is refused", i)
		}
	}
	s.table.check(t)
	if st := s.Stats(); st.Bytes > cap || st.Evicted == 0 {
		t.Errorf("%+v at a cap of %d", st, cap)
	}
	for i := range inUse {
		buf = subject(buf, i)
		if s.holdN(slots, buf, 1, -2).Allowed {
			t.Fatalf("the slot of client %d was evicted", i)
		}
	}
	// Tokens of reservations that can't be settled anymore stay taken.
	buf = subject(buf, 0)
	was := s.takeN(amount, buf, 1).Remaining
	s.settleN(amount, buf, 1_000_000, 0)
	if got := s.takeN(amount, buf, 1).Remaining; got > was {
		t.Errorf("an evicted record gave back %d millionths", got-was)
	}
	// If there is nothing but slots, even slots are evicted.
	for i := range 50_000 {
		buf = subject(buf, i)
		if i >= inUse && !s.holdN(slots, buf, 1, i).Allowed {
			t.Fatalf("client %d gets no slot", i)
		}
	}
	s.table.check(t)
	if st := s.Stats(); st.Bytes > cap {
		t.Errorf("%+v at a cap of %d", st, cap)
	}
}

// The reservations of a single client can't exceed the memory cap. Evicting them gives no tokens back.
func TestOneCountersRecordsStayBelowTheCap(t *testing.T) {
	const cap = 2 << 20
	s := New(Options{MemoryCap: cap})
	p := amountPolicy(t, 1_000_000)
	for i := range 100_000 {
		if !s.holdN(p, []byte("s"), 1_000_000, i).Allowed {
			t.Fatalf("reservation %d is refused", i)
		}
	}
	s.table.check(t)
	if st := s.Stats(); st.Bytes > cap {
		t.Errorf("%+v at a cap of %d", st, cap)
	}
	left := func() int64 { return s.takeN(p, []byte("s"), 1).Remaining }
	was := left()
	s.settleN(p, []byte("s"), 1_000_000, 0)
	if got := left(); got >= was+1_000_000 {
		t.Errorf("the oldest reservation, which is forgotten, went back: %d, and %d before", got, was)
	}
	was = left()
	s.settleN(p, []byte("s"), 1_000_000, 99_999)
	if got := left(); got < was+999_999 {
		t.Errorf("the newest reservation didn't go back: %d, and %d before", got, was)
	}
}
