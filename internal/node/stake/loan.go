package stake

import (
	"cmp"
	"math"
	"slices"

	"github.com/weirhq/weir/counter"
)

const (
	// horizon is for how long a region asks for tokens ahead, and lead with how much left it asks: an ask is answered by then.
	horizon = 1.0
	lead    = 0.4
	// room is for how long a bucket that lends should be able to refill meanwhile.
	room = 0.4
	// shortWait is how long a region rests that had nothing, µs. It doubles each time, up to longestWait.
	shortWait, longestWait int64 = 250_000, 4_000_000
	// leastRest and longestRest are how long a region asks to be left alone that can't refill as fast as another needs it, µs.
	leastRest, longestRest int64 = 400_000, 2_000_000
	// askerRests is how long a region isn't asked ahead that has asked this one, µs: it has too little itself.
	askerRests = 1_000_000
	// aheadEvery is the least time between two asks of one region for tokens that no request waits for yet, µs. Each asks for a second's worth.
	aheadEvery = 400_000
	// giveBackEvery is how often what was borrowed and isn't needed is given back, µs.
	giveBackEvery = 500_000
	// renewEvery is how often a loan that is used is renewed, µs.
	renewEvery = term / 3
	// stream is how many requests it takes to believe that more will follow, and shortest the time over which they must have come, µs.
	// A request that comes later than pause after the one before begins a new stream.
	stream, shortest, pause = 4, 25_000, 2_000_000
	// idle is how long a region keeps something borrowed for the next request, µs. It is less than the term, at whose end it would be lost.
	idle = 7_000_000
)

// lately is how many units were asked for within about a second.
func (k *Stake) lately(now int64) float64 {
	return k.Asked * math.Exp(-float64(max(0, now-k.At))/1e6)
}

// demand is how many units a second are likely to be asked for: as many as lately. A stream that began within the last second goes on as it
// began.
func (k *Stake) demand(p *counter.Policy, now int64) float64 {
	d, age := k.lately(now), now-k.Since
	if k.Stream >= stream && age >= shortest {
		d /= 1 - math.Exp(-float64(age)/1e6)
	}
	return min(d, 2*float64(Whole(p)))
}

// note counts what was asked for. More than twice a limit is no more than that.
func (k *Stake) note(p *counter.Policy, now, n int64) {
	asked := k.lately(now) + float64(n)
	if now-k.At > pause || now < k.Since {
		k.Since, k.Stream = now, 0
	}
	k.Stream = min(k.Stream+1, stream)
	k.Asked = min(asked, 2*float64(Whole(p)))
	k.At = now
}

// Low reports whether this region should ask others before requests have to wait. Call it after Take.
func (k *Stake) Low(p *counter.Policy, s Share, now int64) bool {
	return float64(k.left(p, s, now)) < k.lately(now)*lead*float64(scale(p))
}

// Rests is how long it is until a region may be asked for more, µs: it had too little a moment ago.
func (k *Stake) Rests(of string, now int64) int64 { return k.Held[of].rests(now) }

// MayAskAhead reports whether a region may be asked for what no request waits for yet: not if it has just asked this one.
func (k *Stake) MayAskAhead(of string, now int64) bool {
	l := k.Held[of]
	return l.rests(now) == 0 && k.Lent[of].rests(now) == 0 && (l == nil || now >= l.Sent+aheadEvery || now < l.Sent)
}

// rests is how long it is until Next, µs. A clock that ran backwards doesn't make that longer.
func (l *Loan) rests(now int64) int64 {
	if l == nil || l.Next <= now || l.Next > now+longestWait {
		return 0
	}
	return l.Next - now
}

// HadLittle reports whether a region had too little when it was asked the last time.
func (k *Stake) HadLittle(of string) bool { return k.Held[of] != nil && k.Held[of].Next != 0 }

// Stale is a region that should be told how its loan stands, or "": some of it is left, and it should be renewed, or much of it isn't
// needed any more.
func (k *Stake) Stale(p *counter.Policy, s Share, now int64) string {
	for of, l := range k.Held {
		if l.Until == 0 || l.out() == 0 {
			continue
		}
		idle := l.out() - int64(k.demand(p, now)*horizon) // left, or spent and not told
		if age := now - l.Sent; age > renewEvery || age > giveBackEvery && idle > Whole(p)/16 {
			return of
		}
	}
	return ""
}

