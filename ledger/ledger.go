// Package ledger is the arithmetic of lending: what a store must remember about tokens that it has lent to a node, which spends
// them without asking again. Like package counter, it is pure. Stores that lend use it, and package lease borrows from them.
//
// Tokens are debited before they are lent, so a node that dies loses its tokens but never creates extra ones. The danger is in
// giving back: if a bucket refilled while its tokens were lent, and then got them back, it would admit them twice. So a bucket
// divides time into intervals: of 45 ms, or of 0.5 to 5 s if it refills slowly. It remembers how many tokens it lent in this
// interval and in the one before, and refills to no more than its capacity minus those tokens, plus the refill of 90 ms. A lease
// ends with the interval after the one in which it was granted. Every token that can be spent is either in the bucket's level or
// lent, and giving back only moves it between the two. Hence all nodes together admit, in any period, no more than the bucket
// alone would admit in a period longer by [MaxLease].
//
// A bucket that refills quickly lends to every node that asks, for 45 to 90 ms. A slow bucket refills too little in so short a
// time. It lends a few tokens for seconds, and only to a node that has been the only one to ask for a while: if a client's
// requests moved between nodes, the other nodes would miss the tokens that one node holds.
//
// Windows don't need intervals. Their leases end after 90 ms or at the window's end, whichever comes first, and returned tokens
// name the window that they were taken from.
package ledger

import (
	"time"

	"github.com/weirhq/weir/counter"
)

// MaxLease bounds the leases of quick buckets and of windows, which last at most 90 ms. All nodes together may exceed what the
// store alone would admit by the refill of MaxLease.
const MaxLease = 100 * time.Millisecond

// Interval lengths in µs. Two short intervals are less than MaxLease, to allow for network delay.
const (
	shortInterval = 45_000
	leastInterval = 500_000
	mostInterval  = 5_000_000
)

const micro = 1_000_000 // millionths in a token, as in package counter

// Ask is a charge by a node that also wants to borrow tokens.
type Ask struct {
	counter.Charge
	// Waiting is how many more tokens the node's other waiting requests need.
	Waiting int64
	// Want is how many more tokens the node is likely to need during the lease.
	Want int64
	Claim
}

// Claim is a node's own account of a counter that no other node seems to use. The store can't know when lent tokens were spent,
// so it holds back refill as if none of them had been spent yet. A node that has been the counter's only user since its last
// grant knows everything that happened to it.
type Claim struct {
	// Base is the Time of the account in the node's last grant. The store accepts the claim only if its own account still has
	// that Time. 0 means no claim.
	Base int64
	// State is the counter's state by the node's own count, and Held is how many lent tokens the node still holds, which State
	// doesn't include.
	State counter.State
	Held  int64
}

// Grant is the answer to an Ask.
type Grant struct {
	counter.Result
	// Account is the counter after the charge, and Now is the store's clock at that moment, in µs. For limits that don't lend,
	// only Account.State is set. For a sliding log, State.Time is the time of the newest entry, and State.Level is the sum of
	// all entries.
	Account Account
	Now     int64
	// Lent is how many tokens were debited beyond N. The node may spend them, or give them back under the name Interval, for
	// LeaseTime from the moment when it sent the ask.
	Lent      int64
	LeaseTime time.Duration
	Interval  int64
}

// Unspent is a number of lent tokens that a node gives back.
type Unspent struct {
	counter.Counter
	N        int64
	Interval int64 // the Interval of the grant
	Claim          // the node's account, with the tokens given back
}

// Account is the state of a counter that lends. The zero Account is an untouched counter.
type Account struct {
	counter.State
	// Lent is how many tokens were lent in the interval that contains State.Time, and in the one before.
	Lent [2]int64
	// Since is when the first interval began: with the first lease, or, for a slow bucket, when Node became the only node to
	// ask. 0 if no tokens are lent and no node is alone.
	Since int64
	// Node is the only node that has asked a slow bucket since Since, or 0. Streak is how often it has asked, up to [longStreak].
	Node   uint32
	Streak uint8
}

// longStreak is how many times in a row a node must have asked to count as alone. If requests go to two nodes at random, that
// happens by chance once in 2^12 cases.
const longStreak = 12

// Lends reports whether tokens of a policy may be lent. It excludes strict rules; queues, whose requests wait their turn;
// sliding logs, which record the time of each request; limits with Book, which admit every charge; concurrency limits, where each
// slot belongs to one request; and limits on amounts, whose requests settle later.
func Lends(p *counter.Policy) bool {
	switch p.Limit.Algorithm {
	case counter.TokenBucket, counter.LeakyBucket, counter.FixedWindow, counter.SlidingCounter:
		return !p.Strict && !p.Book && !p.Limit.Decimal
	}
	return false
}

func isBucket(p *counter.Policy) bool { return p.Limit.Algorithm <= counter.LeakyBucket }

// Interval returns the length of a policy's intervals.
func Interval(p *counter.Policy) time.Duration { return time.Duration(interval(p)) * time.Microsecond }

func interval(p *counter.Policy) int64 {
	if !isBucket(p) || p.Refill(shortInterval) >= 2*micro {
		return shortInterval
	}
	return min(max(leastInterval, p.Memory().Microseconds()/8), mostInterval)
}

