// Package ledger is the arithmetic of lending: what a store must remember of tokens that it has
// lent to a node, which spends them without asking again. It is pure, as package weir is. Stores
// that lend build on it, and package lease borrows.
//
// Lent tokens are debited before they are spent, so a node that dies strands its tokens and mints
// none. The danger is in giving back: a bucket that refills while its tokens are out, and then gets
// them back, would admit them twice. So a bucket remembers how many tokens it has lent, in this
// interval and in the one before, and refills to no more than its capacity less those, plus what
// refills in [MaxLease]. A lease ends with the interval after the one that it was granted in. Every
// token that can be spent stands in the level or among those lent; giving back only moves it. Hence
// all nodes together admit in any time no more than the bucket alone would in that time and 100 ms.
//
// A bucket that refills quickly lends to every node that asks, for 45 to 90 ms. A slow one refills
// too little in so short a time. It lends a few tokens for seconds, and only to a node that has
// been the only one to ask for a while: where clients move between nodes, the others would miss
// tokens that one holds.
//
// Windows need none of this. Their leases end with them, and returned tokens name the window that
// they were taken from.
package ledger

import (
	"time"

	"github.com/weirhq/weir/counter"
)

// MaxLease is the longest lease of a quick bucket or of a window. All nodes together may exceed
// what the store alone would admit by what refills in that time.
const MaxLease = 100 * time.Millisecond

// Intervals, µs. Two short ones are less than MaxLease, which leaves time for answers on their way.
const (
	shortInterval = 45_000
	leastInterval = 500_000
	mostInterval  = 5_000_000
)

const micro = 1_000_000 // of a token, as in package weir

// Ask is a charge that would hold more tokens than it needs.
type Ask struct {
	counter.Charge
	// Waiting is how many more tokens other requests of the node wait for already.
	Waiting int64
	// Want is how many more the node is likely to need before the lease would end.
	Want int64
	Claim
}

// Claim is a node's own account of a counter that no other node seems to ask for. The store can't
// know when lent tokens were spent, so it holds back refill as if all of them were still out. A
// node that has been alone since the store's last answer knows everything that happened to the
// counter.
type Claim struct {
	// Base is the account's Time in the last grant. The claim holds if the store's account still
	// has it. 0 is no claim.
	Base int64
	// State is the account's state by the node's count, and Held how many tokens the node holds
	// beside that.
	State counter.State
	Held  int64
}

// Grant is the answer to an Ask.
type Grant struct {
	counter.Result
	// Account is the counter after the charge, and Now the store's clock then, µs. For limits that don't lend, only its State is
	// set. For a sliding log, State.Time is the time of the newest entry, and State.Level the sum.
	Account Account
	Now     int64
	// Lent is how many tokens beyond N were debited. They may be spent for LeaseTime from when the
	// ask was sent, and given back until then, under the name of their Interval.
	Lent      int64
	LeaseTime time.Duration
	Interval  int64
}

// Unspent is lent tokens on their way back.
type Unspent struct {
	counter.Counter
	N        int64
	Interval int64 // of the grant
	Claim          // the account once they are back
}

// Account is a counter that lends. The zero Account is untouched.
type Account struct {
	counter.State
	// Lent is how many tokens were lent in the interval that State.Time lies in, and in the one before.
	Lent [2]int64
	// Since is when the first interval began: with the first lease, or, of a slow bucket, when Node
	// was first the only one to ask. 0 while nothing is out and no node is alone.
	Since int64
	// Node is the only node to have asked a slow bucket since then, or 0, and Streak how often it
	// has asked, up to [longStreak].
	Node   uint32
	Streak uint8
}

// longStreak is how often in a row a node must have asked to count as alone. Where requests go to
// two nodes at random, that happens by chance in one of 2^12 cases.
const longStreak = 12

// Lends reports whether tokens of a policy may be lent: not those of strict rules, of queues, whose
// requests have turns, of logs, which know each moment, or of limits that book, which need none. Slots
// aren't, since each has a holder, nor amounts, whose requests settle what they took.
func Lends(p *counter.Policy) bool {
	switch p.Limit.Algorithm {
	case counter.TokenBucket, counter.LeakyBucket, counter.FixedWindow, counter.SlidingCounter:
		return !p.Strict && !p.Book && !p.Limit.Decimal
	}
	return false
}

func isBucket(p *counter.Policy) bool { return p.Limit.Algorithm <= counter.LeakyBucket }

// Interval is the length of a policy's intervals.
func Interval(p *counter.Policy) time.Duration { return time.Duration(interval(p)) * time.Microsecond }

func interval(p *counter.Policy) int64 {
	if !isBucket(p) || p.Refill(shortInterval) >= 2*micro {
		return shortInterval
	}
	return min(max(leastInterval, p.Memory().Microseconds()/8), mostInterval)
}

// Most is how many tokens of a slow bucket may be out on long leases: so few that a client that
// needs the full bucket hardly misses them.
func Most(p *counter.Policy) int64 {
	return min(max(0, p.Limit.Max()-32)/8, p.Refill(interval(p))/micro)
}

