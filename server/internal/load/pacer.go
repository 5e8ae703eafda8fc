package load

import (
	"context"
	"math/rand/v2"
	"time"
)

// pacer hands out the requests of a schedule, each when it is due. The worker that has the turn waits until the next
// request is due, passes the turn on, and sends the request itself, so that no time is lost by waking another worker. While
// all workers are busy, the schedule lags behind the clock.
type pacer struct {
	turn     chan struct{} // holds a value while a worker has the turn; only that worker uses the other fields
	schedule schedule
	dropped  int64 // requests in the measured time that were never sent
	nap      func(time.Duration)
}

func newPacer(p *Plan) *pacer {
	s := &pacer{turn: make(chan struct{}, 1), schedule: newSchedule(p.Rate, p.Poisson), nap: nap}
	if p.nap != nil {
		s.nap = p.nap
	}
	return s
}

// next waits until the next request is due, and returns that time. It returns false if there are no more requests.
func (p *pacer) next(ctx context.Context, r *run) (due time.Duration, ok bool) {
	p.turn <- struct{}{}
	defer func() { <-p.turn }()
	due = p.schedule.next()
	for due < r.plan.Warmup && r.now() >= r.plan.Warmup {
		due = p.schedule.next() // requests that the warm-up didn't get to aren't measured, and mustn't delay those that are
	}
	if due >= r.end() || !p.sleep(ctx, r, due) {
		return 0, false
	}
	end := r.end()
	if r.now() < end {
		return due, true
	}
	for ; due < end; due = p.schedule.next() {
		if due >= r.plan.Warmup {
			p.dropped++
		}
	}
	return 0, false
}

// timerSlack is by how much timers are set too early, because the delay of a late timer would count as the target's latency.
const timerSlack = 2 * time.Millisecond

// sleep waits until a time, and returns false if ctx is done first.
func (p *pacer) sleep(ctx context.Context, r *run, until time.Duration) bool {
	for {
		wait := until - r.now()
		switch {
		case wait <= 0:
			return true
		case wait > timerSlack:
			timer := time.NewTimer(wait - timerSlack)
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
				return false
			}
		default:
			p.nap(wait)
			if ctx.Err() != nil {
				return false
			}
		}
	}
}

// schedule computes when the requests of an open loop are due, relative to the start.
type schedule struct {
	rate float64    // requests per second
	n    int64      // evenly spaced: number of requests so far
	rng  *rand.Rand // Poisson; nil means evenly spaced
	last float64    // Poisson: when the last request was due, in seconds
}

func newSchedule(rate float64, poisson bool) schedule {
	s := schedule{rate: rate}
	if poisson {
		s.rng = rand.New(rand.NewPCG(2, 3))
	}
	return s
}

// next returns when the next request is due. Times never decrease.
func (s *schedule) next() time.Duration {
	if s.rng != nil {
		s.last += s.rng.ExpFloat64() / s.rate
		return time.Duration(s.last * float64(time.Second))
	}
	// Compute this from n, because adding rounded intervals would drift.
	due := time.Duration(float64(s.n) / s.rate * float64(time.Second))
	s.n++
	return due
}
