package weir

// Log is the state of a sliding window log: every admission of the last window,
// exact over any interval of that length. Its memory follows what was admitted:
// sixteen bytes an admission, whatever its cost. The zero Log is untouched.
// It is not safe for concurrent use.
type Log struct {
	ring []entry // a ring buffer; its length is a power of two
	head int     // the oldest entry
	n    int     // how many
	sum  int64   // of their costs
}

type entry struct{ time, cost int64 }

func (l *Log) at(i int) *entry { return &l.ring[(l.head+i)&(len(l.ring)-1)] }

// Size is the memory that the log holds, in bytes.
func (l *Log) Size() int { return 16*len(l.ring) + 56 }

// FitsLog reports whether n tokens fit at the given moment.
func (p *Policy) FitsLog(l *Log, now, n int64) bool {
	p.prune(l, now)
	return n <= p.Limit.Count-l.sum
}

// TryLog takes n tokens at the given moment if they fit. A refusal changes nothing
// but what [Policy.Try] changes: entries left in the future by a clock that ran
// backwards are brought to now.
func (p *Policy) TryLog(l *Log, now, n int64) bool {
	ok := p.FitsLog(l, now, n)
	if ok {
		l.push(now, n)
	}
	return ok
}

// prune drops what has left the window.
func (p *Policy) prune(l *Log, now int64) {
	for i := l.n - 1; i >= 0 && l.at(i).time > now; i-- {
		l.at(i).time = now
	}
	for l.n > 0 && l.at(0).time <= now-p.window {
		l.sum -= l.at(0).cost
		l.head = (l.head + 1) & (len(l.ring) - 1)
		l.n--
	}
	if l.n == 0 {
		l.ring, l.head = nil, 0
	} else if len(l.ring) > 8 && l.n < len(l.ring)/4 {
		l.resize(len(l.ring) / 2)
	}
}

func (l *Log) push(now, n int64) {
	l.sum += n
	if l.n > 0 && l.at(l.n-1).time == now {
		l.at(l.n - 1).cost += n
		return
	}
	if l.n == len(l.ring) {
		l.resize(max(1, 2*len(l.ring)))
	}
	l.n++
	*l.at(l.n - 1) = entry{now, n}
}

func (l *Log) resize(size int) {
	ring := make([]entry, size)
	for i := range l.n {
		ring[i] = *l.at(i)
	}
	l.ring, l.head = ring, 0
}

// ReportLog describes the log as [Policy.Report] does a state.
func (p *Policy) ReportLog(l *Log, now, n int64, v Verdict) Result {
	p.prune(l, now)
	r := Result{Allowed: v != Refused, Remaining: max(0, p.Limit.Count-l.sum), Slot: now}
	if l.n > 0 {
		r.ResetAfter = micros(l.at(l.n-1).time + p.window - now)
	}
	if v == Refused {
		r.RetryAfter = Never
		if n <= p.Limit.Count {
			r.RetryAfter = micros(p.logRetry(l, n) - now)
		}
	}
	return r
}

// logRetry is when enough old entries have left.
func (p *Policy) logRetry(l *Log, n int64) int64 {
	over := l.sum + n - p.Limit.Count
	for i := 0; ; i++ {
		e := l.at(i)
		if over -= e.cost; over <= 0 {
			return e.time + p.window
		}
	}
}

// ReturnLog takes n tokens off the entry that was made at the slot's moment.
func (p *Policy) ReturnLog(l *Log, now, n, slot int64) {
	p.prune(l, now)
	for i := l.n - 1; i >= 0 && l.at(i).time >= slot; i-- {
		e := l.at(i)
		if e.time != slot {
			continue
		}
		// After a clock ran backwards, several entries can stand at one moment.
		part := min(n, e.cost)
		e.cost -= part
		l.sum -= part
		if n -= part; e.cost == 0 {
			for j := i; j < l.n-1; j++ {
				*l.at(j) = *l.at(j + 1)
			}
			l.n--
		}
		if n == 0 {
			return
		}
	}
}

// SpentLog is [Policy.Spent] of a log; whole is a moment, not a length.
func (p *Policy) SpentLog(l *Log) (used, whole int64) {
	if l.n == 0 {
		return 0, 0
	}
	return min(MaxSpent, max(1, l.sum*MaxSpent/p.Limit.Count)), l.at(l.n-1).time + p.window
}
