package stake

import (
	"cmp"
	"math"
	"slices"

	"github.com/weirhq/weir/counter"
)

const (
	// When a region's tokens last for less than lead seconds, it asks for enough to last for horizon seconds. lead is
	// longer than an answer takes.
	horizon = 1.0
	lead    = 0.4
	// room is how many seconds of refill must still fit into a bucket after it has lent tokens.
	room = 0.4
	// shortWait is how long, in µs, a region isn't asked again after it had no tokens to lend. The wait doubles with
	// each attempt, up to longestWait.
	shortWait, longestWait int64 = 250_000, 4_000_000
	// leastRest and longestRest bound the time, in µs, for which a lender that can't refill fast enough asks not to be
	// asked again.
	leastRest, longestRest int64 = 400_000, 2_000_000
	// askerRests is how long, in µs, a region that has just asked this one isn't asked for tokens that no check waits
	// for, because it has too few tokens itself.
	askerRests = 1_000_000
	// aheadEvery is the shortest time, in µs, between two requests to one region for tokens that no check waits for
	// yet. Each request asks for one second's demand.
	aheadEvery = 400_000
	// giveBackEvery is how often, in µs, borrowed tokens that aren't needed are given back.
	giveBackEvery = 500_000
	// renewEvery is how often, in µs, a loan in use is renewed.
	renewEvery = term / 3
	// Demand counts as a stream after stream requests over at least shortest µs. A request that comes more than pause
	// µs after the previous one starts a new stream.
	stream, shortest, pause = 4, 25_000, 2_000_000
	// idle is how long, in µs, a region keeps borrowed tokens for the next request. It is shorter than the term of a
	// loan, because the tokens would be lost at the end of the term.
	idle = 7_000_000
)

// lately returns how many units were requested within about the last second. It is a decaying count.
func (k *Stake) lately(now int64) float64 {
	return k.Asked * math.Exp(-float64(max(0, now-k.At))/1e6)
}

// demand estimates how many units will be requested in the next second: as many as in the last one. If a stream of
// requests began within the last second, it assumes that the stream continues at the same rate.
func (k *Stake) demand(p *counter.Policy, now int64) float64 {
	d, age := k.lately(now), now-k.Since
	if k.Stream >= stream && age >= shortest {
		d /= 1 - math.Exp(-float64(age)/1e6)
	}
	return min(d, 2*float64(Whole(p)))
}

// note adds n units to the count of requested units, which it caps at twice the limit.
func (k *Stake) note(p *counter.Policy, now, n int64) {
	asked := k.lately(now) + float64(n)
	if now-k.At > pause || now < k.Since {
		k.Since, k.Stream = now, 0
	}
	k.Stream = min(k.Stream+1, stream)
	k.Asked = min(asked, 2*float64(Whole(p)))
	k.At = now
}

// Low reports whether this region should ask other regions now, so that checks don't have to wait later. Call it after
// Take.
func (k *Stake) Low(p *counter.Policy, s Share, now int64) bool {
	return float64(k.left(p, s, now)) < k.lately(now)*lead*float64(scale(p))
}

// Rests returns the time, in µs, until a region that had too few tokens may be asked again.
func (k *Stake) Rests(of string, now int64) int64 { return k.Held.of(of).rests(now) }

// MayAskAhead reports whether a region may be asked for tokens that no check waits for yet. A region that has just
// asked this one may not be asked.
func (k *Stake) MayAskAhead(of string, now int64) bool {
	held := k.Held.of(of)
	return held.rests(now) == 0 && k.Lent.of(of).rests(now) == 0 && (now >= held.Sent+aheadEvery || now < held.Sent)
}

// rests returns the time until Next, in µs. A clock that ran backward doesn't lengthen the time.
func (l Loan) rests(now int64) int64 {
	if l.Next <= now || l.Next > now+longestWait {
		return 0
	}
	return l.Next - now
}

// HadLittle reports whether a region had too few tokens when it was last asked.
func (k *Stake) HadLittle(of string) bool { return k.Held.of(of).Next != 0 }

