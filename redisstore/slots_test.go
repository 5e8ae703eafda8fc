package redisstore

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/storetest"
)

// shownSlot is a slot as listed by Slots.
type shownSlot struct {
	id          counter.Once
	n           int64
	since, ends int64 // µs
}

type lister interface {
	counter.Store
	Slots(ctx context.Context, c *counter.Counter, most int, each func(id counter.Once, n int64, since, ends time.Time)) error
	Slot(ctx context.Context, c *counter.Counter, id counter.Once) (int64, error)
}

func slotsOf(t *testing.T, s lister, p *counter.Policy, subject string, most int) (all []shownSlot) {
	t.Helper()
	if err := s.Slots(t.Context(), &counter.Counter{Policy: p, Subject: []byte(subject)}, most, func(id counter.Once, n int64, since, ends time.Time) {
		all = append(all, shownSlot{id, n, since.UnixMicro(), ends.UnixMicro()})
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

func slotOfHold(t *testing.T, s lister, p *counter.Policy, subject string, hold int) int64 {
	t.Helper()
	n, err := s.Slot(t.Context(), &counter.Counter{Policy: p, Subject: []byte(subject)}, id(hold))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestListOfSlots checks that both stores list the same slots, on a server and on a Cluster, whichever node took them.
func TestListOfSlots(t *testing.T) {
	t.Parallel()
	oneServerAndACluster(t, func(t *testing.T, url string) {
		var us atomic.Int64
		us.Store(storetest.Start.UnixMicro())
		now := func() time.Time { return time.UnixMicro(us.Load()) }
		s, other := open(t, Options{URL: url, Now: now}), open(t, Options{URL: url, Now: now})
		local := memstore.New(memstore.Options{Now: now})
		p := slotted(t, "slots", 100, time.Minute)
		same := func(what string, want int) []shownSlot {
			t.Helper()
			for _, most := range []int{0, 1, 7, 1 << 20} {
				for _, subject := range []string{"a", "b", "none"} {
					got, wanted := slotsOf(t, s, p, subject, most), slotsOf(t, local, p, subject, most)
					if !slices.Equal(got, wanted) {
						t.Fatalf("%s: %d of %s: got %v, want %v", what, most, subject, got, wanted)
					}
				}
			}
			for hold := range 12 {
				if got, want := slotOfHold(t, s, p, "a", hold), slotOfHold(t, local, p, "a", hold); got != want {
					t.Fatalf("%s: hold %d has %d slots, want %d", what, hold, got, want)
				}
			}
			all := slotsOf(t, s, p, "a", 1<<20)
			if len(all) != want {
				t.Fatalf("%s: %d slots, want %d", what, len(all), want)
			}
			return all
		}
		same("none", 0)
		for i := range 10 {
			for _, store := range []counter.Store{other, local} {
				mustTake(t, store, holding(p, "a", int64(i+1), i))
				mustTake(t, store, holding(p, "b", 1, i+20))
			}
			us.Add(1_000_000)
		}
		first := same("taken", 10)[0]
		if first.id != id(0) || first.n != 1 || first.since != storetest.Start.UnixMicro() || first.ends != first.since+60_000_000 {
			t.Errorf("%+v", first)
		}
		for _, store := range []counter.Store{other, local} {
			mustTake(t, store, holding(p, "a", 1, 0))
		}
		if last := same("renewed", 10)[9]; last.id != id(0) || last.since != first.since || last.ends != us.Load()+60_000_000 {
			t.Errorf("%+v", last)
		}
		us.Store(storetest.Start.UnixMicro() + 62_000_000) // the second and the third have ended, and are still there
		same("some have ended", 8)
		for _, store := range []counter.Store{s, local} {
			c := holding(p, "a", 5, 4)
			if err := store.GiveBack(t.Context(), counter.Once{}, 0, []counter.Return{back(c, counter.Result{}, 0)}); err != nil {
				t.Fatal(err)
			}
		}
		same("released", 7)
		us.Add(time.Hour.Microseconds())
		same("all have ended", 0)
	})
}

// TestNoSlots checks that other kinds of limits have no slots, and that foreign data is skipped and left unchanged.
func TestNoSlots(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	s := open(t, Options{URL: "redis://" + r.Addr})
	reserved := amounts(t, "amount", counter.TokenBucket, 10, time.Hour)
	mustTake(t, s, holding(reserved, "a", 1_000_000, 1))
	if all := slotsOf(t, s, reserved, "a", 10); all != nil || slotOfHold(t, s, reserved, "a", 1) != 0 {
		t.Errorf("of a reservation: %v", all)
	}
	p := slotted(t, "slots", 100, time.Hour)
	mustTake(t, s, holding(p, "a", 2, 1))
	records, ends := keysOf(s, p, "a")
	const soon = "9000000000000000"
	add := func(name, record, end string) {
		t.Helper()
		if record != "" {
			do(t, r, "HSET", records, name, record)
		}
		do(t, r, "ZADD", ends, end, name)
	}
	name := func(n int) string { o := id(n); return string(o[:]) }
	record := do(t, r, "HGET", records, name(1)).(string)
	add(name(2), "", soon)                         // no record
	add(name(3), "x", soon)                        // a short one
	add(name(4), "\x01"+record[1:], soon)          // of another form
	add(name(5), record, "+inf")                   // without an end
	add(name(6), record, "-5")                     // which ended before time began
	add("short", record, soon)                     // of another name
	add(name(7), record[:1]+zero+record[8:], soon) // of no slots
	do(t, r, "HSET", records, name(8), record)
	if all := slotsOf(t, s, p, "a", 10); len(all) != 1 || all[0].id != id(1) || all[0].n != 2 {
		t.Errorf("%v", all)
	}
	if got := slotOfHold(t, s, p, "a", 8); got != 2 {
		t.Errorf("a slot without an end can't be released: it has %d slots", got)
	}
	for hold := 2; hold <= 4; hold++ {
		if got := slotOfHold(t, s, p, "a", hold); got != 0 {
			t.Errorf("hold %d has %d slots", hold, got)
		}
	}
	for _, key := range []string{records, ends} {
		do(t, r, "DEL", key)
		do(t, r, "SET", key, "text", "EX", "60")
		if all := slotsOf(t, s, p, "a", 10); all != nil {
			t.Errorf("%s is a text: %v", key, all)
		}
		slotOfHold(t, s, p, "a", 1)
		if got := do(t, r, "GET", key); got != "text" {
			t.Errorf("%s is now %v", key, got)
		}
		do(t, r, "DEL", key)
	}
	r.Kill()
	c := &counter.Counter{Policy: p, Subject: []byte("a")}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := s.Slots(ctx, c, 10, nil); !unavailable(err) {
		t.Error(err)
	}
	if _, err := s.Slot(ctx, c, id(1)); !unavailable(err) {
		t.Error(err)
	}
}

const zero = "\x00\x00\x00\x00\x00\x00\x00"

// TestSlotsOfRedisTime checks that Redis' clock decides if the store has no clock of its own, and that one call lists a bounded
// number of slots.
func TestSlotsOfRedisTime(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	s := open(t, Options{URL: "redis://" + r.Addr})
	p := slotted(t, "slots", 2*maxSlots, time.Hour)
	before := time.Now().Add(-time.Second).UnixMicro()
	for i := range maxSlots + 5 {
		mustTake(t, s, holding(p, "a", 1, i))
	}
	all := slotsOf(t, s, p, "a", 2*maxSlots)
	if len(all) != maxSlots {
		t.Errorf("%d slots", len(all))
	}
	for _, sl := range all {
		if sl.since < before || sl.since > time.Now().Add(time.Second).UnixMicro() || sl.ends != sl.since+time.Hour.Microseconds() {
			t.Fatalf("%+v", sl)
		}
	}
	if slotOfHold(t, s, p, "a", maxSlots+4) != 1 {
		t.Error("the last one isn't found")
	}
}
