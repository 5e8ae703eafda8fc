package load

import (
	"context"
	"time"
)

// pacer hands out the requests of a schedule, each when it is due. Workers take turns: the worker
// that has the turn waits for the next request, passes the turn on and sends the request itself, so
// that no time is lost on waking another. While all are busy nobody has it, requests become late,
// and the backlog is no more than a schedule that lags behind the clock.
type pacer struct {
	turn     chan struct{} // holds a value while a worker has the turn; only that worker touches the rest
	schedule schedule
	dropped  int64 // requests that should have been measured, and never were sent
	nap      func(time.Duration)
}

func newPacer(p *Plan) *pacer {
	s := &pacer{turn: make(chan struct{}, 1), schedule: newSchedule(p.Rate, p.Poisson), nap: p.nap}
	if s.nap == nil {
		s.nap = nap
	}
	return s
}

// next waits until a request is due and returns when that was, which is earlier
// if all workers were busy then. False means that there are no more.
func (p *pacer) next(ctx context.Context, r *run) (due time.Duration, ok bool) {
	p.turn <- struct{}{}
	defer func() { <-p.turn }()
	due = p.schedule.next()
	if r.now() >= r.plan.Warmup {
		// What warming up has left behind isn't measured, and mustn't hold up what is.
		for due < r.plan.Warmup {
			due = p.schedule.next()
		}
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

// coarse is how much earlier than needed a timer is set. The runtime's timers are late by up to a
// millisecond on some systems, which would be taken for the target's latency.
const coarse = 2 * time.Millisecond

// sleep returns when a time has come, or false when ctx is done first.
func (p *pacer) sleep(ctx context.Context, r *run, until time.Duration) bool {
	for {
		wait := until - r.now()
		switch {
		case wait <= 0:
			return true
		case wait > coarse:
			timer := time.NewTimer(wait - coarse)
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
