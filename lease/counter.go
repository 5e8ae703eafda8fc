package lease

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/ledger"
)

// counter is what a node knows of a busy counter: its state as the store last told it, and the
// tokens that the node has borrowed.
//
// Times are ns on the node's clock; those that the arithmetic runs on, in µs, are the store's.
type borrower struct {
	hash    uint64
	subject []byte
	seen    atomic.Uint32 // when it was last used, in blinks

	// refusal has what a check needs to be refused without the lock, so that a flood of refusals
	// takes none. Nil means that a check must take the lock.
	refusal atomic.Pointer[refusal]

	mu     sync.Mutex // guards what follows, and changes of policy and refusal
	policy atomic.Pointer[counter.Policy]
	state  counter.State // the store's, as if all held tokens were given back
	clock  int64         // the store's clock less the node's, µs, or a bit less
	base   int64         // the account's time when the store last told it, for claims; 0 if there is nothing to claim
	known  int64         // until when the state is believed: others may have given back, or reset it; 0 if there is none yet
	fresh  int64         // until when it is also believed to have room

	held      int64        // tokens
	undecided atomic.Int64 // tokens that were held, spent by requests that other limits may still refuse
	strays    int64        // until when tokens may be on their way back to the store: nothing is claimed before
	leaseEnd  int64
	interval  int64 // the store's name for the lease's interval

	refusing int64 // since when the store has refused, on and off
	refused  int64 // when it last did
	outage   bool  // it couldn't be reached when it was last asked
	carried  bool  // the local store has taken over from the state, and counts until the store answers again
	gone     bool  // it was evicted, or the store is closed

	period   int64 // of the rate: its number,
	arrivals int64 // the tokens asked for in it,
	before   int64 // and in the one before

	asking  *ask  // under way, or nil
	pending int64 // tokens that waiting requests need
}

// refusal is a state in which the counter refuses.
type refusal struct {
	policy *counter.Policy
	state  counter.State
	clock  int64
	until  int64 // it is believed
	pause  int64 // until then the cost is refused, even if it would fit: see stretch
	cost   int64
	turned atomic.Int64 // roughly how many tokens it has refused
}

const (
	margin    = int64(2 * time.Millisecond)   // by which a lease ends sooner here than in the store
	drift     = 1000                          // a lease ends sooner by at least its length / drift, as clocks differ
	belief    = int64(time.Second)            // for how long a state is believed, unless other nodes may give back
	briefly   = int64(25 * time.Millisecond)  // and if they may
	lull      = int64(250 * time.Millisecond) // without refusals, after which refusing starts over
	patience  = 2000                          // a pause is the time for which the counter has refused / patience
	maxPause  = int64(100 * time.Millisecond)
	leastWant = 2 // a short lease of one token costs more calls than it saves
)

func newCounter(hash uint64, c *counter.Charge, now int64) *borrower {
	x := &borrower{hash: hash, subject: slices.Clone(c.Subject)}
	x.strays = now + 2*int64(ledger.Interval(c.Policy)) + margin // if this counter was evicted a moment ago, its tokens may still be on their way back
	x.policy.Store(c.Policy)
	x.seen.Store(blinks(now))
	return x
}

// storeTime is the store's clock at a moment of the node's: not later than it is.
func storeTime(clock, now int64) int64 { return clock + now/1000 }

// adopt switches to a policy's new numbers, if they have changed. Tokens held under the old ones
// are given back.
func (x *borrower) adopt(p *counter.Policy, now int64) (back ledger.Unspent) {
	old := x.policy.Load()
	if old == p {
		return back
	}
	if old.Limit != p.Limit {
		back = x.empty(now)
		back.Policy = p // the store reads the account by the numbers in force
		x.forget()
	}
	x.policy.Store(p)
	x.refusal.Store(nil)
	return back
}

// forget drops what the node believes of the counter, but not the tokens that it holds. The state is still used if the store is
// lost.
func (x *borrower) forget() {
	x.known, x.fresh, x.base = min(x.known, 1), 0, 0
	x.refusal.Store(nil)
}

// empty takes out all held tokens, and returns those that may still be given back: a bucket's only in time, a window's
// also late, since the store tells by their name whether the window is still open.
func (x *borrower) empty(now int64) (back ledger.Unspent) {
	if x.held > 0 && (now < x.leaseEnd+margin || x.policy.Load().Limit.Algorithm > counter.LeakyBucket) {
		back = x.unspent(x.held, x.interval)
		x.held = 0
		back.Claim = x.claim()
		x.base = 0 // the account's next time isn't known
		x.strays = x.leaseEnd + margin
	}
	x.held = 0
	return back
}

