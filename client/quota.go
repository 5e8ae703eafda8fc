package client

import (
	"math"
	"time"
)

// quota models one policy of a host: how many requests are left now, according to the responses so far. It is pure
// arithmetic: time is an argument, and the host's lock guards it.
//
// A response says how much of the quota remained when the server counted its request. The client has sent other requests since.
// So each request remembers how much the model had when it was sent, and its response corrects the model by the difference.
// Corrections that always point the same way show how fast the quota grows: by a bucket's refill, less what others who share
// the key take. A fixed window doesn't grow until it is reset.
type quota struct {
	name   string
	limit  float64 // requests in a window; 0 if that isn't known
	window time.Duration
	told   bool // an answer has said how many requests are left

	level  float64 // estimate of the requests left at the time at, after all that were sent
	at     time.Time
	least  float64   // the fewest left according to the newest answers, for windows
	shown  time.Time // when least was set
	peak   float64   // the most that was ever left
	growth float64   // requests per second
	shift  float64   // all corrections so far
	reset  time.Time
	moves  bool      // the reset isn't the end of a window: it moves on with each request, or is too far away
	pause  time.Time // nothing is sent until then
	next   time.Time // when the next request is due, while requests are paced

	pending int // requests without an answer
	sent    int
	delay   float64   // average seconds until an answer
	jitter  float64   // how much the delay varies
	newest  time.Time // when the newest request with an answer was sent
	extra   float64   // requests to keep in reserve, as refusals have taught

	grown, drift float64 // how much the model grew, and was corrected, since then
	since        time.Time
}

// Pacing.
const (
	// settle is how long a quota that refills takes to come down to its reserve.
	settle = 250 * time.Millisecond
	// catchUp is how much lateness of timers pacing makes up for.
	catchUp = 10 * time.Millisecond
	// minSpan is the least time over which growth is measured.
	minSpan = 500 * time.Millisecond
)

// ticket is a request that a quota has counted, with the state of the model at that time.
type ticket struct {
	of           *quota
	at           time.Time
	level, shift float64
	before       int // requests under way, which the host may count after this one
	number       int // how many requests were sent, with this one
}

// rate returns the growth that follows from the policy's limit and window.
func (q *quota) rate() float64 {
	if q.window <= 0 {
		return 0
	}
	return q.limit / q.window.Seconds()
}

// refills reports whether the quota grows gradually, rather than being reset all at once.
func (q *quota) refills() bool {
	if q.moves {
		return true
	}
	if r := q.rate(); r > 0 {
		return q.growth >= r/5
	}
	if q.reset.IsZero() {
		return q.growth > 0
	}
	return q.growth*(q.reset.Sub(q.at).Seconds()+1) >= (q.peak-q.level)/2
}

// gain returns the growth of a quota that refills. A sliding log that was used up at once refills unevenly, so a quarter of
// blind is the least if resets move on.
func (q *quota) gain() float64 {
	if q.moves {
		return max(q.growth, q.blind()/4)
	}
	return q.growth
}

// blind returns the growth to try if nothing is known: after a window's reset, and for a quota without resets.
func (q *quota) blind() float64 {
	if r := q.rate(); r > 0 {
		return r
	}
	return 1
}

// advance brings the level to now.
func (q *quota) advance(now time.Time) {
	dt := now.Sub(q.at).Seconds()
	if dt <= 0 {
		return
	}
	refills, paused := q.refills(), q.pause.After(q.at) && !q.pause.After(now)
	q.at = now
	switch {
	case paused && refills:
		// Others may have used the quota meanwhile. One request goes first.
		q.level = min(1, q.peak)
		q.span(now)
	case refills:
		q.grow(q.gain() * dt)
	case q.reset.IsZero():
		q.grow(q.blind() * dt)
	case !q.reset.After(now):
		// The window is over. One request goes first: its answer says what is left in the new one.
		past := now.Sub(q.reset).Seconds()
		q.reset, q.least = time.Time{}, math.Inf(1)
		q.level = max(q.level, 1)
		q.grow(q.blind() * past)
	}
}

func (q *quota) grow(n float64) {
	n = max(0, min(n, q.peak-q.level))
	q.level += n
	q.grown += n
}

// left returns how many requests may go now. In a window it is never more than answers prove, since requests overtake each
// other.
func (q *quota) left() float64 {
	if q.refills() || q.reset.IsZero() {
		return q.level
	}
	return min(q.level, q.least-float64(q.pending))
}

// reserve returns how much of a quota that refills to keep for requests that overtake others. It costs no throughput, since a
// bucket with a reserve isn't full, and so keeps refilling.
func (q *quota) reserve() float64 {
	return min(q.peak/2, 1+q.growth*q.jitter+q.extra)
}

// ready returns when a request may go, according to this quota. A time up to now means at once.
func (q *quota) ready(now time.Time) time.Time {
	at := q.pause
	if !q.told {
		return at
	}
	q.advance(now)
	left := q.left()
	switch {
	case left >= 1:
		if left < q.peak/2 && q.next.After(at) {
			at = q.next
		}
		return at
	case q.refills():
		return later(at, now.Add(seconds((1-left)/q.gain())))
	case q.level >= 1: // answers under way may prove that there is more
		return later(at, now.Add(seconds(max(q.delay, 0.001))))
	case q.reset.After(now):
		return later(at, q.reset)
	}
	return later(at, now.Add(seconds((1-left)/q.blind())))
}

