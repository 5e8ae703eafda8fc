package counter

// weight returns how many ticks of the previous window still count. A sliding window counter estimates the requests admitted
// within the last window's length: this window's count, plus a share of the previous window's count in proportion to how much
// of that window still lies within this length. The share is counted in whole ticks, so that all products are exact.
func (p *Policy) weight(s State, now int64) int64 { return p.ticks - (now-s.Time)/p.tick }

// Windows returns the state of a fixed window or a sliding counter at the moment now, and the weight of its Prev: 1 to 0.
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
	r.ResetAfter = 0
	if c.Level > 0 {
		r.ResetAfter = micros(end + p.window - now)
	} else if c.Prev > 0 {
		r.ResetAfter = micros(end - now)
	}
	if v == Refused {
		r.RetryAfter = Never
		if n <= p.Limit.Count {
			r.RetryAfter = micros(p.counterRetry(c, n) - now)
		}
	}
}

// counterRetry returns the first moment at which n tokens fit if nothing else is admitted. If the previous window's weight
// doesn't become low enough within this window, the search goes on in the next window, where this window is the previous one.
func (p *Policy) counterRetry(c State, n int64) int64 {
	for {
		if free := p.Limit.Count - c.Level - n; free >= 0 {
			at := c.Time
			if c.Prev > 0 {
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
