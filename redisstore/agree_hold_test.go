package redisstore

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/storetest"
)

// TestAgreeHolding checks that memory and Redis agree if charges have holds: slots, reservations, and repeated checks. Returns
// come once or twice, in time or late, for charges that were used in part or exceeded. Limits count tokens or amounts, in
// windows of every kind.
func TestAgreeHolding(t *testing.T) {
	const steps, walkers = 100_000 / slowness, 8
	kinds := map[string]limits{
		"concurrency":               {algorithm: counter.Concurrency},
		"amounts in a token bucket": {algorithm: counter.TokenBucket, decimal: true},
		"amounts in a leaky bucket": {algorithm: counter.LeakyBucket, decimal: true},
		"amounts in windows":        {algorithm: counter.FixedWindow, decimal: true},
		"calendar":                  {algorithm: counter.FixedWindow, calendar: true},
		"amounts by the calendar":   {algorithm: counter.FixedWindow, calendar: true, decimal: true},
	}
	for _, a := range storetest.Algorithms {
		kinds[a.String()] = limits{algorithm: a}
	}
	r := redistest.New(t, redistest.Options{})
	open := opener(t, "redis://"+r.Addr)
	t.Run("kinds", func(t *testing.T) {
		for name, l := range kinds {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				var all sync.WaitGroup
				for i := range walkers {
					w := newWalker(t, open, l, i, false)
					w.hold()
					all.Go(func() {
						if err := w.walk(steps / walkers / 3); err != nil {
							t.Errorf("walker %d, seed %d: %v", i, *seed, err)
						}
					})
				}
				all.Wait()
			})
		}
	})
	lasting(t, r)
}

// hold makes the walker's charges leave holds. The third policy keeps its algorithm.
func (w *walker) hold() {
	w.holding = true
	w.Rand = rand.New(rand.NewPCG(w.Uint64(), w.Uint64()))
	for i := range w.policies {
		w.change(i)
	}
}

