package weir

import "time"

// Lending: a node takes more tokens than a request needs, and spends the rest by
// itself for a moment. They are debited before they are spent, so a node that dies
// strands what it held and mints nothing.
//
// What is held must not hide from a bucket's capacity: a bucket that refills while
// its tokens are out, and is then given them back, would admit them twice. So a
// bucket that lends remembers what was debited of late, in two slots of 50 ms, and
// refills to no more than its capacity and what refills in 100 ms, less those
// debits. Every token that may be spent stands in the level or in the debits, and giving
// back only moves it from the one to the other: hence all nodes together admit in
// any time no more than the bucket alone would in that time and 100 ms.
//
// Who asks seldom, beside what the bucket refills, may hold tokens for longer: up to a
// second. Of such leases there are never more out than refill in 100 ms, so the same
// bound holds, and a bucket needn't refill less for them. They are counted in slots of
// 500 ms. A bucket has lent in the one way or in the other, never in both at a time.
//
// Windows need none of this. Their leases end with them, and what is given back
// names the window it was taken from.

// MaxLease is the longest that lent tokens may be held, and MaxSlowLease that those may
// be of which there are few.
const (
	MaxLease     = 100 * time.Millisecond
	MaxSlowLease = time.Second
)

// Slots of leases, µs.
const (
	leaseSlot = int64(MaxLease/time.Microsecond) / 2
	slowSlot  = int64(MaxSlowLease/time.Microsecond) / 2
)

// Ledger is a State that lends.
type Ledger struct {
	State
	// Recent is how many tokens left a bucket in the slot that Time lies in, and in the one
	// before: since it lends all of them, and of slow leases those that were lent. Zero as long as it hasn't lent any.
	Recent [2]int64
	Pace   Pace
}

// Pace says how a bucket has lent of late.
type Pace uint8

const (
	// Fast leases end within MaxLease.
	Fast Pace = iota
	// Slow leases end within MaxSlowLease.
	Slow
	// Ending: slow ones are still out, and there will be no more, since somebody asks for fast ones.
	Ending
)

func (p Pace) slot() int64 {
	if p == Fast {
		return leaseSlot
	}
	return slowSlot
}

// Lends reports whether tokens of this policy may be lent: not those of strict rules, of queues, whose
// requests have turns, and of logs, which know each moment.
func (p *Policy) Lends() bool {
	switch p.Limit.Algorithm {
	case TokenBucket, LeakyBucket, FixedWindow, SlidingCounter:
		return !p.Strict
	}
	return false
}

// Lend is [Policy.Try] with want more tokens for the caller to hold: of what is left at most three quarters,
// since others may ask next. Of a window it is a 64th: what its nodes hold at its
// end is lost to those who ask in vain, where a bucket would still have it. A slow ask is for MaxSlowLease.
func (p *Policy) Lend(l Ledger, now, n, want int64, slow bool) (_ Ledger, lent int64, ok bool) {
	if !p.Limit.isBucket() {
		return p.lendWindow(l, now, n, want)
	}
	l.State = reanchored(l.State, now)
	if n > p.capacity/micro {
		return l, 0, false
	}
	level := p.lendable(l, now)
	if level < n*micro || p.maxDelay > 0 && p.wait(p.capacity-level) > p.maxDelay {
		return l, 0, false
	}
	recent, pace := l.recent(now)
	level -= n * micro
	if none := recent == [2]int64{}; none && want > 0 && slow {
		pace = Slow
	}
	switch {
	case pace == Fast && (want > 0 || recent != [2]int64{}):
		if slow { // for a tenth of the time that it had in mind
			want /= int64(MaxSlowLease / MaxLease)
		}
		lent = min(want, level/micro*3/4)
		recent[0] += n + lent
	case pace == Slow && slow && 2*level >= p.capacity:
		lent = max(0, min(want, level/micro/2, p.slowest()-recent[0]-recent[1]))
		recent[0] += lent
	case pace == Slow && want > 0 && !slow:
		pace = Ending
	}
	if recent == [2]int64{} {
		pace = Fast
	}
	return Ledger{p.bucketState(level-lent*micro, now), recent, pace}, lent, true
}

// slowest is how many tokens may be out in slow leases: no more than refill in MaxLease, and so few that nobody who
// needs all that a bucket holds misses them.
func (p *Policy) slowest() int64 {
	return min(mulDiv(2*leaseSlot, p.rate.num, p.rate.den), p.capacity/32) / micro
}

func (p *Policy) lendWindow(l Ledger, now, n, want int64) (_ Ledger, lent int64, ok bool) {
	s, ok := p.Try(l.State, now, n)
	if ok && want > 0 {
		free := p.Limit.Count - s.Level
		if p.Limit.Algorithm == SlidingCounter {
			free -= (s.Prev*p.weight(s, now) + p.ticks - 1) / p.ticks
		}
		lent = min(want, free/64)
		s.Level += lent
	}
	return Ledger{State: s}, lent, ok
}