// Stale returns a region that should get a message about its loan, or "". The reason is that the loan is in use and
// should be renewed, or that much of it is no longer needed.
func (k *Stake) Stale(p *counter.Policy, s Share, now int64) string {
	for of, l := range k.Held {
		if l.Until == 0 || l.out() == 0 {
			continue
		}
		idle := l.out() - int64(k.demand(p, now)*horizon) // tokens that are still here, or whose spending hasn't been reported
		if age := now - l.Sent; age > renewEvery || age > giveBackEvery && idle > Whole(p)/16 {
			return of
		}
	}
	return ""
}

// Owed returns the regions to which a bucket should give tokens back, or whose loans should be renewed. It is for times
// without requests, which would otherwise cause that. borrowed reports whether anything is borrowed.
func (k *Stake) Owed(p *counter.Policy, s Share, now int64) (to []string, borrowed bool) {
	if !isBucket(p) {
		return nil, false
	}
	k = k.settled(p, s, now)
	for region, l := range k.Held {
		if l.out() == 0 {
			continue
		}
		borrowed = true
		renew := now-l.Sent > renewEvery && now-k.At <= idle
		if renew || now-max(k.At, l.Sent) > 1_000_000 && k.surplus(p, s, now, l) > 0 {
			to = append(to, region)
		}
	}
	return to, borrowed
}

// surplus returns how many tokens of a loan this region probably won't need soon.
func (k *Stake) surplus(p *counter.Policy, s Share, now int64, l *Loan) int64 {
	keep := int64(math.Ceil(k.demand(p, now) * horizon))
	if now-k.At > idle {
		keep = 0
	}
	return max(0, min(l.out(), k.left(p, s, now)/scale(p)-keep))
}

// Borrowers returns the regions that have borrowed from this one.
func (k *Stake) Borrowers() (of []string) {
	for region, l := range k.Lent {
		if l.out() > 0 {
			of = append(of, region)
		}
	}
	return of
}

// Ask returns the message that asks another region for the tokens that checks need. need is 0 if no check waits for
// them yet.
func (k *Stake) Ask(p *counter.Policy, s Share, now int64, of string, need int64) *Message {
	k.settle(p, s, now)
	left := float64(max(0, k.left(p, s, now))) / float64(scale(p))
	m := &Message{Need: need, Want: int64(math.Ceil(max(float64(need), k.demand(p, now)*horizon-left)))}
	l := k.Held[of]
	if l == nil {
		l = k.Held.begin(of, &Loan{ID: now})
		if isBucket(p) {
			l.Until = now + term
		}
	}
	l.Sent = now
	if isBucket(p) {
		k.giveUp(p, s, now, l, 0)
	}
	k.say(p, s, of, m)
	return m
}

// say writes the state of both loans between this region and another one into a message.
func (k *Stake) say(p *counter.Policy, s Share, to string, m *Message) {
	if !isBucket(p) {
		m.Window = k.Time
	}
	if l := k.Held[to]; l != nil {
		if isBucket(p) {
			// Count missing tokens against the region's own share first, so that the share can
			// refill. Whatever is missing beyond it was borrowed and has been spent.
			missing := (k.capacity(p, s)-k.Level)/scale(p) - s.Own
			l.Spent += max(0, min(l.out(), missing))
		}
		m.Held = &Loan{ID: l.ID, Given: l.Given, Spent: l.Spent, Back: l.Back, Sent: l.Sent}
	}
	if l := k.Lent[to]; l != nil {
		m.Lent = &Loan{ID: l.ID, Given: l.Given, Sent: l.Sent}
	}
}

