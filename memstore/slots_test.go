package memstore

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir/counter"
)

// listed is a slot as Slots returned it.
type listed struct {
	id          counter.Once
	n           int64
	since, ends time.Time
}

func (s *Store) listed(t *testing.T, p *counter.Policy, subject []byte, most int) (all []listed) {
	t.Helper()
	if err := s.Slots(t.Context(), &counter.Counter{Policy: p, Subject: subject}, most, func(id counter.Once, n int64, since, ends time.Time) {
		all = append(all, listed{id, n, since, ends})
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

// Slots lists a counter's slots with the times at which they were taken and end. A renewal changes only the end. Other
// counters' slots, released or expired slots, and reservations aren't listed.
func TestListOfSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		p, subject := slotPolicy(t, 10), []byte("sk_1")
		c := &counter.Counter{Policy: p, Subject: subject}
		of := func(i int) int64 {
			n, err := s.Slot(t.Context(), c, once(i))
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		if all := s.listed(t, p, subject, 10); all != nil || of(1) != 0 {
			t.Fatalf("nobody has taken any: %v", all)
		}
		begun := time.Now().Truncate(time.Microsecond)
		s.holdN(p, subject, 1, 1)
		time.Sleep(time.Minute)
		s.holdN(p, subject, 3, 2)
		s.holdN(p, []byte("sk_2"), 1, 3)
		time.Sleep(time.Minute)
		s.holdN(p, subject, 1, 1) // renewed
		want := []listed{
			{once(2), 3, begun.Add(time.Minute), begun.Add(time.Minute + time.Hour)},
			{once(1), 1, begun, begun.Add(2*time.Minute + time.Hour)},
		}
		all := s.listed(t, p, subject, 10)
		if len(all) != 2 {
			t.Fatalf("%v", all)
		}
		for i, w := range want {
			if g := all[i]; g.id != w.id || g.n != w.n || g.since.Sub(w.since).Abs() > time.Millisecond || g.ends.Sub(w.ends).Abs() > time.Millisecond {
				t.Errorf("%d: got %v, want %v", i, g, w)
			}
		}
		if of(1) != 1 || of(2) != 3 || of(3) != 0 {
			t.Errorf("%d, %d, %d slots", of(1), of(2), of(3))
		}
		if all := s.listed(t, p, subject, 1); len(all) != 1 || all[0].id != once(2) {
			t.Errorf("one alone: %v", all)
		}
		if all := s.listed(t, p, subject, 0); all != nil {
			t.Errorf("none: %v", all)
		}
		time.Sleep(time.Hour - 30*time.Second) // the second has ended, and nothing has cleaned it up
		if all := s.listed(t, p, subject, 10); len(all) != 1 || all[0].id != once(1) || of(2) != 0 {
			t.Errorf("after its end: %v", all)
		}
		s.settleN(p, subject, 1, 1)
		if all := s.listed(t, p, subject, 10); all != nil || of(1) != 0 {
			t.Errorf("after its release: %v", all)
		}
		reserved := amountPolicy(t, 10)
		s.holdN(reserved, subject, 1, 1)
		if all := s.listed(t, reserved, subject, 10); all != nil {
			t.Errorf("a reservation: %v", all)
		}
	})
}
