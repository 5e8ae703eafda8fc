package counter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/big"
)

// minPerPart is how many requests a part of a limit should hold. Requests that cost more are charged to several parts.
const minPerPart = 16

// divide makes the parts of a limit. Their counts and bursts add up to the limit's; their rates add up to at most its rate.
func (p *Policy) divide(parts int) error {
	if parts == 0 {
		return nil
	}
	n := int64(parts)
	if p.Limit.Count < n || p.Limit.Max() < n {
		return fmt.Errorf("can't be split into %d parts: each needs a token at least, and there are %d; lower `split`", parts, min(p.Limit.Count, p.Limit.Max()))
	}
	var each rate
	if p.Limit.isBucket() {
		exact := big.NewRat(p.rate.num, p.rate.den)
		var ok bool
		if each, ok = nearestRate(exact.Quo(exact, big.NewRat(n, 1))); !ok {
			return errors.New("can't be split: it refills too slowly; lower `split`, or leave it out")
		}
	}
	share := func(of, i int64) int64 { return of/n + min(1, max(0, of%n-i)) }
	p.Parts = make([]*Policy, parts)
	for i := range n {
		l := p.Limit
		l.Count, l.Burst, l.Refill = share(l.Count, i), share(l.Burst, i), l.Refill/float64(n)
		q := *p
		q.Parts, q.Split, q.Place = nil, 0, uint16(i<<16/n)
		q.prepareAt(l, each)
		// If the number of parts changes, the counters start over, because the old parts had other shares of the limit.
		q.ID = q.fingerprint(string(binary.BigEndian.AppendUint64([]byte{byte(parts), byte(i)}, p.ID)))
		p.Parts[i] = &q
	}
	return nil
}

// Portion returns how many of n tokens part i of a split limit is charged, if the charge begins at part first. Parts are
// numbered from 0. A small cost is charged to the first part alone, and a larger cost to all parts evenly.
func (p *Policy) Portion(first, i int, n int64) int64 {
	parts := len(p.Parts)
	least := p.Parts[parts-1].Limit.Max()
	if n <= max(1, least/minPerPart) {
		if i == first {
			return n
		}
		return 0
	}
	each, more := n/int64(parts), n%int64(parts)
	if each >= least {
		first = 0 // only the parts with the lowest numbers have room for one more token
	}
	if int64((i-first+parts)%parts) < more {
		each++
	}
	return each
}

// Share returns the policy for one of several nodes without a common store: an even share of every number, at least one token.
func (p *Policy) Share(nodes int) *Policy {
	if p.PerNode || nodes <= 1 {
		return p
	}
	n := int64(nodes)
	l := p.Limit
	if l.Count = max(1, l.Count/n); l.Decimal {
		each := Amount(max(1, p.count/n))
		l.Count, l.Fraction = int64(each/micro), each%micro
	}
	l.Refill /= float64(n)
	if l.Burst > 0 {
		l.Burst = max(1, l.Burst/n)
	}
	if l.Validate() != nil {
		return p // the share is too small to be a limit
	}
	q := *p
	q.prepare(l)
	return &q
}
