// Package engine is the playground without its page. It has arrivals on a virtual clock, the decisions of
// [weir.Limiter], and the data to draw. The page shows what every algorithm, or the user's own rules, do with the same
// arrivals.
//
// The engine doesn't compute limits itself: levels, weights and entries come from the states of the core's counters.
// The engine is deterministic: to go back in time, it replays the arrivals.
//
// Times are whole microseconds since the beginning, which is aligned to every window.
package engine

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/cooldown"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/private"
	"github.com/weirhq/weir/memstore"
)

// Limits on what a page can ask for, so that the page stays responsive.
const (
	MaxArrivals = 5000
	maxCharges  = 6 * MaxArrivals // charges of all arrivals; bounded because going back decides all of them again
	MaxText     = 64 << 10        // bytes of rules
	maxComing   = 200             // how many future arrivals are shown
	maxLimit    = 1000
	maxWindow   = 24 * time.Hour
	maxAt       = int64(30 * 24 * time.Hour / time.Microsecond)
	storeCap    = 8 << 20
)

// Numbers are the numbers that all compared algorithms use.
type Numbers struct {
	Limit int64 `json:"limit"`
	// Window and MaxDelay are in milliseconds.
	Window int64 `json:"window"`
	// Burst is the burst of the buckets, and the length of the queue. 0 means the same as Limit.
	Burst int64 `json:"burst"`
	// MaxDelay is the longest delay in the queue. 0 means the time that a full queue takes.
	MaxDelay int64 `json:"max_delay"`
}

func (n Numbers) window() time.Duration { return time.Duration(n.Window) * time.Millisecond }

// Engine runs a playground. Make one with [New]. It isn't safe for concurrent use.
type Engine struct {
	numbers Numbers
	own     *weir.RuleSet // the user's own rules; nil while algorithms are compared
	request weir.Request  // the request that the user's own rules decide
	applied int           // how many counters a request is charged to
	policy  []*counter.Policy

	begin   int64 // when the engine's time begins, in µs since 1970
	at      int64
	store   *mirror
	limiter *weir.Limiter
	lanes   []*lane
	whole   *trace // the results of requests under all of the user's rules
	answer  string // the response to the last request

	schedule []arrival // all arrivals, in order of time; those before the index next have been decided
	next     int
	charges  int // charges of all arrivals
	patterns []*pattern
	full     bool
	demo     *demo
	seen     string // text of the demonstration that has ended

	fresh bool // the next frame must contain everything again
	sent  int  // how many arrivals earlier frames contained
}

// arrival is a request at a certain time.
type arrival struct {
	at      int64
	pattern *pattern // the pattern that has made the arrival, or nil
	request *weir.Request
	charges int // how many counters the request is charged to
}

// New makes an engine that compares the algorithms.
func New(n Numbers) (*Engine, error) {
	e := &Engine{}
	return e, e.Compare(n)
}

// algorithms lists the algorithms in the order in which they are shown.
var algorithms = []counter.Algorithm{
	weir.TokenBucket, weir.LeakyBucket, weir.LeakyQueue, weir.FixedWindow, weir.SlidingCounter, weir.SlidingLog,
}

// Compare shows all algorithms with the given numbers. It keeps the arrivals, and decides them again.
func (e *Engine) Compare(n Numbers) error {
	switch {
	case n.Limit < 1 || n.Limit > maxLimit:
		return fmt.Errorf("limit: must be from 1 to %d, got %d", maxLimit, n.Limit)
	case n.Window < 100 || n.Window > maxWindow.Milliseconds():
		return fmt.Errorf("window: must be from 100 ms to 24 h, got %d ms", n.Window)
	case n.Burst < 0 || n.Burst > maxLimit:
		return fmt.Errorf("burst: must be from 1 to %d, or 0 for the limit, got %d", maxLimit, n.Burst)
	case n.MaxDelay < 0 || n.MaxDelay > maxWindow.Milliseconds():
		return fmt.Errorf("max delay: must be from 0 to 24 h, got %d ms", n.MaxDelay)
	}
	policies := make([]*counter.Policy, len(algorithms))
	for i, a := range algorithms {
		l := weir.Limit{Algorithm: a, Count: n.Limit, Window: n.window()}
		switch a {
		case weir.LeakyQueue:
			l.MaxDelay = time.Duration(n.MaxDelay) * time.Millisecond
			fallthrough
		case weir.TokenBucket, weir.LeakyBucket:
			l.Burst = n.Burst
		}
		p, err := counter.NewPolicy(a.String(), l)
		if err != nil {
			return err
		}
		policies[i] = p
	}
	if e.own != nil {
		e.own = nil
		e.Clear()
	}
	e.numbers, e.policy, e.demo = n, policies, nil
	e.begin = aligned(n.window())
	e.replay(e.at)
	return nil
}

// aligned returns, in µs since 1970, the first time in 2026 at which a window of the given length begins.
func aligned(window time.Duration) int64 {
	w := window.Microseconds()
	year := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()
	return (year + w - 1) / w * w
}

// Clear discards all arrivals, and goes back to the beginning.
func (e *Engine) Clear() {
	e.schedule, e.charges, e.patterns, e.full, e.demo = nil, 0, nil, false, nil
	e.replay(0)
}

