package weir

// Sliding window counter: the counts of this window and of the one before. The
// estimate of the last window's length is this count, plus the one before
// weighted by the part of it that the length still covers. The weight moves in
// steps of 1/ticks, so that the products stay exact.

func (p *Policy) rollCounter(s State, now int64) State {
	switch {
	case s.Time == 0 || now >= s.Time+2*p.window:
		return State{Time: max(1, now-now%p.window)} // 0 is untouched, also in 1970
	case now >= s.Time+p.window:
		return State{Time: s.Time + p.window, Prev: s.Level}
	case now < s.Time:
		s.Time = now
	}
	return s
}

// weight is how many ticks of the window before still count.
func (p *Policy) weight(s State, now int64) int64 { return p.ticks - (now-s.Time)/p.tick }

// fits: prev·weight/ticks + level + n ≤ count, in whole numbers.
func (p *Policy) fitsCounter(s State, now, n int64) bool {
	free := p.Limit.Count - s.Level - n
	return free >= 0 && s.Prev*p.weight(s, now) <= free*p.ticks
}

func (p *Policy) tryCounter(s State, now, n int64) (State, bool) {
	c := p.rollCounter(s, now)
	if n > p.Limit.Count || !p.fitsCounter(c, now, n) {
		return reanchored(s, now), false
	}
	c.Level += n
	return c, true
}

func (p *Policy) reportCounter(r *Result, s State, now, n int64, v Verdict) {
	c := p.rollCounter(s, now)
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

func (p *Policy) returnCounter(s State, now, n, slot int64) State {
	c := p.rollCounter(s, now)
	switch slot {
	case c.Time:
		c.Level = max(0, c.Level-n)
	case c.Time - p.window:
		c.Prev = max(0, c.Prev-n)
	default:
		return s
	}
	return c
}
