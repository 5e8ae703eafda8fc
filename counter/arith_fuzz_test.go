package counter

import (
	"encoding/binary"
	"math"
	"testing"

	"pgregory.net/rapid"
)

// lua computes decisions as a Redis script does. Every number is a double: there are no integers, no
// 128-bit products, and the only division is /. It follows the definitions of the algorithms, not the Go
// code, and fails if an intermediate value isn't a whole number that a double holds exactly. It proves
// that a script can give the same answers as Go.
type lua struct {
	fail                              func(format string, args ...any)
	num, den, capacity, maxDelay      float64 // bucket
	count, window, tick, ticks, burst float64
	algorithm                         Algorithm
}

type luaState struct{ time, level, prev float64 }

func newLua(fail func(string, ...any), p *Policy) lua {
	return lua{
		fail: fail, algorithm: p.Limit.Algorithm,
		num: float64(p.rate.num), den: float64(p.rate.den), capacity: float64(p.capacity), maxDelay: float64(p.maxDelay),
		count: float64(p.Limit.Count), window: float64(p.window), tick: float64(p.tick), ticks: float64(p.ticks),
		burst: float64(p.Limit.Max()),
	}
}

// exact fails if x isn't a whole number that a double holds exactly.
func (l lua) exact(x float64) float64 {
	if x != math.Floor(x) || math.Abs(x) >= maxExact {
		l.fail("%v is not exact in a double", x)
	}
	return x
}

// mod is a % b as Lua 5.1 computes it.
func (l lua) mod(a, b float64) float64 { return a - l.exact(math.Floor(a/b)*b) }

// scale is a·b/c, rounded by round, or 2^53 if it is more than that. b·c must be below 2^53.
func (l lua) scale(a, b, c float64, round func(float64) float64) float64 {
	high := math.Floor(a/c) * b
	if high >= maxExact {
		return maxExact
	}
	return min(high+round(l.exact(l.mod(a, c)*b)/c), maxExact)
}

// tokens returns the tokens in a bucket now, and the tokens in its stored state.
func (l lua) tokens(s luaState, now float64) (tokens, stored float64) {
	if s.time == 0 {
		return l.capacity, l.capacity
	}
	stored = s.level
	if l.algorithm != TokenBucket {
		stored = l.exact(l.capacity - s.level)
	}
	gained := 0.0
	if now > s.time {
		gained = l.scale(now-s.time, l.num, l.den, math.Floor)
	}
	if gained >= l.exact(l.capacity-stored) { // rather than add first: the sum may be too large
		return l.capacity, min(stored, l.capacity)
	}
	return l.exact(stored + gained), stored
}

func (l lua) wait(amount float64) float64 {
	return l.scale(max(0, amount), l.den, l.num, math.Ceil)
}

// roll moves the state forward to the current window.
func (l lua) roll(s luaState, now float64) luaState {
	switch {
	case s.time == 0 || now >= l.exact(s.time+2*l.window):
		return luaState{time: now - l.mod(now, l.window)}
	case now >= s.time+l.window:
		next := luaState{time: s.time + l.window}
		if l.algorithm == SlidingCounter {
			next.prev = s.level
		}
		return next
	}
	s.time = min(s.time, now)
	return s
}

// try returns the state and whether the tokens fit.
func (l lua) try(s luaState, now, n float64) (luaState, bool) {
	refused := s
	refused.time = min(s.time, now)
	if l.algorithm > LeakyQueue {
		c := l.roll(s, now)
		if n > l.count || !l.fits(c, now, n) {
			return refused, false
		}
		c.level = l.exact(c.level + n)
		return c, true
	}
	if n > l.burst {
		return refused, false
	}
	level, _ := l.tokens(refused, now)
	if need := l.exact(n * micro); level < need || l.maxDelay > 0 && l.wait(l.capacity-level) > l.maxDelay {
		return refused, false
	}
	level -= n * micro
	if l.algorithm != TokenBucket {
		level = l.capacity - level
	}
	return luaState{time: now, level: l.exact(level)}, true
}

func (l lua) weight(c luaState, now float64) float64 {
	return l.ticks - math.Floor((now-c.time)/l.tick)
}

func (l lua) fits(c luaState, now, n float64) bool {
	free := l.count - c.level - n
	if l.algorithm == FixedWindow {
		return free >= 0
	}
	return free >= 0 && l.exact(c.prev*l.weight(c, now)) <= l.exact(free*l.ticks)
}

// answer is a Result in doubles; -1 is never.
type answer struct{ remaining, retry, reset, delay float64 }