// slow reports whether tokens are lent for seconds, to a node that is alone.
func slow(p *counter.Policy) bool { return interval(p) > shortInterval }

// start is when the interval of a moment began.
func (a *Account) start(length, at int64) int64 {
	return at - max(0, at-a.Since)%length
}

func (a *Account) out() int64 { return a.Lent[0] + a.Lent[1] }

// anchor brings times in the future to now. A clock that ran backwards leaves them behind.
func (a *Account) anchor(now int64) { a.Time, a.Since = min(a.Time, now), min(a.Since, now) }

// accept replaces the account by a claim, if that holds.
func (a *Account) accept(p *counter.Policy, now int64, node uint32, c *Claim) (holds bool) {
	holds = c.Base != 0 && c.Base == a.Time && c.Base < now && node != 0 && node == a.Node
	a.anchor(now)
	if holds {
		a.roll(p, now)
		at := max(a.Time, min(c.State.Time, now))
		a.State = p.AtLevel(min(p.Level(c.State, at), (p.Limit.Max()-c.Held)*micro), at)
		a.Lent = [2]int64{c.Held, 0}
	}
	return holds
}

// roll brings the intervals to now.
func (a *Account) roll(p *counter.Policy, now int64) {
	if a.out() == 0 {
		return
	}
	length := interval(p)
	switch a.start(length, now) - a.start(length, a.Time) {
	case 0:
	case length:
		a.Lent = [2]int64{0, a.Lent[0]}
	default:
		a.Lent = [2]int64{}
	}
	if a.out() == 0 && a.Node == 0 {
		a.Since = 0
	}
}

// ceiling is how far a bucket may refill while that many of its tokens are out.
func ceiling(p *counter.Policy, out int64) int64 {
	capacity := p.Limit.Max() * micro
	return min(capacity, capacity+p.Refill(2*shortInterval)-out*micro)
}

// caps are the levels at which refilling stopped while tokens were out, and until when each
// applied. Refill held back by them is lost: it must not come at once when an interval ends.
func (a *Account) caps(p *counter.Policy) (levels, ends [2]int64) {
	length := interval(p)
	stored := p.Level(a.State, a.Time)
	begun := a.start(length, a.Time)
	for i, out := range [2]int64{a.out(), a.Lent[0]} {
		levels[i] = max(ceiling(p, out), stored)
		ends[i] = begun + int64(i+1)*length
	}
	return levels, ends
}

// level is what may be taken of a bucket, in millionths.
func (a *Account) level(p *counter.Policy, now int64) int64 {
	level := p.Level(a.State, now)
	if a.out() == 0 {
		return level
	}
	levels, ends := a.caps(p)
	level = min(level, levels[0]+p.Refill(max(0, now-ends[0])))
	if now >= ends[0] {
		level = min(level, levels[1]+p.Refill(max(0, now-ends[1])))
	}
	return level
}

// Lend is [counter.Policy.Try] with more tokens for the node that asks. A refusal leaves the account
// as it was, except that it corrects a time in the future and accepts a claim that holds.
func (a Account) Lend(p *counter.Policy, now int64, node uint32, ask *Ask) (_ Account, lent int64, ok bool) {
	if !isBucket(p) {
		return a.lendWindow(p, now, ask)
	}
	a.accept(p, now, node, &ask.Claim)
	level := a.level(p, now) - ask.N*micro
	if level < 0 {
		return a, 0, false
	}
	a.roll(p, now)
	lent = max(0, min(ask.Waiting, level/micro))
	level -= lent * micro
	more := int64(0)
	if slow(p) {
		if a.alone(p, now, node, ask) && 2*level >= p.Limit.Max()*micro {
			more = min(ask.Want, level/micro/2, Most(p)-a.out()-lent)
		}
	} else {
		// Not all: another node may ask next.
		more = min(ask.Want, level/micro*3/4)
	}
	if more = max(0, more); lent+more > 0 && a.Since == 0 {
		a.Since = now
	}
	a.Lent[0] += lent + more
	a.State = p.AtLevel(level-more*micro, now)
	return a, lent + more, true
}

// alone notes the node that asks, and reports whether it has been the only one for long. An ask for
// many tokens at once might need those that are out, and counts as another node's. So does a second
// ask in one microsecond, because claims tell accounts apart by their time. A node that wants no
// lease isn't noted.
func (a *Account) alone(p *counter.Policy, now int64, node uint32, ask *Ask) bool {
	small := 16*ask.N <= p.Limit.Max() && a.Time < now
	if a.Node == node && node != 0 && small && (ask.Want > 0 || a.out() > 0) {
		a.Streak = min(a.Streak+1, longStreak)
		return a.Streak == longStreak && now-a.Since >= 2*interval(p)
	}
	a.Node, a.Streak = 0, 0
	switch {
	case a.out() > 0: // the intervals must go on until it is back
	case ask.Want > 0 && small:
		a.Node, a.Since = node, now
	default:
		a.Since = 0
	}
	return false
}