// lendsLong reports whether the bucket refills so slowly that leases last for seconds.
func (x *borrower) lendsLong() bool { return ledger.Interval(x.policy.Load()) > ledger.MaxLease }

// above reports whether the bucket is full to at least so many percent, as far as the node knows.
func (x *borrower) above(now, percent int64) bool {
	p := x.policy.Load()
	return p.Level(x.state, storeTime(x.clock, now))/10_000 >= percent*p.Limit.Max()
}

// end takes out the tokens of a lease that ends, and returns those to give back. If the node's next
// claim will account for them, and the bucket is so full that no other node misses them, it returns
// none and spares the call.
func (x *borrower) end(now int64) (back ledger.Unspent) {
	if x.base != 0 && x.lendsLong() && x.above(now, 75) {
		x.held = 0
		return back
	}
	return x.empty(now)
}

// claim is the account as the node knows it, which is right if no other node has asked meanwhile.
func (x *borrower) claim() ledger.Claim {
	p := x.policy.Load()
	if p.Limit.Algorithm > counter.LeakyBucket {
		return ledger.Claim{}
	}
	s := p.AtLevel(p.Level(x.state, x.state.Time)-x.held*1_000_000, x.state.Time)
	return ledger.Claim{Base: x.base, State: s, Held: x.held + x.undecided.Load()}
}

func (x *borrower) unspent(n, interval int64) ledger.Unspent {
	return ledger.Unspent{Counter: counter.Counter{Policy: x.policy.Load(), Subject: x.subject}, N: n, Interval: interval}
}

func (x *borrower) arrive(now, n int64) {
	if w := now / int64(ledger.Interval(x.policy.Load())); w == x.period {
		x.arrivals += n
	} else {
		if x.before = 0; w == x.period+1 {
			x.before = x.arrivals
		}
		x.period, x.arrivals = w, n
	}
	if b := blinks(now); x.seen.Load() != b {
		x.seen.Store(b)
	}
}

// want is how many tokens the node is likely to need before a lease ends: as many as it was asked
// for in the last interval, half as many more for leases of seconds, which last 1.5 intervals on
// average, and no more than refill in one interval.
func (x *borrower) want(now int64) int64 {
	p := x.policy.Load()
	length := int64(ledger.Interval(p))
	part := float64(now%length) / float64(length)
	rate := float64(x.before)*(1-part) + float64(x.arrivals)
	if x.lendsLong() {
		return min(int64(1.5*rate), refills(p)) // even one: what isn't spent of it needs no call, see end
	}
	if n := min(int64(rate), refills(p)); n >= leastWant {
		return n
	}
	return 0
}

// refills is how many tokens refill in an interval.
func refills(p *counter.Policy) int64 {
	each := ledger.Interval(p)
	if a := p.Limit.Algorithm; a == counter.FixedWindow || a == counter.SlidingCounter {
		return int64(float64(p.Limit.Count) * float64(each) / float64(p.Limit.Window))
	}
	return p.Refill(each.Microseconds()) / 1_000_000
}

// decide allows a charge from held tokens, or refuses it from the known state. If neither suffices,
// the charge stays open. The caller holds the lock.
func (x *borrower) decide(now int64, e *entry) {
	p, n := x.policy.Load(), e.charge.N
	at := storeTime(x.clock, now)
	if x.held >= n && now < x.leaseEnd && !e.charge.Returnable {
		if s, ok := p.Try(x.state, at, n); ok {
			x.spend(e, s, n, e.only)
			e.verdict = allowed
			p.ReportTo(e.result, s, at, n, counter.Taken)
			return
		}
	}
	if now >= x.known {
		return
	}
	if _, ok := p.Try(x.state, at, n); !ok && !mustCount(p, x.state, at) {
		x.refuse(e, now)
	}
}

// mustCount reports whether the store must be asked for a refusal, to count it. Once it has, the counter is past its limit, and
// refuses all the same.
func mustCount(p *counter.Policy, s counter.State, at int64) bool {
	if !p.CountRefused || p.Limit.Algorithm != counter.FixedWindow {
		return false
	}
	_, within := p.Try(s, at, 0)
	return within
}

// spend takes held tokens for a charge. Unless that decides the request, they may come back.
func (x *borrower) spend(e *entry, left counter.State, n int64, decided bool) {
	x.state = left
	x.held -= n
	if r := x.refusal.Load(); r != nil { // it tells what was left before
		x.arrivals += r.turned.Load()
		x.refusal.Store(nil)
	}
	if !decided {
		x.undecided.Add(n)
		e.spent, e.interval = n, x.interval
	}
}