// Most returns how many tokens of a slow bucket may be lent on long leases: few enough that a client that needs the full bucket
// hardly misses them.
func Most(p *counter.Policy) int64 {
	return min(max(0, p.Limit.Max()-32)/8, p.Refill(interval(p))/micro)
}

// slow reports whether the policy lends for seconds, and only to a node that is alone.
func slow(p *counter.Policy) bool { return interval(p) > shortInterval }

// start returns when the interval that contains the moment at began.
func (a *Account) start(length, at int64) int64 {
	return at - max(0, at-a.Since)%length
}

func (a *Account) out() int64 { return a.Lent[0] + a.Lent[1] }

// anchor moves times in the future back to now. They arise if the clock was set back.
func (a *Account) anchor(now int64) { a.Time, a.Since = min(a.Time, now), min(a.Since, now) }

// accept replaces the account with the node's claim, if the claim holds.
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

// roll shifts Lent to the interval that contains now.
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

// ceiling returns the level up to which a bucket may refill while it has lent this many tokens (out).
func ceiling(p *counter.Policy, out int64) int64 {
	capacity := p.Limit.Max() * micro
	return min(capacity, capacity+p.Refill(2*shortInterval)-out*micro)
}

// caps returns the levels at which refilling stopped while tokens were lent, and when each of these caps ended. Refill above a
// cap is lost: it must not arrive all at once when the interval ends.
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

// level returns how much may be taken from a bucket, in millionths.
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

// Lend is like [counter.Policy.Try], and also lends tokens to the node that asks. A refusal leaves the account as it was,
// except that it corrects a time in the future and accepts a claim that holds.
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
		// Keep a quarter: another node may ask next.
		more = min(ask.Want, level/micro*3/4)
	}
	if more = max(0, more); lent+more > 0 && a.Since == 0 {
		a.Since = now
	}
	a.Lent[0] += lent + more
	a.State = p.AtLevel(level-more*micro, now)
	return a, lent + more, true
}

// alone records which node asks, and reports whether that node has been the only one for long. An ask for many tokens at once
// ends the streak, since it might need the lent tokens. So does a second ask in the same microsecond, because claims tell
// accounts apart by their Time. A node that wants no lease isn't recorded.
func (a *Account) alone(p *counter.Policy, now int64, node uint32, ask *Ask) bool {
	small := 16*ask.N <= p.Limit.Max() && a.Time < now
	if a.Node == node && node != 0 && small && (ask.Want > 0 || a.out() > 0) {
		a.Streak = min(a.Streak+1, longStreak)
		return a.Streak == longStreak && now-a.Since >= 2*interval(p)
	}
	a.Node, a.Streak = 0, 0
	switch {
	case a.out() > 0: // the intervals must continue until the lease of the tokens ends
	case ask.Want > 0 && small:
		a.Node, a.Since = node, now
	default:
		a.Since = 0
	}
	return false
}

// lendWindow lends only a 64th of what is left, because tokens that nodes still hold when a window ends are lost to clients
// that were refused. A bucket would keep them.
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

// Lease returns how long the node may spend tokens that were lent just now, and their interval's name.
func (a *Account) Lease(p *counter.Policy, now int64, node uint32) (length time.Duration, name int64) {
	left := int64(2 * shortInterval)
	if !isBucket(p) {
		r := p.Report(a.State, now, 1, counter.Taken)
		ends := r.Slot + p.Limit.Window.Microseconds()
		if p.Limit.Calendar.Unit != counter.NoUnit {
			ends = now + r.ResetAfter.Microseconds() // calendar windows differ in length
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

// TakeBack takes back lent tokens that weren't spent. For a bucket, it ignores tokens whose lease is over.
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
	// The name may not be the start of an interval: after a change of the limit, intervals may have another length.
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

// View returns the counter's state as if the tokens that the node holds had been given back.
func (a Account) View(p *counter.Policy, now, held int64) counter.State {
	switch {
	case a.State == (counter.State{}) || held == 0 && a.out() == 0:
		return a.State
	case !isBucket(p):
		return p.Return(a.State, now, held, p.Report(a.State, now, 1, counter.Fits).Slot)
	}
	a.anchor(now)
	level := a.level(p, now)
	if at := a.Time; level == p.Level(a.State, now) { // keep the account's own time, to avoid rounding twice
		return p.AtLevel(p.Level(a.State, at)+held*micro, at)
	}
	return p.AtLevel(min(level+held*micro, p.Limit.Max()*micro), now)
}

// Refund is like [counter.Policy.Return]. It returns tokens that were spent.
func (a Account) Refund(p *counter.Policy, now, n, slot int64) Account {
	if !isBucket(p) || a.State == (counter.State{}) {
		a.State = p.Return(a.State, now, n, slot)
		return a
	}
	a.anchor(now)
	if a.out() == 0 {
		return Account{State: p.Return(a.State, now, n, slot)} // a zero Since and Node, so that no claim holds
	}
	level := a.level(p, now)
	a.roll(p, now)
	level = max(level, min(level+min(n, counter.MaxTokens)*micro, ceiling(p, a.out())))
	a.State = p.AtLevel(level, now)
	return a
}

// Report is like [counter.Policy.ReportTo]. It also considers that lent tokens hold back refill.
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
