package counter

// Fixed window: the count since the window began. Windows are aligned to the Unix epoch. After a
// clock ran backwards past a window's beginning, the window restarts at that moment with the count
// it had; busy counters then go on from there, so that no window is ever shorter than its length,
// whatever the clock does, and a counter that was idle for a window is aligned again.
//
// A sliding window counter rolls in the same way, and keeps the count of the window before.

func (p *Policy) roll(s State, now int64) State {
	if p.calendar != nil {
		return p.calendar.roll(s, now)
	}
	switch {
	case s.Time == 0 || now >= s.Time+2*p.window:
		return State{Time: max(1, now-now%p.window)} // 0 is untouched, also in 1970
	case now >= s.Time+p.window:
		s = State{Time: s.Time + p.window, Prev: s.Level}
		if p.Limit.Algorithm == FixedWindow {
			s.Prev = 0
		}
	case now < s.Time:
		s.Time = now
	}
	return s
}

func (p *Policy) tryWindow(s State, now, n int64) (State, bool) {
	w := p.roll(s, now)
	free := p.count - w.Level
	// prev·weight/ticks + level + n ≤ count, in whole numbers.
	if n > free || w.Prev > 0 && w.Prev*p.weight(w, now) > (free-n)*p.ticks {
		return p.anchored(s, now), false
	}
	w.Level += n
	return w, true
}

// anchored is a state as it was found, but not further ahead than a clock that ran backwards may leave it.
func (p *Policy) anchored(s State, now int64) State {
	if p.calendar != nil && s.Time > now {
		return p.calendar.roll(s, now) // a moment that isn't an edge would end with the window that it lies in, and mint
	}
	return reanchored(s, now)
}

// reanchored is a state as it was found, but not in the future.
func reanchored(s State, now int64) State {
	if s.Time > now {
		s.Time = now
	}
	return s
}

func (p *Policy) reportWindow(r *Result, s State, now, n int64, v Verdict) {
	w := p.roll(s, now)
	r.Remaining = max(0, p.count-w.Level)
	r.ResetAfter = micros(p.windowEnd(w.Time) - now)
	r.Slot = w.Time
	if v == Refused {
		r.RetryAfter = r.ResetAfter
		if n > p.count {
			r.RetryAfter = Never
		}
	}
}

// windowEnd is when a window that began at the given moment ends.
func (p *Policy) windowEnd(start int64) int64 {
	if p.calendar != nil {
		_, end := p.calendar.window(start)
		return end
	}
	return start + p.window
}

func (p *Policy) returnWindow(s State, now, n, slot int64) State {
	w := p.roll(s, now)
	switch {
	case slot == w.Time || slot == 0:
		w.Level = max(0, w.Level-n)
	case slot == w.Time-p.window && p.Limit.Algorithm == SlidingCounter:
		w.Prev = max(0, w.Prev-n)
	default:
		return s
	}
	return w
}