// send counts a request.
func (q *quota) send(now time.Time) ticket {
	q.advance(now)
	t := ticket{of: q, at: now, before: q.pending, number: q.sent + 1}
	q.pending++
	q.sent++
	q.level--
	if left := q.left(); left < q.peak/2 {
		if pace := q.pace(now, left); pace > 0 {
			turn := later(now.Add(-catchUp), q.next)
			if turn.After(now) { // it went before its turn, since requests weren't paced
				turn = now
			}
			q.next = turn.Add(seconds(1 / pace))
		}
	}
	t.level, t.shift = q.level, q.shift
	return t
}

// pace returns how many requests per second to send while less than half is left; 0 means no pacing.
func (q *quota) pace(now time.Time, left float64) float64 {
	switch {
	case q.refills():
		return max(q.gain()/4, q.gain()+(left-q.reserve())/settle.Seconds())
	case q.reset.After(now):
		return max(left, 1) / max(q.reset.Sub(now).Seconds(), 0.001)
	}
	return 0
}

// correct moves the level. It also moves what requests under way will be compared with, so that their answers don't correct
// the same again.
func (q *quota) correct(by float64) {
	q.level += by
	q.shift += by
}

// answer ends a ticket, and measures how long answers take.
func (q *quota) answer(now time.Time, t *ticket) {
	q.pending--
	took := now.Sub(t.at).Seconds()
	if q.delay == 0 {
		q.delay, q.jitter = took, took/2
		return
	}
	q.jitter += (math.Abs(took-q.delay) - q.jitter) / 16
	q.delay += (took - q.delay) / 16
}

// read learns from an answer. t is nil if the request wasn't counted here, since the client didn't know that the policy
// counts it.
func (q *quota) read(now time.Time, t *ticket, r *reading) {
	q.numbers(now, r)
	switch {
	case r.left < 0:
	case !q.told:
		q.told = true
		q.level, q.least, q.growth = r.left, r.left, q.rate()
		q.span(now)
	case t == nil:
		q.correct(-1)
	case q.newest.Sub(t.at).Seconds() > q.delay:
		return // newer answers say more
	default:
		q.newest = later(q.newest, t.at)
		q.compare(now, t, r)
	}
}

// numbers updates limit, window and reset.
func (q *quota) numbers(now time.Time, r *reading) {
	q.advance(now)
	limit, window := q.limit, q.window
	if r.limit >= 0 {
		limit = r.limit
	}
	if r.window > 0 {
		window = r.window
	}
	if limit != q.limit || window != q.window {
		q.limit, q.window = limit, window
		q.told, q.peak, q.extra = false, 0, 0
	}
	q.peak = max(q.peak, r.left+1)
	if r.reset < 0 {
		return
	}
	// Servers round times up to whole seconds. So of several times for the same moment, the earliest is the most exact.
	at := now.Add(r.reset)
	switch d := at.Sub(q.reset); {
	case !q.reset.After(now) || d < 0:
		q.reset = at
	case d > 1500*time.Millisecond:
		q.reset, q.moves = at, true
	}
	q.moves = q.moves || q.beyond(r)
}

// beyond reports whether a reset is further away than a window is long.
func (q *quota) beyond(r *reading) bool { return q.window > 0 && r.reset > q.window+time.Second/2 }

// compare corrects the model by an answer. Concurrent requests may be counted in any order, so a difference that this
// explains proves little.
func (q *quota) compare(now time.Time, t *ticket, r *reading) {
	left := r.left
	delta := left - (t.level + q.shift - t.shift)
	before, after := float64(t.before), float64(q.sent-t.number)
	proof := delta - min(max(delta, -after), before)
	big := math.Abs(proof) > max(3, q.peak/4) // a reset, or others who share the quota
	if big || left < q.least || !t.at.Before(q.shown) {
		q.least, q.shown = left, now
	}
	if big {
		q.learn(now)
		q.correct(proof)
		q.span(now)
		q.next = time.Time{}
		if proof > 0 && r.reset >= 0 {
			q.reset, q.moves = now.Add(r.reset), q.beyond(r) // forget the last window
		}
		return
	}
	delta = proof + (delta-proof)/(4+before+after)
	q.correct(delta)
	q.drift += delta
	q.extra *= 1 - 1./2048
	q.learn(now)
}

// span starts a new measurement of growth.
func (q *quota) span(now time.Time) { q.since, q.grown, q.drift = now, 0, 0 }

// learn measures growth, over a time that is long enough to average out the noise.
func (q *quota) learn(now time.Time) {
	span := now.Sub(q.since)
	need := max(minSpan, seconds(16/max(q.growth, q.rate(), 0.001)))
	if q.window > 0 {
		need = min(need, q.window/4)
	}
	if span < need {
		return
	}
	seen := max(0, (q.grown+q.drift)/span.Seconds())
	if seen < q.growth/2 {
		q.growth = seen
	} else {
		q.growth += (seen - q.growth) / 4
	}
	if r := q.rate(); r > 0 {
		q.growth = min(q.growth, 2*r)
	}
	q.span(now)
}

// refuse learns from a refusal that asks to wait.
func (q *quota) refuse(now time.Time, wait time.Duration) {
	q.advance(now)
	if !q.told && q.limit > 0 {
		q.told, q.growth = true, q.rate()
	}
	if q.told {
		q.correct(-max(0, q.level))
		q.least, q.shown = 0, now
		if !q.reset.After(now) {
			q.reset = now.Add(wait)
		}
		q.learn(now)
		q.span(now)
		switch {
		case !q.refills() || q.pause.After(now): // it is a window, or another refusal has taught this already
		case q.growth*(wait-time.Second).Seconds() >= 3:
			q.growth, q.moves = 0, false // after so much growth something would be left, so it is a window
		default:
			q.extra = min(q.peak/2, 2*q.extra+1)
			q.growth *= 0.75 // others may be taking the rest
		}
	}
	q.pause = later(q.pause, now.Add(wait))
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
