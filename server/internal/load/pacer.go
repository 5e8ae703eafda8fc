package load

import (
	"context"
	"math/rand/v2"
	"time"
)

// pacer distributes the requests of a schedule to workers. One worker at a time has the turn. It waits until the next
// request is due, passes the turn to another worker, and sends the request itself, so that no time is lost by waking a
// worker. While all workers are busy, the schedule lags behind the clock.
type pacer struct {
	turn     chan struct{} // holds a value while a worker has the turn; only the worker with the turn uses the other fields
	schedule schedule
	dropped  int64 // requests of the measured time that were never sent
	nap      func(time.Duration)
}

func newPacer(p *Plan) *pacer {
	s := &pacer{turn: make(chan struct{}, 1), schedule: newSchedule(p.Rate, p.Poisson), nap: nap}
	if p.nap != nil {
		s.nap = p.nap
	}
	return s
}

// next waits until the next request is due, and returns that time. If there are no more requests, it returns false.
func (p *pacer) next(ctx context.Context, r *run) (due time.Duration, ok bool) {
	p.turn <- struct{}{}
	defer func() { <-p.turn }()
	due = p.schedule.next()
	for due < r.plan.Warmup && r.now() >= r.plan.Warmup {
		due = p.schedule.next() // skip warm-up requests that are late: they aren't measured, and mustn't delay those that are
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

// timerSlack is how much too early timers are set. If a timer fired late, the delay would count as the target's
// latency.
const timerSlack = 2 * time.Millisecond

// sleep waits until a time. If ctx is done first, it returns false.
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
	n    int64      // if evenly spaced: number of requests so far
	rng  *rand.Rand // source of random times for Poisson; nil means evenly spaced
	last float64    // if Poisson: when the last request was due, in seconds
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
	// Compute the time from n, because adding rounded intervals would drift.
	due := time.Duration(float64(s.n) / s.rate * float64(time.Second))
	s.n++
	return due
}