// refusesUnlocked refuses a charge without the lock, if a published refusal covers it.
func (x *borrower) refusesUnlocked(now int64, e *entry) bool {
	r := x.refusal.Load()
	if r == nil || now >= r.until || r.policy != e.charge.Policy {
		return false
	}
	if now >= r.pause || e.charge.N < r.cost {
		if _, ok := r.policy.Try(r.state, storeTime(r.clock, now), e.charge.N); ok {
			return false
		}
	}
	if sampled(now) { // in a flood, not every core may write to one place
		r.turned.Add(oneIn * e.charge.N)
		x.seen.Store(blinks(now))
	}
	r.report(now, e)
	return true
}

const oneIn = 16

// sampled picks one in so many moments.
func sampled(now int64) bool { return uint64(now)*0x9e3779b97f4a7c15>>32%oneIn == 0 }

func (r *refusal) report(now int64, e *entry) {
	e.verdict = refused
	r.policy.ReportTo(e.result, r.state, storeTime(r.clock, now), e.charge.N, counter.Refused)
	if e.result.RetryAfter != counter.Never && e.charge.N >= r.cost {
		e.result.RetryAfter = max(e.result.RetryAfter, time.Duration(r.pause-now))
	}
}

// recall reports that a charge would fit, if the store said so a moment ago.
func (x *borrower) recall(now int64, e *entry) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	p, at := x.policy.Load(), storeTime(x.clock, now)
	if now >= x.fresh || p != e.charge.Policy || x.outage {
		return false
	}
	if _, ok := p.Try(x.state, at, e.charge.N); !ok {
		return false
	}
	p.ReportTo(e.result, x.state, at, e.charge.N, counter.Fits)
	return true
}

// prepare fills in what to ask the store for. Held tokens are spent first, however few they are. It returns those of a lease that
// has ended, which the calendar is late for.
func (x *borrower) prepare(now int64, e *entry, q *ledger.Ask) (late ledger.Unspent) {
	x.answer(e)
	if x.policy.Load() != e.charge.Policy {
		return late
	}
	if now >= x.leaseEnd {
		late = x.end(now)
	}
	q.Claim = x.claim()
	if spend := min(x.held, q.N-1); spend > 0 && !e.charge.Returnable && q.N <= e.charge.Policy.Limit.Max() { // a cost above the capacity must not fit in two parts
		if state, ok := e.charge.Policy.Try(x.state, storeTime(x.clock, now), spend); ok {
			x.spend(e, state, spend, false)
			q.N -= spend
		}
	}
	turned := int64(0)
	if r := x.refusal.Load(); r != nil {
		turned = r.turned.Swap(0)
		x.arrivals += turned
	}
	q.Waiting, q.Want = x.pending, x.want(now)
	if x.lendsLong() && !x.above(now, 50) {
		q.Want = 0 // the store wouldn't lend it
	}
	if turned > q.Want { // refused tokens count as waiting
		q.Waiting, q.Want = q.Waiting+q.Want, 0
	}
	return late
}

// unspend gives back the tokens that a request had spent which was refused, or couldn't be decided:
// to the lease, if it still runs, else to the store.
func (x *borrower) unspend(now int64, e *entry) (late ledger.Unspent) {
	n := e.spent
	e.decided()
	if n == 0 {
		return late
	}
	p, at := x.policy.Load(), storeTime(x.clock, now)
	if p != e.charge.Policy || x.interval != e.interval || now >= x.leaseEnd || x.gone {
		return x.unspent(n, e.interval)
	}
	x.held += n
	x.state = p.Return(x.state, at, n, x.interval)
	if e.verdict != refused && e.result.Err == nil {
		p.ReportTo(e.result, x.state, at, e.charge.N, counter.Fits)
	}
	return late
}

// learn takes in the store's answer. It returns the unspent tokens of an older lease. taken is false if
// another charge of the request was refused: then this one, though it fits, took nothing.
func (x *borrower) learn(e *entry, g *ledger.Grant, taken bool, sent, now int64) (back ledger.Unspent) {
	p := e.charge.Policy
	x.outage, x.carried = false, false
	x.clock = g.Now - now/1000
	x.known, x.fresh = sent+belief, sent+int64(ledger.MaxLease)
	if !taken && g.Allowed && x.base != 0 && x.base == g.Account.Time {
		// Nothing was taken, and no other node has asked: the node knows better than the store.
		x.refusal.Store(nil)
		p.ReportTo(e.result, x.state, g.Now, e.charge.N, counter.Fits)
		return back
	}
	if g.Lent > 0 {
		end := sent + int64(g.LeaseTime) - max(margin, int64(g.LeaseTime)/drift)
		if x.held > 0 && x.interval == g.Interval && now < x.leaseEnd {
			end = min(end, x.leaseEnd) // two calls under way at once were both lent something
		} else {
			x.base = 0 // the account has changed since
			back = x.empty(now)
		}
		x.held, x.interval, x.leaseEnd = x.held+g.Lent, g.Interval, end
	}
	if !g.Allowed && x.interval == e.interval && now < x.leaseEnd {
		x.held += e.spent
		e.decided()
	}
	x.state, x.base = g.Account.View(p, g.Now, x.held), 0
	if g.Account.Node != 0 && now >= x.strays { // a claim holds for the node that is alone
		x.base = g.Account.Time
	}
	if out := g.Account.Lent[0] + g.Account.Lent[1]; out > x.held {
		x.known = sent + briefly
	}
	x.refusal.Store(nil)
	if !g.Allowed {
		x.refuse(e, now)
		return back
	}
	v := counter.Taken
	if !taken {
		v = counter.Fits
	}
	p.ReportTo(e.result, x.state, g.Now, e.charge.N, v)
	return back
}

