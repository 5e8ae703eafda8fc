package engine

import (
	"context"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/memstore"
)

// mirror is a memstore that also keeps a readable copy of each counter's state. The copy is computed with the core's
// functions.
type mirror struct {
	*memstore.Store
	engine *Engine
	lanes  map[string]*lane // by policy and subject
	looked []*lane          // the lanes that the last peek read
}

// lane is one counter and its history.
type lane struct {
	trace
	policy *counter.Policy
	state  counter.State
	log    counter.Log
	begin  int64     // when the engine's time begins, in µs since 1970
	drawn  int64     // the time up to which there are points, in µs since 1970
	points []float64 // three numbers for each point: time, value, and the part of the value from the previous window
	drew   int       // how many points earlier frames contained
}

func (m *mirror) lane(c counter.Counter) *lane {
	key := c.Policy.Name + "\x00" + string(c.Subject)
	l := m.lanes[key]
	if l == nil {
		l = &lane{policy: c.Policy, begin: m.engine.begin, drawn: m.engine.begin}
		l.window = c.Policy.Limit.Window.Microseconds()
		l.point(l.drawn)
		m.lanes[key] = l
	}
	return l
}

// Take makes the memstore decide, and records the result of each charge.
func (m *mirror) Take(ctx context.Context, charges []counter.Charge, results []counter.Result) {
	m.Store.Take(ctx, charges, results)
	refused := false
	for i := range charges {
		refused = refused || !results[i].Allowed && !charges[i].Policy.Shadow
	}
	m.looked = m.looked[:0]
	for i := range charges {
		c, l := &charges[i], m.lane(charges[i].Counter)
		if c.Peek {
			m.looked = append(m.looked, l)
			continue
		}
		l.settle(m.engine.begin+m.engine.at, c.N, results[i], refused)
		l.mark(m.engine.at, m.engine.next, verdictOf(results[i].Allowed, !refused, results[i].Delay), results[i].Delay)
	}
}

// settle changes the copy of the state in the same way as the store has changed the state.
func (l *lane) settle(now, n int64, r counter.Result, refused bool) {
	l.draw(now)
	l.point(now)
	taken := r.Allowed && (!refused || l.policy.Book)
	switch {
	case l.policy.Limit.Algorithm != counter.SlidingLog:
		if after, fits := l.policy.Debit(l.state, now, n); taken || !fits {
			l.state = after
		}
	case taken:
		l.policy.TryLog(&l.log, now, n)
	}
	l.point(now)
}

// report returns the state of the counter, as a request for one more token would see it.
func (l *lane) report(now int64) counter.Result {
	if l.policy.Limit.Algorithm == counter.SlidingLog {
		v := counter.Fits
		if !l.policy.FitsLog(&l.log, now, 1) {
			v = counter.Refused
		}
		return l.policy.ReportLog(&l.log, now, 1, v)
	}
	v := counter.Fits
	if _, fits := l.policy.Try(l.state, now, 1); !fits {
		v = counter.Refused
	}
	return l.policy.Report(l.state, now, 1, v)
}

// value returns the number to draw: the tokens in a token bucket, the water in a leaky bucket, or a number of requests.
// For a sliding counter, base is the part of it that comes from the previous window.
func (l *lane) value(now int64) (value, base float64) {
	p := l.policy
	switch p.Limit.Algorithm {
	case counter.TokenBucket:
		return tokens(p.Level(l.state, now)), 0
	case counter.LeakyBucket, counter.LeakyQueue:
		return float64(p.Limit.Max()) - tokens(p.Level(l.state, now)), 0
	case counter.SlidingLog:
		return float64(p.Limit.Count - l.report(now).Remaining), 0
	}
	w, weight := p.Windows(l.state, now)
	base = float64(w.Prev) * weight
	return base + float64(w.Level), base
}

// tokens converts millionths to tokens.
func tokens(millionths int64) float64 { return float64(millionths) / 1e6 }

// bend returns the next time at which the value changes its course, because a bucket is full, a window ends, or an
// entry expires. If there is none, it returns 0.
func (l *lane) bend(now int64) int64 {
	p := l.policy
	switch p.Limit.Algorithm {
	case counter.FixedWindow, counter.SlidingCounter:
		if w, _ := p.Windows(l.state, now); w.Level != 0 || w.Prev != 0 {
			return w.Time + l.window
		}
		return 0
	case counter.SlidingLog:
		l.report(now) // this drops expired entries
		for at := range l.log.Entries() {
			return at + l.window
		}
		return 0
	}
	if full := l.report(now).ResetAfter; full > 0 {
		return now + full.Microseconds()
	}
	return 0
}

// draw adds points for all bends up to a time. Between two points, the value changes in a straight line.
func (l *lane) draw(now int64) {
	for {
		bend := l.bend(l.drawn)
		if bend == 0 || bend > now {
			break
		}
		if bend-1 > l.drawn {
			l.point(bend - 1)
		}
		l.point(bend)
	}
	l.drawn = max(l.drawn, now)
}

func (l *lane) point(now int64) {
	value, base := l.value(now)
	l.points = append(l.points, float64(now-l.begin), value, base)
	l.drawn = now
}

// verdict is the result of a request, with the same numbers as in marks.
type verdict uint8

const (
	refused verdict = iota
	admitted
	delayed
	elsewhere // another limit refused the request
)

func verdictOf(fits, taken bool, delay time.Duration) verdict {
	switch {
	case !fits:
		return refused
	case !taken:
		return elsewhere
	case delay > 0:
		return delayed
	}
	return admitted
}

// trace has the results of the requests to a counter.
type trace struct {
	counts [4]int    // by verdict
	marks  []float64 // three numbers for each request: index of the arrival, verdict, delay in µs
	shown  int       // how many marks earlier frames contained

	window int64   // the length of time for peak
	leaves []int64 // when each admitted request passes, in order of time
	left   int     // how many of them have passed
	tail   int     // index of the first request that passed within a window's length before the last one
	peak   int
}

func (t *trace) mark(at int64, number int, v verdict, delay time.Duration) {
	t.counts[v]++
	if v == admitted || v == delayed {
		t.leaves = append(t.leaves, at+delay.Microseconds())
	} else {
		delay = 0
	}
	t.marks = append(t.marks, float64(number), float64(v), float64(delay.Microseconds()))
}

// pass lets requests pass up to a time. It updates the peak, which is the largest number of requests that passed within
// one window's length.
func (t *trace) pass(at int64) {
	for ; t.left < len(t.leaves) && t.leaves[t.left] <= at; t.left++ {
		for t.leaves[t.tail] <= t.leaves[t.left]-t.window {
			t.tail++
		}
		t.peak = max(t.peak, t.left-t.tail+1)
	}
}
