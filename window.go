package weir

// Fixed window: the count since the window began. Windows are aligned to the Unix epoch. After a
// clock ran backwards past a window's beginning, the window restarts at that moment with the count
// it had; busy counters then go on from there, so that no window is ever shorter than its length,
// whatever the clock does, and a counter that was idle for a window is aligned again.

func (p *Policy) rollWindow(s State, now int64) State {
	w := p.rollCounter(s, now)
	w.Prev = 0
	return w
}

func (p *Policy) tryWindow(s State, now, n int64) (State, bool) {
	w := p.rollWindow(s, now)
	if n > p.Limit.Count-w.Level {
		return reanchored(s, now), false
	}
	w.Level += n
	return w, true
}

// reanchored is a state as it was found, but not in the future.
func reanchored(s State, now int64) State {
	if s.Time > now {
		s.Time = now
	}
	return s
}

func (p *Policy) reportWindow(r *Result, s State, now, n int64, v Verdict) {
	w := p.rollWindow(s, now)
	r.Remaining = max(0, p.Limit.Count-w.Level)
	r.ResetAfter = micros(w.Time + p.window - now)
	r.Slot = w.Time
	if v == Refused {
		r.RetryAfter = r.ResetAfter
		if n > p.Limit.Count {
			r.RetryAfter = Never
		}
	}
}

func (p *Policy) returnWindow(s State, now, n, slot int64) State {
	w := p.rollWindow(s, now)
	if w.Time != slot {
		return s
	}
	w.Level = max(0, w.Level-n)
	return w
}
