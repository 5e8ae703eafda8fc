package top

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
)

// exact replays arrivals one by one, at their exact times, and counts the refused ones.
func exact(p *counter.Policy, moments []int64, cost int64) (refused uint64) {
	var s counter.State
	var l counter.Log
	for _, now := range moments {
		ok := false
		if p.Limit.Algorithm == counter.SlidingLog {
			ok = p.TryLog(&l, now, cost)
		} else {
			s, ok = p.Debit(s, now, cost)
		}
		if !ok {
			refused++
		}
	}
	return refused
}

// counts returns the same arrivals as the hour remembers them.
func counts(moments []int64, cost int64) (out []tick) {
	for _, now := range moments {
		slot := uint32(now / HourSlot.Microseconds())
		if n := len(out); n == 0 || out[n-1].slot != slot {
			out = append(out, tick{slot: slot})
		}
		t := &out[len(out)-1]
		t.requests++
		t.tokens += uint64(cost)
	}
	return out
}

var hourBegins = time.Date(2026, 11, 16, 19, 0, 0, 0, time.UTC).UnixMicro()

// patterns returns arrivals of one hour, in several patterns.
func patterns() map[string][]int64 {
	random := rand.New(rand.NewPCG(7, 7))
	hour, out := time.Hour.Microseconds(), map[string][]int64{}
	for _, perHour := range []int64{90, 1200, 36_000} {
		var even, any []int64
		for i := range perHour {
			even = append(even, hourBegins+(2*i+1)*hour/(2*perHour))
			any = append(any, hourBegins+random.Int64N(hour))
		}
		slices.Sort(any)
		out[fmt.Sprint("even ", perHour)], out[fmt.Sprint("random ", perHour)] = even, any
	}
	for _, gap := range []time.Duration{30 * time.Second, 5 * time.Minute} {
		var bursts []int64
		for at := time.Duration(0); at < time.Hour; at += gap {
			for i := range int64(80) { // within a second
				bursts = append(bursts, hourBegins+at.Microseconds()+4_000_000+i*12_000)
			}
		}
		out[fmt.Sprint("bursts each ", gap)] = bursts
	}
	return out
}

// TestWhatIfIsTheRealArithmetic checks that the estimate for evenly spread arrivals equals an exact replay. For other
// arrivals, it may differ by what refills in one slot, for each slot with arrivals.
func TestWhatIfIsTheRealArithmetic(t *testing.T) {
	for a := counter.TokenBucket; a <= counter.SlidingCounter; a++ {
		for _, l := range []counter.Limit{{Count: 50, Window: time.Minute}, {Count: 5, Window: time.Second}, {Count: 600, Window: time.Hour}, {Count: 20, Window: 5 * time.Minute, Burst: 60}} {
			l.Algorithm = a
			if a > counter.LeakyQueue {
				l.Burst = 0
			}
			if a == counter.LeakyQueue {
				l.MaxDelay = 10 * time.Second
			}
			p, err := counter.NewPolicy("x", l)
			if err != nil {
				t.Fatal(err)
			}
			for name, moments := range patterns() {
				for _, cost := range []int64{1, 3} {
					want, ticks := exact(p, moments, cost), counts(moments, cost)
					got := replay(p, ticks, 1<<40)
					moved := 0.
					if name[0] != 'e' {
						refills := float64(l.Count) * HourSlot.Seconds() / l.Window.Seconds()
						moved = (refills/float64(cost) + 1) * float64(len(ticks)) // plus one for rounding
					}
					if off := float64(got) - float64(want); off > moved || off < -moved {
						t.Errorf("%s %s burst %d, %s of %d tokens: %d would be refused of %d, want %d ± %.0f", a, l, l.Burst, name, cost, got, len(moments), want, moved)
					}
				}
			}
		}
	}
}

// TestWhatIfOfBursts checks that a burst counts more refusals than the same requests spread over their slots. The
// estimate for a burst is exact, even if the burst falls into two slots.
func TestWhatIfOfBursts(t *testing.T) {
	p, err := counter.NewPolicy("x", counter.PerMinute(20))
	if err != nil {
		t.Fatal(err)
	}
	for name, begin := range map[string]int64{"in one slot": 4_000_000, "over an edge": 9_500_000} {
		var moments []int64
		for i := range int64(600) { // within a second
			moments = append(moments, hourBegins+begin+i*1600)
		}
		ticks := counts(moments, 1)
		want, even, bursts := exact(p, moments, 1), replay(p, ticks, 1<<40), replay(p, ticks, 0)
		if want != 580 || even >= want || bursts != want {
			t.Errorf("%s: %d refused if they are spread, %d as bursts, want %d", name, even, bursts, want)
		}
	}
}

// TestWhatIfInSteps checks that if there are far more requests than steps, requests are replayed in groups, with nearly
// the same result.
func TestWhatIfInSteps(t *testing.T) {
	for a := counter.TokenBucket; a <= counter.SlidingCounter; a++ {
		p, err := counter.NewPolicy("x", counter.Limit{Algorithm: a, Count: 3000, Window: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		var moments []int64
		for i := range int64(600_000) { // 1,000 a second, of which 50 fit
			moments = append(moments, hourBegins+i*1000+500)
		}
		want, got := exact(p, moments, 1), replay(p, counts(moments, 1), 100)
		if off := float64(got)/float64(want) - 1; off > 0.002 || off < -0.002 {
			t.Errorf("%s: %d would be refused, want %d", a, got, want)
		}
	}
	p, err := counter.NewPolicy("x", counter.Limit{Algorithm: counter.FixedWindow, Count: 10, Window: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	p = p.With(func(d *counter.Definition) { d.CountRefused = true })
	// Of 8, 8 and 2 tokens, the first 8 fit. The refused 8 count, too, so that the 2 don't fit.
	if got := replay(p, []tick{{slot: 6, requests: 2, tokens: 16}, {slot: 7, requests: 1, tokens: 2}, {slot: 12, requests: 1, tokens: 10}}, 10); got != 2 {
		t.Errorf("%d would be refused, want 2", got)
	}
}