// replay starts over, and decides all arrivals up to a time.
func (e *Engine) replay(to int64) {
	e.at, e.next, e.fresh, e.seen = 0, 0, true, ""
	now := func() time.Time { return time.UnixMicro(e.begin + e.at) }
	e.store = &mirror{Store: memstore.New(memstore.Options{MemoryCap: storeCap, Now: now}), engine: e, lanes: map[string]*lane{}}
	e.limiter = weir.NewLimiter(e.store, e.own, weir.Options{Now: now, Guard: cooldown.New(cooldown.Options{Now: now})})
	e.lanes, e.whole, e.answer, e.applied = nil, &trace{window: maxAt}, "", len(algorithms)
	if e.own == nil {
		for _, p := range e.policy {
			e.lanes = append(e.lanes, e.store.lane(counter.Counter{Policy: p, Subject: []byte("you")}))
		}
	} else {
		e.look()
	}
	e.run(to)
}

// run decides all arrivals up to a time, which must not be in the past.
func (e *Engine) run(to int64) {
	if d := e.demo; d != nil && e.at < int64(d.Until) && to >= int64(d.Until) {
		e.pass(int64(d.Until))
		e.seen = d.seen(e, e.numbers)
	}
	e.pass(to)
}

func (e *Engine) pass(to int64) {
	e.fill(to)
	for e.next < len(e.schedule) && e.schedule[e.next].at <= to {
		a := &e.schedule[e.next]
		e.at = a.at
		e.decide(a)
		e.next++
	}
	e.at = to
}

// decide decides an arrival: once for each algorithm, or once by the user's rules.
func (e *Engine) decide(a *arrival) {
	ctx := context.Background()
	if e.own != nil {
		req := *a.request
		d, _ := e.limiter.Check(ctx, &req) // can't fail: the store is a memstore
		e.whole.mark(e.at, e.next, verdictOf(d.Allowed, true, d.Delay), d.Delay)
		e.answer = answer(&d)
		return
	}
	for _, l := range e.lanes {
		charge := counter.Charge{Counter: counter.Counter{Policy: l.policy, Subject: []byte("you")}, N: 1}
		_, _ = private.Take(e.limiter, ctx, &weir.Request{}, []counter.Charge{charge}, nil)
	}
}

// Send adds requests, evenly spread over the next milliseconds.
func (e *Engine) Send(count int, over int64) error {
	if count < 1 || count > maxLimit {
		return fmt.Errorf("count: must be from 1 to %d requests at a time, got %d", maxLimit, count)
	}
	if over < 0 || over > maxWindow.Milliseconds() {
		return fmt.Errorf("over: must be from 0 to 24 h, got %d ms", over)
	}
	e.burst(e.at, count, over*1000)
	if e.full {
		return e.errFull()
	}
	e.run(e.at)
	return nil
}

// errFull returns an error that says why no more arrivals can be added.
func (e *Engine) errFull() error {
	if len(e.schedule) >= MaxArrivals {
		return fmt.Errorf("%d requests are the most that the playground keeps: reset it to send more", MaxArrivals)
	}
	return fmt.Errorf("%d limits apply to this request, and %d requests are the most that the playground keeps then: reset it, or paste fewer rules", e.applied, len(e.schedule))
}

// burst adds arrivals that begin at a time, and are evenly spread over some microseconds.
func (e *Engine) burst(at int64, count int, over int64) {
	for i := range count {
		e.add(arrival{at: at + over*int64(i)/int64(count)})
	}
	e.order()
}

// add appends an arrival if there aren't too many. Call order afterward to sort the arrivals.
func (e *Engine) add(a arrival) {
	if a.charges = e.applied; len(e.schedule) >= MaxArrivals || e.charges+a.charges > maxCharges {
		e.full = true
		return
	}
	e.charges += a.charges
	if e.own != nil && a.request == nil {
		req := e.request
		a.request = &req
	}
	e.schedule = append(e.schedule, a)
}

// order sorts the arrivals that haven't been decided. Arrivals at the same time stay in the order in which they were
// added.
func (e *Engine) order() {
	slices.SortStableFunc(e.schedule[e.next:], func(a, b arrival) int { return cmp.Compare(a.at, b.at) })
}

// Advance goes forward or back to a time. It returns what to draw in addition to earlier frames.
func (e *Engine) Advance(to int64) Frame {
	to = min(max(to, 0), maxAt)
	if to < e.at {
		e.replay(to)
	} else {
		e.run(to)
	}
	return e.frame()
}

// Step goes to the next arrival. If there is none, it goes to the next time at which a value changes its course.
func (e *Engine) Step() Frame {
	to := e.at + e.ahead()
	e.fill(to)
	if e.next < len(e.schedule) {
		to = min(to, e.schedule[e.next].at)
	}
	for _, l := range e.lanes {
		if bend := l.bend(e.begin + e.at); bend != 0 {
			to = min(to, bend-e.begin)
		}
	}
	return e.Advance(to)
}

// Back goes back to the previous arrival, or to the beginning if there is none.
func (e *Engine) Back() Frame {
	for i := e.next - 1; i >= 0; i-- {
		if at := e.schedule[i].at; at < e.at {
			return e.Advance(at)
		}
	}
	return e.Advance(0)
}

// ahead returns how far into the future arrivals are shown.
func (e *Engine) ahead() int64 { return 2 * e.scale() }

// scale returns the length of the window that determines the time scale, in µs. With the user's own rules, it is the
// shortest window that applies, but neither too short nor too long.
func (e *Engine) scale() int64 {
	if e.own == nil {
		return e.numbers.Window * 1000
	}
	w := time.Minute
	for _, l := range e.lanes {
		w = min(w, l.policy.Limit.Window)
	}
	return max(w, time.Second).Microseconds()
}
