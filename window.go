package weir

// Fixed window: the count since the window began. Windows are aligned to the
// Unix epoch. After a clock ran backwards past a window's beginning, the window
// begins anew at that moment with the count it had; busy counters then go on
// from there, so that no window is ever shorter than its length, whatever
// the clock does, and a counter that was idle for a window is aligned again.

func (p *Policy) rollWindow(s State, now int64) State {
	switch {
	case s.Time == 0 || now >= s.Time+2*p.window:
		return State{Time: now - now%p.window}
	case now >= s.Time+p.window:
		return State{Time: s.Time + p.window}
	case now < s.Time:
		s.Time = now
	}
	return s
}

func (p *Policy) tryWindow(s State, now, n int64) (State, bool) {
	w := p.rollWindow(s, now)
	if n > p.Limit.Count-w.Level {
		return reanchored(s, now), false
	}
	w.Level += n
	return w, true
}

// reanchored is the state that a refusal leaves: the one it found, but not in the future.
func reanchored(s State, now int64) State {
	if s.Time > now {
		s.Time = now
	}
	return s
}

func (p *Policy) reportWindow(s State, now, n int64, v Verdict) Result {
	w := p.rollWindow(s, now)
	left := micros(w.Time + p.window - now)
	r := Result{
		Allowed:    v != Refused,
		Remaining:  max(0, p.Limit.Count-w.Level),
		ResetAfter: left,
		Slot:       w.Time,
	}
	if v == Refused {
		r.RetryAfter = left
		if n > p.Limit.Count {
			r.RetryAfter = Never
		}
	}
	return r
}

func (p *Policy) returnWindow(s State, now, n, slot int64) State {
	w := p.rollWindow(s, now)
	if w.Time != slot {
		return s
	}
	w.Level = max(0, w.Level-n)
	return w
}
