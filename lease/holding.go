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
	seen atomic.Uint32 // when it was last of use, in blinks

	slow   bool // what is held was lent for longer than weir.MaxLease
	room   bool // the store admitted what it was last asked for
	outage bool // it couldn't be reached then
	gone   bool // nobody finds the holding any more

	// The lock guards changes of all but the hash and seen. There are many holdings, and most aren't in the cache when they are
	// needed: a check that spends looks at the first two lines of it, of 64 bytes each, and the size is a power of two for
	// the two to come together.
	mu        sync.Mutex
	policy    atomic.Pointer[weir.Policy]
	held      int64        // tokens
	until     int64        // when they can't be spent any more
	wholeAt   atomic.Int64 // when all would be there, as far as is known
	noneUntil atomic.Int64 // until then anybody is refused who asks for one: see refusedUnlocked

	ripe      int64   // when the last of what is held has refilled, if that was lent before
	slot      int64   // the store's name for when they were debited
	left      int64   // tokens that the store had when it was last asked,
	lastAt    int64   // and when that was
	came      int64   // when tokens were last asked for,
	every     float64 // and after how long they are, as a rule
	fullUntil int64   // until then a refusal is believed
	full      int64   // of a cost of that much, or more

	fullAt     int64 // when something last was
	fullSince  int64 // when that began, on and off
	refusals   int64 // tokens that were refused from memory since then
	pause      int64 // how long to refuse when what is held is spent, since the store has hardly more
	out        int64 // tokens of the lease that the store takes to be unspent
	busy       int64 // when it was last worth a fast lease
	barren     int64 // until then the store lends none, although it has some,
	slowBarren int64 // and none slowly

	retryAt  atomic.Int64 // when the cost that is refused would fit, if nobody else came
	window   int64        // of the rate: its number,
	arrivals float32      // the tokens asked for in it,
	before   float32      // and in the one before
	asking   *ask         // under way, or nil
	pending  int64        // tokens for which others wait for it
	subject  []byte
}

// ask is a question to the store that several wait for.
type ask struct {
	done chan struct{} // closed when it is answered; made by who waits first
	err  error
	full int64 // the cost that was refused, or 0
	slow bool  // it was for a slow lease
	few  bool  // less was lent than those who wait need, although there is more
	none bool  // less was lent than those who waited needed, since there is no more
}

// terms are those of the holding's policy.
func (x *holding) terms() *weir.Terms { return x.policy.Load().Terms() }

// horizon is for how long tokens are asked for, ns.
func horizon(t *weir.Terms) float64 { return min(float64(weir.MaxLease)/2, float64(t.Most)/4/t.Refill) }

// fast: the counter refills fast enough for anyone to borrow of it for a moment. See loan.
func fast(t *weir.Terms) bool { return t.Refill*float64(weir.MaxLease)/2 >= 2 && t.Most >= 8 }

const (
	rateWindow = int64(100 * time.Millisecond)
	margin     = int64(2 * time.Millisecond)   // by which a lease ends sooner here than in the store, at least
	drift      = 1000                          // of its length: by which part of it in any case, as clocks differ
	lull       = int64(250 * time.Millisecond) // without refusals, after which a counter begins anew
	hot        = float64(time.Second / 200)    // more often a counter must be asked for to refuse without its lock
	oneIn      = 16                            // of those who then come one in so many is counted, for all
	calm       = int64(10 * time.Second)       // without being worth a fast lease, after which there may be slow ones
	maxStretch = int64(100 * time.Millisecond)

	// longestRefusal is for how long a refusal is believed: meanwhile the counter may have been reset elsewhere.
	longestRefusal = int64(time.Second)

	lossy = 1.0 / 5000 // what may be lost of what is refused; with what is then left in the store it is less than a thousandth
)

// adopt makes the holding one under other numbers, if they are others.
func (x *holding) adopt(p *weir.Policy) {
	old := x.policy.Load()
	if old == p {
		return
	}
	if old.Limit != p.Limit {
		x.forget() // before, so that no refusal of the old numbers is read as one of these
	}
	x.policy.Store(p)
}