// Hear handles another region's message and returns the reply.
func (k *Stake) Hear(p *counter.Policy, s Share, now int64, from string, m *Message) *Message {
	k.settle(p, s, now)
	answer := &Message{}
	if !isBucket(p) {
		answer.Window = k.Time
	}
	if slices.Contains(s.Gone, from) {
		if m.Held != nil {
			answer.Lent, answer.Void = &Loan{ID: m.Held.ID}, true
		}
		return answer
	}
	if !isBucket(p) && m.Window != k.Time {
		return answer // the clock of one of the regions is behind
	}
	fresh, void := k.returned(p, s, now, from, m.Held)
	k.borrow(p, s, now, from, m)
	if m.Need+m.Want > 0 && fresh {
		n := k.giveUp(p, s, now, k.Held[from], m.Need)
		n += k.lend(p, s, now, from, max(0, m.Need-n), max(0, m.Want-n))
		answer.Short = 2*n < m.Need
		if left := k.left(p, s, now) / scale(p); n < m.Want && 4*left < m.Want { // otherwise, checks that are waiting may get what is left
			answer.Rest = k.rest(p, s, now, m.Want)
		}
		k.Lent[from].Next = now + askerRests
	}
	answer.Late = !fresh
	k.say(p, s, from, answer)
	if void {
		answer.Lent, answer.Void = &Loan{ID: m.Held.ID}, true
	}
	if m.Need > 0 {
		own := Stake{Time: k.Time, Level: k.Level, Prev: k.Prev} // without the loans, because the other regions report their own tokens
		answer.For = cmp.Or(m.Most, m.Need)
		answer.Retry = own.Report(p, s, now, answer.For, false).RetryAfter.Microseconds()
	}
	return answer
}

// returned records how many tokens a borrower has given back and spent. fresh reports that the message is newer than
// all earlier ones. void reports that this region doesn't know the loan.
func (k *Stake) returned(p *counter.Policy, s Share, now int64, from string, held *Loan) (fresh, void bool) {
	if held == nil {
		return false, false
	}
	l := k.Lent[from]
	switch {
	case held.Given == 0 && (l == nil || held.ID > l.ID):
		// A new loan. If there was another one, the borrower has dropped that.
		l = k.Lent.begin(from, &Loan{ID: held.ID})
	case l == nil || held.ID > l.ID:
		return false, true
	case held.ID < l.ID:
		return false, false
	}
	if more := held.Given - l.Given; more > 0 { // this region's store has lost a part of what was lent
		l.Given = held.Given
		k.move(p, -more)
	}
	l.Spent = max(l.Spent, held.Spent)
	if back := held.Back - l.Back; back > 0 {
		l.Back = held.Back
		if k.move(p, back); isBucket(p) {
			k.drop(p, s)
		}
	}
	if fresh = held.Sent > l.Sent; fresh {
		l.Sent = held.Sent
		if isBucket(p) {
			l.Until = max(l.Until, now+term+margin)
		}
	}
	return fresh, false
}

// borrow records the tokens that a lender has lent to this region.
func (k *Stake) borrow(p *counter.Policy, s Share, now int64, from string, m *Message) {
	l := k.Held[from]
	switch {
	case l == nil || m.Lent == nil:
		return
	case m.Lent.ID > l.ID && l.Given == 0: // an earlier loan got a higher ID, because the clock was ahead
		l.ID = m.Lent.ID + 1
		return
	case m.Lent.ID != l.ID:
		return
	case m.Void:
		delete(k.Held, from)
		if isBucket(p) {
			k.drop(p, s)
		} else {
			k.move(p, -l.out())
		}
		return
	}
	end := int64(math.MaxInt64)
	if isBucket(p) {
		if end = m.Lent.Sent + term; now >= end {
			return // Too late: the term is over. The lender will repeat the loan.
		}
		l.Until = max(l.Until, end)
	}
	if more := m.Lent.Given - l.Given; more > 0 {
		l.Given = m.Lent.Given
		k.move(p, more)
	}
}

// rest returns how long, in µs, a region with the given demand should wait before it asks this bucket again. It returns
// zero if the bucket refills fast enough for that demand. The less the bucket can spare, the longer the wait. Asking
// more often wouldn't bring more tokens.
func (k *Stake) rest(p *counter.Policy, s Share, now, want int64) int64 {
	if !isBucket(p) {
		return 0
	}
	perSecond := float64(s.refill(p, 1e6))/float64(scale(p)) - k.demand(p, now)
	switch {
	case float64(want) <= perSecond*1.25: // almost fast enough is enough, because demand varies
		return 0
	case perSecond <= 0:
		return longestRest
	}
	return max(leastRest, int64(min(float64(want)/perSecond*float64(leastRest)/15, float64(longestRest))))
}

