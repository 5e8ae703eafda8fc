package counter

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"math/bits"
	"time"
)

// micro is the number of millionths in a token, the unit of the fixed-point arithmetic.
const micro = 1_000_000

// Policy is a limit with a name, prepared for the arithmetic. It is immutable. [Define] and [NewPolicy] make one.
type Policy struct {
	Definition
	// Parts are the parts of a split limit, each with its own counters. Other limits have none.
	Parts []*Policy

	window   int64 // its length in µs
	unit     int64 // millionths in one unit of a charge: 1,000,000 (a token), or 1 if the limit counts an amount
	count    int64 // Limit.Count in units
	calendar *calendar
	capacity int64  // bucket: micro-tokens
	largest  int64  // bucket: the largest charge, in units
	rate     rate   // bucket: its refill
	fill     int64  // bucket: µs from empty to full
	perPart  uint64 // for Spent: 2^64 · maxSpent / the capacity in millionths
	perMicro uint64 // for Spent: 2^64 · the µs in which a bucket refills a millionth, >> perShift
	perShift uint8
	maxDelay int64 // queue: the longest delay in µs, or 0 for no bound
	tick     int64 // sliding counter: µs per step of the weight
	ticks    int64 // sliding counter: steps per window
	deepest  int64 // how far Overdraw goes: micro-tokens of a bucket, units of a window
}

// Definition says what a policy is. A name and a limit are enough.
type Definition struct {
	// Name is what clients see in RateLimit-Policy: the rule's id, or id-1s when the rule has several limits.
	Name string
	// Rule is the id of the rule that the limit belongs to. "" means Name.
	Rule string
	// Endpoint is the rule's endpoint, such as POST /v1/login, or "". Clients see it in refusals.
	Endpoint string
	Limit    Limit
	// ID separates this limit's counters from those of other limits. It doesn't depend on the numbers, so a raised limit keeps
	// its counters. 0 means that Define derives it from Name and Scope.
	ID uint64
	// Scope separates the counters of limits with the same Name.
	Scope string
	// CountedAs, if not "", replaces Name in the ID, so that a renamed limit keeps its counters.
	CountedAs string
	// Strict makes the store decide every check. The limit's tokens are never leased.
	Strict bool
	// Shadow limits are counted and reported, but refuse no request.
	Shadow bool
	// Candidate limits are tried out in shadow: see [github.com/weirhq/weir.Rule.Candidate].
	Candidate bool
	// OnStoreFailure says what happens while the store can't be reached.
	OnStoreFailure FailureMode
	// Global limits hold for all regions together. For Home, Floor and OnPartition, see [github.com/weirhq/weir.Rule.Global].
	Global      bool
	Home        string
	Floor       int
	OnPartition FailureMode
	// Travels makes every check of a Global limit ask its home region.
	Travels bool
	// Statuses, if not empty, are the HTTP statuses that count: see [github.com/weirhq/weir.Limiter.Finish].
	Statuses []int
	// PerClient limits count by API key or user, so each counter belongs to one client.
	PerClient bool
	// ByIP limits count by IP address alone.
	ByIP bool
	// PerNode limits hold for each node separately. [Policy.Share] doesn't divide them.
	PerNode bool
	// Book limits debit every charge, even if it doesn't fit. They refuse only peeks: see [github.com/weirhq/weir.Rule.Book].
	Book bool
	// CountRefused makes a fixed window also debit the tokens of refused charges.
	CountRefused bool
	// Abuse says what happens to clients that ignore refusals. If nil, there are no cooldowns.
	Abuse *Abuse
	// Place says how far this part's counters lie behind those of the first part, in 65,536ths of all hash slots of a Redis
	// Cluster.
	Place uint16

	// Amount is the name of the amount that the limit counts, or "" if it counts costs. See
	// [github.com/weirhq/weir.Rule.Amount].
	Amount string
	// GivesBack makes reservations that aren't settled in time go back: see [github.com/weirhq/weir.Rule.GiveBackUnsettled].
	GivesBack bool
	// Split is into how many parts a store with several servers divides the limit's counters. 0 means one.
	Split int
	// ReadSubject, if not nil, returns the names and values of the dimensions that a subject was made from.
	ReadSubject func(subject []byte) [][2]string
}

