package redisstore

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/ledger"
)

// part is the act that a caller's charges need at one joiner.
type part struct {
	act
	joiner  *joiner
	tag     int
	indices []int // for each charge, its index in what the caller passed
	err     error
}

// takeParts is a pool of parts that Redis has answered. After an error, a part may still be under way and isn't reused.
var takeParts = sync.Pool{New: func() any { return new(part) }}

func newPart(k kind, l *joiner, tag int) *part {
	if k != kindTake {
		return &part{act: act{kind: k}, joiner: l, tag: tag}
	}
	p := takeParts.Get().(*part)
	*p = part{act: act{kind: k, charges: p.charges[:0]}, joiner: l, tag: tag, indices: p.indices[:0]}
	return p
}

// split groups counters into parts by joiner, each in the given order, and appends these to parts.
func (s *Store) split(parts []*part, k kind, n int, counted func(int) *counter.Counter) ([]*part, error) {
	names := s.names.Load()
	if names == nil {
		return nil, s.joiners[0].shard.Load().unavailable()
	}
	for i := range n {
		c := counted(i)
		key, tag := names.subject(c)
		l := s.joiner(tag)
		at := 0
		for at < len(parts) && parts[at].joiner != l {
			at++
		}
		if at == len(parts) {
			parts = append(parts, newPart(k, l, tag))
		}
		p := parts[at]
		p.charges = append(p.charges, charge{policy: c.Policy, key: key})
		p.indices = append(p.indices, i)
	}
	return parts, nil
}

// Take decides the charges, all or nothing. Charges whose keys lie in different hash slots of a Cluster are taken in parallel,
// and given back if one is refused.
func (s *Store) Take(ctx context.Context, charges []counter.Charge, results []counter.Result) {
	s.take(ctx, outcomes{results: results}, func(i int) *counter.Charge { return &charges[i] }, nil)
}

// Lend is Take for charges that may borrow tokens as well. See package lease.
func (s *Store) Lend(ctx context.Context, asks []ledger.Ask, grants []ledger.Grant) {
	s.take(ctx, outcomes{grants: grants}, func(i int) *counter.Charge { return &asks[i].Charge }, asks)
}

// outcomes is where take writes its answers: results, or grants.
type outcomes struct {
	results []counter.Result
	grants  []ledger.Grant
}

func (a outcomes) len() int { return max(len(a.results), len(a.grants)) }

func (a outcomes) result(i int) *counter.Result {
	if a.grants != nil {
		return &a.grants[i].Result
	}
	return &a.results[i]
}

func (s *Store) take(ctx context.Context, to outcomes, charge func(int) *counter.Charge, asks []ledger.Ask) {
	var few [1]*part
	parts, err := s.split(few[:0], kindTake, to.len(), func(i int) *counter.Counter { return &charge(i).Counter })
	if err != nil {
		for i := range to.len() {
			*to.result(i) = counter.Result{Err: err}
		}
		return
	}
	for _, p := range parts {
		for j, i := range p.indices {
			var more *ledger.Ask
			if asks != nil {
				more = &asks[i]
			}
			p.charges[j].ask(charge(i), more)
			p.charges[j].guest = charge(i).Guest && s.tight.Load()
		}
		p.addUp()
	}
	if len(parts) == 1 {
		p := parts[0]
		p.do(ctx)
		s.report(p, to, p.err == nil && !p.refused())
		p.release()
		return
	}
	begun := time.Now()
	each(parts, func(p *part) { p.do(ctx) })

	refused := slices.ContainsFunc(parts, (*part).refused)
	each(parts, func(p *part) {
		taken := p.err == nil && !p.refused()
		s.report(p, to, taken)
		if taken && refused {
			s.undo(ctx, p, to, begun)
		}
		p.release()
	})
}

func (p *part) release() {
	if p.err == nil {
		takeParts.Put(p)
	}
}

