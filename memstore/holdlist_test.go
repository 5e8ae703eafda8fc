package memstore

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
	"pgregory.net/rapid"
)

const micro = 1_000_000

func date(y int, m time.Month, d int) time.Time { return time.Date(y, m, d, 0, 0, 0, 0, time.UTC) }

func onceOf(n int) (id counter.Once) {
	binary.BigEndian.PutUint64(id[8:], uint64(n))
	return id
}

// plainHolds is the plain version of a holdList: a slice that is sorted before each look.
type plainHolds []holding

func (h *plainHolds) sort() {
	slices.SortFunc(*h, func(a, b holding) int { return cmp.Or(cmp.Compare(a.end, b.end), bytes.Compare(a.id[:], b.id[:])) })
}

func (h plainHolds) find(id counter.Once) int {
	return slices.IndexFunc(h, func(e holding) bool { return e.id == id })
}

// put adds a hold. If the hold exists, it changes only the end of a slot.
func (h *plainHolds) put(of *counter.Hold, now, n, slot int64, slots bool) {
	e := holding{id: of.ID, end: now + of.For.Microseconds(), n: n, slot: slot, giveBack: of.GiveBack}
	switch i := h.find(of.ID); {
	case i < 0:
		*h = append(*h, e)
	case (*h)[i].returned:
		(*h)[i] = e
	case slots:
		(*h)[i].end = e.end
	}
}

// free removes the holds that end first.
func (h *plainHolds) free(n int64) {
	for range 128 {
		switch first := *h; {
		case n <= 0 || len(first) == 0:
			return
		case first[0].n > n:
			first[0].n -= n
			return
		default:
			n -= first[0].n
			*h = first[1:]
		}
	}
}

// expire removes the holds that are due, and returns those that give tokens back, in order.
func (h *plainHolds) expire(now int64, slots bool) (back []holding) {
	for range 128 {
		if len(*h) == 0 || (*h)[0].end > now {
			break
		}
		e := (*h)[0]
		*h = (*h)[1:]
		if e.giveBack && !e.returned && !slots {
			back = append(back, e)
			e.returned = true
			e.end += 24 * 3600 * micro
			*h = append(slices.Clip(*h), e)
			h.sort()
		}
	}
	return back
}

func (h *plainHolds) end(r *counter.Return) (n int64) {
	i := h.find(r.Hold.ID)
	if i < 0 {
		return min(0, r.N-r.Used)
	}
	e := (*h)[i]
	*h = slices.Delete(slices.Clone(*h), i, i+1)
	if e.returned {
		return -r.Used
	}
	return min(e.n, r.N) - r.Used
}

func (h plainHolds) sum() (n int64) {
	for _, e := range h {
		n += e.n
	}
	return n
}

