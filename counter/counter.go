package counter

// Sliding window counter: the counts of this window and of the one before. The
// estimate of the last window's length is this count, plus the one before
// weighted by the part of it that the length still covers. The weight moves in
// steps of 1/ticks, so that the products stay exact.

// weight is how many ticks of the window before still count.
func (p *Policy) weight(s State, now int64) int64 { return p.ticks - (now-s.Time)/p.tick }

// Windows is what a fixed window or a sliding counter holds at the given moment: the count of the window that it is then
// in Level, its beginning in Time, and the count of the window before in Prev, of which weight, from 1 down to 0, still counts.
func (p *Policy) Windows(s State, now int64) (w State, weight float64) {
	w = p.roll(s, now)
	if p.Limit.Algorithm == SlidingCounter {
		weight = float64(p.weight(w, now)) / float64(p.ticks)
	}
	return w, weight
}

func (p *Policy) reportCounter(r *Result, s State, now, n int64, v Verdict) {
	c := p.roll(s, now)
	end := c.Time + p.window
	used := c.Level + (c.Prev*p.weight(c, now)+p.ticks-1)/p.ticks
	r.Remaining = max(0, p.Limit.Count-used)
	r.Slot = c.Time
	switch {
	case c.Level > 0:
		r.ResetAfter = micros(end + p.window - now)
	case c.Prev > 0:
		r.ResetAfter = micros(end - now)
	default:
		r.ResetAfter = 0
	}
	if v == Refused {
		r.RetryAfter = Never
		if n <= p.Limit.Count {
			r.RetryAfter = micros(p.counterRetry(c, n) - now)
		}
	}
}

// counterRetry is the first moment at which n fits, if nothing else is admitted:
// when the weight of the window before has sunk enough, or else that of this
// window, once it is the one before.
func (p *Policy) counterRetry(c State, n int64) int64 {
	for {
		if free := p.Limit.Count - c.Level - n; free >= 0 {
			at := c.Time
			if c.Prev > 0 {
				// The weight never falls below 0, so neither may the one that is asked for.
				at += max(0, p.ticks-min(p.ticks, free*p.ticks/c.Prev)) * p.tick
			}
			if at < c.Time+p.window {
				return at
			}
		}
		if c.Level == 0 && c.Prev == 0 {
			return c.Time
		}
		c = State{Time: c.Time + p.window, Prev: c.Level}
	}
}