// forget drops what the node knows, as if it had never asked.
func (x *holding) forget() {
	x.held, x.until, x.fullUntil, x.fullAt, x.refusals, x.pause = 0, 0, 0, 0, 0, 0
	x.left, x.room, x.ripe = 0, false, 0
	x.wholeAt.Store(0)
	x.noneUntil.Store(0)
}

// arrive counts a request for some tokens, or so many of them: see refusedUnlocked.
func (x *holding) arrive(now, n, times int64) {
	if fast(x.terms()) { // otherwise it doesn't matter
		if w := now / rateWindow; w == x.window {
			x.arrivals += float32(n * times)
		} else {
			if x.before = 0; w == x.window+1 {
				x.before = x.arrivals
			}
			x.window, x.arrivals = w, float32(n*times)
		}
	}
	if x.sparse(now) {
		if !sampled(now) {
			return
		}
		n *= oneIn
	}
	x.every += (float64(max(0, now-x.came))/float64(max(1, n)) - x.every) / 8
	x.came = now
	if b := blinks(now); x.seen.Load() != b {
		x.seen.Store(b)
	}
}

// sparse: not all who come are counted, since they may be refused without a trace.
func (x *holding) sparse(now int64) bool { return x.every < hot && now-x.fullAt < lull }

// loan is how many tokens the node will need within the horizon, or, if that isn't worth a lease, within a longer
// time. Fast leases of one cost more calls than they save. A counter that refills fast enough for them has slow ones
// only while it is asked for next to nothing of that, since those keep fast ones from being lent for a while.
func (x *holding) loan(now int64) weir.Loan {
	part := now % rateWindow
	rate := (float64(x.before)*float64(rateWindow-part)/float64(rateWindow) + float64(x.arrivals)) / float64(rateWindow)
	t := x.terms()
	n := int64(min(rate, t.Refill) * horizon(t))
	few := float64(t.SlowLease) / x.every
	slow := t.SlowTokens > 0
	if slow && fast(t) {
		slow = 20*max(rate, 1/x.every) <= t.Refill && few <= float64(t.SlowTokens) && now-x.busy > calm && now >= x.slowBarren
	}
	switch {
	case slow && now < x.slowBarren:
	case slow:
		a := weir.Loan{Want: int64(min(few+1, float64(t.SlowTokens))), Slow: true, Ahead: x.takesAll()}
		if x.slow && now < x.until {
			a.Spent, a.SpentSlot = x.out-x.held, x.slot
		}
		return a
	case now < x.barren:
	case n >= 2:
		x.busy = now
		return weir.Loan{Want: n + x.stretched(now)}
	default:
		return weir.Loan{Want: x.stretched(now)}
	}
	return weir.Loan{}
}

// takesAll: so much more is asked for here than refills that this node would take all of it.
func (x *holding) takesAll() bool { return 1.25*x.terms().Refill*x.every < 1 }

// stretched is what refills in a stretch.
func (x *holding) stretched(now int64) int64 {
	return int64(x.terms().Refill * float64(x.stretch(now)))
}

// plenty: the counter has so much, and so little is used of what refills, that what is left of a slow lease isn't missed.
func (x *holding) plenty() bool {
	return x.slow && 4*x.left >= 3*x.terms().Most && x.terms().Refill*x.every >= 2
}

// spend takes tokens that are held, or tells that there are none.
func (x *holding) spend(now, n int64, r *weir.Result) bool {
	if x.held < n || now >= x.until || now < x.ripe && now < x.ripens(n) {
		return false
	}
	x.held -= n
	x.fits(now, r)
	switch {
	case x.held > 0:
	case x.ripe > x.lastAt: // the store had none left, and has the next when that has refilled
		x.believe(1, x.ripens(1), x.ripens(1))
	case x.pause > 0:
		x.refuse(now, 1, now+x.pause, now+x.pause)
	}
	return true
}

