package lease

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/ledger"
)

// borrower is what a node knows of a busy counter: its state in the store's last answer, and the tokens borrowed from it.
//
// Times are in ns on the node's clock, except that State has times in µs on the store's clock.
type borrower struct {
	hash    uint64
	subject []byte
	seen    atomic.Uint32 // when it was last used, in blinks of 10 ms

	// refusal has what is needed to refuse a check without the lock, so that a flood of refused requests doesn't contend for
	// it. If nil, a check must take the lock.
	refusal atomic.Pointer[refusal]

	mu     sync.Mutex // guards the fields below, and changes of policy and refusal
	policy atomic.Pointer[counter.Policy]
	state  counter.State // the store's state, as if all held tokens had been given back
	clock  int64         // the store's clock minus the node's in µs, or slightly less
	base   int64         // the account's Time in the store's last answer, for claims; 0 if no claim would hold
	known  int64         // until when state is trusted, as other nodes may change it; 0 if there is none yet
	fresh  int64         // until when the node also trusts that a charge which fits state fits the store's counter

	held      int64        // how many borrowed tokens are left
	undecided atomic.Int64 // borrowed tokens spent on requests that another limit may still refuse
	strays    int64        // until when returned tokens may be on their way to the store; before that, the node makes no claims
	leaseEnd  int64        // until when the node may spend held
	interval  int64        // the store's name for the lease's interval

	refusing int64 // since when the store has refused, with breaks of up to lull
	refused  int64 // when it last refused
	outage   bool  // the store couldn't be reached for the last ask
	carried  bool  // the local store has taken over from state, and counts until the store answers again
	gone     bool  // the counter was evicted, or the store is closed

	period   int64 // the number of the current interval, for the request rate
	arrivals int64 // tokens requested in this interval
	before   int64 // tokens requested in the interval before

	asking  *ask  // the call in progress, or nil
	pending int64 // tokens that waiting requests need
}

// refusal is a state in which the counter refuses.
type refusal struct {
	policy *counter.Policy
	state  counter.State
	clock  int64
	until  int64 // until when the refusal is trusted
	pause  int64 // until when charges of at least cost are refused, even if they would fit: see stretch
	cost   int64
	turned atomic.Int64 // roughly how many tokens it has refused
}

const (
	margin    = int64(2 * time.Millisecond)   // a lease ends sooner here than in the store by at least this time,
	drift     = 1000                          // and by at least its length / drift, since clocks run at different speeds
	belief    = int64(time.Second)            // how long a state is trusted if no other node holds tokens to give back
	briefly   = int64(25 * time.Millisecond)  // how long a state is trusted if another node does
	lull      = int64(250 * time.Millisecond) // after this time without refusals, stretch starts over
	patience  = 2000                          // a pause lasts as long as the counter has been refusing / patience
	maxPause  = int64(100 * time.Millisecond)
	leastWant = 2 // a short lease of one token costs more calls than it saves
)

func newCounter(hash uint64, c *counter.Charge, now int64) *borrower {
	x := &borrower{hash: hash, subject: slices.Clone(c.Subject)}
	x.strays = now + 2*int64(ledger.Interval(c.Policy)) + margin // tokens of a counter evicted a moment ago may be on their way back
	x.policy.Store(c.Policy)
	x.seen.Store(blinks(now))
	return x
}

// storeTime converts a moment on the node's clock to the store's clock. The result is never too late.
func storeTime(clock, now int64) int64 { return clock + now/1000 }

// adopt switches to a new policy. If the limit's numbers have changed, tokens held under the old ones are given back.
func (x *borrower) adopt(p *counter.Policy, now int64) (back ledger.Unspent) {
	old := x.policy.Load()
	if old == p {
		return back
	}
	if old.Limit != p.Limit {
		back = x.empty(now)
		back.Policy = p // the store applies the new numbers to the account
		x.forget()
	}
	x.policy.Store(p)
	x.refusal.Store(nil)
	return back
}

// forget drops the node's knowledge of the counter's state, except the tokens that it holds. The state is still used if
// the store can't be reached.
func (x *borrower) forget() {
	x.known, x.fresh, x.base = min(x.known, 1), 0, 0
	x.refusal.Store(nil)
}