// each calls f with every part, in parallel if there are several.
func each(parts []*part, f func(*part)) {
	if len(parts) == 0 {
		return
	}
	var others sync.WaitGroup
	for _, p := range parts[1:] {
		others.Go(func() { f(p) })
	}
	f(parts[0])
	others.Wait()
}

// addUp finds charges that name the same counter, and has each ask for the sum. One of them, the payer, debits it. The others
// are sent as peeks, so the script, which checks all charges before it writes, doesn't have to know.
func (p *part) addUp() {
	for i := range p.charges {
		c := &p.charges[i]
		if c.payer > 0 {
			continue
		}
		names, n, payer := 0, int64(0), i
		for j := range p.charges {
			if d := &p.charges[j]; d.sameCounter(c) {
				names++
				n = min(n+d.n, d.policy.MaxCharge())
				if p.charges[payer].policy.Shadow && !d.policy.Shadow { // only a charge that isn't shadow certainly takes
					payer = j
				}
			}
		}
		if names == 1 {
			continue
		}
		hold := p.charges[payer].hold
		for j := range p.charges {
			d := &p.charges[j]
			if !d.sameCounter(c) {
				continue
			}
			d.n, d.want, d.waiting, d.claim, d.hold, d.payer = n, 0, 0, ledger.Claim{}, hold, payer+1
			if j != payer {
				d.again, d.peek = !d.peek, true
			}
		}
	}
}

// do has Redis decide the part. If a counter takes more than its limit, the results of all charges to it show that.
func (p *part) do(ctx context.Context) {
	if p.err = p.joiner.do(ctx, &p.act); p.err != nil {
		return
	}
	for i := range p.charges {
		c := &p.charges[i]
		switch {
		case !c.again:
		case c.policy.Book:
			c.fits = true
		case c.policy.CountRefused && !c.fits:
			c.account = p.debit(c).account
		}
	}
}

func (c *charge) sameCounter(d *charge) bool { return c.policy.ID == d.policy.ID && c.key == d.key }

// debit returns the charge that takes for c. In most cases that is c itself.
func (p *part) debit(c *charge) *charge {
	if c.payer > 0 {
		return &p.charges[c.payer-1]
	}
	return c
}

// refused reports whether the part took nothing because one of its charges doesn't fit.
func (p *part) refused() bool {
	return p.err == nil && slices.ContainsFunc(p.charges, func(c charge) bool { return !c.fits && !c.policy.Shadow })
}

// report writes the result of each charge.
func (s *Store) report(p *part, to outcomes, taken bool) {
	for j, i := range p.indices {
		c, r := &p.charges[j], to.result(i)
		switch {
		case p.err != nil:
			*r = counter.Result{Err: p.err}
			continue
		case !c.fits:
			c.report(r, p.now, counter.Refused)
		case (taken || c.policy.Book) && p.debit(c).full:
			*r = counter.Result{Err: errFull}
		case (taken || c.policy.Book) && !p.debit(c).peek:
			c.account = p.debit(c).account
			c.report(r, p.now, counter.Taken)
		default:
			c.report(r, p.now, counter.Fits)
		}
		r.Again = c.there
		s.grant(p, to, j)
	}
}

// report writes the result of a charge. For a log, the account has the newest entry's time, the sum, and after a refusal the
// time of the entry that must leave to make room. For slots, it has when the last one ends, the sum, and after a refusal when
// the first one ends.
func (c *charge) report(r *counter.Result, now int64, v counter.Verdict) {
	last, sum, enough := c.account.Time, c.account.Level, c.account.Prev
	switch c.policy.Limit.Algorithm {
	case counter.SlidingLog:
		window := c.policy.Limit.Window.Microseconds()
		if last != 0 {
			last += window
		}
		*r = c.policy.ReportSum(now, c.n, v, sum, last, enough+window)
	case counter.Concurrency:
		*r = c.policy.ReportSum(now, c.n, v, sum, last, enough)
	default:
		c.account.Report(c.policy, r, now, c.n, v)
	}
}

