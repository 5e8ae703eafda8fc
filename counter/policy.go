package counter

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"math/big"
	"math/bits"
	"time"
)

// micro is how many units of fixed point make a token.
const micro = 1_000_000

// Policy is a limit under a name, with its numbers prepared for the arithmetic. It is immutable: [Define] and [NewPolicy] make one.
type Policy struct {
	Definition
	// Parts are what a split limit is counted in. None means that it is counted as one.
	Parts []*Policy

	window   int64 // µs
	unit     int64 // millionths in one of what is asked for: a token, or, of amounts, a millionth
	count    int64 // Limit.Count in units
	calendar *calendar
	capacity int64  // bucket: micro-tokens
	largest  int64  // bucket: the most that may be asked for at once, in units
	rate     rate   // bucket
	fill     int64  // bucket: µs from empty to full
	perPart  uint64 // maxSpent over the whole in millionths, times 2^64
	perMicro uint64 // bucket: µs that a millionth takes to refill, times 2^64, shifted right
	perShift uint8  // by this
	maxDelay int64  // queue: µs, or 0
	tick     int64  // sliding counter: µs per step of the weight
	ticks    int64  // sliding counter: steps per window
	deepest  int64  // that may be booked: micro-tokens of a bucket, tokens of a window
}

// Definition is what a policy is made of. A name and a limit are enough.
type Definition struct {
	// Name is what clients see in RateLimit-Policy: the rule's id, or id-1s when the rule has several limits.
	Name string
	// Rule is the id of the rule that the limit belongs to. "" means Name.
	Rule string
	// Endpoint is what the rule is for, if it names one: POST /v1/login. Clients see it in refusals.
	Endpoint string
	// Limit holds the numbers as they were written.
	Limit Limit
	// ID tells this limit's counters from those of other limits. It doesn't depend on numbers
	// that may change while a counter lives, so that a raised limit keeps its counters. If zero, it is made of Name and Scope.
	ID uint64
	// Scope tells the counters of limits with the same Name apart.
	Scope string
	// CountedAs, if not "", stands for Name in the ID: the counters outlive a change of the name.
	CountedAs string
	// Strict limits are decided by the store at every check, never from a lease.
	Strict bool
	// Shadow limits are counted and reported, and refuse nobody.
	Shadow bool
	// Candidate limits are those of [github.com/weirhq/weir.Rule.Candidate]. They are in shadow.
	Candidate bool
	// OnStoreFailure says what happens while the store can't be reached.
	OnStoreFailure FailureMode
	// Global limits are one over all regions. Home is the region that owns the most of them, or "" for the one that nodes are told,
	// and Floor what each of the others owns, in percent. See [github.com/weirhq/weir.Rule.Global].
	Global bool
	Home   string
	Floor  int
	// Travels: every check of a Global limit asks the home.
	Travels bool
	// OnPartition says what happens while the home can't be asked. See [github.com/weirhq/weir.Rule.OnPartition].
	OnPartition FailureMode
	// Statuses, if any, are the HTTP statuses that count: see [github.com/weirhq/weir.Limiter.Finish].
	Statuses []int
	// PerClient limits count by API key or user: nobody else waits for the same counter.
	PerClient bool
	// ByIP limits count by address alone.
	ByIP bool
	// PerNode limits hold for each node by itself: they are never shared out.
	PerNode bool
	// Book limits are for charges that come too late to be refused: whatever is left, the tokens are
	// taken, and no other limit of the request is in the way. Only a peek is refused. See [github.com/weirhq/weir.Rule.Book].
	Book bool
	// CountRefused fixed windows take the tokens of what they refuse as well. On other algorithms it does nothing, and
	// beside Book neither: that refuses only peeks.
	CountRefused bool
	// Abuse says what becomes of clients that keep coming while they are refused. Nil means nothing. See [github.com/weirhq/weir.Options.Guard].
	Abuse *Abuse
	// Place is where the counters of a part lie among the slots of a Redis Cluster: so many 65,536ths of all slots behind where
	// those of the whole limit would.
	Place uint16

	// Amount is what the limit counts of a request, or "" for its cost. See [github.com/weirhq/weir.Rule.Amount].
	Amount string
	// GivesBack: reservations that aren't settled in time go back. See [github.com/weirhq/weir.Rule.GiveBackUnsettled].
	GivesBack bool
	// Split, if not zero, is how many parts the limit is counted in, by stores that have servers to spread them over.
	Split int
	// ReadSubject, if not nil, reads what a subject was made of: of each dimension its name and its value.
	ReadSubject func(subject []byte) [][2]string
}