// empty removes all held tokens, and returns those that may still be given back. A bucket takes its tokens back only during the
// lease. A window takes them back later, too, since the interval's name tells the store if the window is still open.
func (x *borrower) empty(now int64) (back ledger.Unspent) {
	if x.held > 0 && (now < x.leaseEnd+margin || x.policy.Load().Limit.Algorithm > counter.LeakyBucket) {
		back = x.unspent(x.held, x.interval)
		x.held = 0
		back.Claim = x.claim()
		x.base = 0 // the account will change, and its next Time isn't known
		x.strays = x.leaseEnd + margin
	}
	x.held = 0
	return back
}

// lendsLong reports whether the bucket refills so slowly that leases last for seconds.
func (x *borrower) lendsLong() bool { return ledger.Interval(x.policy.Load()) > ledger.MaxLease }

// above reports whether the bucket is at least this many percent full, as far as the node knows.
func (x *borrower) above(now, percent int64) bool {
	p := x.policy.Load()
	return p.Level(x.state, storeTime(x.clock, now))/10_000 >= percent*p.Limit.Max()
}

// end removes the tokens of a lease that ends, and returns those to give back. If the node's next claim will include them
// anyway, and the bucket is full enough that no other node misses them, it returns none, to save the call.
func (x *borrower) end(now int64) (back ledger.Unspent) {
	if x.base != 0 && x.lendsLong() && x.above(now, 75) {
		x.held = 0
		return back
	}
	return x.empty(now)
}

// claim returns the account as the node knows it. It is right if no other node has asked in the meantime.
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

// want returns how many tokens the node is likely to need before a lease ends: as many as were requested in the last interval,
// half as many more for leases of seconds (which last 1.5 intervals on average), but no more than the refill of one interval.
func (x *borrower) want(now int64) int64 {
	p := x.policy.Load()
	length := int64(ledger.Interval(p))
	part := float64(now%length) / float64(length)
	rate := float64(x.before)*(1-part) + float64(x.arrivals)
	if x.lendsLong() {
		return min(int64(1.5*rate), refills(p)) // even a single token: returning it unspent needs no call, see end
	}
	if n := min(int64(rate), refills(p)); n >= leastWant {
		return n
	}
	return 0
}

// refills returns how many tokens refill in an interval.
func refills(p *counter.Policy) int64 {
	each := ledger.Interval(p)
	if a := p.Limit.Algorithm; a == counter.FixedWindow || a == counter.SlidingCounter {
		return int64(float64(p.Limit.Count) * float64(each) / float64(p.Limit.Window))
	}
	return p.Refill(each.Microseconds()) / 1_000_000
}

// decide allows a charge from held tokens, or refuses it because of the known state. If neither is possible, the charge stays
// open. The caller holds the lock.
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

// mustCount reports whether the store must count a charge that will be refused. Once the store has counted past the limit,
// later refusals need no call: they change nothing.
func mustCount(p *counter.Policy, s counter.State, at int64) bool {
	if !p.CountRefused || p.Limit.Algorithm != counter.FixedWindow {
		return false
	}
	_, within := p.Try(s, at, 0)
	return within
}

// spend takes held tokens for a charge. Unless decided is true, they may come back.
func (x *borrower) spend(e *entry, left counter.State, n int64, decided bool) {
	x.state = left
	x.held -= n
	if r := x.refusal.Load(); r != nil { // its state is the one before this charge
		x.arrivals += r.turned.Load()
		x.refusal.Store(nil)
	}
	if !decided {
		x.undecided.Add(n)
		e.spent, e.interval = n, x.interval
	}
}

// refusesUnlocked refuses a charge without the lock, if a published refusal applies to it.
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
	if sampled(now) { // in a flood, not every core may write to the same memory
		r.turned.Add(oneIn * e.charge.N)
		x.seen.Store(blinks(now))
	}
	r.report(now, e)
	return true
}

const oneIn = 16

// sampled is true for one moment in 16.
func sampled(now int64) bool { return uint64(now)*0x9e3779b97f4a7c15>>32%oneIn == 0 }

func (r *refusal) report(now int64, e *entry) {
	e.verdict = refused
	r.policy.ReportTo(e.result, r.state, storeTime(r.clock, now), e.charge.N, counter.Refused)
	if e.result.RetryAfter != counter.Never && e.charge.N >= r.cost {
		e.result.RetryAfter = max(e.result.RetryAfter, time.Duration(r.pause-now))
	}
}

