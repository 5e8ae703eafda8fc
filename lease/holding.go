package lease

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir"
)

// holding is what a node knows of a counter that it is often asked for: the
// tokens that it may spend by itself, or until when there are none.
//
// Times are ns since the store began, on the node's monotonic clock.
type holding struct {
	hash uint64
	seen atomic.Int64 // when it was last of use, about

	mu      sync.Mutex // guards what follows
	policy  *weir.Policy
	subject []byte
	numbers numbers
	gone    bool // nobody finds it any more

	held  int64 // tokens
	until int64 // when they can't be spent any more
	slot  int64 // the store's name for when they were debited
	slow  bool  // they were lent for longer than weir.MaxLease

	full      int64 // the least cost that is refused,
	fullUntil int64 // until then
	fullSince int64 // when it began to refuse, on and off
	fullAt    int64 // when it last did
	refusals  int64 // tokens that were refused since it began to, on and off
	pause     int64 // how long to refuse when what is held is spent, since the store has hardly more

	last   weir.Result // what the store said last
	lastAt int64       // when it was asked

	window   int64   // of the rate: its number,
	arrivals int64   // the tokens asked for in it,
	before   int64   // and in the one before
	usual    float64 // tokens in a window, over the last second or so

	since   int64 // when it began to be looked at
	barren  int64 // until then the store lends none, although it has some
	asking  *ask  // under way, or nil
	pending int64 // tokens for which others wait for it
	outage  bool  // the store couldn't be reached when it was last asked
}

// ask is a question to the store that several wait for.
type ask struct {
	done chan struct{} // closed when it is answered
	err  error
	full int64 // the cost that was refused, or 0
	few  bool  // less was lent than was asked for, and than those who wait need
}

// numbers are what of a policy matters here.
type numbers struct {
	most    int64   // tokens at once
	rate    float64 // tokens per ns
	horizon int64   // for how long tokens are asked for, ns
	few     int64   // that slow leases may be of
}

func numbersOf(p *weir.Policy) numbers {
	n := numbers{most: p.Limit.Max()}
	v := p.Numbers()
	switch p.Limit.Algorithm {
	case weir.TokenBucket, weir.LeakyBucket:
		n.rate = float64(v[1]) / float64(v[2]) / 1e9 // millionths a µs
		n.few = min(int64(n.rate*float64(weir.MaxLease)), n.most/32)
	default:
		n.rate = float64(n.most) / float64(p.Limit.Window)
	}
	n.horizon = min(int64(weir.MaxLease)/2, int64(float64(n.most)/4/n.rate))
	return n
}

// leases: the counter refills fast enough for anyone to borrow of it. See want.
func (n numbers) leases() bool { return n.few > 0 || n.rate*float64(n.horizon) >= 2 }

const (
	rateWindow = int64(100 * time.Millisecond)
	margin     = int64(2 * time.Millisecond)   // by which a lease ends sooner here than in the store
	slowly     = int64(600 * time.Millisecond) // for how long tokens are asked for by who asks seldom
	lull       = int64(250 * time.Millisecond) // without refusals, after which a counter begins anew
	maxStretch = int64(100 * time.Millisecond)

	// longestRefusal is for how long a refusal is believed: meanwhile the counter may have been reset elsewhere.
	longestRefusal = int64(time.Second)

	lossy = 1.0 / 5000 // what may be lost of what is refused; with what is then left in the store it is less than a thousandth
)

// adopt makes the holding one under other numbers, if they are others.
func (x *holding) adopt(p *weir.Policy) {
	if x.policy == p {
		return
	}
	same := x.policy.Limit == p.Limit
	if x.policy = p; !same {
		x.numbers = numbersOf(p)
		x.forget()
	}
}

// forget drops what the node knows, as if it had never asked.
func (x *holding) forget() {
	x.held, x.until, x.fullUntil, x.fullAt, x.refusals, x.pause, x.last = 0, 0, 0, 0, 0, 0, weir.Result{}
}

// arrive counts tokens that are asked for.
func (x *holding) arrive(now, n int64) {
	if w := now / rateWindow; w == x.window {
		x.arrivals += n
	} else {
		x.turn(w, n)
	}
	if now-x.seen.Load() > int64(time.Millisecond) {
		x.seen.Store(now)
	}
}

// turn begins another window.
func (x *holding) turn(w, n int64) {
	passed := w - x.window
	x.usual += (float64(x.arrivals) - x.usual) / usualWindows
	if x.before = 0; passed == 1 {
		x.before = x.arrivals
	} else {
		x.usual *= math.Pow(1-1.0/usualWindows, float64(passed-1))
	}
	x.window, x.arrivals = w, n
}

// usualWindows is over how many windows of the rate what is usual is taken, about.
const usualWindows = 8

// want is how many tokens the node will need within the horizon, or, if that is next to nothing beside what the
// counter refills, within a longer time. Fast leases of one cost more calls than they save.
func (x *holding) want(now int64) (n int64, slow bool) {
	part := now % rateWindow
	rate := (float64(x.before)*float64(rateWindow-part)/float64(rateWindow) + float64(x.arrivals)) / float64(rateWindow)
	usual := x.usual / float64(rateWindow)
	if now < x.barren {
		return 0, false
	}
	if x.numbers.few > 0 && 20*max(rate, usual) <= x.numbers.rate && now-x.since > slowly {
		return min(x.numbers.few, int64(usual*float64(slowly)+0.4)), true // from one a second on
	}
	if n = int64(min(rate, x.numbers.rate) * float64(x.numbers.horizon)); n < 2 {
		n = 0
	}
	return n + int64(x.numbers.rate*float64(x.stretch(now))), false
}

