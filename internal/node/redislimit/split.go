package redislimit

import (
	"context"
	"encoding/binary"
	"hash/maphash"
	"math/bits"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir/counter"
)

var _ counter.Store = (*splitter)(nil)

// splitter is a Store for counters that are spread over several servers. It charges one part of a split
// limit instead of the whole, and tries a second part before it refuses a request. Requests take turns,
// so that the parts drain evenly.
type splitter struct {
	counter.Store
	timeout time.Duration // for the first and the second attempt together
	seed    maphash.Seed
	turns   [64]atomic.Uint64 // indexed by the hash of the subject, so that busy clients don't share a counter
}

func newSplitter(inner counter.Store, timeout time.Duration) *splitter {
	s := &splitter{Store: inner, timeout: timeout, seed: maphash.MakeSeed()}
	for i := range s.turns { // random, because nodes should start with different parts
		s.turns[i].Store(rand.Uint64())
	}
	return s
}

// next returns the next turn for a subject, from which partOf computes a part. A turn is a fraction of 2^64. Turns
// advance by the golden ratio, which spreads them evenly over any number of parts.
func (s *splitter) next(subject []byte) uint64 {
	return s.turns[maphash.Bytes(s.seed, subject)%uint64(len(s.turns))].Add(0x9e3779b97f4a7c15)
}

func isSplit(c *counter.Counter) bool { return len(c.Policy.Parts) > 0 }

// alone reports whether a cost of n is charged to a single part.
func alone(p *counter.Policy, n int64) bool { return p.Portion(0, 0, n) == n }

// partOf returns the part of a limit that is next in turn. If further isn't 0, it returns another part, at that
// distance after the first. Limits of one request that are split into the same number of parts use the same part
// number, so that those of one client lie in one hash slot.
func partOf(p *counter.Policy, turn uint64, further int) int {
	n := len(p.Parts)
	at, _ := bits.Mul64(turn, uint64(n))
	if further > 0 {
		further = 1 + (further-1)%(n-1)
	}
	return (int(at) + further) % n
}

// Take decides the charges: it debits all of them or none. If a request is refused only because parts of split limits
// are empty, it tries other parts once.
func (s *splitter) Take(ctx context.Context, charges []counter.Charge, results []counter.Result) {
	at := slices.IndexFunc(charges, func(c counter.Charge) bool { return isSplit(&c.Counter) })
	if at < 0 {
		s.Store.Take(ctx, charges, results)
		return
	}
	begun := time.Now()
	turn, hold := s.next(charges[at].Subject), charges[at].Hold
	if hold != nil { // a repeated check must use the parts of the first attempt
		turn = binary.LittleEndian.Uint64(hold.ID[:])
	}
	s.take(ctx, charges, results, turn, 0)
	further, by := 0, refusedBy(charges, results)
	if by == byParts {
		if further = 1 + rand.IntN(1<<16); hold != nil {
			further = 1 + int(binary.LittleEndian.Uint16(hold.ID[8:]))
		}
		by = s.again(ctx, begun.Add(s.timeout), charges, results, turn, further)
	}
	// Requests don't wait for shadow limits. If a part of a shadow limit refuses, try a part that hasn't been asked.
	for i := range charges {
		c, r := charges[i], &results[i]
		if r.Allowed || r.Err != nil || c.Peek || !c.Policy.Shadow || !isSplit(&c.Counter) {
			continue
		}
		c.Peek = by != byNobody
		var other [1]counter.Result
		if s.take(ctx, []counter.Charge{c}, other[:], turn, max(0, 1-further)); other[0].Allowed {
			*r = other[0]
		}
	}
}

// refusal says which limits refused a request.
type refusal int

const (
	byNobody refusal = iota
	byParts          // only parts of split limits, so other parts may have tokens
	byLimits
)

func refusedBy(charges []counter.Charge, results []counter.Result) (by refusal) {
	for i := range charges {
		c, r := &charges[i], &results[i]
		if r.Allowed || r.Err != nil || c.Policy.Shadow {
			continue
		}
		if !isSplit(&c.Counter) || c.Peek || r.RetryAfter == counter.Never {
			return byLimits
		}
		by = byParts
	}
	return by
}

// again asks other parts. If one of them can't be reached, the request stays refused, because an unreachable part must
// not be a way around the limit.
func (s *splitter) again(ctx context.Context, until time.Time, charges []counter.Charge, results []counter.Result, turn uint64, further int) refusal {
	other := slices.Clone(results)
	soon, cancel := context.WithDeadline(ctx, until)
	taken := s.take(soon, charges, other, turn, further)
	cancel()
	by := refusedBy(charges, other)
	for i := range charges {
		if other[i].Err != nil && results[i].Err == nil && isSplit(&charges[i].Counter) {
			if by == byNobody && taken != nil {
				_ = s.Store.GiveBack(ctx, counter.Once{}, 0, taken) // on an error, the tokens stay debited
			}
			return byParts
		}
	}
	for i := range charges {
		was, r := results[i], &results[i]
		*r = other[i]
		if isSplit(&charges[i].Counter) && r.Err == nil && !r.Allowed && was.Err == nil && !was.Allowed {
			r.RetryAfter = min(r.RetryAfter, was.RetryAfter)
			r.ResetAfter = max(r.ResetAfter, was.ResetAfter)
			r.Remaining = (r.Remaining + was.Remaining) / 2
		}
	}
	return by
}

