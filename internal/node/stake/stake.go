// Package stake is the arithmetic of a limit that several regions keep together. It is pure, as package weir is.
//
// Every region has a stake in the limit: tokens that are its own, and refill there. The stakes of all regions add up to the limit.
// A region that needs more borrows of another, mostly of the home, which owns the most. Tokens only move: they are gone from the
// lender's stake before the borrower has them, so what is lost on the way is missing, and nothing is minted.
//
// A bucket's capacity moves with its tokens. Lent tokens count as the lender's until the borrower says that they are spent or
// given back, so the lender doesn't refill them meanwhile, and all levels together never exceed the burst. Loans of buckets have a
// term: a borrower that isn't heard drops what is left of it, [Term] after it sent the last ask that was answered. The lender waits
// [Margin] longer, from when that ask came. No two clocks are compared.
//
// A window's loans last as long as the window and have no term. Whoever is cut off keeps what it has.
//
// Regions tell each other totals and never differences: what is said twice, late or out of order does nothing.
package stake

import (
	"encoding/json"
	"maps"
	"math"
	"time"

	"github.com/weirhq/weir/counter"
)

const (
	// Term is how long a bucket's loan lasts unless it is renewed.
	Term = 10 * time.Second
	// Margin is how much longer the lender waits: the clock of each end may step by a second, and drift.
	Margin = 2500 * time.Millisecond

	term, margin = int64(Term / time.Microsecond), int64(Margin / time.Microsecond)
)

// Share is what of a limit is a region's own.
type Share struct {
	// Own is how many tokens, in the units that the policy is asked for.
	Own int64
	// Rate is how much of the rate refills here, in thousandths.
	Rate int64
	// Since is when the share became the region's own, µs, and Before how much was before that. A counter that nobody has used yet
	// has no more than has refilled since. 0 means always.
	Since, Before int64
	// Gone are regions that are dead: what they have borrowed is this one's again.
	Gone []string
}

// Stake is one region's part in a counter. The zero Stake is untouched.
type Stake struct {
	// Time is when Level was right, or when the window began, µs by the clock of the region's store.
	Time int64 `json:"t"`
	// Level is what a bucket has, in millionths, or how many units of a window are used; below 0 if more was borrowed than used.
	Level int64 `json:"l"`
	// Prev is what was used in the window before, for a sliding counter.
	Prev int64 `json:"p,omitempty"`
	// Lent is what other regions have borrowed of this one, and Held what this one has of others.
	Lent map[string]*Loan `json:"o,omitempty"`
	Held map[string]*Loan `json:"h,omitempty"`
	// Asked is how many units were asked for within about a second: a count that decays, right At. Since is when requests began to come without a
	// pause, and Stream how many have, as far as that matters.
	Asked  float64 `json:"d,omitempty"`
	At     int64   `json:"a,omitempty"`
	Since  int64   `json:"b,omitempty"`
	Stream int     `json:"n,omitempty"`
}

// Loan is what one region has lent to another, as either of them knows it. Given, Spent and Back are totals.
type Loan struct {
	// ID rises with every new loan between two regions. The borrower chooses it.
	ID int64 `json:"i"`
	// Given is how much was lent.
	Given int64 `json:"g,omitempty"`
	// Spent and Back are how much of that the borrower has let go: used, or given back.
	Spent int64 `json:"s,omitempty"`
	Back  int64 `json:"b,omitempty"`
	// Until is when a bucket's loan is over, by the own clock.
	Until int64 `json:"u,omitempty"`
	// Sent is when the borrower sent the newest ask, by its clock.
	Sent int64 `json:"w,omitempty"`
	// Next is when the lender may be asked again, or 0 if it had enough the last time, and Vain how often in a row it had nothing: the borrower
	// keeps them. To the lender, Next is when the borrower may be asked ahead.
	Vain int   `json:"v,omitempty"`
	Next int64 `json:"n,omitempty"`
	// Again is when the lender will have what was missing, as it said, and For how much that was.
	Again int64 `json:"r,omitempty"`
	For   int64 `json:"f,omitempty"`
}

// out is how much the borrower may still have.
func (l *Loan) out() int64 {
	if l == nil {
		return 0
	}
	return max(0, l.Given-l.Spent-l.Back)
}

// given and back are Given and Back, of a loan that there may not be.
func (l *Loan) given() int64 {
	if l == nil {
		return 0
	}
	return l.Given
}

func (l *Loan) back() int64 {
	if l == nil {
		return 0
	}
	return l.Back
}

// Message is what one region says to another about a counter: how both loans between them stand, and what it asks for.
type Message struct {
	// Window is when the window began that it is about, or 0.
	Window int64 `json:"window,omitempty"`
	// Need is what requests wait for, Most what one of them does, and Want what is likely to be needed soon.
	Need int64 `json:"need,omitempty"`
	Most int64 `json:"most,omitempty"`
	Want int64 `json:"want,omitempty"`
	// Held is what the sender has borrowed of the receiver, and Lent what it has lent to it. Sent is when the borrower sent its newest ask, of
	// those that were heard.
	Held *Loan `json:"held,omitempty"`
	Lent *Loan `json:"lent,omitempty"`
	// Void: the sender doesn't know the loan that Lent names. Short: it has less than half of what requests wait for. Late: it has heard this
	// ask or a newer one, which counted.
	Void  bool `json:"void,omitempty"`
	Late  bool `json:"late,omitempty"`
	Short bool `json:"short,omitempty"`
	// Rest is how long after this ask the sender needn't be asked again, µs.
	Rest int64 `json:"rest,omitempty"`
	// Retry is after how long the sender itself would have what one request needs, µs, and For how much that is.
	Retry int64 `json:"retry,omitempty"`
	For   int64 `json:"for,omitempty"`
}

// LeastPerRegion is how many tokens a limit has for each region, if they share it.
const LeastPerRegion = 16

// Reaches reports whether a limit can be shared by so many regions. Others are counted at their home.
func Reaches(p *counter.Policy, regions int) bool {
	switch p.Limit.Algorithm {
	case counter.TokenBucket, counter.LeakyBucket, counter.FixedWindow, counter.SlidingCounter:
		return !p.Travels && !p.GivesBack && p.Limit.Max() >= int64(LeastPerRegion*regions)
	}
	return false
}

func isBucket(p *counter.Policy) bool { return p.Limit.Algorithm <= counter.LeakyBucket }

// scale is how many units of Level are in one that is asked for.
func scale(p *counter.Policy) int64 {
	if isBucket(p) && !p.Limit.Decimal {
		return 1_000_000
	}
	return 1
}

// Whole is all of a limit, in the units that it is asked for.
func Whole(p *counter.Policy) int64 { return p.Numbers()[0] / scale(p) }

// refill is what the share of a bucket gains in a time, and wait how long it takes to gain an amount.
func (s *Share) refill(p *counter.Policy, time int64) int64 {
	r := p.Refill(time)
	return r/1000*s.Rate + r%1000*s.Rate/1000
}

func (s *Share) wait(p *counter.Policy, amount int64) int64 {
	if s.Rate == 0 { // nothing refills here: it comes from the others
		return p.Wait(amount)
	}
	return p.Wait((min(amount, math.MaxInt64/1001)*1000 + s.Rate - 1) / s.Rate)
}

// capacity is what a bucket may hold now.
func (k *Stake) capacity(p *counter.Policy, s Share) int64 {
	n := s.Own
	for _, l := range k.Lent {
		n -= l.out()
	}
	for _, l := range k.Held {
		n += l.out()
	}
	return n * scale(p)
}

// settle brings a stake to now: it refills, or begins a window, and loans end whose term is over.
func (k *Stake) settle(p *counter.Policy, s Share, now int64) {
	if !isBucket(p) {
		k.roll(p, now)
	}
	for _, region := range s.Gone {
		lent, held := k.Lent[region], k.Held[region]
		delete(k.Lent, region)
		delete(k.Held, region) // its share is another's now
		if !isBucket(p) {
			if lent != nil {
				k.Level -= lent.Given - lent.Back
			}
			k.Level += held.out()
		}
	}
	if !isBucket(p) {
		return
	}
	if k.Time == 0 {
		k.Time, k.Level = now, s.Own*scale(p)
		if s.Since != 0 {
			k.Level = min(k.Level, s.Before*scale(p)+s.refill(p, max(0, now-s.Since)))
		}
	}
	k.Time = min(k.Time, now) // a clock that ran backwards
	for {
		loans, of, at := map[string]*Loan(nil), "", now
		for _, all := range []map[string]*Loan{k.Lent, k.Held} {
			for region, l := range all {
				if l.Until < at || l.Until == at && loans == nil {
					loans, of, at = all, region, l.Until
				}
			}
		}
		k.fill(p, s, max(k.Time, at))
		if loans == nil {
			return
		}
		delete(loans, of) // what was lent comes back empty: it may have been spent in the last moment
		k.Level = min(k.Level, max(0, k.capacity(p, s)))
	}
}

func (k *Stake) fill(p *counter.Policy, s Share, now int64) {
	k.Level = min(k.Level+s.refill(p, now-k.Time), max(0, k.capacity(p, s)))
	k.Time = now
}

// Begun is when the window began that it is now; of a bucket, now.
func Begun(p *counter.Policy, now int64) int64 {
	return p.Report(counter.State{}, now, 1, counter.Fits).Slot
}

// roll begins the window that it is now. One that began stays, whatever the clock does.
func (k *Stake) roll(p *counter.Policy, now int64) {
	begun := Begun(p, now)
	if k.Time != 0 && begun <= k.Time {
		return
	}
	prev := int64(0)
	if p.Limit.Algorithm == counter.SlidingCounter && begun == k.Time+p.Limit.Window.Microseconds() {
		prev = max(0, k.Level)
	}
	*k = Stake{Time: begun, Prev: prev, Asked: k.Asked, At: k.At, Since: k.Since, Stream: k.Stream}
}

// left is what may be taken now, in units of Level.
func (k *Stake) left(p *counter.Policy, s Share, now int64) int64 {
	if isBucket(p) {
		return k.Level
	}
	free := s.Own - k.Level
	if k.Prev > 0 {
		n := p.Numbers()
		tick, ticks := n[2], n[3]
		weight := ticks - max(0, now-k.Time)/tick
		free -= (k.Prev*weight + ticks - 1) / ticks
	}
	return free
}

// move adds n units, or takes them away.
func (k *Stake) move(p *counter.Policy, n int64) {
	if isBucket(p) {
		k.Level += n * scale(p)
	} else {
		k.Level -= n
	}
}

// Fits reports whether n units could be taken.
func (k *Stake) Fits(p *counter.Policy, s Share, now, n int64) bool {
	k.settle(p, s, now)
	return n <= Whole(p) && n*scale(p) <= k.left(p, s, now)
}

// Take takes n units if they are there.
func (k *Stake) Take(p *counter.Policy, s Share, now, n int64) bool {
	if n <= Whole(p) {
		k.note(p, now, n)
	}
	return k.TakeAwaited(p, s, now, n)
}

// TakeAwaited is Take for a request that has tried already, and waited for other regions: it isn't new demand.
func (k *Stake) TakeAwaited(p *counter.Policy, s Share, now, n int64) bool {
	fits := k.Fits(p, s, now, n)
	if fits {
		k.move(p, -n)
	}
	return fits
}

// Slot names when tokens were taken just now, for giving them back.
func (k *Stake) Slot(p *counter.Policy, now int64) int64 {
	if isBucket(p) {
		return now
	}
	return k.Time
}

// Reset gives the region back all that it has used. What was borrowed and lent stays so.
func (k *Stake) Reset(p *counter.Policy, s Share, now int64) {
	k.settle(p, s, now)
	if k.Prev = 0; isBucket(p) {
		k.Level = max(k.Level, k.capacity(p, s))
		return
	}
	k.Level = k.unused()
}

// Report says how the stake is, for a charge of n.
func (k *Stake) Report(p *counter.Policy, s Share, now, n int64, allowed bool) counter.Result {
	k.settle(p, s, now)
	left := max(0, k.left(p, s, now))
	r := counter.Result{Allowed: allowed, Remaining: left / scale(p), Slot: k.Slot(p, now)}
	if isBucket(p) {
		r.ResetAfter = micros(s.wait(p, max(0, s.Own*scale(p)-left)))
	} else {
		at := k.end(p, now)
		if p.Limit.Algorithm == counter.SlidingCounter && k.Level > k.unused() {
			at += p.Limit.Window.Microseconds()
		}
		r.ResetAfter = micros(at - now)
	}
	switch {
	case allowed:
	case n > Whole(p):
		r.RetryAfter = counter.Never
	case isBucket(p):
		at := now + s.wait(p, n*scale(p)-left)
		for _, l := range k.Held {
			if l.Again > now && n <= l.For { // it said when it would have so much, and nobody asks it while it rests
				at = min(at, max(l.Again, l.Next))
			}
		}
		r.RetryAfter = micros(max(1, at-now))
	case p.Limit.Algorithm == counter.SlidingCounter: // at the latest: as if the other regions had used all that is theirs
		used := counter.State{Time: k.Time, Level: max(0, k.Level+Whole(p)-s.Own), Prev: k.Prev}
		r.RetryAfter = max(time.Microsecond, p.Report(used, max(now, k.Time), n, counter.Refused).RetryAfter)
	default:
		r.RetryAfter = max(time.Microsecond, r.ResetAfter)
	}
	return r
}

// end is when the window is over that has begun, µs. A clock that ran backwards may show the one before.
func (k *Stake) end(p *counter.Policy, now int64) int64 {
	if p.Limit.Algorithm == counter.SlidingCounter {
		return k.Time + p.Limit.Window.Microseconds()
	}
	now = max(now, k.Time)
	return now + p.Report(counter.State{}, now, 1, counter.Fits).ResetAfter.Microseconds()
}

func micros(us int64) time.Duration {
	return time.Duration(min(us, math.MaxInt64/1000)) * time.Microsecond
}

// GiveBack returns n units that were taken in the given slot. Below 0, it takes more, whatever is left.
func (k *Stake) GiveBack(p *counter.Policy, s Share, now, n, slot int64) {
	n = min(max(n, -most/scale(p)), most/scale(p))
	if isBucket(p) {
		if k.Time == 0 {
			k.settle(p, s, now)
		}
		// It doesn't refill: the numbers may be those of a receipt, and others be in force by now.
		n *= scale(p)
		k.Level = max(k.Level+n, -most)
		if n > 0 {
			k.Level = max(k.Level-n, min(k.Level, k.capacity(p, s)))
		}
		return
	}
	k.settle(p, s, now)
	switch {
	case n < 0 || slot == 0 || slot == k.Time:
		k.Level = min(max(k.Level-n, min(k.Level, k.unused())), most) // what is lent stays lent
	case p.Limit.Algorithm == counter.SlidingCounter && slot == k.Time-p.Limit.Window.Microseconds():
		k.Prev = max(0, k.Prev-n)
	}
}

// most is more than any limit has, in units of Level.
const most = 2 * counter.MaxAmount

// unused is the level of a window in which nothing was used: what is lent, less what is borrowed.
func (k *Stake) unused() (n int64) {
	for _, l := range k.Lent {
		n += l.Given - l.Back
	}
	for _, l := range k.Held {
		n -= l.out()
	}
	return n
}

// TTL is how long a stake must be kept: until it is as good as untouched.
func (k *Stake) TTL(p *counter.Policy, s Share, now int64) time.Duration {
	if !isBucket(p) {
		at := k.end(p, now)
		if p.Limit.Algorithm == counter.SlidingCounter {
			at += p.Limit.Window.Microseconds() // to the end of the next one it weighs something
		}
		return micros(max(0, at-now)) + time.Second
	}
	// What was lent comes back empty, so it only begins to refill when the last loan is over.
	at, level := now, s.Own*scale(p)
	for _, l := range k.Lent {
		at = max(at, l.Until)
		level -= l.out() * scale(p)
	}
	for _, l := range k.Held {
		at = max(at, l.Until)
	}
	if missing := s.Own*scale(p) - min(level, k.Level); missing > 0 {
		at += min(s.wait(p, missing), (10 * 366 * 24 * time.Hour).Microseconds()) // no limit takes longer to fill
	}
	return micros(at-now) + time.Second
}

// Encode and Decode are the form in which a store keeps a stake.
func (k *Stake) Encode() []byte {
	b, err := json.Marshal(k)
	if err != nil {
		panic(err) // only numbers that aren't any
	}
	return b
}

// Decode reads what Encode wrote. What makes no sense is untouched.
func Decode(b []byte) *Stake {
	k := &Stake{}
	if len(b) > 0 && json.Unmarshal(b, k) != nil {
		return &Stake{}
	}
	for _, loans := range []map[string]*Loan{k.Lent, k.Held} {
		maps.DeleteFunc(loans, func(_ string, l *Loan) bool { return l == nil })
	}
	return k
}