// A holdList behaves like a sorted slice, in whatever order holds are added, renewed, settled and expire. The state of counters
// equals the sum of what was taken, booked and given back.
func TestHoldsAgainstASlice(t *testing.T) {
	const count = 1_000_000_000
	policies := []*counter.Policy{
		policy(t, counter.Limit{Algorithm: counter.Concurrency, Count: 100_000, Window: time.Minute}),
		policy(t, counter.Limit{Algorithm: counter.FixedWindow, Count: count, Window: 366 * 24 * time.Hour}),
	}
	prop := func(t *rapid.T) {
		p := rapid.SampledFrom(policies).Draw(t, "policy")
		slots := p.Limit.Algorithm == counter.Concurrency
		var h holdList
		var want plainHolds
		start := date(2024, 3, 10).UnixMicro()
		now, slot, level := start, int64(0), int64(1000)
		state := counter.State{}
		if !slots {
			state, _ = p.Try(state, now, level)
			slot = state.Time
		}
		many := rapid.Bool().Draw(t, "many at once")
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				of := &counter.Hold{
					ID:       onceOf(rapid.IntRange(0, 30).Draw(t, "id")),
					For:      time.Duration(rapid.IntRange(0, 20).Draw(t, "for")) * time.Second,
					GiveBack: rapid.Bool().Draw(t, "back"),
				}
				n := rapid.Int64Range(0, 9).Draw(t, "n")
				if !slots && !h.has(of.ID) {
					state, _ = p.Try(state, now, n)
					level += n
				}
				h.hold(p, of, now, n, slot)
				want.put(of, now, n, slot, slots)
				want.sort()
			},
			"put many": func(t *rapid.T) {
				if !many {
					t.Skip()
				}
				from := rapid.IntRange(100, 300).Draw(t, "from")
				for i := range 150 {
					of := &counter.Hold{ID: onceOf((from + i*7) % 400), For: time.Duration(i%3) * time.Second}
					h.hold(p, of, now, 1, slot)
					want.put(of, now, 1, slot, slots)
				}
				want.sort()
			},
			"settle": func(t *rapid.T) {
				r := &counter.Return{N: rapid.Int64Range(0, 9).Draw(t, "n"), Used: rapid.Int64Range(0, 12).Draw(t, "used"), Slot: slot}
				r.Hold = &counter.Hold{ID: onceOf(rapid.IntRange(0, 30).Draw(t, "id"))}
				state = h.settle(p, state, now, r)
				if n := want.end(r); !slots {
					level = max(0, level-n)
				}
			},
			"expire": func(t *rapid.T) {
				now += rapid.SampledFrom([]int64{0, 1, 500_000, micro, 5 * micro, 24 * 3600 * micro}).Draw(t, "later")
				state = h.expire(p, state, now)
				for _, e := range want.expire(now, slots) {
					level = max(0, level-e.n)
				}
			},
			"free": func(t *rapid.T) {
				if !slots {
					t.Skip()
				}
				n := rapid.SampledFrom([]int64{0, 1, 5, 200}).Draw(t, "n")
				h.free(n)
				want.free(n)
			},
			"drop": func(t *rapid.T) {
				n := rapid.IntRange(0, 3).Draw(t, "n")
				h.drop(n)
				want = want[min(n, len(want)):]
			},
			"": func(t *rapid.T) {
				var got plainHolds
				for _, e := range h.list {
					if !e.dead {
						got = append(got, e)
					}
				}
				if !slices.Equal(got, want) {
					t.Fatalf("%+v\nwant %+v", got, want)
				}
				if h.len() != len(want) || h.sum != want.sum() {
					t.Fatalf("%d of %d, want %d of %d", h.len(), h.sum, len(want), want.sum())
				}
				for i := range 31 {
					at := want.find(onceOf(i))
					if h.has(onceOf(i)) != (at >= 0 && !want[at].returned) {
						t.Fatalf("has %d: %v", i, h.has(onceOf(i)))
					}
				}
				first := h.first()
				switch {
				case len(want) == 0:
					if first != nil || h.lastEnd() != 0 {
						t.Fatalf("of none, first %v and the last one's end %d", first, h.lastEnd())
					}
				case *first != want[0] || h.lastEnd() != want[len(want)-1].end:
					t.Fatalf("first %v and the last one's end %d, want %v and %v", first, h.lastEnd(), want[0], want[len(want)-1])
				}
				if !slots && state.Level != level {
					t.Fatalf("%d are taken, want %d", state.Level, level)
				}
			},
		})
	}
	for i := 0; i < 5 && !t.Failed(); i++ {
		rapid.Check(t, prop)
	}
}

func TestSettle(t *testing.T) {
	now := date(2024, 3, 10).UnixMicro()
	const hour = int64(3600 * micro)
	for _, row := range []struct {
		name    string
		n, used int64
		record  int64 // what the record stands for, or -1 for none
		back    bool  // its time was over, and it has gone back
		want    int64 // of 1,000 before
	}{
		{"less was used", 300, 100, 300, false, 1200},
		{"all of it", 300, 300, 300, false, 1000},
		{"nothing", 300, 0, 300, false, 1300},
		{"more was used", 300, 450, 300, false, 850},
		{"far more than there is", 300, 5300, 300, false, -4000},
		{"less, and the record is gone", 300, 100, -1, false, 1000},
		{"more, and the record is gone", 300, 450, -1, false, 850},
		{"it has gone back", 300, 100, 300, true, 1200},
		{"nothing was used of what has gone back", 300, 0, 300, true, 1300},
		{"a repeated check asked for more than was taken", 500, 100, 300, false, 1200},
		{"a repeated check asked for less than was taken", 200, 100, 300, false, 1100},
	} {
		for _, a := range []counter.Algorithm{counter.TokenBucket, counter.LeakyBucket, counter.FixedWindow} {
			p := policy(t, counter.Limit{Algorithm: a, Decimal: true, Count: 10_000, Window: 240 * time.Hour})
			p = p.With(func(d *counter.Definition) { d.GivesBack = true })
			left := func(s counter.State, now int64) int64 { return p.Limit.Count*micro - taken(p, s, now) }
			s, _ := p.Try(counter.State{}, now, 9000*micro) // 1,000 are left
			var h holdList
			id := onceOf(7)
			r := &counter.Return{N: row.n * micro, Used: row.used * micro, Hold: &counter.Hold{ID: id}, Slot: p.Report(s, now, 0, counter.Fits).Slot}
			if row.record >= 0 {
				h.put(&counter.Hold{ID: id, For: time.Hour, GiveBack: row.back}, now, row.record*micro, r.Slot)
			}
			at := now
			if row.back {
				s = h.expire(p, s, now+hour-1)
				if got := left(s, now); got != 1000*micro || h.len() != 1 {
					t.Errorf("%s, %s: a microsecond before its end, %d are left", row.name, a, got)
				}
				at = now + hour
				s = h.expire(p, s, at)
				if h.len() != 1 {
					t.Fatalf("%s, %s: the record isn't kept", row.name, a)
				}
			}
			refilled := left(s, at)
			s = h.settle(p, s, at, r)
			got := left(s, at)
			if row.back {
				got = got - refilled + 1300*micro // whatever a bucket has refilled
			}
			if got != row.want*micro || h.len() != 0 {
				t.Errorf("%s, %s: %d millionths are left, want %d", row.name, a, got, row.want*micro)
			}
			if again := h.settle(p, s, at, &counter.Return{N: row.n * micro, Hold: r.Hold, Slot: r.Slot}); again != s {
				t.Errorf("%s, %s: settled twice", row.name, a)
			}
		}
	}
}