// grant writes what else a borrowing node needs to know about a charge.
func (s *Store) grant(p *part, to outcomes, j int) {
	c := &p.charges[j]
	if to.grants == nil {
		return
	}
	g := &to.grants[p.indices[j]]
	if g.Account, g.Now = c.account, p.now; !ledger.Lends(c.policy) {
		return
	}
	g.Lent = c.lent
	g.LeaseTime, g.Interval = c.account.Lease(c.policy, p.now, s.peers.id)
}

// ask sets what to take, and what to lend besides.
func (c *charge) ask(of *counter.Charge, more *ledger.Ask) {
	c.n, c.peek, c.hold = min(of.N, c.policy.MaxCharge()), of.Peek, of.Hold
	if more == nil || c.hold != nil || !ledger.Lends(c.policy) {
		return
	}
	c.claim = more.Claim
	if !c.peek {
		c.waiting, c.want = min(more.Waiting, counter.MaxTokens), min(more.Want, counter.MaxTokens)
	}
}

// giveBack sets what to give back.
func (c *charge) giveBack(n, slot int64) {
	c.n, c.slot = min(n, c.policy.MaxCharge()), max(0, slot)
	if c.policy.Limit.Algorithm <= counter.LeakyQueue && !c.policy.Limit.Decimal {
		c.n = min(c.n, counter.MaxTokens) // in millionths, that is as much as the script's numbers hold
	}
}

// settle sets how much a return gives back, and which hold ends with it.
func (c *charge) settle(r *counter.Return) {
	c.giveBack(r.N, r.Slot)
	if r.Hold != nil {
		const exact = 1 << 53 // the script's numbers are exact up to this
		c.hold, c.n, c.used, c.record = r.Hold, min(r.N, exact), min(r.Used, exact), r.Recorded
	}
}

// undo gives back the tokens that a part took for a request that another part refused. If Redis is lost in the
// meantime, the tokens stay debited. undo continues after the caller has left, or has no time left to wait for it.
func (s *Store) undo(ctx context.Context, p *part, to outcomes, begun time.Time) {
	spent, lent := act{kind: kindGiveBack}, act{kind: kindTakeBack}
	for j, i := range p.indices {
		c := &p.charges[j]
		if !c.fits || c.peek || c.full || c.policy.Book {
			continue
		}
		if c.there { // nothing was taken, and the hold is that of an earlier request
			c.report(to.result(i), p.now, counter.Fits)
			continue
		}
		if c.lent > 0 {
			_, interval := c.account.Lease(c.policy, p.now, s.peers.id)
			back := ledger.Unspent{N: c.lent, Interval: interval}
			lent.charges = append(lent.charges, charge{policy: c.policy, key: c.key, n: c.lent, slot: interval})
			c.account = c.account.TakeBack(c.policy, p.now, s.peers.id, &back)
			c.lent = 0
		}
		g := charge{policy: c.policy, key: c.key, n: c.n, slot: to.result(i).Slot, hold: c.hold}
		spent.charges = append(spent.charges, g)
		switch c.policy.Limit.Algorithm {
		case counter.SlidingLog, counter.Concurrency:
			c.account.State = counter.State{Time: c.account.Prev, Level: c.account.Level - c.n} // after a take, Prev is the newest entry before it
		default:
			c.account = c.account.Refund(c.policy, p.now, g.n, g.slot)
		}
		c.report(to.result(i), p.now, counter.Fits)
		s.grant(p, to, j)
	}
	for j, i := range p.indices {
		if c := &p.charges[j]; c.fits && c.payer > 0 && !c.policy.Book {
			c.account = p.debit(c).account
			c.report(to.result(i), p.now, counter.Fits)
		}
	}
	if len(spent.charges) == 0 {
		return
	}
	given := make(chan struct{})
	s.background(func() {
		defer close(given)
		if len(lent.charges) > 0 {
			_ = p.joiner.do(context.Background(), &lent)
		}
		_ = p.joiner.do(context.Background(), &spent)
	})
	select {
	case <-given:
	case <-time.After(s.timeout - time.Since(begun)):
	case <-ctx.Done():
	}
}
