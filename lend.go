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
// Who asks seldom may hold tokens for longer: for a second, or, of a bucket that refills too
// slowly for anything else, for a quarter of the time in which it fills, up to ten. Such leases
// are counted in slots that are as much longer; the bound is the same, since debits keep the
// level down for as long as they may be spent. There are few of them, and none of a bucket that is nearly empty,
// so that nobody misses them. A bucket has lent in the one way or in the other, never in both at a time.
//
// Who alone asks for more than refills takes every token anyway. It may be lent those of a bucket that has none left
// before they have refilled, so that the level falls below zero. It spends each when it would have refilled, no sooner: the last of them
// when the level, were it left alone, is at zero again. That is as if it asked for each at its time.
//
// Windows need none of this. Their leases end with them, and what is given back
// names the window it was taken from.

// MaxLease is the longest that lent tokens may be held, and MaxSlowLease that those may
// be of which there are few.
const (
	MaxLease     = 100 * time.Millisecond
	MaxSlowLease = 10 * time.Second
)

// Slots of leases, µs.
const (
	leaseSlot     = int64(MaxLease/time.Microsecond) / 2
	shortSlowSlot = int64(time.Second/time.Microsecond) / 2
	longSlowSlot  = int64(MaxSlowLease/time.Microsecond) / 2
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
	// Slow leases end within SlowLease.
	Slow
	// Ending: slow ones are still out, and there will be no more, since somebody asks for fast ones.
	Ending
)

// slot is how long the debits of a pace are counted as one, µs.
func (p *Policy) slot(pace Pace) int64 {
	if pace == Fast {
		return leaseSlot
	}
	return p.slowSlot
}

// slowSlotOf is the slot of slow leases. Where fast ones are worth it, because two tokens refill in their time,
// somebody may soon ask for them.
func slowSlotOf(r rate, fill int64) int64 {
	if mulDiv(leaseSlot, r.num, r.den) >= 2*micro {
		return shortSlowSlot
	}
	return min(max(shortSlowSlot, fill/8), longSlowSlot)
}

// SlowLease is for how long slow leases of a bucket may be held, at most, and how many tokens of it may be out in
// such: no more than refill in a slot, and so few that somebody who needs all that the bucket holds hardly misses them.
func (p *Policy) SlowLease() (length time.Duration, tokens int64) {
	if !p.Limit.isBucket() || !p.Lends() {
		return 0, 0
	}
	most, _ := p.slowest()
	return micros(2 * p.slowSlot), most
}

// slowest is how many tokens may be out in slow leases, and the level below which there are no more. Long ones save
// the more calls the more there are of them; of small buckets there are none.
func (p *Policy) slowest() (most, least int64) {
	most, least = p.capacity/16, p.capacity/2
	if p.slowSlot > shortSlowSlot {
		most, least = max(0, p.capacity-32*micro)/8, p.capacity/4
	}
	return min(most, mulDiv(p.slowSlot, p.rate.num, p.rate.den)) / micro, least
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

// Lend is [Policy.Try] with more tokens for the caller to hold: of what is left at most three quarters,
// since others may ask next. Of a window it is a 64th: what its nodes hold at its
// end is lost to those who ask in vain, where a bucket would still have it.
func (p *Policy) Lend(l Ledger, now, n int64, a Loan) (_ Ledger, lent int64, ok bool) {
	if !p.Limit.isBucket() {
		return p.lendWindow(l, now, n, a.Want)
	}
	l.State = reanchored(l.State, now)
	if n > p.capacity/micro {
		return l, 0, false
	}
	level := p.lendable(l, now)
	if level < n*micro || p.maxDelay > 0 && p.wait(p.capacity-level) > p.maxDelay {
		return l, 0, false
	}
	recent, pace := p.recent(l, now)
	level -= n * micro
	want := a.Want
	if a.Slow && want > 0 && pace != Fast {
		if age := now/p.slot(pace) - a.SpentSlot/p.slot(pace); age == 0 || age == 1 {
			recent[age] -= min(a.Spent, recent[age])
		}
	}
	if recent == [2]int64{} {
		pace = Fast
		if want > 0 && a.Slow {
			pace = Slow
		}
	}
	switch {
	case pace == Fast && (want > 0 || recent != [2]int64{}):
		if a.Slow { // for a part of the time that it had in mind
			want /= 10
		}
		lent = min(want, level/micro*3/4)
		recent[0] += n + lent
	case pace == Slow && a.Slow:
		most, least := p.slowest()
		switch lent = max(0, min(want, most-recent[0]-recent[1])); {
		case level >= least:
			lent = min(lent, level/micro/2)
		case !a.Ahead:
			lent = 0
		}
		recent[0] += lent
	case pace == Slow && want > 0 && !a.Slow:
		pace = Ending
	}
	if recent == [2]int64{} {
		pace = Fast
	}
	return Ledger{p.bucketState(level-lent*micro, now), recent, pace}, lent, true
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
func (p *Policy) recent(l Ledger, now int64) ([2]int64, Pace) {
	slot := p.slot(l.Pace)
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
	slot := p.slot(l.Pace)
	end := (l.Time/slot + 1) * slot
	for i, recent := range [2]int64{l.Recent[0] + l.Recent[1], l.Recent[0]} {
		levels[i] = max(p.most(recent), p.stored(l.State))
		ends[i] = end + int64(i)*slot
	}
	return levels, ends
}

// capped: what has left the bucket of late keeps it from refilling as ever.
func (l Ledger) capped() bool { return l.Recent != [2]int64{} }

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
		slot := p.slot(l.Pace)
		end := (now/slot + 2) * slot
		if !p.Limit.isBucket() {
			end = min(end, l.Time+p.window)
		}
		r.Lent, r.LentFor = lent, micros(end-now)
		if p.Limit.isBucket() {
			r.LentBy = micros(p.wait(-p.stored(l.State)))
		}
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
	recent, pace := p.recent(l, now)
	age := now/p.slot(pace) - slot/p.slot(pace)
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
	recent, pace := p.recent(l, now)
	level := p.lendable(l, now)
	level = max(level, min(level+min(n, MaxTokens)*micro, p.most(recent[0]+recent[1])))
	return Ledger{p.bucketState(level, now), recent, pace}
}