// recent is what was debited in the slot that it is now, and in the one before.
func (l Ledger) recent(now int64) ([2]int64, Pace) {
	slot := l.Pace.slot()
	switch slots := now/slot - l.Time/slot; {
	case slots <= 0:
		return l.Recent, l.Pace
	case slots == 1 && l.Recent[0] > 0:
		return [2]int64{0, l.Recent[0]}, l.Pace
	}
	return [2]int64{}, Fast
}

// most is how far a bucket may be raised while that many of its tokens left it of late.
func (p *Policy) most(recent int64) int64 {
	if recent == 0 {
		return p.capacity
	}
	return min(p.capacity, p.capacity+mulDiv(2*leaseSlot, p.rate.num, p.rate.den)-recent*micro)
}

// caps are the levels past which a bucket that has lent didn't refill, and the moments until which each held.
// What would have refilled meanwhile is lost: it must not come at once when a slot ends.
func (p *Policy) caps(l Ledger) (levels, ends [2]int64) {
	end := (l.Time/leaseSlot + 1) * leaseSlot
	for i, recent := range [2]int64{l.Recent[0] + l.Recent[1], l.Recent[0]} {
		levels[i] = max(p.most(recent), p.stored(l.State))
		ends[i] = end + int64(i)*leaseSlot
	}
	return levels, ends
}

// capped: what has left the bucket of late keeps it from refilling as ever.
func (l Ledger) capped() bool { return l.Pace == Fast && l.Recent != [2]int64{} }

// lendable is [Policy.tokens] of a bucket that may have lent some.
func (p *Policy) lendable(l Ledger, now int64) int64 {
	level := p.tokens(l.State, now)
	if !l.capped() {
		return level
	}
	levels, ends := p.caps(l)
	level = min(level, levels[0]+mulDiv(max(0, now-ends[0]), p.rate.num, p.rate.den))
	if now >= ends[0] {
		level = min(level, levels[1]+mulDiv(max(0, now-ends[1]), p.rate.num, p.rate.den))
	}
	return level
}

// ReportLend is [Policy.ReportTo] of a ledger.
func (p *Policy) ReportLend(r *Result, l Ledger, now, n, lent int64, v Verdict) {
	p.ReportTo(r, l.State, now, n, v)
	if lent > 0 {
		slot := l.Pace.slot()
		end := (now/slot + 2) * slot
		if !p.Limit.isBucket() {
			end = min(end, l.Time+p.window)
		}
		r.Lent, r.LentFor = lent, micros(end-now)
	}
	if !l.capped() {
		return
	}
	l.State = reanchored(l.State, now)
	r.Remaining = max(0, p.lendable(l, now)) / micro
	levels, ends := p.caps(l)
	for i, level := range levels {
		// There may be enough that others hold.
		if level < p.capacity {
			r.ResetAfter = max(r.ResetAfter, micros(ends[i]+p.wait(p.capacity-level)-now))
		}
		if v == Refused && r.RetryAfter != Never && level < n*micro {
			r.RetryAfter = max(r.RetryAfter, micros(ends[i]+p.wait(n*micro-level)-now))
		}
	}
}

// TakeBack returns lent tokens that weren't spent. Of a bucket they are void when their time is over.
func (p *Policy) TakeBack(l Ledger, now, n, slot int64, slow bool) Ledger {
	if l.State == (State{}) {
		return l
	}
	if !p.Limit.isBucket() {
		return Ledger{State: p.Return(l.State, now, n, slot)}
	}
	l.State = reanchored(l.State, now)
	recent, pace := l.recent(now)
	age := now/pace.slot() - slot/pace.slot()
	if age < 0 || age > 1 || slow != (pace != Fast) {
		return l
	}
	n = min(n, recent[age])
	if n <= 0 {
		return l
	}
	recent[age] -= n
	if recent == [2]int64{} {
		pace = Fast
	}
	return Ledger{p.bucketState(min(p.lendable(l, now)+n*micro, p.capacity), now), recent, pace}
}

// Refund is [Policy.Return] into a ledger: of tokens that were spent.
func (p *Policy) Refund(l Ledger, now, n, slot int64) Ledger {
	if l.Recent == [2]int64{} {
		return Ledger{State: p.Return(l.State, now, n, slot)}
	}
	l.State = reanchored(l.State, now)
	recent, pace := l.recent(now)
	level, most := p.lendable(l, now), p.capacity
	if pace == Fast {
		most = p.most(recent[0] + recent[1])
	}
	level = max(level, min(level+min(n, MaxTokens)*micro, most))
	return Ledger{p.bucketState(level, now), recent, pace}
}
