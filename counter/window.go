package counter

// roll brings the state of a fixed window or a sliding counter to the moment now. Windows are aligned to the Unix epoch. If the
// clock ran backwards past the beginning of the window, the window begins again at that moment, with its count. Later windows
// follow from there, so that none is shorter than its length, until the counter has been idle for a window.
func (p *Policy) roll(s State, now int64) State {
	if p.calendar != nil {
		return p.calendar.roll(s, now)
	}
	switch {
	case s.Time == 0 || now >= s.Time+2*p.window:
		return State{Time: max(1, now-now%p.window)} // a Time of 0 means untouched
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

// anchored moves a state from the future to now, for any algorithm.
func (p *Policy) anchored(s State, now int64) State {
	if p.calendar != nil && s.Time > now {
		return p.calendar.roll(s, now) // to begin a calendar window anywhere but at an edge would end it early, and admit too much
	}
	return reanchored(s, now)
}

// reanchored moves the time of a state from the future to now. It isn't for calendar windows.
func reanchored(s State, now int64) State {
	s.Time = min(s.Time, now)
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

// windowEnd returns the end of the window that begins at start.
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
