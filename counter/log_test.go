package counter

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func slidingLog(n int64, w time.Duration) *Limit {
	return &Limit{Algorithm: SlidingLog, Count: n, Window: w}
}

func TestSlidingLogForgetsEachEntryAfterAWindow(t *testing.T) {
	t.Run("and tells when enough of them have left", func(t *testing.T) {
		play(t, *slidingLog(5, 15*time.Minute), []row{
			{at: 0, peek: 5, ok: true, left: 5},
			{at: 0, take: 1, ok: true, left: 4, reset: 15 * minute},
			{at: minute, take: 2, ok: true, left: 2, reset: 15 * minute},
			{at: 2 * minute, take: 2, ok: true, left: 0, reset: 15 * minute},
			{at: 3 * minute, take: 1, left: 0, retry: 12 * minute, reset: 14 * minute},
			{at: 3 * minute, take: 2, left: 0, retry: 13 * minute, reset: 14 * minute},
			{at: 3 * minute, take: 5, left: 0, retry: 14 * minute, reset: 14 * minute},
			{at: 3 * minute, take: 6, left: 0, retry: never, reset: 14 * minute},
			{at: 15*minute - 1, take: 1, left: 0, retry: 1, reset: 2*minute + 1},
			{at: 15 * minute, take: 1, ok: true, left: 0, reset: 15 * minute},
			{at: 30 * minute, peek: 5, ok: true, left: 5},
		})
	})
	t.Run("so that an edge gains nothing", func(t *testing.T) {
		play(t, *slidingLog(100, time.Minute), []row{
			{at: minute - 1, take: 100, ok: true, left: 0, reset: minute},
			{at: minute, take: 1, left: 0, retry: minute - 1, reset: minute - 1},
			{at: 2*minute - 2, take: 1, left: 0, retry: 1, reset: 1},
			{at: 2*minute - 1, take: 100, ok: true, left: 0, reset: minute},
		})
	})
	t.Run("and gives back what was taken at one moment", func(t *testing.T) {
		play(t, *slidingLog(10, time.Minute), []row{
			{at: 0, take: 4, ok: true, left: 6, reset: minute},
			{at: sec, take: 5, ok: true, left: 1, reset: minute},
			{at: 2 * sec, back: 3, of: 0, left: 4, reset: 59 * sec},
			{at: 2 * sec, back: 3, of: 0, left: 5, reset: 59 * sec}, // only one was left of it
			{at: 2 * sec, back: 3, of: 0, left: 5, reset: 59 * sec},
			{at: 2 * sec, back: 5, of: 1, left: 10},
			{at: 3 * sec, take: 7, ok: true, left: 3, reset: minute},
			{at: 63 * sec, take: 2, ok: true, left: 8, reset: minute},
			{at: 63 * sec, back: 7, of: 6, left: 8, reset: minute}, // too late
		})
	})
	t.Run("even when the rule or the clock changes", func(t *testing.T) {
		play(t, *slidingLog(10, time.Minute), []row{
			{at: hour, take: 10, ok: true, left: 0, reset: minute},
			{at: hour, rule: slidingLog(25, time.Minute), left: 15, reset: minute},
			{at: hour, rule: slidingLog(5, time.Minute), peek: 1, left: 0, retry: minute, reset: minute},
			{at: 0, take: 1, left: 0, retry: minute, reset: minute}, // backwards
			{at: minute - 1, take: 1, left: 0, retry: 1, reset: 1},
			{at: minute, take: 5, ok: true, left: 0, reset: minute},
		})
	})
}

// The log admits a request if, and only if, the admissions of the last window leave room for it, at any moment.
func TestSlidingLogIsExactOverAnyInterval(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pick := rapidPicker(t)
		g := newGauge(policyOf(t, *slidingLog(pick(1, 40), 10*time.Millisecond)))
		var all []admission
		now := midnight
		for range pick(1, 120) {
			now += max(0, pick(-500, 1000))
			n := pick(1, 3)
			if k := len(all) - 1; k >= 0 && pick(0, 9) == 0 {
				k -= int(pick(0, int64(k)))
				back := pick(1, all[k].n+1)
				if g.giveBack(now, back, all[k].at) > 0 {
					all[k].n = max(0, all[k].n-back)
				}
			}
			var sum int64
			for _, a := range all {
				if a.at > now-g.p.window {
					sum += a.n
				}
			}
			room := g.p.Limit.Count - sum
			r := g.take(now, n)
			if r.Allowed != (n <= room) {
				t.Fatalf("%d at %d: room for %d, got %+v", n, now-midnight, room, r)
			}
			if !r.Allowed {
				continue
			}
			if k := len(all) - 1; k >= 0 && all[k].at == now { // a slot is a moment, whoever took in it
				all[k].n += n
			} else {
				all = append(all, admission{now, n})
			}
		}
	})
}