// Owed are the regions to which a bucket should give something back, or whose loan should be renewed, when no requests see to it. It also reports
// whether anything is borrowed at all.
func (k *Stake) Owed(p *counter.Policy, s Share, now int64) (to []string, borrowed bool) {
	if !isBucket(p) {
		return nil, false
	}
	k = Decode(k.Encode()) // refill is rounded, so nothing is settled in between that needn't be
	k.settle(p, s, now)
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

// surplus is how much of a loan isn't likely to be needed here soon.
func (k *Stake) surplus(p *counter.Policy, s Share, now int64, l *Loan) int64 {
	keep := int64(math.Ceil(k.demand(p, now) * horizon))
	if now-k.At > idle {
		keep = 0
	}
	return max(0, min(l.out(), k.left(p, s, now)/scale(p)-keep))
}

// Borrowers are the regions that have some of this one.
func (k *Stake) Borrowers() (of []string) {
	for region, l := range k.Lent {
		if l.out() > 0 {
			of = append(of, region)
		}
	}
	return of
}

// Ask is what to say to another region, of which requests need some units.
func (k *Stake) Ask(p *counter.Policy, s Share, now int64, of string, need int64) *Message {
	k.settle(p, s, now)
	left := float64(max(0, k.left(p, s, now))) / float64(scale(p))
	m := &Message{Need: need, Want: int64(math.Ceil(max(float64(need), k.demand(p, now)*horizon-left)))}
	l := k.Held[of]
	if l == nil {
		if k.Held == nil {
			k.Held = map[string]*Loan{}
		}
		l = &Loan{ID: now}
		k.Held[of] = l
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

// say tells how the loans between two regions stand.
func (k *Stake) say(p *counter.Policy, s Share, to string, m *Message) {
	if !isBucket(p) {
		m.Window = k.Time
	}
	if l := k.Held[to]; l != nil {
		if isBucket(p) {
			// Missing tokens count against the region's own share first, so that it can refill. Whatever is missing beyond that
			// was borrowed, and has been spent.
			missing := (k.capacity(p, s)-k.Level)/scale(p) - s.Own
			l.Spent += max(0, min(l.out(), missing))
		}
		m.Held = &Loan{ID: l.ID, Given: l.Given, Spent: l.Spent, Back: l.Back, Sent: l.Sent}
	}
	if l := k.Lent[to]; l != nil {
		m.Lent = &Loan{ID: l.ID, Given: l.Given, Sent: l.Sent}
	}
}

// Hear takes in what another region says, and returns the answer.
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
		return answer // the clock of one of them is behind
	}
	fresh, void := k.returned(p, s, now, from, m.Held)
	k.borrow(p, s, now, from, m)
	if m.Need+m.Want > 0 && fresh {
		n := k.giveUp(p, s, now, k.Held[from], m.Need)
		n += k.lend(p, s, now, from, max(0, m.Need-n), max(0, m.Want-n))
		answer.Short = 2*n < m.Need
		if left := k.left(p, s, now) / scale(p); n < m.Want && 4*left < m.Want { // else requests that wait may have what is left
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
		own := Stake{Time: k.Time, Level: k.Level, Prev: k.Prev} // what others have said is theirs to say
		answer.For = cmp.Or(m.Most, m.Need)
		answer.Retry = own.Report(p, s, now, answer.For, false).RetryAfter.Microseconds()
	}
	return answer
}

// returned takes in what a borrower has let go of. It reports whether the message is newer than those before, and whether its loan
// isn't known.
func (k *Stake) returned(p *counter.Policy, s Share, now int64, from string, held *Loan) (fresh, void bool) {
	if held == nil {
		return false, false
	}
	l := k.Lent[from]
	switch {
	case held.Given == 0 && (l == nil || held.ID > l.ID):
		// A new one: if there was another, the borrower has dropped it.
		l = &Loan{ID: held.ID}
		if k.Lent == nil {
			k.Lent = map[string]*Loan{}
		}
		k.Lent[from] = l
	case l == nil || held.ID > l.ID:
		return false, true
	case held.ID < l.ID:
		return false, false
	}
	if more := held.Given - l.Given; more > 0 { // this region's store has forgotten some of it
		l.Given = held.Given
		k.move(p, -more)
	}
	l.Spent = max(l.Spent, held.Spent)
	if back := held.Back - l.Back; back > 0 {
		l.Back = held.Back
		if k.move(p, back); isBucket(p) {
			k.Level = min(k.Level, max(0, k.capacity(p, s)))
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

// borrow takes in what a lender has given.
func (k *Stake) borrow(p *counter.Policy, s Share, now int64, from string, m *Message) {
	l := k.Held[from]
	switch {
	case l == nil || m.Lent == nil:
		return
	case m.Lent.ID > l.ID && l.Given == 0: // the clock was ahead once: an older loan has a later number
		l.ID = m.Lent.ID + 1
		return
	case m.Lent.ID != l.ID:
		return
	case m.Void:
		delete(k.Held, from)
		if isBucket(p) {
			k.Level = min(k.Level, max(0, k.capacity(p, s)))
		} else {
			k.move(p, -l.out())
		}
		return
	}
	end := int64(math.MaxInt64)
	if isBucket(p) {
		if end = m.Lent.Sent + term; now >= end {
			return // it will be said again
		}
		l.Until = max(l.Until, end)
	}
	if more := m.Lent.Given - l.Given; more > 0 {
		l.Given = m.Lent.Given
		k.move(p, more)
	}
}

// rest is how long a region that wants so much should wait before it asks this bucket again, µs: 0 if the bucket refills fast enough to serve
// it, and longer the less the bucket can spare. Asking more often would bring no more.
func (k *Stake) rest(p *counter.Policy, s Share, now, want int64) int64 {
	if !isBucket(p) {
		return 0
	}
	perSecond := float64(s.refill(p, 1e6))/float64(scale(p)) - k.demand(p, now)
	switch {
	case float64(want) <= perSecond*1.25: // nearly enough, and demand varies
		return 0
	case perSecond <= 0:
		return longestRest
	}
	return max(leastRest, int64(min(float64(want)/perSecond*float64(leastRest)/15, float64(longestRest))))
}

// Heard takes in the answer to an ask, and returns what it brought. A region that had nothing rests before it is asked again, for longer each
// time; one that had little for as long as it says.
func (k *Stake) Heard(p *counter.Policy, s Share, now int64, of string, ask, answer *Message) (brought int64) {
	given, back := k.Held[of].given(), k.Lent[of].back()
	k.Hear(p, s, now, of, answer)
	l := k.Held[of]
	if l == nil { // it was void
		return 0
	}
	brought = max(0, l.Given-given) + max(0, k.Lent[of].back()-back)
	if answer.Late {
		if brought > 0 && l.Vain > 0 { // it rests as if it had nothing
			l.Vain, l.Next = 0, 0
		}
		return brought
	}
	gave := brought // or another message has brought it
	if was, is := ask.Held, answer.Lent; was != nil && is != nil && was.ID == is.ID {
		gave = max(gave, is.Given-was.Given)
	}
	l.pace(now, gave, ask, answer)
	if answer.Retry > 0 {
		l.Again, l.For = now+answer.Retry, answer.For
	}
	return brought
}

// pace says when a lender may be asked again, after it gave some tokens.
func (l *Loan) pace(now, gave int64, ask, answer *Message) {
	switch {
	case answer.Window != ask.Window: // it will be there soon
		l.Next = now + shortWait
	case gave == 0 && ask.Want > 0:
		l.vain(now)
		l.Next = max(l.Next, ask.Held.Sent+answer.Rest)
	case answer.Rest > 0:
		l.Vain, l.Next = 0, ask.Held.Sent+answer.Rest
	default:
		l.Vain, l.Next = 0, 0
	}
}

// Unheard notes that a region hasn't answered. It rests as if it had nothing.
func (k *Stake) Unheard(of string, now int64) {
	if l := k.Held[of]; l != nil {
		l.vain(now)
	}
}

// vain has a lender rest that had nothing, for twice as long as the last time.
func (l *Loan) vain(now int64) {
	l.Next = now + min(shortWait<<min(max(l.Vain, 0), 10), longestWait)
	l.Vain++
}

// giveUp gives back what was borrowed and isn't needed here, and what requests wait for there, if it is left. It returns how much.
func (k *Stake) giveUp(p *counter.Policy, s Share, now int64, l *Loan, need int64) (n int64) {
	if l != nil {
		n = max(k.surplus(p, s, now, l), min(need, l.out(), k.left(p, s, now)/scale(p)))
		l.Back += n
		k.move(p, -n)
	}
	return n
}

// lend gives a region what it needs, and of what it wants as much as leaves this one what it is likely to need, or half.
func (k *Stake) lend(p *counter.Policy, s Share, now int64, to string, need, want int64) (n int64) {
	free := k.left(p, s, now) / scale(p)
	own := s.Own
	for _, l := range k.Lent {
		own -= l.out()
	}
	if isBucket(p) { // what was borrowed isn't lent on: its term may be over before
		free = min(free, own)
	}
	spare := max(free/2, free-int64(math.Ceil(k.demand(p, now)*horizon)))
	if isBucket(p) { // what is lent doesn't refill until the borrower says that it is spent, so some capacity stays here
		spare = min(spare, max(free/2, own-s.refill(p, int64(room*1e6))/scale(p)))
	}
	n = max(0, min(free, max(need, min(need+want, spare))))
	k.Lent[to].Given += n
	k.move(p, -n)
	return n
}

// Loans are what this region has borrowed and lent now, and when the first of what was borrowed ends, or 0.
func (k *Stake) Loans(p *counter.Policy, s Share, now int64) (borrowed, lent, until int64) {
	k.settle(p, s, now)
	for _, l := range k.Held {
		if borrowed += l.out(); l.out() > 0 && (until == 0 || l.Until < until) {
			until = l.Until
		}
	}
	for _, l := range k.Lent {
		lent += l.out()
	}
	return borrowed, lent, until
}