// take asks the inner store for parts of the charges, and returns what to give back to undo the debits. A peek asks all
// parts, so it sees the whole limit.
func (s *splitter) take(ctx context.Context, charges []counter.Charge, results []counter.Result, turn uint64, further int) (taken []counter.Return) {
	var parts []counter.Charge
	ends := make([]int, len(charges)) // ends[i] is the end of charge i's parts in the list
	for i, c := range charges {
		if !isSplit(&c.Counter) {
			parts = append(parts, c)
		} else {
			whole, n := c.Policy, c.N
			first := partOf(whole, turn, further)
			for j, part := range whole.Parts {
				c.Policy, c.N = part, whole.Portion(first, j, n)
				if c.Peek && alone(whole, n) {
					c.N = n
				}
				if c.N > 0 || c.Peek {
					parts = append(parts, c)
				}
			}
		}
		ends[i] = len(parts)
	}
	all := make([]counter.Result, len(parts))
	s.Store.Take(ctx, parts, all)
	at := 0
	for i, end := range ends {
		if at < end {
			results[i] = all[at]
			if c := &charges[i]; isSplit(&c.Counter) {
				sum(c, all[at:end], &results[i])
				results[i].Part = partOf(c.Policy, turn, further) + 1
			}
		}
		at = end
	}
	for i, c := range parts {
		if r := &all[i]; r.Allowed && r.Err == nil && !c.Peek && !c.Policy.Book {
			taken = append(taken, counter.Return{Counter: c.Counter, N: c.N, Slot: r.Slot, Hold: c.Hold})
		}
	}
	return taken
}

// sum combines the results of the parts that were asked. It assumes that the other parts have as many tokens left.
func sum(c *counter.Charge, parts []counter.Result, r *counter.Result) {
	any, all, left := false, true, int64(0)
	for i := range parts {
		p := &parts[i]
		if p.Err != nil {
			*r = counter.Result{Err: p.Err, Local: p.Local} // the failure mode then applies to the whole limit
			return
		}
		any, all, left = any || p.Allowed, all && p.Allowed, left+p.Remaining
		r.ResetAfter = max(r.ResetAfter, p.ResetAfter)
		r.Slot = min(r.Slot, p.Slot) // at worst, the slot is of a window that has passed, to which nothing is given back
	}
	either := c.Peek && alone(c.Policy, c.N) // each part was asked for the whole cost, so one is enough
	r.Allowed = all || either && any
	r.Remaining = min(left*int64(len(c.Policy.Parts))/int64(len(parts)), c.Policy.Limit.Max())
	if r.RetryAfter = 0; !r.Allowed {
		r.Remaining = min(r.Remaining, max(0, c.N-1))
		r.RetryAfter = wait(parts, either)
	}
}

// wait returns how long until all refusing parts have enough tokens, or, if one is set, until the first of them has.
func wait(parts []counter.Result, one bool) (d time.Duration) {
	for i := range parts {
		p := &parts[i]
		switch {
		case p.Allowed:
		case p.RetryAfter == counter.Never:
			return counter.Never
		case d == 0 || one == (p.RetryAfter < d):
			d = p.RetryAfter
		}
	}
	return d
}

// GiveBack returns tokens to the parts that they came from. If that part isn't known, any part gets them.
func (s *splitter) GiveBack(ctx context.Context, once counter.Once, keep time.Duration, returns []counter.Return) error {
	var all []counter.Return
	for _, r := range returns {
		if !isSplit(&r.Counter) {
			all = append(all, r)
			continue
		}
		whole, n := r.Policy, r.N
		first := int(once[0]) % len(whole.Parts) // the same part in each attempt
		if once == (counter.Once{}) {
			first = partOf(whole, s.next(r.Subject), 0)
		}
		for j, part := range whole.Parts {
			if r.Policy, r.N = part, whole.Portion(first, j, n); r.N > 0 || j == first {
				all = append(all, r)
			}
		}
	}
	return s.Store.GiveBack(ctx, once, keep, all)
}

// Reset resets counters, with all of their parts.
func (s *splitter) Reset(ctx context.Context, counters []counter.Counter) error {
	var all []counter.Counter
	for _, c := range counters {
		if !isSplit(&c) {
			all = append(all, c)
			continue
		}
		for _, part := range c.Policy.Parts {
			all = append(all, counter.Counter{Policy: part, Subject: c.Subject})
		}
	}
	return s.Store.Reset(ctx, all)
}