// report describes the state that try returned.
func (l lua) report(s luaState, now, n float64, ok bool) answer {
	switch l.algorithm {
	case FixedWindow:
		return l.reportWindow(s, now, n, ok)
	case SlidingCounter:
		return l.reportCounter(s, now, n, ok)
	}
	s.time = min(s.time, now)
	level, stored := l.tokens(s, now)
	since := now - s.time
	if s.time == 0 {
		since = 0
	}
	in := func(level float64) float64 { return max(0, l.wait(level-stored)-since) }
	a := answer{remaining: math.Floor(max(0, level) / micro), reset: in(l.capacity)}
	switch {
	case !ok && n > l.burst:
		a.retry = -1
	case !ok:
		need := n * micro
		if level >= need {
			a.remaining = 0
		}
		if l.maxDelay > 0 {
			need = max(need, l.capacity-l.scale(l.maxDelay, l.num, l.den, math.Floor))
		}
		a.retry = in(need)
	case l.algorithm == LeakyQueue:
		a.delay = l.wait(l.capacity - l.exact(level+n*micro))
	}
	return a
}

func (l lua) reportWindow(s luaState, now, n float64, ok bool) answer {
	c := l.roll(s, now)
	a := answer{remaining: max(0, l.count-c.level), reset: c.time + l.window - now}
	if !ok {
		a.retry = a.reset
		if n > l.count {
			a.retry = -1
		}
	}
	return a
}

func (l lua) reportCounter(s luaState, now, n float64, ok bool) answer {
	c := l.roll(s, now)
	a := answer{remaining: max(0, l.count-c.level-math.Ceil(c.prev*l.weight(c, now)/l.ticks))}
	if c.level > 0 {
		a.reset = c.time + 2*l.window - now
	} else if c.prev > 0 {
		a.reset = c.time + l.window - now
	}
	switch {
	case ok:
	case n > l.count:
		a.retry = -1
	default:
		a.retry = l.firstFit(c, n) - now
	}
	return a
}

// firstFit is when n fits: in this window, in the next, or in the one after it.
func (l lua) firstFit(c luaState, n float64) float64 {
	for range 2 {
		if free := l.count - c.level - n; free >= 0 {
			at := c.time
			if c.prev > 0 {
				at += max(0, l.ticks-math.Floor(l.exact(free*l.ticks)/c.prev)) * l.tick
			}
			if at < c.time+l.window {
				return at
			}
		}
		c = luaState{time: c.time + l.window, prev: c.level}
	}
	return c.time
}

// agree decides the next take in doubles and compares the answer with Go's.
func (f *life) agree(n int64) {
	if f.g.isLog() || n > MaxTokens+1 {
		return // a log has nothing but sums; and a script is never asked for more
	}
	l := newLua(f.failf, f.g.p)
	now := float64(f.now)
	s, ok := l.try(luaState{float64(f.g.s.Time), float64(f.g.s.Level), float64(f.g.s.Prev)}, now, float64(n))
	a := l.report(s, now, float64(n), ok)

	c := f.g.clone()
	r := c.take(f.now, n)
	want := answer{float64(r.Remaining), float64(r.RetryAfter.Microseconds()), float64(r.ResetAfter.Microseconds()), float64(r.Delay.Microseconds())}
	if r.RetryAfter == Never {
		want.retry = -1
	}
	if ok != r.Allowed || a != want || s != (luaState{float64(c.s.Time), float64(c.s.Level), float64(c.s.Prev)}) {
		f.failf("take of %d:\n in Go      %v %+v %+v\n in doubles %v %+v %+v", n, r.Allowed, want, c.s, ok, a, s)
	}
}

// A script can give the same answers as Go although all its numbers are doubles: every intermediate value
// is exact.
func TestDoublesAgreeWithIntegers(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, a Algorithm) {
		if a == SlidingLog {
			return // it only adds and compares
		}
		many(t, func(t *rapid.T) { pickTrial(a, rapidPicker(t)).run(t, (*life).agree) })
	})
}

// bytePicker chooses numbers from a fuzzer's bytes. Without bytes left, it chooses the lowest number.
func bytePicker(b []byte) picker {
	return func(lo, hi int64) int64 {
		size := 1
		for size < 8 && uint64(hi-lo)>>(8*size) != 0 {
			size *= 2
		}
		var word [8]byte
		b = b[copy(word[:size], b):]
		return lo + int64(binary.LittleEndian.Uint64(word[:])%(uint64(hi-lo)+1))
	}
}

// FuzzArithmetic lets the fuzzer choose an algorithm, its limits and a counter's life.
func FuzzArithmetic(f *testing.F) {
	for a := TokenBucket; a <= SlidingCounter; a++ {
		for _, step := range []byte{0, 41, 97, 203} { // four lives that differ
			b := make([]byte, 400)
			b[0] = byte(a)
			for i := 1; i < len(b); i++ {
				b[i] = b[i-1]*5 + step + byte(i>>3)
			}
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		pick := bytePicker(b)
		pickTrial(Algorithm(pick(int64(TokenBucket), int64(SlidingCounter))), pick).run(t, (*life).agree)
	})
}
