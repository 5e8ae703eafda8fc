package counter

import (
	"math"
	"math/bits"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// These tests check what every algorithm promises, under random takes, refunds, rule changes and time steps,
// including steps back. The fuzz target and the comparison with a script's doubles (arith_fuzz_test.go) use
// the same trials.

const (
	usec   int64 = 1
	msec         = 1000 * usec
	sec          = 1000 * msec
	minute       = 60 * sec
	hour         = 60 * minute
	day          = 24 * hour

	// midnight is the time at which the tests start. Windows of up to a day are aligned to it.
	midnight = 19_676 * day
	// never is a wait that doesn't end.
	never = int64(Never)
)

// trial is a random sequence of operations on one counter.
type trial struct {
	limits []Limit // which replace each other; the first is in force at first
	ops    []op
}

type op struct {
	move  int64 // how the clock moves: see (*life).moved
	step  int64 // µs
	kind  opKind
	cost  int64 // how n is chosen: see (*life).cost
	n     int64
	which int // the limit, or the admission, that the op is about
}

type opKind int64

const (
	opTake opKind = iota
	opPeek
	opGiveBack
	opChange
)

// picker chooses a number from lo to hi, both included. Its choices come from rapid or from a fuzzer's bytes.
type picker func(lo, hi int64) int64

func rapidPicker(t *rapid.T) picker {
	return func(lo, hi int64) int64 { return rapid.Int64Range(lo, hi).Draw(t, "") }
}

var trialWindows = []time.Duration{
	time.Millisecond, 7 * time.Millisecond, 1001 * time.Microsecond, time.Second, 1500 * time.Millisecond,
	time.Minute, 61 * time.Second, 15 * time.Minute, time.Hour, 24 * time.Hour, 366 * 24 * time.Hour,
}

func pickLimit(a Algorithm, w time.Duration, pick picker) Limit {
	most := []int64{3, 100, 100_000, MaxTokens}[pick(0, 3)]
	switch a {
	case SlidingCounter:
		most = min(most, maxPairCount)
	case SlidingLog:
		most = min(most, maxLogCount)
	}
	l := Limit{Algorithm: a, Count: most - pick(0, most-1), Window: w}
	if !l.isBucket() {
		return l
	}
	full := l
	if pick(0, 1) == 1 {
		full.Burst = pick(1, []int64{3, 100, MaxTokens}[pick(0, 2)])
	}
	if pick(0, 3) == 3 {
		full.Refill = float64(pick(1, 100_000)) / []float64{1, 100, 1e6}[pick(0, 2)]
	}
	if full.Validate() != nil {
		full = l // it would take too long to fill
	}
	if a == LeakyQueue && pick(0, 1) == 1 {
		p, _ := NewPolicy("", full)
		full.MaxDelay = micros(pick(1, min(2*p.fill, maxFill.Microseconds())))
	}
	return full
}

func pickTrial(a Algorithm, pick picker) trial {
	var tr trial
	window := trialWindows[pick(0, int64(len(trialWindows)-1))]
	for range pick(1, 3) {
		tr.limits = append(tr.limits, pickLimit(a, window, pick))
		if a != FixedWindow && a != SlidingCounter { // where another window would be another counter
			window = trialWindows[pick(0, int64(len(trialWindows)-1))]
		}
	}
	for range pick(1, 40) {
		tr.ops = append(tr.ops, op{
			move: pick(0, 9), step: pick(0, 1<<16-1), kind: opKind(max(0, pick(-4, int64(opChange)))),
			cost: pick(0, 6), n: pick(0, 1<<16-1), which: int(pick(0, 255)),
		})
	}
	return tr
}

// life runs a trial and checks the promises after each step.
type life struct {
	failer
	tr       trial
	i        int // the op
	policies []*Policy
	g        *gauge
	now      int64
	forward  int64 // how far the clock has moved forward in all
	retry    int64 // the last refusal's
	events   []event
	slots    []Result // of admissions
	costs    []int64  // of admissions
}

// event is an admission, a refund if net is negative, or a change of rule if it is 0.
type event struct {
	forward int64
	net     int64 // in units
	policy  int
}

func (f *life) failf(format string, args ...any) {
	f.Helper()
	f.Fatalf("op %d: "+format+"\nat %d (forward %d), state %+v, log %v, limit %+v\ntrial %+v", append(append([]any{f.i}, args...),
		f.now-midnight, f.forward, f.g.s, f.g.entries(f.now), f.g.p.Limit, f.tr)...)
}

// run calls look, if it isn't nil, before each take.
func (tr trial) run(t failer, look func(f *life, n int64)) {
	f := &life{failer: t, tr: tr, now: midnight}
	for _, l := range tr.limits {
		f.policies = append(f.policies, policyOf(t, l))
	}
	f.g = newGauge(f.policies[0])
	policy := 0
	for i, o := range tr.ops {
		f.i = i
		f.tick(o)
		switch o.kind {
		case opChange:
			policy = o.which % len(f.policies)
			f.g.p = f.policies[policy]
			f.events = append(f.events, event{f.forward, 0, policy}) // even its refusals let a log forget
		case opGiveBack:
			if len(f.slots) > 0 {
				k := o.which % len(f.slots)
				n := f.costs[k]
				if o.cost == 0 {
					n = max(1, n/2)
				}
				applied := f.g.giveBack(f.now, n, f.slots[k].Slot)
				if applied < 0 || applied > n*f.g.unit() {
					f.failf("giving %d back gave %d units back", n, applied)
				}
				f.events = append(f.events, event{f.forward, -applied, policy})
			}
		case opTake, opPeek:
			n := f.cost(o)
			if look != nil {
				look(f, n)
			}
			if f.peeked(n); o.kind == opPeek {
				break
			}
			if r := f.take(n); r.Allowed {
				f.events = append(f.events, event{f.forward, n * f.g.unit(), policy})
				f.slots, f.costs = append(f.slots, r), append(f.costs, n)
				f.bounded()
			}
		}
		f.standing()
	}
}

// tick moves the clock before an op.
func (f *life) tick(o op) {
	w := f.g.p.window
	var d int64
	switch o.move {
	case 0, 1:
		d = 0
	case 2:
		d = o.step & 3
	case 3:
		d = o.step
	case 4:
		d = w * o.step / (1 << 16) // part of a window
	case 5:
		d = w + o.step%3 - 1
	case 6:
		d = 2*w + o.step%5 - 2
	case 7:
		d = max(0, f.retry-o.step&1) // when the last refusal was told to, or just before
	case 8:
		d = -w * o.step / (1 << 15) // backwards, up to two windows
	case 9:
		d = -(o.step & 3)
	}
	next := min(max(f.now+d, midnight-3*366*day), midnight+60*366*day)
	f.forward += max(0, next-f.now)
	f.now = next
}

func (f *life) cost(o op) int64 {
	most, left := f.g.p.Limit.Max(), f.g.clone().report(f.now, 1, Fits).Remaining
	switch o.cost {
	case 0, 1:
		return 1 + o.n%3
	case 2:
		return 1 + o.n%most
	case 3:
		return max(1, left)
	case 4:
		return left + 1
	case 5:
		return most + o.n&1
	}
	return []int64{most + 1, MaxTokens + 1, math.MaxInt64}[o.n%3]
}

// peeked checks that a peek answers as a take would, and that exactly the remaining tokens fit.
func (f *life) peeked(n int64) {
	before := f.g.clone()
	fits, peek := f.g.fits(f.now, n), f.g.peek(f.now, n)
	if !f.g.isLog() && f.g.s != before.s || f.g.isLog() && !slices.Equal(f.g.entries(f.now), before.entries(f.now)) {
		f.failf("a peek changed the counter from %+v", before.s)
	}
	if peek.Allowed != fits {
		f.failf("peek of %d: allowed %v, fits %v", n, peek.Allowed, fits)
	}
	take := f.g.clone().take(f.now, n)
	want := take
	if fits {
		want.Remaining, want.ResetAfter = take.Remaining+n, peek.ResetAfter
	}
	if peek != want {
		f.failf("peek of %d says %+v, take says %+v", n, peek, take)
	}
	// A queue with a maximum wait may have room that is too far away to wait for.
	if left := peek.Remaining; left > 0 && !f.g.fits(f.now, left) && f.g.p.maxDelay == 0 {
		f.failf("%d remain, but don't fit", left)
	} else if f.g.fits(f.now, left+1) {
		f.failf("%d remain, but one more fits", left)
	}
}

// take takes n tokens. It checks that a refusal changes nothing and that its retry time is exact to the µs.
func (f *life) take(n int64) Result {
	before := f.g.clone()
	r := f.g.take(f.now, n)
	if r.Allowed {
		if r.RetryAfter != 0 {
			f.failf("allowed, and told to retry: %+v", r)
		}
		return r
	}
	f.unchanged(before)
	f.retry = 0
	if possible := n <= f.g.p.Limit.Max(); (r.RetryAfter == Never) == possible {
		f.failf("%d of at most %d: %+v", n, f.g.p.Limit.Max(), r)
	} else if !possible {
		return r
	}
	f.retry = r.RetryAfter.Microseconds()
	switch longest := f.g.longest(); {
	case f.retry <= 0 || f.retry > longest:
		f.failf("retry after %d µs: must be more than 0 and at most %d", f.retry, longest)
	case f.cut(f.retry):
		return r
	case f.g.fits(f.now+f.retry-1, n):
		f.failf("%d fits before the time to retry, %d µs", n, f.retry)
	case !f.g.fits(f.now+f.retry, n):
		f.failf("%d doesn't fit at the time to retry, %d µs", n, f.retry)
	}
	// After the clock runs back, no wait is longer than with the right clock.
	if !f.g.isLog() && before.s.Time > f.now {
		if was := before.p.Report(before.s, before.s.Time, n, Refused).RetryAfter; was != r.RetryAfter {
			f.failf("the clock ran backwards and the wait went from %v to %v", was, r.RetryAfter)
		}
	}
	return r
}

// cut reports whether a time is capped instead of exact: a leaky bucket whose limit was lowered can need
// centuries to drain.
func (f *life) cut(us int64) bool {
	return f.g.p.Limit.isBucket() && max(0, f.now-f.g.s.Time)+us >= maxExact
}

func (f *life) unchanged(before *gauge) {
	if f.g.isLog() {
		if !slices.Equal(f.g.entries(f.now), before.entries(f.now)) {
			f.failf("a refusal changed the log from %v", before.entries(f.now))
		}
		return
	}
	want := before.s
	want.Time = min(want.Time, f.now)
	if f.g.s != want {
		f.failf("a refusal changed the state from %+v", before.s)
	}
}

// bounded checks that no interval that ends with the latest admission has more admissions than the algorithm
// allows. Time counts forward only, and refunds are subtracted.
func (f *life) bounded() {
	var net int64
	var used uint // which policies, as bits
	last := len(f.events) - 1
	for i := last; i >= 0; i-- {
		e := f.events[i]
		net += e.net
		used |= 1 << e.policy
		if e.net <= 0 {
			continue
		}
		if most := f.most(e, f.events[last], used); net > most {
			f.failf("%d units admitted since event %d, within %d µs: at most %d", net, i, f.forward-e.forward, most)
		}
	}
}

// most returns how much may be admitted from one admission to another, both included.
func (f *life) most(from, to event, used uint) int64 {
	elapsed := to.forward - from.forward
	first, last := f.policies[from.policy], f.policies[to.policy]
	var count, refill int64
	window := int64(math.MaxInt64)
	for i, p := range f.policies {
		if used&(1<<i) == 0 {
			continue
		}
		count, window = max(count, p.Limit.Count), min(window, p.window)
		if p.Limit.isBucket() {
			refill = max(refill, floorMul(elapsed, p.rate.num, p.rate.den))
		}
	}
	switch last.Limit.Algorithm {
	case TokenBucket: // a raised capacity brings no tokens
		return addCapped(first.capacity, refill)
	case LeakyBucket, LeakyQueue: // a raised capacity brings room, and a lowered one takes it
		return addCapped(last.capacity, refill)
	case FixedWindow: // as many windows as the interval can touch
		return floorMul(count, (elapsed+window-1)/window+1, 1)
	case SlidingCounter: // what a bucket of the same limit may: TestCounterWorstCase
		return addCapped(count, floorMul(count, elapsed, window))
	}
	if elapsed >= window {
		return math.MaxInt64
	}
	return last.Limit.Count
}

// standing checks the report's statements about the counter's future, and how much stores are told is used.
func (f *life) standing() {
	g, most := f.g.anchored(f.now), f.g.p.Limit.Max()
	r := g.clone().report(f.now, 1, Fits)
	reset := r.ResetAfter.Microseconds()
	if r.Remaining < 0 || r.Remaining > most || reset < 0 {
		f.failf("out of range: %+v", r)
	}
	left := func(at int64) int64 { return g.clone().report(at, 1, Fits).Remaining }
	if !f.cut(reset) {
		if got := left(f.now + reset); got != most {
			f.failf("whole again in %d µs, but then %d of %d remain", reset, got, most)
		}
	}
	// A fixed window ends even if nothing was taken from it.
	if touched := g.p.Limit.Algorithm != FixedWindow || g.held(f.now) > 0; touched && reset > 0 && g.held(f.now+reset-1) <= 0 {
		f.failf("whole again in %d µs, and before that", reset)
	}

	var used, whole int64 // whole is a moment
	if g.isLog() {
		used, whole = g.p.SpentLog(g.log)
	} else if g.s == (State{}) {
		return
	} else {
		used, whole = g.p.Spent(g.s)
		whole += g.s.Time
	}
	if used < 0 || used > maxSpent {
		f.failf("spent: %v", used)
	}
	if !f.cut(reset) && left(whole) != most {
		f.failf("said to be whole at %d, but then %d of %d remain", whole-midnight, left(whole), most)
	}
	// The share used is rounded down by less than one step.
	if gone := most - left(g.s.Time); !g.isLog() && used*most > gone*maxSpent+maxSpent {
		f.failf("%d of %d gone, said to be %d of %d", gone, most, used, maxSpent)
	}
}

// floorMul is ⌊a·b/c⌋, or the largest number if that is too large.
func floorMul(a, b, c int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi >= uint64(c) {
		return math.MaxInt64
	}
	q, _ := bits.Div64(hi, lo, uint64(c))
	return int64(min(q, math.MaxInt64))
}

func addCapped(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// --- properties ---

func eachAlgorithm(t *testing.T, f func(t *testing.T, a Algorithm)) {
	for a := TokenBucket; a <= SlidingCounter; a++ {
		t.Run(a.String(), func(t *testing.T) { f(t, a) })
	}
}

// many runs rapid.Check five times, because a trial takes only microseconds.
func many(t *testing.T, prop func(*rapid.T)) {
	for i := 0; i < 5 && !t.Failed(); i++ {
		rapid.Check(t, prop)
	}
}

// Under random takes, refunds, rule changes and clock steps, every algorithm keeps its bound over every
// interval, reports exact times, and isn't changed by refusals.
func TestEveryAlgorithmKeepsItsPromises(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, a Algorithm) {
		many(t, func(t *rapid.T) { pickTrial(a, rapidPicker(t)).run(t, nil) })
	})
}

// However far the clock steps back, a client that polls is admitted within the algorithm's longest wait,
// measured on the new clock.
func TestClockSteppingBackFreezesNobody(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, a Algorithm) {
		rapid.Check(t, func(t *rapid.T) {
			pick := rapidPicker(t)
			g := newGauge(policyOf(t, pickLimit(a, trialWindows[pick(0, int64(len(trialWindows)-1))], pick)))
			now := midnight
			for range pick(1, 10) {
				g.take(now, pick(1, g.p.Limit.Max()))
				now += pick(0, g.p.window)
			}
			now -= pick(1, 10*366*day)
			n := pick(1, g.p.Limit.Max())
			polls := pick(1, 5)
			for start := now; !g.try(now, n); now += max(1, g.longest()/polls) {
				if now-start > g.longest() {
					t.Fatalf("%+v: %d still refused %d µs after the clock stepped back", g.p.Limit, n, now-start)
				}
			}
		})
	})
}
