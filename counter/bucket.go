package counter

// The state of a token bucket, leaky bucket or leaky queue is a level in millionths of a token, and when that level was
// computed. Refilling rounds down to a millionth, and only admitted requests store the result. So a client loses less than a
// millionth of a token for each admitted request, and refused requests cost it nothing.

// Level returns how much may be taken from a bucket at the moment now, in millionths of a token. It is negative if a leaky
// bucket became smaller than the water in it.
func (p *Policy) Level(s State, now int64) int64 {
	if s.Time == 0 {
		return p.capacity
	}
	level := p.stored(s)
	if dt := now - s.Time; dt > 0 {
		level += p.Refill(dt)
	}
	return min(level, p.capacity)
}

// stored returns what could be taken at the state's own time, before any refill since then.
func (p *Policy) stored(s State) int64 {
	if p.Limit.Algorithm == TokenBucket {
		return s.Level
	}
	return p.capacity - s.Level
}

// AtLevel returns the state of a bucket that has this level now.
func (p *Policy) AtLevel(level, now int64) State {
	if p.Limit.Algorithm != TokenBucket {
		level = p.capacity - level
	}
	return State{Time: now, Level: level}
}

func (p *Policy) tryBucket(s State, now, n int64) (State, bool) {
	s = reanchored(s, now)
	if n > p.largest {
		return s, false
	}
	level := p.Level(s, now)
	if level < n*p.unit || p.maxDelay > 0 && p.Wait(p.capacity-level) > p.maxDelay {
		return s, false
	}
	return p.AtLevel(level-n*p.unit, now), true
}

// Refill returns how many millionths of a token a bucket gains in a time given in µs.
func (p *Policy) Refill(time int64) int64 { return mulDiv(time, p.rate.num, p.rate.den) }

// Wait returns how long a bucket takes to gain this many millionths of a token, in µs.
func (p *Policy) Wait(amount int64) int64 {
	if amount <= 0 {
		return 0
	}
	return mulDivCeil(amount, p.rate.den, p.rate.num)
}

func (p *Policy) reportBucket(r *Result, s State, now, n int64, v Verdict) {
	if s.Time == 0 || s.Time > now {
		s = p.AtLevel(p.Level(s, now), now)
	}
	level := p.Level(s, now)
	// Count from the state's own time. The level at now is already rounded down, so a time computed from it would be too late.
	at := func(level int64) int64 { return max(0, s.Time+p.Wait(level-min(p.stored(s), p.capacity))-now) }
	r.Remaining = p.whole(max(0, level))
	r.ResetAfter = micros(at(p.capacity))
	r.Slot = now
	switch {
	case v == Refused:
		r.RetryAfter = Never
		if n <= p.largest {
			need := n * p.unit
			if level >= need {
				r.Remaining = 0 // the queue has room, but the wait would be too long
			}
			if p.maxDelay > 0 {
				// The queue must also have drained until the wait in it is at most maxDelay.
				need = max(need, p.capacity-p.Refill(p.maxDelay))
			}
			r.RetryAfter = micros(at(need))
		}
	case p.Limit.Algorithm == LeakyQueue:
		if v == Taken {
			level += n * p.unit // the delay depends on the queue as it was before this request
		}
		r.Delay = micros(p.Wait(p.capacity - level))
	}
}

func (p *Policy) returnBucket(s State, now, n int64) State {
	s = reanchored(s, now)
	// Don't refill here: a receipt may carry older numbers of the limit than those in force now.
	n = p.millionths(n)
	if p.Limit.Algorithm == TokenBucket {
		s.Level = max(s.Level, min(s.Level+n, p.capacity))
	} else {
		s.Level = min(s.Level, max(s.Level-n, 0))
	}
	return s
}