// Heard handles the reply to Ask, and returns how many tokens the reply brought. A lender that had no tokens isn't
// asked again for a while, and the wait doubles each time. A lender that had few tokens isn't asked again for the time
// that its reply names.
func (k *Stake) Heard(p *counter.Policy, s Share, now int64, of string, ask, answer *Message) (brought int64) {
	given, back := k.Held.of(of).Given, k.Lent.of(of).Back
	k.Hear(p, s, now, of, answer)
	l := k.Held[of]
	if l == nil { // the loan was void
		return 0
	}
	brought = max(0, l.Given-given) + max(0, k.Lent.of(of).Back-back)
	if answer.Late {
		if brought > 0 && l.Vain > 0 { // treat it as a lender that had something
			l.Vain, l.Next = 0, 0
		}
		return brought
	}
	gave := brought // another message may have brought the tokens already
	if was, is := ask.Held, answer.Lent; was != nil && is != nil && was.ID == is.ID {
		gave = max(gave, is.Given-was.Given)
	}
	switch {
	case answer.Window != ask.Window: // the lender's new window begins soon
		l.Next = now + shortWait
	case gave == 0 && ask.Want > 0:
		l.vain(now)
		l.Next = max(l.Next, ask.Held.Sent+answer.Rest)
	case answer.Rest > 0:
		l.Vain, l.Next = 0, ask.Held.Sent+answer.Rest
	default:
		l.Vain, l.Next = 0, 0
	}
	if answer.Retry > 0 {
		l.Again, l.For = now+answer.Retry, answer.For
	}
	return brought
}

// Unheard notes that a region didn't answer. The region is then treated as one that had no tokens.
func (k *Stake) Unheard(of string, now int64) {
	if l := k.Held[of]; l != nil {
		l.vain(now)
	}
}

// vain sets how long a lender that had no tokens isn't asked again: twice as long as the last time.
func (l *Loan) vain(now int64) {
	l.Next = now + min(shortWait<<min(max(l.Vain, 0), 10), longestWait)
	l.Vain++
}

// giveUp returns borrowed tokens that aren't needed here to the lender. If checks of the lender wait for need tokens,
// it returns as many as that if there are enough. The result is the number of returned tokens.
func (k *Stake) giveUp(p *counter.Policy, s Share, now int64, l *Loan, need int64) (n int64) {
	if l != nil {
		n = max(k.surplus(p, s, now, l), min(need, l.out(), k.left(p, s, now)/scale(p)))
		l.Back += n
		k.move(p, -n)
	}
	return n
}

// lend lends tokens to a region. It lends need if it can. It lends more, up to need+want, only from what this region
// can spare: half of its free tokens, or all that its own likely demand doesn't need.
func (k *Stake) lend(p *counter.Policy, s Share, now int64, to string, need, want int64) (n int64) {
	free := k.left(p, s, now) / scale(p)
	own := s.Own - k.Lent.out()
	if isBucket(p) { // borrowed tokens aren't lent on, because their term may end earlier
		free = min(free, own)
	}
	spare := max(free/2, free-int64(math.Ceil(k.demand(p, now)*horizon)))
	if isBucket(p) { // lent tokens don't refill until the borrower reports that it has spent them, so keep some capacity here
		spare = min(spare, max(free/2, own-s.refill(p, int64(room*1e6))/scale(p)))
	}
	n = max(0, min(free, max(need, min(need+want, spare))))
	k.Lent[to].Given += n
	k.move(p, -n)
	return n
}

// Loans returns how many tokens this region has borrowed and lent, and when the first of its loans from other regions
// ends, or 0.
func (k *Stake) Loans(p *counter.Policy, s Share, now int64) (borrowed, lent, until int64) {
	k = k.settled(p, s, now)
	for _, l := range k.Held {
		if borrowed += l.out(); l.out() > 0 && (until == 0 || l.Until < until) {
			until = l.Until
		}
	}
	return borrowed, k.Lent.out(), until
}