// refuse refuses a charge, and publishes the refusal.
func (x *borrower) refuse(e *entry, now int64) {
	if now-x.refused > lull {
		x.refusing = now
	}
	x.refused = now
	r := &refusal{policy: e.charge.Policy, state: x.state, clock: x.clock, until: x.known}
	r.report(now, e)
	if _, ok := r.policy.Try(r.state, storeTime(r.clock, now), e.charge.N); ok {
		e.result.RetryAfter = time.Millisecond // another call has been lent enough meanwhile
		return
	}
	if wait := e.result.RetryAfter; wait != counter.Never {
		r.pause, r.cost = now+int64(wait)+x.stretch(now), e.charge.N
		r.until = min(r.until, r.pause)
	}
	x.refusal.Store(r)
}

// stretch is for how much longer a counter that has refused for a while goes on refusing, so that
// the store isn't asked for every single token. Tokens that refill meanwhile are lost only if the
// client stops; then they are a small part of what was admitted in that time.
func (x *borrower) stretch(now int64) int64 {
	p := x.policy.Load()
	if a := p.Limit.Algorithm; a == counter.FixedWindow || a == counter.SlidingCounter {
		return 0 // unused tokens are lost when their window passes, so every moment counts
	}
	return min(maxPause, (now-x.refusing)/patience/int64(time.Millisecond)*int64(time.Millisecond))
}

// refusesStill reports whether a charge doesn't fit yet by the store's last state, however old that
// is.
func (x *borrower) refusesStill(now int64, e *entry) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	p := x.policy.Load()
	if x.known == 0 || p != e.charge.Policy {
		return false
	}
	if _, ok := p.Try(x.state, storeTime(x.clock, now), e.charge.N); ok {
		return false
	}
	(&refusal{policy: p, state: x.state, clock: x.clock}).report(now, e)
	return true
}

// hear keeps the state that the store sent with an answer, in case the store is lost. Until then the node doesn't decide by it.
func (x *borrower) hear(g *ledger.Grant, now int64) {
	p := x.policy.Load()
	x.state, x.clock = g.Account.State, g.Now-now/1000
	x.outage, x.carried = false, false
	if ledger.Lends(p) {
		x.state = g.Account.View(p, g.Now, x.held)
	}
	x.known = max(x.known, 1)
}

// giveBack adds tokens to the state that went back to the store. If their hold had already ended, the store took none back, and
// the state is too high.
func (x *borrower) giveBack(r *counter.Return, now int64) {
	p, at := x.policy.Load(), storeTime(x.clock, now)
	switch back := r.N - r.Used; {
	case p.Limit.Algorithm == counter.Concurrency:
	case p.Limit.Algorithm == counter.SlidingLog:
		x.state.Level = max(0, x.state.Level-back)
	case back >= 0:
		x.state = p.Return(x.state, at, back, r.Slot)
	default:
		x.state = p.Overdraw(x.state, at, -back)
	}
}

// left is how many tokens the counter has left, as far as the node knows. For a sliding log, the node knows only the sum and the
// time of the newest entry.
func (x *borrower) left(now int64) int64 {
	p, at := x.policy.Load(), storeTime(x.clock, now)
	if p.Limit.Algorithm != counter.SlidingLog {
		return p.Report(x.state, at, 1, counter.Fits).Remaining
	}
	if at >= x.state.Time+p.Limit.Window.Microseconds() {
		return whole(p)
	}
	return max(0, whole(p)-x.state.Level)
}

// whole is how many tokens an untouched counter has left, or millionths if it counts an amount.
func whole(p *counter.Policy) int64 {
	if p.Limit.Decimal {
		return int64(p.Limit.Capacity())
	}
	return p.Limit.Max()
}