// NewPolicy prepares a limit. The name tells its counters from those of other policies.
func NewPolicy(name string, l Limit) (*Policy, error) {
	return Define(Definition{Name: name, Limit: l})
}

// Define makes the policy of a definition. The error is a [Problem] with the limit.
func Define(d Definition) (*Policy, error) {
	if err := d.Limit.Validate(); err != nil {
		return nil, err
	}
	p := &Policy{Definition: d}
	if p.Rule == "" {
		p.Rule = p.Name
	}
	p.prepare(d.Limit)
	if p.ID == 0 {
		p.ID = p.fingerprint(d.Scope)
	}
	if err := p.divide(d.Split); err != nil {
		return nil, Problem{Text: err.Error()}
	}
	return p, nil
}

// With returns a policy that differs in what change sets. Its limit and its parts keep their numbers, and it keeps its counters.
func (p *Policy) With(change func(*Definition)) *Policy {
	d := p.Definition
	change(&d)
	d.Limit, d.Split = p.Limit, p.Split
	q, _ := Define(d) // which can be defined, as p was
	return q
}

// prepare works out the numbers of a limit that is possible.
func (p *Policy) prepare(l Limit) {
	var r rate
	if l.isBucket() {
		r, _ = l.rate() // Validate has seen it
	}
	p.prepareAt(l, r)
}

// prepareAt is prepare with the rate of a bucket.
func (p *Policy) prepareAt(l Limit, r rate) {
	p.Limit, p.window, p.maxDelay = l, l.Window.Microseconds(), l.MaxDelay.Microseconds()
	p.unit, p.count, p.calendar = micro, l.Count, nil
	if l.Decimal {
		p.unit, p.count = 1, int64(l.Amount())
	}
	if l.Calendar.Unit != NoUnit {
		p.calendar = newCalendar(l.Calendar)
	}
	whole := int64(l.Amount())
	switch {
	case l.isBucket():
		p.rate = r
		p.capacity = int64(l.Capacity())
		p.largest = p.capacity / p.unit
		p.fill = mulDivCeil(p.capacity, p.rate.den, p.rate.num)
		ratio := new(big.Float).Quo(new(big.Float).SetInt64(p.rate.den), new(big.Float).SetInt64(p.rate.num))
		// Below 1 by as much as it takes, and rounded up: a counter must not seem full before it is.
		if e := ratio.MantExp(nil); e > 0 {
			p.perShift = uint8(e)
		}
		ratio.SetMantExp(ratio, 64-int(p.perShift))
		p.perMicro, _ = ratio.Uint64()
		p.perMicro = max(p.perMicro, p.perMicro+1)
		whole = p.capacity
		p.deepest = max(whole, min(MaxAmount, p.Refill(maxFill.Microseconds()))) // no deeper than refills in ten years
	case l.Algorithm == SlidingCounter:
		// At most 2^21 steps, so that steps × count stays below 2^53.
		p.tick = (p.window + 1<<21 - 1) >> 21
		p.ticks = (p.window + p.tick - 1) / p.tick
		p.deepest = maxPairCount
	default:
		p.deepest = min(2*MaxTokens*(micro/p.unit), maxExact-1)
	}
	p.perPart, _ = bits.Div64(maxSpent, 0, uint64(max(whole, maxSpent+1))) // an amount's limit can be a millionth
}

// fingerprint is the same on every node and in every version: the identity of a counter must outlive both.
// Where a window is part of how the state is read, another window is another counter.
func (p *Policy) fingerprint(scope string) uint64 {
	h := sha256.New()
	h.Write([]byte(p.Limit.Algorithm.String()))
	if p.Limit.Algorithm == FixedWindow || p.Limit.Algorithm == SlidingCounter {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(p.window)))
	}
	if p.Limit.Calendar.Unit != NoUnit {
		h.Write([]byte(p.Limit.Calendar.name()))
	}
	if p.Limit.Decimal {
		h.Write([]byte("millionths"))
	}
	h.Write([]byte{0})
	h.Write([]byte(cmp.Or(p.CountedAs, p.Name)))
	h.Write([]byte{0})
	h.Write([]byte(scope))
	return binary.BigEndian.Uint64(h.Sum(nil))
}

