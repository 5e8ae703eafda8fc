package client

import "time"

// policy is what a host's answers have said about one of its policies, and what was sent since then. It is pure arithmetic:
// time is an argument, and the host's lock guards it.
//
// While at least half of the policy is left, requests are sent at once. Below that, they are spaced by the time to the reset
// divided by the number left. A bucket refills all the time, so if the policy names its window, the time in which a tenth of it
// refills replaces the time to the reset, if it is shorter. So requests go the slower the fewer are left, until the pace is what
// the policy refills.
type policy struct {
	name   string
	limit  float64       // requests in a window; 0 if that isn't known
	window time.Duration // 0 if that isn't known
	peak   float64       // the most requests that were ever left: less than limit if the policy has a small burst

	known bool      // the newest answer has said how many requests are left
	left  float64   // that number, less the requests that it may not include
	reset time.Time // when there is more, if nothing is left
	pause time.Time // nothing is sent before this time

	pending  int // requests without an answer
	sent     int
	lastSent time.Time
	newest   time.Time     // when the newest request with an answer was sent
	delay    time.Duration // how long its answer took
}

const (
	plenty = 0.5 // the share of a policy down to which requests are sent at once
	spread = 0.1 // the share that refills while the requests that are left are sent
	// patience is how many times that long to wait for more when nothing is left, if there is no reset before.
	patience = 8
	// rounding is how late a reset may seem, since servers round it up to whole seconds.
	rounding = 1500 * time.Millisecond
)

// ready returns when a request may go, according to this policy. A time up to now means at once.
func (p *policy) ready(now time.Time) time.Time {
	switch {
	case !p.known || p.left >= max(1, plenty*p.peak):
		return p.pause
	case p.left >= 1:
		return later(p.pause, p.lastSent.Add(seconds(p.span(now)/p.left)))
	}
	// One request finds out how many there are now.
	at := p.lastSent.Add(seconds(patience * p.span(now)))
	if at.After(p.reset) {
		at = p.reset
	}
	if p.pending > 0 || p.reset.IsZero() {
		at = later(at, p.lastSent.Add(relief))
	}
	return later(p.pause, at)
}

// span returns over how many seconds to spread the requests that are left.
func (p *policy) span(now time.Time) float64 {
	reset := max(time.Second, p.reset.Sub(now)).Seconds()
	if p.limit <= 0 || p.window <= 0 {
		return reset
	}
	// Only an answer tells that too many requests were sent, so spread them over at least twice the time that an answer takes.
	return min(reset, max(p.window.Seconds()*spread*p.peak/p.limit, 2*p.delay.Seconds()))
}

// ticket is a request that a policy has counted.
type ticket struct {
	of     *policy
	before int // requests under way when it was sent, which the host may count after this one
	number int // how many requests were sent, with this one
}

// send counts a request that is sent now.
func (p *policy) send(now time.Time) ticket {
	t := ticket{p, p.pending, p.sent + 1}
	p.pending++
	p.sent++
	p.left--
	p.lastSent = now
	return t
}

// read learns from the answer to a request that was sent at the time sent. t is nil if it wasn't known then that the policy
// counts the request.
func (p *policy) read(t *ticket, sent, now time.Time, r *reading) {
	if r.limit >= 0 && r.limit != p.limit || r.window > 0 && r.window != p.window {
		p.limit, p.window, p.peak, p.known = max(0, r.limit), max(0, r.window), 0, false
	}
	switch {
	case r.left < 0 || r.other:
		p.known = false // another policy has fewer requests left
		return
	case sent.Before(p.newest) || p.pause.After(now): // newer answers say more
		return
	case p.known && t != nil:
		// Requests overtake each other, so the number may include some that were sent later, and miss some that were sent before.
		most := r.left - float64(p.sent-t.number)
		p.left = min(max(p.left, most-float64(t.before)), most)
	default:
		p.left = r.left - float64(p.pending)
	}
	p.known, p.newest, p.delay = true, sent, now.Sub(sent)
	p.peak = max(p.peak, r.left+1)
	// If answers give several times for one reset, the earliest is the most exact. A bucket's reset keeps moving.
	at := now.Add(r.reset)
	if r.reset >= 0 && (!p.reset.After(now) || at.Before(p.reset) || at.Sub(p.reset) > rounding) {
		p.reset = at
	}
}

// refuse begins a pause. After it, one request finds out how many are left.
func (p *policy) refuse(now time.Time, wait time.Duration) {
	p.pause = later(p.pause, now.Add(wait))
	p.known, p.left, p.reset = true, 0, p.pause
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