// A log of any length answers like a plain list of admissions, whatever is given back and whatever the clock does.
func TestSlidingLogIsAListOfAdmissions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pick := rapidPicker(t)
		g := newGauge(policyOf(t, *slidingLog(pick(1, 300), 10*time.Millisecond)))
		count, window := g.p.Limit.Count, g.p.window
		var list []admission
		now := midnight
		for range pick(1, 600) {
			switch pick(0, 40) {
			case 0:
				now -= pick(0, 2*window)
			case 1:
				now += pick(0, 2*window)
			default:
				now += pick(0, 30)
			}
			var kept []admission
			for _, a := range list {
				if a.at = min(a.at, now); a.at > now-window {
					kept = append(kept, a)
				}
			}
			list = kept
			if len(list) > 0 && pick(0, 2) == 0 {
				a := &list[pick(0, int64(len(list))-1)]
				back := pick(1, 3)
				g.giveBack(now, back, a.at)
				for i := range list {
					if part := min(back, list[i].n); list[i].at == a.at {
						list[i].n -= part
						back -= part
					}
				}
				list = slices.DeleteFunc(list, func(a admission) bool { return a.n == 0 })
			}
			sum, newest, n := int64(0), now-window, pick(1, 20)
			for _, a := range list {
				sum, newest = sum+a.n, a.at
			}
			want := Result{Allowed: sum+n <= count, Remaining: max(0, count-sum), Slot: now}
			switch {
			case want.Allowed:
				list = append(list, admission{now, n})
				want.Remaining, newest = count-sum-n, now
			case n > count:
				want.RetryAfter = Never
			default:
				over := sum + n - count
				for _, a := range list {
					if over -= a.n; over <= 0 {
						want.RetryAfter = time.Duration(a.at+window-now) * time.Microsecond
						break
					}
				}
			}
			want.ResetAfter = time.Duration(newest+window-now) * time.Microsecond
			if got := g.take(now, n); got != want {
				t.Fatalf("%d of %d at %d:\n got %+v\nwant %+v", n, count, now-midnight, got, want)
			}
		}
	})
}

// A client that repeatedly takes and gives back tokens can't make a log larger than its current admissions need.
func TestSlidingLogForgetsWhatWasGivenBack(t *testing.T) {
	p := policyOf(t, *slidingLog(10, time.Hour))
	var l Log
	now := midnight
	for range 10_000 { // two requests that overlap, so that neither is the last
		now++
		if !p.TryLog(&l, now, 1) {
			t.Fatal("refused")
		}
		p.ReturnLog(&l, now, 1, now-1)
	}
	if l.sum != 1 || l.Size() > 56+16*16 {
		t.Errorf("%d tokens take %d bytes", l.sum, l.Size())
	}
}

// A log's memory grows and shrinks with the number of its entries.
func TestSlidingLogGivesItsMemoryBack(t *testing.T) {
	p := policyOf(t, *slidingLog(10_000, time.Second))
	var l Log
	empty, now := l.Size(), midnight
	for range 10_000 {
		now++
		if !p.TryLog(&l, now, 1) {
			t.Fatal("refused")
		}
	}
	if size := l.Size(); size < 16*10_000 || size > 2*16*16_384 {
		t.Errorf("10,000 entries take %d bytes", size)
	}
	for now += sec - 10_000; l.n > 100; now++ {
		p.FitsLog(&l, now, 1)
	}
	if size := l.Size(); size > 16*4*128 {
		t.Errorf("%d entries still take %d bytes", l.n, size)
	}
	p.FitsLog(&l, now+sec, 1)
	if l.Size() != empty {
		t.Errorf("an empty log takes %d bytes, not %d", l.Size(), empty)
	}
}

func TestEntriesAreWhatTheLogHolds(t *testing.T) {
	p := policyOf(t, *slidingLog(10, time.Minute))
	var l Log
	p.TryLog(&l, sec, 2)
	p.TryLog(&l, 2*sec, 3)
	p.TryLog(&l, 2*sec, 1)
	p.TryLog(&l, 3*sec, 1)
	p.ReturnLog(&l, 3*sec, 4, 2*sec) // an entry of nothing isn't shown
	var got []int64
	for at, n := range l.Entries() {
		got = append(got, at, n)
	}
	if want := []int64{sec, 2, 3 * sec, 1}; !slices.Equal(got, want) {
		t.Errorf("entries %v, want %v", got, want)
	}
	p.FitsLog(&l, minute+sec, 1)
	for at := range l.Entries() {
		if at != 3*sec {
			t.Errorf("the oldest entry is of %d", at)
		}
		break
	}
}