// ripens is when as many tokens of the lease have refilled, or, beyond those, of the store.
func (x *holding) ripens(n int64) int64 { return x.ripe + int64(float64(n-x.held)/x.terms().Refill) }

// there is how many tokens are left, in the store and here, as far as the node knows.
func (x *holding) there(now int64) int64 {
	left := x.left + x.held
	switch {
	case x.ripe > x.lastAt:
		left = max(0, x.held+int64(math.Floor(x.terms().Refill*float64(now-x.ripe))))
	case x.slow: // long enough ago for something to have refilled
		left += int64(x.terms().Refill * float64(now-x.lastAt))
	}
	return min(x.terms().Most, left)
}

// fits reports what the node knows of a counter that has room.
func (x *holding) fits(now int64, r *weir.Result) {
	*r = weir.Result{
		Allowed:    true,
		Remaining:  x.there(now),
		ResetAfter: time.Duration(max(0, x.wholeAt.Load()-now)),
		Slot:       x.slot,
	}
}

// knows: the store said a moment ago that as much fits.
func (x *holding) knows(now, n int64) bool {
	return x.room && !x.outage && now-x.lastAt < int64(weir.MaxLease) && x.there(now) >= n
}

// unspend gives back what spend took, if it is still of the same lease, and the store wasn't told of it.
func (x *holding) unspend(now, n, slot int64) bool {
	if x.slot != slot || now >= x.until || x.held+n > x.out {
		return false
	}
	x.held += n
	return true
}

// refuse remembers a refusal: see believe.
func (x *holding) refuse(now, n, until, retryAt int64) {
	if now-x.fullAt > lull {
		x.fullSince, x.refusals = now, 0
	}
	x.believe(n, until, retryAt)
	x.fullAt = now
	x.refusals += n
}

// believe remembers until some moment that a cost is refused, and when it will fit. The two differ: a refusal
// that lasts for a day is believed for a second, since the counter may be reset elsewhere.
func (x *holding) believe(n, until, retryAt int64) {
	x.full, x.fullUntil = n, until
	x.retryAt.Store(max(until, retryAt))
}

// refused answers from a refusal that is remembered.
func (x *holding) refused(now, n int64, r *weir.Result) bool {
	switch {
	case x.held > 0 && now < x.ripe && now < x.until: // nobody has any
		x.believe(n, x.ripens(n), x.ripens(n))
	case n < x.full || now >= x.fullUntil:
		return false
	case n > x.full && x.policy.Load().Limit.Algorithm == weir.SlidingCounter: // only the store knows when that fits
		return false
	}
	x.refusals += n
	x.turnAway(now, n, r)
	return true
}

// turnAway refuses a cost of at least what the store refused last.
func (x *holding) turnAway(now, n int64, r *weir.Result) {
	x.fullAt = now
	*r = weir.Result{
		Remaining:  min(x.there(now), n-1),
		RetryAfter: x.retryAfter(now),
		ResetAfter: time.Duration(max(0, x.wholeAt.Load()-now)),
		Slot:       x.slot,
	}
	switch t := x.terms(); {
	case n > t.Most:
		r.RetryAfter = weir.Never
	case n > x.full && !x.windowed():
		r.RetryAfter += time.Duration(float64(n-x.full)/t.Refill) + 1
	}
}

// retryAfter is the time until the cost that is refused fits, in whole µs as stores tell it, rounded up.
func (x *holding) retryAfter(now int64) time.Duration {
	return max(time.Duration(x.retryAt.Load()-now+999).Truncate(time.Microsecond), time.Microsecond)
}

// unlock ends a change, and tells those who don't take the lock.
func (x *holding) unlock() {
	none := int64(0)
	if x.fullUntil > 0 && x.full == 1 && x.every < hot {
		if none = x.fullUntil; x.held > 0 {
			none = min(none, x.ripens(1))
		}
	}
	if none != x.noneUntil.Load() {
		x.noneUntil.Store(none)
	}
	x.mu.Unlock()
}