// Share is the policy of one node among several that can't ask each other: an
// even part of every number, and at least one token. Its counters are its own.
func (p *Policy) Share(nodes int) *Policy {
	if p.PerNode || nodes <= 1 {
		return p
	}
	n := int64(nodes)
	l := p.Limit
	if l.Count = max(1, l.Count/n); l.Decimal {
		each := Amount(max(1, p.count/n))
		l.Count, l.Fraction = int64(each/micro), each%micro
	}
	l.Refill /= float64(n)
	if l.Burst > 0 {
		l.Burst = max(1, l.Burst/n)
	}
	if l.Validate() != nil {
		return p // a part too small to be a limit
	}
	q := *p
	q.prepare(l)
	return &q
}

// Numbers are what the arithmetic runs on, for stores that do it elsewhere. Of a bucket: the
// capacity in millionths of a token, the rate in millionths per µs as a fraction, and a queue's longest delay
// in µs, or 0; with Book, in place of the delay, the deepest that may be booked. Of windows and logs: the count, the window in µs, and, of a sliding counter, the
// µs of a step of the weight and how many steps a window has.
func (p *Policy) Numbers() [4]int64 {
	if p.Limit.isBucket() {
		last := p.maxDelay
		if p.Book {
			last = p.deepest
		}
		return [4]int64{p.capacity, p.rate.num, p.rate.den, last}
	}
	return [4]int64{p.count, p.window, max(1, p.tick), max(1, p.ticks)}
}

// Memory is how long a counter that was only ever charged under these numbers can remember
// anything: after that much idle time it is full again.
func (p *Policy) Memory() time.Duration {
	switch {
	case p.Limit.isBucket():
		return time.Duration(p.fill) * time.Microsecond
	case p.Limit.Algorithm == SlidingCounter:
		return 2 * p.Limit.Window
	}
	if p.calendar != nil {
		return p.Limit.Window + 24*time.Hour // where clocks are changed
	}
	return p.Limit.Window
}

// LatestReset is the time until the counter is certainly full again, whatever it holds at now: what a client can be told
// while the counter can't be read.
func (p *Policy) LatestReset(now time.Time) time.Duration {
	switch at := now.UnixMicro(); p.Limit.Algorithm {
	case FixedWindow:
		return micros(p.windowEnd(p.roll(State{}, at).Time) - at)
	case SlidingCounter:
		return micros(p.windowEnd(p.roll(State{}, at).Time) + p.window - at)
	}
	return p.Memory()
}

// State is what a counter remembers, for every algorithm but the sliding log. The zero State is an
// untouched counter.
type State struct {
	// Time is a moment in µs: when a bucket's level was taken, or when a window began.
	Time int64
	// Level is a token bucket's tokens or a leaky bucket's water, in millionths; or the window's count.
	Level int64
	// Prev is the count of the window before, for the sliding counter.
	Prev int64
}

// Try takes n tokens at the given moment (µs) if they fit, and returns the new state.
// A refusal returns the state it was given, except that a time in the future,
// which only a clock that ran backwards leaves behind, is brought to now: it
// mints nothing and freezes nobody.
func (p *Policy) Try(s State, now, n int64) (State, bool) {
	switch p.Limit.Algorithm {
	case FixedWindow, SlidingCounter:
		return p.tryWindow(s, now, n)
	case SlidingLog:
		panic("weir: a sliding log is a Log, not a State")
	case Concurrency:
		panic("weir: slots have no State")
	}
	return p.tryBucket(s, now, n)
}

// Debit is Try for a charge that isn't a peek: where the policy says so, tokens that don't fit are
// taken all the same.
func (p *Policy) Debit(s State, now, n int64) (State, bool) {
	after, fits := p.Try(s, now, n)
	if fits || !p.Book && !(p.CountRefused && p.Limit.Algorithm == FixedWindow) {
		return after, fits
	}
	return p.Overdraw(after, now, n), p.Book
}

// Overdraw takes n whatever is left, below zero if need be.
func (p *Policy) Overdraw(s State, now, n int64) State {
	s = p.anchored(s, now)
	if p.Limit.isBucket() {
		return p.AtLevel(max(p.Level(s, now)-p.millionths(n), p.capacity-p.deepest), now)
	}
	s = p.roll(s, now)
	s.Level = max(s.Level, min(s.Level+n, p.deepest))
	return s
}

// millionths is what n units are, and no more than any limit holds.
func (p *Policy) millionths(n int64) int64 { return min(n, MaxTokens*(micro/p.unit)) * p.unit }