// NewPolicy prepares a limit. The name separates its counters from those of other policies.
func NewPolicy(name string, l Limit) (*Policy, error) {
	return Define(Definition{Name: name, Limit: l})
}

// Define makes the policy of a definition. The error is a [Problem] of the limit.
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

// With returns a copy with a changed definition. The limit, its parts and its counters stay the same.
func (p *Policy) With(change func(*Definition)) *Policy {
	d := p.Definition
	change(&d)
	d.Limit, d.Split = p.Limit, p.Split
	q, _ := Define(d) // valid, since p is
	return q
}

// prepare computes the numbers that the arithmetic needs, from a valid limit.
func (p *Policy) prepare(l Limit) {
	var r rate
	if l.isBucket() {
		r, _ = l.rate()
	}
	p.prepareAt(l, r)
}

// prepareAt is like prepare, with the rate of a bucket given.
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
		den, num := uint64(p.rate.den), uint64(p.rate.num)
		p.perShift = 0
		for den>>p.perShift >= num {
			p.perShift++
		}
		p.perMicro, _ = bits.Div64(den>>p.perShift, den<<(64-p.perShift), num)
		p.perMicro = max(p.perMicro, p.perMicro+1) // rounded up: a counter must not seem full before it is
		whole = p.capacity
		p.deepest = max(whole, min(MaxAmount, p.Refill(maxFill.Microseconds()))) // at most what refills in ten years
	case l.Algorithm == SlidingCounter:
		// Keep ticks to at most 2^21, so that ticks × count stays below 2^53.
		p.tick = (p.window + 1<<21 - 1) >> 21
		p.ticks = (p.window + p.tick - 1) / p.tick
		p.deepest = maxPairCount
	default:
		p.deepest = min(2*MaxTokens*(micro/p.unit), maxExact-1)
	}
	p.perPart, _ = bits.Div64(maxSpent, 0, uint64(max(whole, maxSpent+1))) // an amount may be limited to one millionth
}

// fingerprint identifies a limit's counters, on all nodes and in all versions. It includes the window where a state would mean
// something else under another window.
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

// Numbers returns the numbers of the arithmetic, for stores that compute elsewhere. For buckets: the capacity in millionths of
// a token; the numerator and denominator of the rate in millionths per µs; and the longest delay in µs or, with Book, how far
// the limit can be exceeded. For other algorithms: the count; the window in µs; and, for sliding counters, the µs per tick and
// the ticks per window.
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

// Memory returns the idle time after which a counter is certainly full again.
func (p *Policy) Memory() time.Duration {
	switch {
	case p.Limit.isBucket():
		return time.Duration(p.fill) * time.Microsecond
	case p.Limit.Algorithm == SlidingCounter:
		return 2 * p.Limit.Window
	}
	if p.calendar != nil {
		return p.Limit.Window + 24*time.Hour // a day with a clock change may be longer
	}
	return p.Limit.Window
}

// LatestReset returns the longest time until a counter is full again. It is for clients whose counter can't be read.
func (p *Policy) LatestReset(now time.Time) time.Duration {
	switch at := now.UnixMicro(); p.Limit.Algorithm {
	case FixedWindow:
		return micros(p.windowEnd(p.roll(State{}, at).Time) - at)
	case SlidingCounter:
		return micros(p.windowEnd(p.roll(State{}, at).Time) + p.window - at)
	}
	return p.Memory()
}

// State is a counter's state, for any algorithm but SlidingLog and Concurrency. The zero State is an untouched counter.
type State struct {
	// Time is a moment in µs: when a bucket's level was computed, or when a window began.
	Time int64
	// Level is a token bucket's tokens or a leaky bucket's water, in millionths; or the window's count.
	Level int64
	// Prev is the count of the previous window, for the sliding counter.
	Prev int64
}