// taken returns how many tokens an untouched counter has more than this state, which may be below zero.
func taken(p *counter.Policy, s counter.State, now int64) int64 {
	if p.Limit.Algorithm <= counter.LeakyQueue {
		return int64(p.Limit.Capacity()) - p.Level(s, now)
	}
	w, _ := p.Windows(s, now)
	return w.Level
}

// A reservation goes back to the window that it was taken from, and to no other.
func TestSettleInAPastWindow(t *testing.T) {
	p := policy(t, counter.Limit{Algorithm: counter.FixedWindow, Decimal: true, Count: 50, Window: 31 * 24 * time.Hour, Calendar: counter.Calendar{Unit: counter.Month}})
	march, april := date(2024, 3, 1).UnixMicro(), date(2024, 4, 1).UnixMicro()
	s, _ := p.Try(counter.State{}, april-1, 10*micro)
	var h holdList
	for i := range 2 {
		h.put(&counter.Hold{ID: onceOf(i), For: time.Hour, GiveBack: i == 1}, april-1, 5*micro, march)
	}
	s, _ = p.Try(s, april, 20*micro)
	s = h.settle(p, s, april+1, &counter.Return{N: 5 * micro, Used: micro, Hold: &counter.Hold{ID: onceOf(0)}, Slot: march})
	if s != (counter.State{Time: april, Level: 20 * micro}) {
		t.Errorf("what March had reserved went into April: %+v", s)
	}
	s = h.expire(p, s, april+2*3600*micro)
	if s != (counter.State{Time: april, Level: 20 * micro}) {
		t.Errorf("what March had reserved ran out into April: %+v", s)
	}
	s = h.settle(p, s, april+1, &counter.Return{N: 5 * micro, Used: 7 * micro, Hold: &counter.Hold{ID: onceOf(1)}, Slot: march})
	if s != (counter.State{Time: april, Level: 27 * micro}) {
		t.Errorf("what was used of what had run out is booked now: %+v", s)
	}
}

// No check has to wait while thousands of holds expire: at most 128 expire at a time, the earliest first.
func TestExpireIsBounded(t *testing.T) {
	p := policy(t, counter.Limit{Algorithm: counter.Concurrency, Count: 1000, Window: time.Second})
	var h holdList
	for i := range 300 {
		h.put(&counter.Hold{ID: onceOf(1000 - i), For: time.Second}, 0, 1, 0)
	}
	for _, want := range []int{172, 44, 0} {
		h.expire(p, counter.State{}, micro)
		if h.len() != want {
			t.Fatalf("%d are left, want %d", h.len(), want)
		}
		if e := h.first(); e != nil && e.id != onceOf(1001-want) {
			t.Errorf("%x is the next, want %x: those of one end go by their ids", e.id, onceOf(1001-want))
		}
	}
}