// lendWindow lends a 64th of what is left, because tokens that nodes hold when a window ends are
// lost to clients that were refused. A bucket would still have them.
func (a Account) lendWindow(p *counter.Policy, now int64, ask *Ask) (_ Account, lent int64, ok bool) {
	try := p.Debit
	if ask.Peek {
		try = p.Try
	}
	if a.State, ok = try(a.State, now, ask.N); !ok {
		return a, 0, false
	}
	free := p.Report(a.State, now, 1, counter.Taken).Remaining
	lent = max(0, min(ask.Waiting+ask.Want, max(free/64, min(ask.Waiting, free))))
	if lent > 0 {
		a.State, _ = p.Try(a.State, now, lent)
	}
	return a, lent, true
}

// Lease is how long tokens lent to a node just now may be spent, and the name of their interval.
func (a *Account) Lease(p *counter.Policy, now int64, node uint32) (length time.Duration, name int64) {
	left := int64(2 * shortInterval)
	if !isBucket(p) {
		r := p.Report(a.State, now, 1, counter.Taken)
		ends := r.Slot + p.Limit.Window.Microseconds()
		if p.Limit.Calendar.Unit != counter.NoUnit {
			ends = now + r.ResetAfter.Microseconds() // its windows aren't all as long
		}
		return time.Duration(min(left, ends-now)) * time.Microsecond, r.Slot
	}
	each := interval(p)
	begun := a.start(each, now)
	if !slow(p) || a.Node == node && node != 0 {
		left = begun + 2*each - now
	}
	return time.Duration(left) * time.Microsecond, begun
}

// TakeBack takes back lent tokens that weren't spent. A bucket's tokens are void once their lease
// is over.
func (a Account) TakeBack(p *counter.Policy, now int64, node uint32, u *Unspent) Account {
	n, name := u.N, u.Interval
	if a.State == (counter.State{}) {
		return a
	}
	if !isBucket(p) {
		a.State = p.Return(a.State, now, n, name)
		return a
	}
	if a.accept(p, now, node, &u.Claim) {
		return a
	}
	level := a.level(p, now)
	b := a
	b.roll(p, now)
	// The name needn't be the start of an interval: other numbers may have intervals of another length.
	i, begun := 0, b.start(interval(p), now)
	switch {
	case name > now || name < begun-interval(p):
		return a
	case name < begun:
		i = 1
	}
	if n = min(n, b.Lent[i]); n <= 0 {
		return a
	}
	if b.Lent[i] -= n; b.out() == 0 && b.Node == 0 {
		b.Since = 0
	}
	b.State = p.AtLevel(min(level+n*micro, p.Limit.Max()*micro), now)
	return b
}

// View is the counter's state for a node that holds some of its tokens: as if they were given back.
func (a Account) View(p *counter.Policy, now, held int64) counter.State {
	switch {
	case a.State == (counter.State{}) || held == 0 && a.out() == 0:
		return a.State
	case !isBucket(p):
		return p.Return(a.State, now, held, p.Report(a.State, now, 1, counter.Fits).Slot)
	}
	a.anchor(now)
	level := a.level(p, now)
	if at := a.Time; level == p.Level(a.State, now) { // at its own time, so that it isn't rounded twice
		return p.AtLevel(p.Level(a.State, at)+held*micro, at)
	}
	return p.AtLevel(min(level+held*micro, p.Limit.Max()*micro), now)
}

// Refund is [counter.Policy.Return], for tokens that were spent.
func (a Account) Refund(p *counter.Policy, now, n, slot int64) Account {
	if !isBucket(p) || a.State == (counter.State{}) {
		a.State = p.Return(a.State, now, n, slot)
		return a
	}
	a.anchor(now)
	if a.out() == 0 {
		return Account{State: p.Return(a.State, now, n, slot)} // no claim knows of it
	}
	level := a.level(p, now)
	a.roll(p, now)
	level = max(level, min(level+min(n, counter.MaxTokens)*micro, ceiling(p, a.out())))
	a.State = p.AtLevel(level, now)
	return a
}

// Report is [counter.Policy.ReportTo] of an account: tokens that are out keep it from refilling.
func (a Account) Report(p *counter.Policy, r *counter.Result, now, n int64, v counter.Verdict) {
	p.ReportTo(r, a.State, now, n, v)
	if a.out() == 0 {
		return
	}
	a.anchor(now)
	r.Remaining = max(0, a.level(p, now)) / micro
	levels, ends := a.caps(p)
	for i, level := range levels {
		if full := p.Limit.Max() * micro; level < full {
			r.ResetAfter = max(r.ResetAfter, time.Duration(ends[i]+p.Wait(full-level)-now)*time.Microsecond)
		}
		if v == counter.Refused && r.RetryAfter != counter.Never && level < n*micro {
			r.RetryAfter = max(r.RetryAfter, time.Duration(ends[i]+p.Wait(n*micro-level)-now)*time.Microsecond)
		}
	}
}