// Try takes n tokens at the moment now (µs) if they fit, and returns the new state. A refusal leaves the state as it is, except
// that Try moves a Time in the future to now. Such times arise if the clock was set back. Moving them admits nothing extra, and
// locks no client out.
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

// Debit is like Try, but policies with Book or CountRefused also debit tokens that don't fit.
func (p *Policy) Debit(s State, now, n int64) (State, bool) {
	after, fits := p.Try(s, now, n)
	if fits || !p.Book && !(p.CountRefused && p.Limit.Algorithm == FixedWindow) {
		return after, fits
	}
	return p.Overdraw(after, now, n), p.Book
}

// Overdraw takes n tokens even if that makes the level negative.
func (p *Policy) Overdraw(s State, now, n int64) State {
	s = p.anchored(s, now)
	if p.Limit.isBucket() {
		return p.AtLevel(max(p.Level(s, now)-p.millionths(n), p.capacity-p.deepest), now)
	}
	s = p.roll(s, now)
	s.Level = max(s.Level, min(s.Level+n, p.deepest))
	return s
}

// millionths converts units to millionths, capped at the capacity of the largest possible limit.
func (p *Policy) millionths(n int64) int64 { return min(n, MaxTokens*(micro/p.unit)) * p.unit }

// whole converts millionths to whole units. Dividing by a constant is several times faster than dividing by p.unit.
func (p *Policy) whole(millionths int64) int64 {
	if p.unit == 1 {
		return millionths
	}
	return millionths / micro
}

// Exact converts a number in a charge or a result to an Amount. Such numbers are millionths if the limit is Decimal, else tokens.
func (p *Policy) Exact(n int64) Amount { return Amount(n * p.unit) }

// MaxCharge returns the largest allowed N of a charge. It is more than any limit admits.
func (p *Policy) MaxCharge() int64 { return min(2*MaxTokens*(micro/p.unit), maxExact) }

// Verdict says how a charge was decided, for [Policy.Report].
type Verdict uint8

const (
	// Refused: the tokens don't fit.
	Refused Verdict = iota
	// Taken: the tokens fit, and the state has been debited.
	Taken
	// Fits: the tokens fit, but weren't taken, since the charge was a peek or another limit refused the request.
	Fits
)

// Report describes a state: the one that [Policy.Try] returned, or for [Fits] the one that Try would be given.
func (p *Policy) Report(s State, now, n int64, v Verdict) Result {
	var r Result
	p.ReportTo(&r, s, now, n, v)
	return r
}

// ReportTo is like Report, but writes to r. Stores call it at every check, so it avoids copying the result.
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

// Return gives back n tokens that were debited in the given slot ([Result.Slot]). It does nothing if that window has passed. It
// fills a bucket no further than its capacity.
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

// Spent estimates how much of a counter is used, from 0 to 63 (which blocks the client), and how long after its Time (µs) the
// counter is certainly full again. Stores compute it at every check, to choose which counter to evict first.
func (p *Policy) Spent(s State) (used, whole int64) {
	// After a change of the limit, the level may lie outside of the new bounds.
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

// mulDiv returns ⌊a·b/c⌋ for non-negative numbers. It saturates instead of overflowing.
func mulDiv(a, b, c int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	return div(hi, lo, uint64(c))
}

// mulDivCeil returns ⌈a·b/c⌉, and saturates like mulDiv.
func mulDivCeil(a, b, c int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	lo, carry := bits.Add64(lo, uint64(c)-1, 0)
	return div(hi+carry, lo, uint64(c))
}

// div divides a 128-bit number, and saturates at maxExact.
func div(hi, lo, c uint64) int64 {
	switch {
	case hi >= c:
		return maxExact
	case hi > 0:
		lo, _ = bits.Div64(hi, lo, c)
	case c > 1: // many rates have a denominator of 1, and division is the slowest step here
		lo /= c
	}
	return int64(min(lo, maxExact))
}

func micros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }
