// Package stake is the arithmetic of a limit that several regions share. It is pure: the time is an
// argument, and there is no I/O.
//
// Every region has a stake in the limit: tokens of its own, which refill there. The stakes of all regions add up to the
// limit. A region that needs more borrows from another region, usually from the home, which owns the most. Tokens only
// move: they leave the lender's stake before the borrower has them. So tokens can get lost on the way, but none are
// created.
//
// A bucket's capacity moves with its tokens. Lent tokens count as the lender's until the borrower reports that they are
// spent or given back, so the lender's bucket doesn't refill them in the meantime, and all levels together never exceed
// the burst. Loans of buckets have a term: a borrower that gets no answers drops the rest of its loan when [Term] has
// passed since it sent the last message that was answered. The lender ends the loan when [Term] plus [Margin] has
// passed since that message arrived. So no two clocks are compared.
//
// Loans of windows last as long as the window and have no term. A region that can't reach the others keeps what it has.
//
// Regions report totals, never differences, so a message that arrives twice, late or out of order
// does no harm.
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
	// Margin is how much longer than Term the lender waits before it ends a loan. It is needed because each clock may
	// drift, or step by a second.
	Margin = 2500 * time.Millisecond

	term, margin = int64(Term / time.Microsecond), int64(Margin / time.Microsecond)
)

// Share is the part of a limit that a region owns.
type Share struct {
	// Own is the number of tokens that the region owns, in the units of a check's cost.
	Own int64
	// Rate is the region's part of the refill rate, in thousandths.
	Rate int64
	// Since is when the share became the region's own, in µs. Zero means that it always was. Before is what the region
	// owned until then. A counter that was never used here starts with Before tokens, plus what has refilled since
	// Since.
	Since, Before int64
	// Gone are dead regions. Tokens that they have borrowed belong to this region again.
	Gone []string
}

// Stake is one region's part of a counter. The zero Stake is untouched.
type Stake struct {
	// Time is when Level was computed or, for a window, when the window began. It is in µs of the clock of the region's
	// store.
	Time int64 `json:"t"`
	// Level is, for a bucket, how many millionths of a token it has. For a window, it is how many units are used. It is
	// negative if the region borrowed more than it used.
	Level int64 `json:"l"`
	// Prev is, for a sliding counter, how many units were used in the previous window.
	Prev int64 `json:"p,omitempty"`
	// Lent are the loans to other regions, and Held are the loans from other regions.
	Lent loans `json:"o,omitempty"`
	Held loans `json:"h,omitempty"`
	// Asked is a decaying count of the units that were requested within about the last second, as of At. Since is when
	// the current stream of requests began. Stream is the number of requests in it, up to the number at which demand
	// counts as a stream.
	Asked  float64 `json:"d,omitempty"`
	At     int64   `json:"a,omitempty"`
	Since  int64   `json:"b,omitempty"`
	Stream int     `json:"n,omitempty"`
}

// Loan is what one region has lent to another. Lender and borrower each keep a copy, as far as they know. Given, Spent
// and Back are totals.
type Loan struct {
	// ID rises with each new loan between two regions. The borrower chooses it.
	ID int64 `json:"i"`
	// Given is how many tokens were lent.
	Given int64 `json:"g,omitempty"`
	// Spent and Back are how many tokens of the loan the borrower has spent, and how many it has
	// given back.
	Spent int64 `json:"s,omitempty"`
	Back  int64 `json:"b,omitempty"`
	// Until is when a bucket's loan ends, by this region's own clock.
	Until int64 `json:"u,omitempty"`
	// Sent is when the borrower sent its newest message, by its own clock.
	Sent int64 `json:"w,omitempty"`
	// For the borrower, Next is when it may ask the lender again, or 0 if the lender had enough the last time, and Vain
	// is how many times in a row the lender had no tokens. For the lender, Next is when it may ask the borrower for
	// tokens that no check waits for yet.
	Vain int   `json:"v,omitempty"`
	Next int64 `json:"n,omitempty"`
	// Again is when the lender expects to have the tokens that were missing, and For is how many were missing.
	Again int64 `json:"r,omitempty"`
	For   int64 `json:"f,omitempty"`
}

// out returns how many tokens of the loan are neither spent nor given back.
func (l *Loan) out() int64 { return max(0, l.Given-l.Spent-l.Back) }

// loans maps the name of another region to a loan between it and this region.
type loans map[string]*Loan

// of returns the loan of a region; the zero Loan if there is none.
func (l loans) of(region string) Loan {
	if loan := l[region]; loan != nil {
		return *loan
	}
	return Loan{}
}

// begin adds a loan, in place of any other loan of the region.
func (l *loans) begin(region string, loan *Loan) *Loan {
	if *l == nil {
		*l = loans{}
	}
	(*l)[region] = loan
	return loan
}

// out returns how many tokens of all loans are neither spent nor given back.
func (l loans) out() (n int64) {
	for _, loan := range l {
		n += loan.out()
	}
	return n
}

// Message is sent by one region to another about a counter. It reports both loans between them, and
// may ask for tokens.
type Message struct {
	// Window is when the window that the message is about began. It is 0 for buckets.
	Window int64 `json:"window,omitempty"`
	// Need is the sum of what waiting checks need, Most is the largest need of one check, and Want is what will
	// probably be needed soon.
	Need int64 `json:"need,omitempty"`
	Most int64 `json:"most,omitempty"`
	Want int64 `json:"want,omitempty"`
	// Held is the loan from the receiver to the sender, and Lent the loan from the sender to the receiver.
	Held *Loan `json:"held,omitempty"`
	Lent *Loan `json:"lent,omitempty"`
	// Void reports that the sender doesn't know the loan that Lent names. Short reports that the sender lent less than
	// half of Need. Late reports that the sender has already handled this message or a newer one.
	Void  bool `json:"void,omitempty"`
	Late  bool `json:"late,omitempty"`
	Short bool `json:"short,omitempty"`
	// Rest is how long, in µs, the sender asks not to be asked again.
	Rest int64 `json:"rest,omitempty"`
	// Retry is how long, in µs, until the sender itself would have the tokens that one check needs, and For is how many
	// these are.
	Retry int64 `json:"retry,omitempty"`
	For   int64 `json:"for,omitempty"`
}

// LeastPerRegion is the smallest number of tokens per region with which a limit can be shared.
const LeastPerRegion = 16

// Reaches reports whether the given number of regions can share a limit. Limits that can't be shared are counted at
// their home.
func Reaches(p *counter.Policy, regions int) bool {
	switch p.Limit.Algorithm {
	case counter.TokenBucket, counter.LeakyBucket, counter.FixedWindow, counter.SlidingCounter:
		return !p.Travels && !p.GivesBack && p.Limit.Max() >= int64(LeastPerRegion*regions)
	}
	return false
}

func isBucket(p *counter.Policy) bool { return p.Limit.Algorithm <= counter.LeakyBucket }

// scale returns how many units of Level one unit of a check's cost is.
func scale(p *counter.Policy) int64 {
	if isBucket(p) && !p.Limit.Decimal {
		return 1_000_000
	}
	return 1
}

// Whole returns the whole limit, in units of a check's cost.
func Whole(p *counter.Policy) int64 { return p.Numbers()[0] / scale(p) }

// refill returns how much this share of a bucket refills in the given time.
func (s *Share) refill(p *counter.Policy, time int64) int64 {
	r := p.Refill(time)
	return r/1000*s.Rate + r%1000*s.Rate/1000
}

func (s *Share) wait(p *counter.Policy, amount int64) int64 {
	if s.Rate == 0 { // nothing refills here, so tokens can come only from other regions
		return p.Wait(amount)
	}
	return p.Wait((min(amount, math.MaxInt64/1001)*1000 + s.Rate - 1) / s.Rate)
}

// capacity returns how many tokens a bucket may have now.
func (k *Stake) capacity(p *counter.Policy, s Share) int64 {
	return (s.Own - k.Lent.out() + k.Held.out()) * scale(p)
}

// drop removes tokens above the bucket's capacity.
func (k *Stake) drop(p *counter.Policy, s Share) {
	k.Level = min(k.Level, max(0, k.capacity(p, s)))
}

// settle updates a stake to the time now: a bucket refills, a new window begins, and loans whose term is over end.
func (k *Stake) settle(p *counter.Policy, s Share, now int64) {
	if !isBucket(p) {
		k.roll(p, now)
	}
	for _, region := range s.Gone {
		lent, held := k.Lent.of(region), k.Held.of(region)
		delete(k.Lent, region)
		delete(k.Held, region) // another region now owns the dead region's share
		if !isBucket(p) {
			k.Level += held.out() - (lent.Given - lent.Back)
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
	k.Time = min(k.Time, now) // the clock ran backward
	for {
		var first loans
		of, at := "", now
		for _, all := range []loans{k.Lent, k.Held} {
			for region, l := range all {
				if l.Until < at || l.Until == at && first == nil {
					first, of, at = all, region, l.Until
				}
			}
		}
		at = max(k.Time, at)
		k.Level += s.refill(p, at-k.Time)
		k.drop(p, s)
		k.Time = at
		if first == nil {
			return
		}
		delete(first, of) // lent tokens don't come back, because the borrower may have spent them at the last moment
		k.drop(p, s)
	}
}

// settled returns a settled copy of a stake, for callers that only read it. Refills are rounded down, so settling the
// stake itself more often than needed would lose a little.
func (k *Stake) settled(p *counter.Policy, s Share, now int64) *Stake {
	k = Decode(k.Encode())
	k.settle(p, s, now)
	return k
}

// Begun returns when the current window began. For a bucket it returns now.
func Begun(p *counter.Policy, now int64) int64 {
	return p.Report(counter.State{}, now, 1, counter.Fits).Slot
}

// roll starts the current window. If the clock runs backward, the window that has begun continues.
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

// left returns how much may be taken now, in units of Level.
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

// move adds n units to what may be taken, or removes them if n is negative.
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

// Take takes n units if they are available. It counts them as demand.
func (k *Stake) Take(p *counter.Policy, s Share, now, n int64) bool {
	if n <= Whole(p) {
		k.note(p, now, n)
	}
	return k.TakeAwaited(p, s, now, n)
}

// TakeAwaited is Take for a check that has tried before and waited for other regions. It doesn't count the check as
// demand a second time.
func (k *Stake) TakeAwaited(p *counter.Policy, s Share, now, n int64) bool {
	fits := k.Fits(p, s, now, n)
	if fits {
		k.move(p, -n)
	}
	return fits
}

// Slot returns a number that identifies the time at which tokens are taken. GiveBack needs it.
func (k *Stake) Slot(p *counter.Policy, now int64) int64 {
	if isBucket(p) {
		return now
	}
	return k.Time
}

// Reset gives this region back all units that it has used. Loans don't change.
func (k *Stake) Reset(p *counter.Policy, s Share, now int64) {
	k.settle(p, s, now)
	if k.Prev = 0; isBucket(p) {
		k.Level = max(k.Level, k.capacity(p, s))
		return
	}
	k.Level = k.unused()
}

// Report returns the result of a charge of n.
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
			if l.Again > now && n <= l.For { // the lender said when it would have that many tokens, and it isn't asked before Next
				at = min(at, max(l.Again, l.Next))
			}
		}
		r.RetryAfter = micros(max(1, at-now))
	case p.Limit.Algorithm == counter.SlidingCounter: // assume that the other regions have used their whole shares, so the result is the latest time
		used := counter.State{Time: k.Time, Level: max(0, k.Level+Whole(p)-s.Own), Prev: k.Prev}
		r.RetryAfter = max(time.Microsecond, p.Report(used, max(now, k.Time), n, counter.Refused).RetryAfter)
	default:
		r.RetryAfter = max(time.Microsecond, r.ResetAfter)
	}
	return r
}

// end returns when the current window ends, in µs. If the clock ran backward, now may be in an earlier window.
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

// GiveBack returns n units that were taken in a slot. If n is negative, it takes more units, even if they aren't
// available.
func (k *Stake) GiveBack(p *counter.Policy, s Share, now, n, slot int64) {
	n = min(max(n, -most/scale(p)), most/scale(p))
	if isBucket(p) {
		if k.Time == 0 {
			k.settle(p, s, now)
		}
		// Don't refill the bucket first: the policy may come from an old receipt, and other numbers may be in force by
		// now.
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
		k.Level = min(max(k.Level-n, min(k.Level, k.unused())), most) // lent units stay lent, so don't go below them
	case p.Limit.Algorithm == counter.SlidingCounter && slot == k.Time-p.Limit.Window.Microseconds():
		k.Prev = max(0, k.Prev-n)
	}
}

// most is more than any limit can hold, in units of Level.
const most = 2 * counter.MaxAmount

// unused returns the level of a window in which nothing was used: the lent units minus the borrowed ones.
func (k *Stake) unused() (n int64) {
	for _, l := range k.Lent {
		n += l.Given - l.Back
	}
	return n - k.Held.out()
}

// TTL returns how long the stake must be kept. After that time, it equals an untouched one.
func (k *Stake) TTL(p *counter.Policy, s Share, now int64) time.Duration {
	if !isBucket(p) {
		at := k.end(p, now)
		if p.Limit.Algorithm == counter.SlidingCounter {
			at += p.Limit.Window.Microseconds() // the window still counts until the end of the next one
		}
		return micros(max(0, at-now)) + time.Second
	}
	// A lender gets no tokens back when a loan ends, so its bucket starts to refill fully only after the last loan has
	// ended.
	at := now
	for _, all := range []loans{k.Lent, k.Held} {
		for _, l := range all {
			at = max(at, l.Until)
		}
	}
	if missing := s.Own*scale(p) - min((s.Own-k.Lent.out())*scale(p), k.Level); missing > 0 {
		at += min(s.wait(p, missing), (10 * 366 * 24 * time.Hour).Microseconds()) // no limit takes longer than ten years to fill
	}
	return micros(at-now) + time.Second
}

// Encode returns the stake in the form in which stores keep it.
func (k *Stake) Encode() []byte {
	b, err := json.Marshal(k)
	if err != nil {
		panic(err) // can't happen: only a NaN or an infinite float can't be encoded
	}
	return b
}

// Decode reads what Encode wrote. If the value is unreadable, it returns an untouched stake.
func Decode(b []byte) *Stake {
	k := &Stake{}
	if len(b) > 0 && json.Unmarshal(b, k) != nil {
		return &Stake{}
	}
	for _, all := range []loans{k.Lent, k.Held} {
		maps.DeleteFunc(all, func(_ string, l *Loan) bool { return l == nil })
	}
	return k
}