func TestReportSlots(t *testing.T) {
	p := policy(t, counter.Limit{Algorithm: counter.Concurrency, Count: 3, Window: 30 * time.Second})
	var h holdList
	now := date(2024, 3, 10).UnixMicro()
	if r := h.report(p, now, 1, counter.Fits); r != (counter.Result{Allowed: true, Remaining: 3, Slot: now}) || !h.fits(p, 3) || h.fits(p, 4) {
		t.Errorf("untouched: %+v", r)
	}
	h.put(&counter.Hold{ID: onceOf(1), For: 30 * time.Second}, now, 2, now)
	h.put(&counter.Hold{ID: onceOf(2), For: 10 * time.Second}, now, 1, now)
	if r := h.report(p, now, 1, counter.Taken); r != (counter.Result{Allowed: true, ResetAfter: 30 * time.Second, Slot: now}) {
		t.Errorf("full: %+v", r)
	}
	now += 4 * micro
	if r := h.report(p, now, 1, counter.Refused); r != (counter.Result{RetryAfter: 6 * time.Second, ResetAfter: 26 * time.Second, Slot: now}) || h.fits(p, 1) {
		t.Errorf("refused: %+v", r)
	}
	if r := h.report(p, now, 4, counter.Refused); r.RetryAfter != counter.Never {
		t.Errorf("more than there are: %+v", r)
	}
	h.put(&counter.Hold{ID: onceOf(2), For: 40 * time.Second}, now, 1, now)
	if r := h.report(p, now, 1, counter.Refused); r.RetryAfter != 26*time.Second || r.ResetAfter != 40*time.Second {
		t.Errorf("renewed: %+v", r)
	}
	h.expire(p, counter.State{}, now+26*micro)
	if r := h.report(p, now+26*micro, 1, counter.Fits); r.Remaining != 2 || !h.fits(p, 2) || h.fits(p, 3) {
		t.Errorf("one ended: %+v", r)
	}
}

// A list shrinks when holds are removed, in whatever order.
func TestHoldsLeakNothing(t *testing.T) {
	const n = 10_000
	orders := map[string]func(i int) int{
		"first to last": func(i int) int { return i },
		"last to first": func(i int) int { return n - 1 - i },
		"mixed":         func(i int) int { return i * 7919 % n },
	}
	for name, order := range orders {
		var h holdList
		for i := range n {
			h.put(&counter.Hold{ID: onceOf(i), For: time.Minute}, int64(i), 1, 0)
		}
		if h.size() < n*(72+56) {
			t.Errorf("%s: %d holds in %d bytes", name, n, h.size())
		}
		for i := range n {
			if _, ok := h.remove(onceOf(order(i))); !ok {
				t.Fatalf("%s: %d isn't there", name, order(i))
			}
			if left := n - 1 - i; h.size() > 64+(72*4+56)*left+72*100 || cap(h.list) > 4*left+100 {
				t.Fatalf("%s: %d are left, in %d bytes", name, left, h.size())
			}
		}
		if h.len() != 0 || h.sum != 0 || h.first() != nil || h.lastEnd() != 0 {
			t.Errorf("%s: %+v is left", name, h)
		}
	}

	// Taking, renewing and releasing one slot of a counter many times uses no additional memory.
	before := heapInUse()
	var h holdList
	for i := range n {
		for range 3 {
			h.put(&counter.Hold{ID: onceOf(i), For: time.Minute}, int64(i), 1, 0)
		}
		h.put(&counter.Hold{ID: onceOf(i + 1), For: time.Minute}, int64(i), 1, 0)
		h.remove(onceOf(i))
	}
	if h.len() != 1 || h.size() > 2000 {
		t.Errorf("%d in %d bytes", h.len(), h.size())
	}
	if grown := int64(heapInUse()) - int64(before); grown > 1<<20 {
		t.Errorf("the heap has grown by %d", grown)
	}
	runtime.KeepAlive(&h)
}

func heapInUse() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkHoldsAmong shows that a slot costs about the same among many holds as among few.
func BenchmarkHoldsAmong(b *testing.B) {
	p := policy(b, counter.Limit{Algorithm: counter.Concurrency, Count: 100_000, Window: time.Second})
	for _, n := range []int{100, 30_000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			var h holdList
			for i := range n {
				h.put(&counter.Hold{ID: onceOf(i), For: time.Minute}, int64(i), 1, 0)
			}
			for i := n; b.Loop(); i++ {
				h.put(&counter.Hold{ID: onceOf(i), For: time.Minute}, int64(i), 1, 0)
				h.remove(onceOf(i - n))
				h.expire(p, counter.State{}, int64(i))
				h.report(p, int64(i), 1, counter.Refused)
			}
		})
	}
}