// recall reports that a charge would fit, if the store's last answer is recent enough to tell.
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

// prepare fills in the ask for the store. It spends the held tokens first, even if they don't cover the charge. It returns the
// tokens of a lease that has ended but that the calendar hasn't handled yet.
func (x *borrower) prepare(now int64, e *entry, q *ledger.Ask) (late ledger.Unspent) {
	x.answer(e)
	if x.policy.Load() != e.charge.Policy {
		return late
	}
	if now >= x.leaseEnd {
		late = x.end(now)
	}
	q.Claim = x.claim()
	if spend := min(x.held, q.N-1); spend > 0 && !e.charge.Returnable && q.N <= e.charge.Policy.Limit.Max() { // never a cost above the capacity
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
		q.Want = 0 // the store wouldn't lend them
	}
	if turned > q.Want { // if many were refused, the wanted tokens count as waiting, so the store lends more of them
		q.Waiting, q.Want = q.Waiting+q.Want, 0
	}
	return late
}

// unspend gives back the tokens spent on a request that was refused or couldn't be decided: to the lease if it is still
// running, or else to the store.
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

// learn stores the store's answer. It returns the unspent tokens of an older lease. Taken is false if another charge of the
// request was refused, so that this one took nothing even if it fits.
func (x *borrower) learn(e *entry, g *ledger.Grant, taken bool, sent, now int64) (back ledger.Unspent) {
	p := e.charge.Policy
	x.outage, x.carried = false, false
	x.clock = g.Now - now/1000
	x.known, x.fresh = sent+belief, sent+int64(ledger.MaxLease)
	if !taken && g.Allowed && x.base != 0 && x.base == g.Account.Time {
		// Nothing was taken, and no other node has asked, so the node's state is newer than the store's.
		x.refusal.Store(nil)
		p.ReportTo(e.result, x.state, g.Now, e.charge.N, counter.Fits)
		return back
	}
	if g.Lent > 0 {
		end := sent + int64(g.LeaseTime) - max(margin, int64(g.LeaseTime)/drift)
		if x.held > 0 && x.interval == g.Interval && now < x.leaseEnd {
			end = min(end, x.leaseEnd) // two calls at once were both lent tokens
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
	if g.Account.Node != 0 && now >= x.strays { // the store accepts claims of the node that is alone
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
		e.result.RetryAfter = time.Millisecond // another call has borrowed enough in the meantime
		return
	}
	if wait := e.result.RetryAfter; wait != counter.Never {
		r.pause, r.cost = now+int64(wait)+x.stretch(now), e.charge.N
		r.until = min(r.until, r.pause)
	}
	x.refusal.Store(r)
}

// stretch returns how much longer a counter that has refused for a while keeps refusing, so that the store isn't asked
// for every single token. The tokens that refill in this time are lost only if the client stops, and are few compared
// to what was admitted before.
func (x *borrower) stretch(now int64) int64 {
	p := x.policy.Load()
	if a := p.Limit.Algorithm; a == counter.FixedWindow || a == counter.SlidingCounter {
		return 0 // unused tokens are lost when the window ends, so waiting would waste them
	}
	return min(maxPause, (now-x.refusing)/patience/int64(time.Millisecond)*int64(time.Millisecond))
}

// refusesStill reports whether a charge doesn't fit yet, by the store's last known state, however old it is.
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

// hear keeps the state in the store's answer in case the store can't be reached later. Until then, the node doesn't use it.
func (x *borrower) hear(g *ledger.Grant, now int64) {
	p := x.policy.Load()
	x.state, x.clock = g.Account.State, g.Now-now/1000
	x.outage, x.carried = false, false
	if ledger.Lends(p) {
		x.state = g.Account.View(p, g.Now, x.held)
	}
	x.known = max(x.known, 1)
}

// giveBack adds tokens that went back to the store to the known state. If their hold had already ended, the store took none
// back, and the known state is too high.
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

// left returns how many tokens the counter has left, as far as the node knows. For a sliding log, the node knows only the sum
// and the time of the newest entry.
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

// whole returns how many tokens an untouched counter has, or millionths if it counts an amount.
func whole(p *counter.Policy) int64 {
	if p.Limit.Decimal {
		return int64(p.Limit.Capacity())
	}
	return p.Limit.Max()
}