// spend takes tokens that are held, or tells that there are none.
func (x *holding) spend(now, n int64, r *weir.Result) bool {
	if x.held < n || now >= x.until {
		return false
	}
	x.held -= n
	x.fits(now, r)
	if x.held == 0 && x.pause > 0 {
		x.refuse(now, 1, now+x.pause)
	}
	return true
}

// fits reports what the node knows of a counter that has room.
func (x *holding) fits(now int64, r *weir.Result) {
	*r = weir.Result{
		Allowed:    true,
		Remaining:  x.last.Remaining + x.held,
		ResetAfter: max(0, x.last.ResetAfter-time.Duration(now-x.lastAt)),
		Slot:       x.slot,
	}
}

// knows: the store said a moment ago that as much fits.
func (x *holding) knows(now, n int64) bool {
	return x.last.Allowed && !x.outage && now-x.lastAt < int64(weir.MaxLease) && x.last.Remaining+x.held >= n
}

// unspend gives back what spend took, if it is still of the same lease.
func (x *holding) unspend(now, n, slot int64) bool {
	if x.slot != slot || now >= x.until {
		return false
	}
	x.held += n
	return true
}

// refuse remembers that a cost doesn't fit until some moment.
func (x *holding) refuse(now, n, until int64) {
	if now-x.fullAt > lull {
		x.fullSince, x.refusals = now, 0
	}
	x.full, x.fullUntil, x.fullAt = n, until, now
	x.refusals += n
}

// refused answers from a refusal that is remembered.
func (x *holding) refused(now, n int64, r *weir.Result) bool {
	if n < x.full || now >= x.fullUntil {
		return false
	}
	x.turnAway(now, n, r)
	return true
}

// turnAway refuses a cost of at least what the store refused last.
func (x *holding) turnAway(now, n int64, r *weir.Result) {
	x.fullAt = now
	x.refusals += n
	*r = weir.Result{
		Remaining:  min(x.last.Remaining+x.held, n-1),
		RetryAfter: time.Duration(max(x.fullUntil-now, int64(time.Microsecond))) + time.Duration(float64(n-x.full)/x.numbers.rate),
		ResetAfter: max(0, x.last.ResetAfter-time.Duration(now-x.lastAt)),
		Slot:       x.slot,
	}
	if n > x.numbers.most {
		r.RetryAfter = weir.Never
	}
}

// stretch is by how much longer than the store says a refusal is remembered, so that the store isn't asked
// for every single token. What refills meanwhile may never be used, if the client stops. It
// is held to a small part of what was refused: see lossy.
func (x *holding) stretch(now int64) int64 {
	if now-x.fullAt > lull || x.windowed() {
		return 0
	}
	return min(maxStretch, int64(float64(x.numbers.most)/4/x.numbers.rate), int64(lossy*float64(x.refusals)/x.numbers.rate))
}

// windowed: what isn't used when its window passes is lost, so every moment counts.
func (x *holding) windowed() bool {
	a := x.policy.Limit.Algorithm
	return a == weir.FixedWindow || a == weir.SlidingCounter
}

// learn takes in what the store answered to an ask that was sent at some moment.
func (x *holding) learn(sent, now, n, want int64, r *weir.Result) (leftover weir.Return) {
	x.last, x.lastAt, x.outage = *r, sent, false
	if !r.Allowed {
		until := sent + longestRefusal
		if r.RetryAfter != weir.Never {
			until = min(until, sent+int64(r.RetryAfter)+x.stretch(now))
		}
		x.refuse(now, n, until)
		if now-x.fullSince < 2*int64(weir.MaxLease) && x.numbers.leases() { // others may be about to give some back
			x.fullUntil = min(until, sent+int64(weir.MaxLease)/4)
		}
		return leftover
	}
	x.fullUntil, x.pause = 0, 0
	if r.Remaining == 0 && !x.windowed() && !x.numbers.leases() { // nobody can give any back: the next must refill first
		level := float64(x.numbers.most) - x.numbers.rate*float64(r.ResetAfter)
		x.full, x.fullUntil = 1, sent+min(longestRefusal, int64((1-level)/x.numbers.rate))
	}
	if r.Lent == 0 {
		if want > 0 && r.Remaining >= 2 {
			x.barren = now + int64(weir.MaxLease)/2
		}
		return leftover
	}
	if x.held > 0 && now < x.until {
		leftover = x.back(x.held)
	}
	x.held, x.until, x.slot, x.slow = r.Lent, sent+int64(r.LentFor)-margin, r.Slot, r.LentFor > weir.MaxLease
	if r.Lent < want {
		x.pause = x.stretch(now)
	}
	return leftover
}

// back is tokens of the lease on their way to the store.
func (x *holding) back(n int64) weir.Return {
	return weir.Return{Counter: weir.Counter{Policy: x.policy, Subject: x.subject}, N: n, Slot: x.slot, Unspent: true, Slow: x.slow}
}