// whole is how many whole units some millionths are. It divides by a constant, which is several times faster.
func (p *Policy) whole(millionths int64) int64 {
	if p.unit == 1 {
		return millionths
	}
	return millionths / micro
}

// Exact is n of what the limit counts as an amount: of a Decimal limit n are millionths, of others tokens.
func (p *Policy) Exact(n int64) Amount { return Amount(n * p.unit) }

// MaxCharge is what a store may be asked for at once: more than any limit admits.
func (p *Policy) MaxCharge() int64 { return min(2*MaxTokens*(micro/p.unit), maxExact) }

// FailureMode says what a rule does while its store can't be reached.
type FailureMode uint8

const (
	// FailAllow lets requests through, except those of counters that the node knows: they are counted by this process alone.
	FailAllow FailureMode = iota
	// FailRefuse refuses them.
	FailRefuse
	// FailLocal limits them by this process's own counters.
	FailLocal
)

// Verdict is what became of a charge, for [Policy.Report].
type Verdict uint8

const (
	// Refused: the tokens don't fit.
	Refused Verdict = iota
	// Taken: the tokens fit, and the state has been debited.
	Taken
	// Fits: the tokens fit, but weren't taken: a peek, or another limit refused the request.
	Fits
)

// Report describes the state that [Policy.Try] returned (or, for [Fits], was given).
func (p *Policy) Report(s State, now, n int64, v Verdict) Result {
	var r Result
	p.ReportTo(&r, s, now, n, v)
	return r
}

// ReportTo is Report into a result that is already there: it is on the way of
// every check, and a result is too large to be handed around.
func (p *Policy) ReportTo(r *Result, s State, now, n int64, v Verdict) {
	r.Allowed, r.Again, r.Local = v != Refused, false, false
	r.RetryAfter, r.Delay, r.Part = 0, 0, 0
	r.Err = nil
	switch p.Limit.Algorithm {
	case FixedWindow:
		p.reportWindow(r, s, now, n, v)
	case SlidingCounter:
		p.reportCounter(r, s, now, n, v)
	default:
		p.reportBucket(r, s, now, n, v)
	}
}

// Return gives back n tokens that were debited in the given slot ([Result.Slot]).
// What can no longer be given back is void: a window that has passed, a bucket that is full.
func (p *Policy) Return(s State, now, n, slot int64) State {
	if s == (State{}) {
		return s
	}
	if p.Limit.isBucket() {
		return p.returnBucket(s, now, n)
	}
	return p.returnWindow(s, now, n, slot)
}

const maxSpent = 63

// Spent says how far a state is from untouched, from 0 to 63 for a counter that blocks its client,
// and how long after its Time (µs) it is certainly full again. Both are rounded, the time up:
// stores decide by them what to forget first, and do so at every check.
func (p *Policy) Spent(s State) (used, whole int64) {
	// A level can lie outside the numbers in force, when they were others as it was stored.
	gone := s.Level
	switch p.Limit.Algorithm {
	case TokenBucket:
		gone = max(0, p.capacity-gone)
	case FixedWindow:
		gone *= p.unit
		whole = p.window
		if p.calendar != nil {
			whole += 24 * 3600 * micro
		}
	case SlidingCounter:
		gone = (gone + s.Prev) * micro
		whole = 2 * p.window
	}
	part, _ := bits.Mul64(uint64(gone), p.perPart)
	if whole == 0 {
		hi, _ := bits.Mul64(uint64(gone), p.perMicro)
		whole = int64(hi+1) << p.perShift
	}
	return min(int64(part), maxSpent), whole
}

// mulDiv is ⌊a·b/c⌋ for non-negative numbers, saturating instead of overflowing.
func mulDiv(a, b, c int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	return div(hi, lo, uint64(c))
}

// mulDivCeil is ⌈a·b/c⌉, likewise.
func mulDivCeil(a, b, c int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	lo, carry := bits.Add64(lo, uint64(c)-1, 0)
	return div(hi+carry, lo, uint64(c))
}

// div divides 128 bits.
func div(hi, lo, c uint64) int64 {
	switch {
	case hi >= c:
		return maxExact
	case hi > 0:
		lo, _ = bits.Div64(hi, lo, c)
	case c > 1: // many rates are whole, and dividing is the slowest thing here
		lo /= c
	}
	return int64(min(lo, maxExact))
}

func micros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }
