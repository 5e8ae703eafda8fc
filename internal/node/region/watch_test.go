package region

import (
	"context"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/node/stake"
)

// counted is a counter of a simulation, seen from outside all regions.
type counted struct {
	counter.Counter
	whole, unit int64
	shares      []stake.Share
	written     [][]byte // by region: the value in its cell
	until       []int64  // by region: when that value expires
	stakes      []*stake.Stake
	meter       float64 // for a bucket: what was admitted and hasn't drained yet
	rates       []float64
	last        time.Time
	used        map[int64]int64 // for windows: what was used, by the window's start
	latest      int64           // the latest time that any clock has shown
	excused     bool            // a store has lost data
	let         []int64         // by region: what it has admitted, lent and given back since the start
	forgotten   map[int64]int64 // what stores have lost in that time, by window, or under 0 for a bucket
}

// tolerance is for rounding: clocks to µs, and refill to millionths.
const tolerance = 0.01

func (s *simulation) count(p *counter.Policy, subject string) *counted {
	p = p.With(func(d *counter.Definition) { d.Global, d.Strict, d.Travels = true, true, false })
	regions := len(s.sites)
	c := &counted{Counter: counter.Counter{Policy: p, Subject: []byte(subject)}, whole: stake.Whole(p), unit: 1, written: make([][]byte, regions),
		until: make([]int64, regions), stakes: make([]*stake.Stake, regions), last: time.Now(), used: map[int64]int64{},
		let: make([]int64, regions), forgotten: map[int64]int64{}}
	sum := int64(0)
	for i, site := range s.sites {
		share := site.link.share(p, s.clocks[i].now())
		sum += share.Own
		c.shares = append(c.shares, share)
		c.stakes[i] = &stake.Stake{}
		if c.isBucket() {
			c.unit = p.Numbers()[0] / c.whole
			c.rates = append(c.rates, float64(p.Refill(1e9))/1e3/float64(c.unit)*float64(share.Rate)/1000)
		} else {
			c.rates = append(c.rates, 0)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	name := counter.Counter{Policy: p, Subject: s.sites[0].link.secret.name(p.ID, c.Subject)}
	s.counters[keyOf(&name)] = c
	if sum != c.whole {
		s.breaks(c, "shares add up to %d of %d", sum, c.whole)
	}
	return c
}

func (c *counted) isBucket() bool { return c.Policy.Limit.Algorithm <= counter.LeakyBucket }

// drain lowers the meter up to now, with each region's share of the rate by its own clock.
func (c *counted) drain(s *simulation) {
	passed := time.Since(c.last).Seconds()
	c.last = time.Now()
	for i, rate := range c.rates {
		c.meter -= rate * passed * (1 + s.clocks[i].drift)
	}
	c.meter = max(0, c.meter)
}

// admit records an admission or, if n is negative, a return, and reports a violation if the limit is exceeded. The
// meter is the largest excess over the refill of all intervals that end now.
func (c *counted) admit(s *simulation, n, slot int64) {
	if c.isBucket() {
		c.drain(s)
		if c.meter = max(0, c.meter+float64(n)); c.meter > float64(c.whole+c.forgotten[0])+tolerance {
			s.breaks(c, "%.3f in a meter of %d, %d are forgotten", c.meter, c.whole, c.forgotten[0])
		}
		return
	}
	c.used[slot] += n
	if c.used[slot] > c.whole+c.forgotten[slot] {
		s.breaks(c, "%d of %d in a window, %d are forgotten", c.used[slot], c.whole, c.forgotten[slot])
	}
	if c.Policy.Limit.Algorithm != counter.SlidingCounter {
		return
	}
	for _, clock := range s.clocks {
		c.latest = max(c.latest, clock.now())
	}
	begun := c.Policy.Report(counter.State{}, c.latest, 1, counter.Fits).Slot
	window := c.Policy.Limit.Window.Microseconds()
	if sum := float64(c.used[begun]) + float64(c.used[begun-window])*(1-float64(c.latest-begun)/float64(window)); sum > float64(c.whole+c.forgotten[begun]+c.forgotten[begun-window])+tolerance {
		s.breaks(c, "%.3f of %d in a sliding window", sum, c.whole)
	}
}

// wrote records what a region has written, and checks all regions.
func (c *counted) wrote(s *simulation, i int, before []byte, cell *Cell, now int64) {
	if s.bug.wrote != nil {
		k := stake.Decode(cell.Value)
		s.bug.wrote(s, c, i, stake.Decode(before), k, now)
		cell.Value = k.Encode()
	}
	c.latest = max(c.latest, now)
	was, is := stake.Decode(before), stake.Decode(cell.Value)
	for of, l := range is.Lent {
		c.let[i] += l.Given
		if old := was.Lent[of]; old != nil && old.ID == l.ID {
			c.let[i] -= old.Given
		}
	}
	for of, l := range is.Held {
		c.let[i] += l.Back
		if old := was.Held[of]; old != nil && old.ID == l.ID {
			c.let[i] -= old.Back
		}
	}
	c.written[i], c.stakes[i], c.until[i] = cell.Value, stake.Decode(cell.Value), now+cell.TTL.Microseconds()
	c.check(s)
}

// forget makes a region's store lose everything, or go back to its state some time ago. What the region owns, or what
// it has let go since then, can be admitted again.
func (s *simulation) forget(i int, c *counted, key string, ago time.Duration) {
	s.mu.Lock()
	old, let, until := c.written[i], c.let[i], c.until[i]
	s.mu.Unlock()
	time.Sleep(ago)
	now := s.clocks[i].now()
	s.mu.Lock()
	c.excused = true
	n := c.let[i] - let
	if ago == 0 {
		old, n = nil, c.shares[i].Own
	}
	if c.isBucket() {
		c.forgotten[0] += n
	} else {
		c.forgotten[stake.Begun(c.Policy, now)] += n
	}
	s.mu.Unlock()
	_ = s.sites[i].stakes.cells.Update(context.Background(), []string{key}, func([][]byte, int64) []Cell {
		return []Cell{{old, time.Duration(until-now) * time.Microsecond}}
	})
}

// at returns a region's stake as of now.
func (c *counted) at(s *simulation, i int) *stake.Stake {
	now := s.clocks[i].now()
	if now >= c.until[i] {
		c.written[i], c.stakes[i] = nil, &stake.Stake{}
	}
	c.stakes[i].Fits(c.Policy, c.shares[i], now, 1) // settles the stake
	return c.stakes[i]
}

func out(l *stake.Loan) int64 { return max(0, l.Given-l.Spent-l.Back) }

// check checks that what is left in all regions and in flight between them is at most the limit, and that no region has
// borrowed more than was lent.
func (c *counted) check(s *simulation) {
	if c.excused {
		return
	}
	window := int64(0)
	for i := range s.sites {
		window = max(window, c.at(s, i).Time)
	}
	left := int64(0)
	for i, k := range c.stakes {
		switch {
		case c.isBucket():
			left += k.Level
		case k.Time == window:
			left += c.shares[i].Own - k.Level
		default: // this region hasn't reached the window yet
			left += c.shares[i].Own
			continue
		}
		for j, name := range s.names {
			lent, borrower := k.Lent[name], c.stakes[j]
			if lent != nil && !c.isBucket() && borrower.Time != window {
				left += out(lent)
				continue
			}
			held := borrower.Held[s.names[i]]
			switch {
			case held == nil:
			case lent != nil && lent.ID == held.ID:
				left += (max(0, lent.Given-held.Given) + max(0, held.Back-lent.Back)) * c.unit
				if out(lent) >= out(held) {
					break
				}
				fallthrough
			case out(held) > 0 && (c.isBucket() || borrower.Time == window):
				s.breaks(c, "%s holds %+v of %s, which has lent %+v", name, held, s.names[i], lent)
			}
		}
	}
	if c.isBucket() {
		if left > c.whole*c.unit {
			s.breaks(c, "%d millionths are left and under way of %d", left, c.whole*c.unit)
		}
	} else if left > c.whole-c.used[window] {
		s.breaks(c, "%d are left and under way of %d, and %d are used", left, c.whole, c.used[window])
	}
}
