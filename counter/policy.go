package counter

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"math/bits"
	"time"
)

// micro is how many units of fixed point make a token.
const micro = 1_000_000

// Policy is a limit under a name, prepared for the arithmetic. It is immutable. [Define] and [NewPolicy] make one.
type Policy struct {
	Definition
	// Parts of a split limit, each with counters of its own. Other limits have none.
	Parts []*Policy

	window   int64 // µs
	unit     int64 // millionths in one of what charges ask for: a token, or a millionth if the limit counts an amount
	count    int64 // Limit.Count in units
	calendar *calendar
	capacity int64  // bucket: micro-tokens
	largest  int64  // bucket: the most that may be asked for at once, in units
	rate     rate   // bucket
	fill     int64  // bucket: µs from empty to full
	perPart  uint64 // maxSpent / capacity in millionths · 2^64
	perMicro uint64 // bucket: µs that a millionth takes to refill · 2^64 >> perShift
	perShift uint8
	maxDelay int64 // queue: µs, or 0
	tick     int64 // sliding counter: µs per step of the weight
	ticks    int64 // sliding counter: steps per window
	deepest  int64 // how much may be booked: micro-tokens of a bucket, tokens of a window
}

// Definition is what a policy is made of. A name and a limit are enough.
type Definition struct {
	// Name is what clients see in RateLimit-Policy: the rule's id, or id-1s when the rule has several limits.
	Name string
	// Rule is the id of the rule that the limit belongs to. "" means Name.
	Rule string
	// Endpoint is the rule's endpoint, such as POST /v1/login, or "". Clients see it in refusals.
	Endpoint string
	Limit    Limit
	// ID tells this limit's counters from those of other limits. It doesn't depend on the numbers, so a raised limit keeps its
	// counters. 0 means that Define makes it from Name and Scope.
	ID uint64
	// Scope tells the counters of limits with the same Name apart.
	Scope string
	// CountedAs, if not "", replaces Name in the ID, so the counters outlive a change of the name.
	CountedAs string
	// Strict limits are decided by the store at every check, never from a lease.
	Strict bool
	// Shadow limits are counted and reported, and refuse no request.
	Shadow bool
	// Candidate limits are tried out in shadow: see [github.com/weirhq/weir.Rule.Candidate].
	Candidate bool
	// OnStoreFailure says what happens while the store can't be reached.
	OnStoreFailure FailureMode
	// Global limits hold for all regions together: see [github.com/weirhq/weir.Rule.Global], which has these fields, too.
	Global      bool
	Home        string
	Floor       int
	OnPartition FailureMode
	// Travels means that every check of a Global limit asks the home.
	Travels bool
	// Statuses, if any, are the HTTP statuses that count: see [github.com/weirhq/weir.Limiter.Finish].
	Statuses []int
	// PerClient limits count by API key or user, so each counter belongs to one client.
	PerClient bool
	// ByIP limits count by address alone.
	ByIP bool
	// PerNode limits hold for each node by itself. [Policy.Share] doesn't divide them.
	PerNode bool
	// Book limits take the tokens of a charge in any case, and refuse only peeks: see [github.com/weirhq/weir.Rule.Book].
	Book bool
	// CountRefused fixed windows take the tokens of what they refuse as well.
	CountRefused bool
	// Abuse says what happens to clients that ignore refusals. Nil means nothing.
	Abuse *Abuse
	// Place is where the counters of a part lie among the hash slots of a Redis Cluster: how many 65,536ths of all hash slots
	// behind the place of the whole limit.
	Place uint16

	// Amount is what the limit counts of a request, or "" for its cost. See [github.com/weirhq/weir.Rule.Amount].
	Amount string
	// GivesBack returns reservations that aren't settled in time: see [github.com/weirhq/weir.Rule.GiveBackUnsettled].
	GivesBack bool
	// Split is how many parts the limit is counted in by stores that have servers to spread them over. 0 means one.
	Split int
	// ReadSubject, if not nil, returns the name and the value of each dimension that a subject was made of.
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

// With returns a copy with a changed definition. Its limit, parts and counters stay the same.
func (p *Policy) With(change func(*Definition)) *Policy {
	d := p.Definition
	change(&d)
	d.Limit, d.Split = p.Limit, p.Split
	q, _ := Define(d) // valid, since p is
	return q
}

// prepare computes what the arithmetic needs of a valid limit.
func (p *Policy) prepare(l Limit) {
	var r rate
	if l.isBucket() {
		r, _ = l.rate()
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
		den, num := uint64(p.rate.den), uint64(p.rate.num)
		p.perShift = 0
		for den>>p.perShift >= num {
			p.perShift++
		}
		p.perMicro, _ = bits.Div64(den>>p.perShift, den<<(64-p.perShift), num)
		p.perMicro = max(p.perMicro, p.perMicro+1) // rounded up: a counter must not seem full before it is
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

// fingerprint identifies a limit's counters, on all nodes and in all versions. If the state means something else under another
// window, the window is part of it.
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

// Numbers returns the numbers of the arithmetic, for stores that do it elsewhere. For buckets, these are the capacity in
// millionths of a token, the rate in millionths per µs as a fraction, and the longest delay in µs or, with Book, how much may be
// booked. For other algorithms, these are the count, the window in µs, and for sliding counters the µs of a step of the weight
// and the steps of a window.
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

// Memory is the idle time after which a counter is certainly full again.
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

// LatestReset is the time until a counter is certainly full again, for clients whose counter can't be read.
func (p *Policy) LatestReset(now time.Time) time.Duration {
	switch at := now.UnixMicro(); p.Limit.Algorithm {
	case FixedWindow:
		return micros(p.windowEnd(p.roll(State{}, at).Time) - at)
	case SlidingCounter:
		return micros(p.windowEnd(p.roll(State{}, at).Time) + p.window - at)
	}
	return p.Memory()
}

// State is the state of a counter of any algorithm but SlidingLog and Concurrency. The zero State is an untouched counter.
type State struct {
	// Time is a moment in µs: when a bucket's level was taken, or when a window began.
	Time int64
	// Level is a token bucket's tokens or a leaky bucket's water, in millionths; or the window's count.
	Level int64
	// Prev is the count of the window before, for the sliding counter.
	Prev int64
}

// Try takes n tokens at the given moment (µs) if they fit, and returns the new state. A refusal leaves the state as it is, but
// for a time in the future. A clock that ran backwards leaves such times behind, and Try sets them to now, which mints no tokens
// and locks no client out.
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

// Debit is Try for policies that may take tokens that don't fit: those with Book or CountRefused.
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

// millionths converts units, capped at what the largest limit holds.
func (p *Policy) millionths(n int64) int64 { return min(n, MaxTokens*(micro/p.unit)) * p.unit }

// whole is how many whole units some millionths are. It divides by a constant, which is several times faster.
func (p *Policy) whole(millionths int64) int64 {
	if p.unit == 1 {
		return millionths
	}
	return millionths / micro
}

// Exact converts what charges and results count, which is millionths if the limit is Decimal and tokens otherwise.
func (p *Policy) Exact(n int64) Amount { return Amount(n * p.unit) }

// MaxCharge is the largest N of a charge. It is more than any limit admits.
func (p *Policy) MaxCharge() int64 { return min(2*MaxTokens*(micro/p.unit), maxExact) }

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

// ReportTo is Report without a copy of the result, for stores: every check calls it.
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

// Return gives back n tokens that were debited in the given slot ([Result.Slot]). It does nothing if the window has passed, and
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

// Spent estimates how much of a counter is used, from 0 to 63 for one that blocks its client, and how long after its Time (µs)
// it is certainly full again. Stores compute it at every check, to know which counter to evict first.
func (p *Policy) Spent(s State) (used, whole int64) {
	// If the limit was changed since the state was stored, its level may lie outside of the limit.
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

// mulDivCeil is ⌈a·b/c⌉ in the same way.
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
