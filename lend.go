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
	Debits
}

// Debits are what has left a bucket of late. They are zero as long as it hasn't lent any.
type Debits struct {
	// Recent is how many tokens left it in the slot that the ledger's Time lies in, and in the one
	// before: since it lends all of them, and of slow leases those that were lent.
	Recent [2]int64
	Pace   Pace
	// Phase is when slots of slow leases begin: they do so with the first of them, so that leases last for long,
	// and those of many buckets don't end all at once. In parts of a slot.
	Phase uint8
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

// phases is how many a slot has.
const phases = 64

// slots are how long debits are counted as one, and when the first such time begins, µs.
type slots struct{ length, start int64 }

func (p *Policy) slots(d Debits) slots {
	if d.Pace == Fast {
		return slots{leaseSlot, 0}
	}
	return slots{p.slowSlot, int64(d.Phase) * p.slowSlot / phases}
}

// number is that of the slot in which a moment lies.
func (s slots) number(at int64) int64 { return (at - s.start) / s.length }

// end is when a slot ends.
func (s slots) end(number int64) int64 { return s.start + (number+1)*s.length }

// slowly are debits of slow leases that begin now.
func (p *Policy) slowly(now int64) Debits {
	return Debits{Pace: Slow, Phase: uint8(now % p.slowSlot * phases / p.slowSlot)}
}

// slowSlotOf is the slot of slow leases. Where fast ones are worth it, because two tokens refill in their time,
// somebody may soon ask for them.
func slowSlotOf(r rate, fill int64) int64 {
	if mulDiv(leaseSlot, r.num, r.den) >= 2*micro {
		return shortSlowSlot
	}
	return min(max(shortSlowSlot, fill/8), longSlowSlot)
}

// Terms are the numbers that a node needs which borrows.
type Terms struct {
	Most   int64   // tokens at once
	Refill float64 // tokens per ns
	// SlowLease is for how long slow leases may be held, at most, and SlowTokens how many tokens may be out in such: no more
	// than refill in a slot, and so few that somebody who needs all that the bucket holds hardly misses them.
	SlowLease  time.Duration
	SlowTokens int64
}

// Terms returns the numbers by which tokens of the policy are lent, if it lends any.
func (p *Policy) Terms() *Terms { return &p.terms }

func (p *Policy) newTerms() Terms {
	if !p.Limit.isBucket() {
		return Terms{Most: p.Limit.Count, Refill: float64(p.Limit.Count) / float64(p.Limit.Window)}
	}
	few, _ := p.slowest()
	refill := float64(p.rate.num) / float64(p.rate.den) / 1e9 // millionths per µs
	return Terms{p.Limit.Max(), refill, micros(2 * p.slowSlot), few}
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

// Lend is [Policy.Try] with more tokens for the caller to hold: of what is left at most three quarters, or as many as are waited for,
// since others may ask next. Of a window it is a 64th: what its nodes hold at its
// end is lost to those who ask in vain, where a bucket would still have it. Ahead, a bucket that is nearly empty
// lends more than it has: see [Result.LentBy].
func (p *Policy) Lend(l Ledger, now, n int64, a Loan) (_ Ledger, lent int64, ok bool) {
	if a.Slow {
		a.Waiting = 0
	}
	if !p.Limit.isBucket() {
		return p.lendWindow(l, now, n, a)
	}
	l.State = reanchored(l.State, now)
	if n > p.capacity/micro {
		return l, 0, false
	}
	level := p.lendable(l, now)
	if level < n*micro || p.maxDelay > 0 && p.wait(p.capacity-level) > p.maxDelay {
		return l, 0, false
	}
	d := p.debits(l, now)
	level -= n * micro
	want := a.Want
	if a.Slow && want > 0 && d.Pace != Fast {
		s := p.slots(d)
		if age := s.number(now) - s.number(a.SpentSlot); age == 0 || age == 1 {
			d.Recent[age] -= min(a.Spent, d.Recent[age])
		}
	}
	if !d.any() {
		d = Debits{}
		if want > 0 && a.Slow {
			d = p.slowly(now)
		}
	}
	switch {
	case d.Pace == Fast && (want > 0 || d.any()):
		if a.Slow { // for a part of the time that it had in mind
			want /= 10
		}
		lent = min(want, max(level/micro*3/4, min(a.Waiting, level/micro)))
		d.Recent[0] += n + lent
	case d.Pace == Slow && a.Slow:
		most, least := p.slowest()
		switch lent = max(0, min(want, most-d.Recent[0]-d.Recent[1])); {
		case level >= least:
			lent = min(lent, level/micro/2)
		case !a.Ahead:
			lent = 0
		}
		d.Recent[0] += lent
	case d.Pace == Slow && want > 0 && !a.Slow:
		d.Pace = Ending
	}
	if !d.any() {
		d = Debits{}
	}
	return Ledger{p.bucketState(level-lent*micro, now), d}, lent, true
}

func (p *Policy) lendWindow(l Ledger, now, n int64, a Loan) (_ Ledger, lent int64, ok bool) {
	s, ok := p.Try(l.State, now, n)
	if ok && a.Want > 0 {
		free := p.Limit.Count - s.Level
		if p.Limit.Algorithm == SlidingCounter {
			free -= (s.Prev*p.weight(s, now) + p.ticks - 1) / p.ticks
		}
		lent = min(a.Want, max(free/64, min(a.Waiting, free)))
		s.Level += lent
	}
	return Ledger{State: s}, lent, ok
}

// any: something has left the bucket of late, which keeps it from refilling as ever.
func (d Debits) any() bool { return d.Recent != [2]int64{} }

// debits is what was debited in the slot that it is now, and in the one before.
func (p *Policy) debits(l Ledger, now int64) Debits {
	d, s := l.Debits, p.slots(l.Debits)
	switch age := s.number(now) - s.number(l.Time); {
	case age <= 0:
		return d
	case age == 1 && d.Recent[0] > 0:
		d.Recent = [2]int64{0, d.Recent[0]}
		return d
	}
	return Debits{}
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
	s := p.slots(l.Debits)
	for i, recent := range [2]int64{l.Recent[0] + l.Recent[1], l.Recent[0]} {
		levels[i] = max(p.most(recent), p.stored(l.State))
		ends[i] = s.end(s.number(l.Time) + int64(i))
	}
	return levels, ends
}

// lendable is [Policy.tokens] of a bucket that may have lent some.
func (p *Policy) lendable(l Ledger, now int64) int64 {
	level := p.tokens(l.State, now)
	if !l.any() {
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
		s := p.slots(l.Debits)
		end := s.end(s.number(now) + 1)
		if !p.Limit.isBucket() {
			end = min(end, l.Time+p.window)
		}
		r.Lent, r.LentFor = lent, micros(end-now)
		if p.Limit.isBucket() {
			r.LentBy = micros(p.wait(-p.stored(l.State)))
		}
	}
	if !l.any() {
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
	d := p.debits(l, now)
	s := p.slots(d)
	age := s.number(now) - s.number(slot)
	if age < 0 || age > 1 || slow != (d.Pace != Fast) {
		return l
	}
	n = min(n, d.Recent[age])
	if n <= 0 {
		return l
	}
	if d.Recent[age] -= n; !d.any() {
		d = Debits{}
	}
	return Ledger{p.bucketState(min(p.lendable(l, now)+n*micro, p.capacity), now), d}
}

// Refund is [Policy.Return] into a ledger: of tokens that were spent.
func (p *Policy) Refund(l Ledger, now, n, slot int64) Ledger {
	if !l.any() {
		return Ledger{State: p.Return(l.State, now, n, slot)}
	}
	l.State = reanchored(l.State, now)
	d := p.debits(l, now)
	level := p.lendable(l, now)
	level = max(level, min(level+min(n, MaxTokens)*micro, p.most(d.Recent[0]+d.Recent[1])))
	return Ledger{p.bucketState(level, now), d}
}