// refusedUnlocked answers from a refusal that is remembered without the lock, and mostly without a trace: those who are refused the
// most often would wait for each other, and each core for what the other has written.
func (x *holding) refusedUnlocked(now int64, c *weir.Charge, r *weir.Result) bool {
	none := x.noneUntil.Load()
	if now >= none || c.N != 1 || c.Policy != x.policy.Load() {
		return false
	}
	if sampled(now) && x.mu.TryLock() {
		x.fullAt = now
		x.refusals += oneIn
		x.arrive(now, 1, oneIn)
		x.unlock()
	}
	*r = weir.Result{
		RetryAfter: x.retryAfter(now),
		ResetAfter: time.Duration(max(0, x.wholeAt.Load()-now)),
	}
	return true
}

// sampled picks one in so many moments.
func sampled(now int64) bool { return uint64(now)*0x9e3779b97f4a7c15>>32%oneIn == 0 }

// stretch is by how much longer than the store says a refusal is remembered, so that the store isn't asked
// for every single token. What refills meanwhile may never be used, if the client stops. It
// is held to a small part of what was refused: see lossy.
func (x *holding) stretch(now int64) int64 {
	if now-x.fullAt > lull || x.windowed() {
		return 0
	}
	return min(maxStretch, int64(float64(x.terms().Most)/4/x.terms().Refill), int64(lossy*float64(x.refusals)/x.terms().Refill))
}

// windowed: what isn't used when its window passes is lost, so every moment counts.
func (x *holding) windowed() bool {
	a := x.policy.Load().Limit.Algorithm
	return a == weir.FixedWindow || a == weir.SlidingCounter
}

// learn takes in what the store answered to an ask that was sent at some moment.
func (x *holding) learn(sent, now, n int64, loan weir.Loan, r *weir.Result) (leftover weir.Return) {
	x.left, x.room, x.lastAt, x.outage = r.Remaining, r.Allowed, sent, false
	x.wholeAt.Store(sent + int64(r.ResetAfter))
	if !r.Allowed {
		until, retryAt := sent+longestRefusal, int64(0)
		if r.RetryAfter != weir.Never {
			retryAt = now + int64(r.RetryAfter) // what was true when it was sent may be late by the way back, never early
			until = min(until, sent+int64(r.RetryAfter)+x.stretch(now))
		}
		x.refuse(now, n, until, retryAt)
		if now-x.fullSince < 2*int64(weir.MaxLease) && fast(x.terms()) { // others may be about to give some back
			x.fullUntil = min(until, sent+int64(weir.MaxLease)/4)
		}
		return leftover
	}
	x.fullUntil, x.pause = 0, 0
	if r.Remaining == 0 && !x.windowed() && !fast(x.terms()) { // nobody has much to give back: the next must refill first
		level := float64(x.terms().Most) - x.terms().Refill*float64(r.ResetAfter)
		next := int64((1 - level) / x.terms().Refill)
		x.believe(1, sent+min(longestRefusal, next), now+next)
	}
	if r.Lent == 0 {
		switch until := now + int64(weir.MaxLease)/2; {
		case loan.Want == 0 || r.Remaining < 2:
		case loan.Slow:
			x.slowBarren = until
		default:
			x.barren = until
		}
		return leftover
	}
	if x.held > 0 && now < x.until {
		leftover = x.back(x.held)
	}
	x.held, x.out, x.ripe = r.Lent, r.Lent, 0
	if r.LentBy > 0 {
		x.ripe = now + int64(r.LentBy)
	}
	x.until, x.slot, x.slow = sent+int64(r.LentFor)-max(margin, int64(r.LentFor)/drift), r.Slot, r.LentFor > weir.MaxLease
	if r.Lent < loan.Want && !loan.Slow {
		x.pause = x.stretch(now)
	}
	return leftover
}

// back is tokens of the lease on their way to the store.
func (x *holding) back(n int64) weir.Return {
	return weir.Return{Counter: weir.Counter{Policy: x.policy.Load(), Subject: x.subject}, N: n, Slot: x.slot, Unspent: true, Slow: x.slow}
}