var calendarZones = []string{"", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Pacific/Apia", "America/Santiago"}

func (w *walker) drawCalendar() (c counter.Calendar) {
	if !w.calendar {
		return c
	}
	c = counter.Calendar{Unit: counter.Month, Zone: calendarZones[w.IntN(len(calendarZones))]}
	switch w.IntN(4) {
	case 0:
		c.Unit = counter.Day
	case 1:
		c.Unit, c.Weekday = counter.Week, time.Weekday(w.IntN(7))
	default:
		c.Day = w.IntN(32)
	}
	return c
}

// amounts gives a limit an amount or a calendar, if the walker's limits have one.
func (w *walker) amounts(i int, l *counter.Limit) {
	if l.Algorithm == counter.Concurrency {
		l.Count = 1 + w.Int64N(20)
	}
	if w.decimal && l.Algorithm == w.algorithm {
		l.Decimal = true
		if w.IntN(2) == 0 {
			l.Fraction = counter.Amount(w.IntN(1_000_000))
		}
		if w.IntN(4) == 0 {
			l.Count = 0 // less than one
		}
	}
	if w.calendar && l.Algorithm == w.algorithm {
		l.Calendar = w.calendars[i]
		l.Window = map[counter.CalendarUnit]time.Duration{counter.Day: 24 * time.Hour, counter.Week: 7 * 24 * time.Hour, counter.Month: 31 * 24 * time.Hour}[l.Calendar.Unit]
	}
}

// mark gives the policies of a walk different behavior, by their numbers.
func (w *walker) mark(i int, p *counter.Policy) *counter.Policy {
	if !w.holding || p.Limit.Algorithm == counter.Concurrency || p.Limit.Algorithm == counter.SlidingLog {
		return p
	}
	return p.With(func(d *counter.Definition) {
		d.GivesBack = i <= 1
		d.CountRefused = i == 1
		d.Book = i == 4 && p.Limit.Algorithm != counter.LeakyQueue && !w.shallow()
	})
}

// shallow says that no counter goes below zero. Memory rounds the refill of a moment down to 2^53, which shows if a bucket with
// extreme debt gets other extreme numbers.
func (w *walker) shallow() bool { return w.extreme && w.algorithm <= counter.LeakyQueue }

// toEdge sets the clock close to the edge of a policy's window.
func (w *walker) toEdge() {
	if w.now.After(storetest.Start.AddDate(0, 6, 0)) { // memory forgets within a year what must happen once
		w.now = storetest.Start
	}
	edge := w.policies[w.IntN(len(w.policies))].Edges(w.now.UnixMicro())[w.IntN(3)]
	w.now = time.UnixMicro(edge + []int64{-120_000_000, -1_000_000, -1, 0, 1, 1000, 59_000_000}[w.IntN(7)])
}

func (w *walker) decimalAmount(p *counter.Policy) int64 {
	whole := int64(p.Limit.Amount())
	if p.Limit.Burst > 0 {
		whole = p.Limit.Burst * 1_000_000
	}
	switch w.IntN(10) {
	case 0:
		return w.magnitude(1 << 53) // what an amount times a cost is at most
	case 1:
		return max(0, whole+w.Int64N(3)-1)
	case 2:
		return w.Int64N(3) // a reservation may be for nothing
	}
	return 1 + w.Int64N(max(1, whole/4))
}

// drawHold draws a hold for a charge, or returns nil. There are few names, so that a hold often exists already.
func (w *walker) drawHold(c *counter.Charge) *counter.Hold {
	slots := c.Policy.Limit.Algorithm == counter.Concurrency
	if !w.holding || c.Peek || !slots && w.IntN(2) == 0 {
		return nil
	}
	if slots {
		c.N = 1 + w.Int64N(2)*w.Int64N(4)
	}
	h := &counter.Hold{ID: counter.Once{0: byte(w.IntN(20)), 15: 1}, GiveBack: c.Policy.GivesBack && w.IntN(3) > 0}
	switch w.IntN(4) {
	case 0:
		h.For = time.Duration(w.IntN(5000)) * time.Microsecond
	case 1:
		h.For = time.Duration(w.IntN(20)) * time.Second
	case 2:
		h.For = time.Duration(w.IntN(10)) * time.Minute
	case 3:
		h.For = counter.RecordTime
	}
	return h
}

// settle draws how much of a return was used, if it has a hold.
func (w *walker) settle(back *counter.Return) {
	if back.Hold == nil {
		return
	}
	back.N = min(back.N, 1<<53)
	switch draw := w.IntN(8); {
	case draw == 0: // none
	case draw == 1 || draw <= 3 && w.shallow():
		back.Used = back.N
	case draw == 2:
		back.Used = min(back.N+1+w.magnitude(max(1, 4*back.N)), 1<<53)
	case draw == 3:
		back.Used = w.magnitude(1 << 53)
	case draw == 4: // of somebody else
		back.Hold = &counter.Hold{ID: counter.Once{0: byte(w.IntN(20)), 15: 1}}
		back.Used = w.Int64N(back.N + 1)
	case draw == 5: // without the hold
		back.Hold = nil
	default:
		back.Used = w.Int64N(back.N + 1)
	}
}

// TestEdgesOfANodeWhoseClockIsOff checks windows if a node's estimate of Redis' time is up to a minute ahead, or a day behind.
// Redis counts in the windows of its own clock.
func TestEdgesOfANodeWhoseClockIsOff(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	now := storetest.Start.UnixMicro()
	s := open(t, Options{URL: "redis://" + r.Addr, Now: func() time.Time { return time.UnixMicro(now) }})
	rnd := rand.New(rand.NewPCG(*seed, 2))
	for i := range 300 {
		c := counter.Calendar{Unit: counter.Day + counter.CalendarUnit(i%3), Zone: calendarZones[rnd.IntN(len(calendarZones))]}
		l := counter.Limit{Algorithm: counter.FixedWindow, Count: 3, Calendar: c, Window: []time.Duration{1, 7, 31}[i%3] * 24 * time.Hour}
		p := storetest.Policy(t, fmt.Sprint("p", i), l)
		var state counter.State
		now = p.Edges(now)[rnd.IntN(3)] - 3_000_000
		for range 20 {
			off := rnd.Int64N(60_000_000) - []int64{0, 24 * 3600 * 1_000_000}[rnd.IntN(2)]
			var k call
			k.clock = func() time.Time { return time.UnixMicro(now + off) }
			a := &act{charges: []charge{{policy: p, key: keyOf(s, p, "s"), n: 1}}}
			k.encode([]*act{a}, now, s.leastTTL, 1)
			reply, err := run(t.Context(), s, joined, k.keys, string(k.body))
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := decode(reply, []*act{a}); err != nil {
				t.Fatal(err)
			}
			var fits bool
			if state, fits = p.Try(state, now, 1); fits != a.charges[0].fits || fits && state != a.charges[0].account.State {
				t.Fatalf("%+v at %d, off by %d µs: got %v %+v, want %v %+v (seed %d)", c, now, off, a.charges[0].fits, a.charges[0].account.State, fits, state, *seed)
			}
			now += rnd.Int64N(2_000_000)
		}
	}
}
