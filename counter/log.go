package counter

import (
	"iter"
	"sort"
)

// Log is the state of a sliding window log: every admission of the last window, in 16 bytes each. The zero Log is untouched. It
// is not safe for concurrent use. Methods take time in proportion to the logarithm of the log's length, except that the log is
// copied when it grows or shrinks.
type Log struct {
	ring []entry // a ring buffer; its length is a power of two
	head int     // the index of the oldest entry in ring
	n    int     // the number of entries; their times ascend, and the cost of the last one isn't 0
	sum  int64   // the sum of the entries' costs
}

// entry is one place in the ring. The sums form a Fenwick tree: each covers a run of places that ends at its own, not just one
// entry's cost. Unused places aren't cleared, so the sum over a range is the sum up to its end minus the sum before its start.
type entry struct{ time, sum int64 }

func (l *Log) at(i int) *entry { return &l.ring[l.place(i)] }

func (l *Log) place(i int) int { return (l.head + i) & (len(l.ring) - 1) }

func (l *Log) cost(i int) int64 {
	at := l.place(i)
	cost := l.ring[at].sum
	for below := at & (at + 1); at != below; at &= at - 1 {
		cost -= l.ring[at-1].sum
	}
	return cost
}

// add adds to the cost of entry i.
func (l *Log) add(i int, cost int64) {
	for at := l.place(i); at < len(l.ring); at |= at + 1 {
		l.ring[at].sum += cost
	}
}

// upTo returns the sum of the costs in the first places of the ring.
func (l *Log) upTo(places int) (sum int64) {
	for ; places > 0; places &= places - 1 {
		sum += l.ring[places-1].sum
	}
	return sum
}

// first returns the sum of the costs of the oldest n entries.
func (l *Log) first(n int) int64 {
	end := l.head + n
	if over := end - len(l.ring); over > 0 {
		return l.upTo(len(l.ring)) - l.upTo(l.head) + l.upTo(over)
	}
	return l.upTo(end) - l.upTo(l.head)
}

// reach returns the first entry at which the total cost of all entries up to it reaches sum.
func (l *Log) reach(sum int64) int {
	if sum += l.upTo(l.head); sum > l.upTo(len(l.ring)) {
		sum -= l.upTo(len(l.ring))
	}
	at := 0
	for half := len(l.ring); half > 0; half /= 2 {
		if at+half <= len(l.ring) && l.ring[at+half-1].sum < sum {
			at += half
			sum -= l.ring[at-1].sum
		}
	}
	return (at - l.head) & (len(l.ring) - 1)
}

// since returns the first entry with this time or a later one.
func (l *Log) since(moment int64) int {
	return sort.Search(l.n, func(i int) bool { return l.at(i).time >= moment })
}

// Size returns how many bytes of memory the log uses.
func (l *Log) Size() int { return 16*len(l.ring) + 56 }

// Entries returns the admissions in the log, oldest first: the time of each in µs, and its tokens.
func (l *Log) Entries() iter.Seq2[int64, int64] {
	return func(yield func(int64, int64) bool) {
		for i := range l.n {
			if cost := l.cost(i); cost != 0 && !yield(l.at(i).time, cost) {
				return
			}
		}
	}
}

// FitsLog reports whether n tokens fit at the moment now, in µs.
func (p *Policy) FitsLog(l *Log, now, n int64) bool {
	p.prune(l, now)
	return n <= p.Limit.Count-l.sum
}

// TryLog takes n tokens at the moment now if they fit. Like [Policy.Try], it moves entries with a time in the future to now.
func (p *Policy) TryLog(l *Log, now, n int64) bool {
	ok := p.FitsLog(l, now, n)
	if ok {
		l.push(now, n)
	}
	return ok
}

// prune merges entries with a time in the future into one entry at now, and drops those that have left the window.
func (p *Policy) prune(l *Log, now int64) {
	if l.n > 0 && l.at(l.n-1).time > now {
		k := l.since(now)
		l.at(k).time = now
		l.add(k, l.sum-l.first(k)-l.cost(k))
		l.n = k + 1
	}
	if l.n == 0 || l.at(l.n-1).time <= now-p.window {
		*l = Log{}
		return
	}
	if l.at(0).time <= now-p.window {
		gone := l.since(now - p.window + 1)
		l.sum -= l.first(gone)
		l.head = l.place(gone)
		l.n -= gone
	}
	if len(l.ring) > 8 && l.n < len(l.ring)/4 {
		l.resize(len(l.ring) / 2)
	}
}

func (l *Log) push(now, n int64) {
	l.sum += n
	if l.n > 0 && l.at(l.n-1).time == now {
		l.add(l.n-1, n)
		return
	}
	if l.n == len(l.ring) {
		l.resize(max(1, 2*len(l.ring)))
	}
	l.n++
	l.at(l.n - 1).time = now
	l.add(l.n-1, n-l.cost(l.n-1))
}

// resize copies the entries into a ring of another size, and drops entries without a cost.
func (l *Log) resize(size int) {
	ring, n := make([]entry, size), 0
	for i := range l.n {
		if cost := l.cost(i); cost != 0 {
			ring[n] = entry{l.at(i).time, cost}
			n++
		}
	}
	for i := range ring {
		if above := i | (i + 1); above < size {
			ring[above].sum += ring[i].sum
		}
	}
	l.ring, l.head, l.n = ring, 0, n
}

// ReportLog describes a log, as [Policy.Report] describes a State.
func (p *Policy) ReportLog(l *Log, now, n int64, v Verdict) Result {
	p.prune(l, now)
	var last, enough int64
	if l.n > 0 {
		last = l.at(l.n-1).time + p.window
	}
	if v == Refused && n <= p.Limit.Count { // n fits once the entry that reach finds has left the window
		enough = l.at(l.reach(l.sum+n-p.Limit.Count)).time + p.window
	}
	return p.ReportSum(now, n, v, l.sum, last, enough)
}

// ReportSum describes a counter whose store keeps single items, such as the entries of a log or slots. Sum is what the items
// cost together, last is when the last of them ends (µs), and enough is when enough of them will have ended for a refused
// charge to fit. Zero means that there is no such moment.
func (p *Policy) ReportSum(now, n int64, v Verdict, sum, last, enough int64) Result {
	r := Result{Allowed: v != Refused, Remaining: max(0, p.Limit.Count-sum), Slot: now}
	if last != 0 {
		r.ResetAfter = micros(max(0, last-now))
	}
	switch {
	case v != Refused:
	case n > p.Limit.Count || enough == 0:
		r.RetryAfter = Never
	default:
		r.RetryAfter = micros(max(1, enough-now))
	}
	return r
}

// ReturnLog takes n tokens off the entry whose time is slot.
func (p *Policy) ReturnLog(l *Log, now, n, slot int64) {
	p.prune(l, now)
	i := l.since(slot)
	if i == l.n || l.at(i).time != slot {
		return
	}
	part := min(n, l.cost(i))
	l.add(i, -part)
	l.sum -= part
	switch {
	case l.sum == 0:
		*l = Log{}
	case i == l.n-1 && l.cost(i) == 0:
		l.n = l.reach(l.sum) + 1 // drop empty entries at the end as well
	}
}

// SpentLog is like [Policy.Spent], for a log. But its second result is a moment, not a duration.
func (p *Policy) SpentLog(l *Log) (used, whole int64) {
	if l.n == 0 {
		return 0, 0
	}
	return min(maxSpent, max(1, l.sum*maxSpent/p.Limit.Count)), l.at(l.n-1).time + p.window
}
