package region

import (
	"context"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/node/stake"
	"github.com/weirhq/weir/internal/rediscall"
)

// flight is a request to other regions for tokens. Checks wait for its end.
type flight struct {
	done chan struct{}
	// need is the sum of the tokens that the waiting checks need, and most is the largest need of one check. stakes.mu
	// guards both until the request is sent.
	need, most int64
	left       bool // the request has been sent
}

// gather is the delay before a request is sent. In that time, checks that got too few tokens from the last answer can
// join it.
const gather = 5 * time.Millisecond

// lenders are the regions to ask: all regions in first at the same time, and then those in rest if the first ones
// didn't lend enough. If no region may be asked now, after is the time until one may be. little reports that every
// region had too few tokens the last time.
type lenders struct {
	first, rest []string
	after       time.Duration
	little      bool
}

// patience is how long a check waits at most until another region may be asked again.
const patience = 250 * time.Millisecond

// toAsk chooses the regions to ask when checks need tokens now: the home first, or all regions at the same time if the
// home had too few tokens the last time.
func (s *stakes) toAsk(k *stake.Stake, home string, now int64) (who lenders) {
	after := int64(math.MaxInt64 / 1000)
	who.little = true
	for _, name := range s.reachable() {
		rest := k.Rests(name, now)
		after = min(after, rest)
		who.little = who.little && k.HadLittle(name)
		switch {
		case rest > 0:
		case home == "" || name == home || k.HadLittle(home):
			who.first = append(who.first, name)
		default:
			who.rest = append(who.rest, name)
		}
	}
	who.after = time.Duration(after) * time.Microsecond
	return who
}

// toAskAhead chooses the regions to ask before a check has to wait: the home, or all regions if the home had too few
// tokens the last time. The home itself asks the regions that borrowed from it.
func (s *stakes) toAskAhead(k *stake.Stake, home string, now int64) lenders {
	names := []string{home}
	if home == "" {
		names = k.Borrowers()
	} else if k.HadLittle(home) {
		names = s.reachable()
	}
	return lenders{first: slices.DeleteFunc(names, func(name string) bool { return !k.MayAskAhead(name, now) })}
}

// reachable returns the names of the other regions, except silent and forgotten ones.
func (s *stakes) reachable() (names []string) {
	away := s.link.topology().Away
	for name, p := range s.link.peers {
		if away[name] != Forgotten && !p.silent() {
			names = append(names, name)
		}
	}
	return names
}

// ask asks other regions for the tokens that a check needs or, if need is 0, for tokens that will be needed soon. It
// doesn't block: it returns a channel that is closed when the regions have answered. If a request for this counter is
// already in flight, ask joins that request. It adds need to it only if the request hasn't been sent yet; otherwise,
// the answer may bring enough tokens anyway.
func (s *stakes) ask(key string, c *counter.Counter, need int64, who lenders) (done <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.flights[key]; f != nil {
		if !f.left {
			f.need, f.most = f.need+need, max(f.most, need)
		}
		return f.done
	}
	f := &flight{done: make(chan struct{}), need: need, most: need}
	if s.life.Err() != nil {
		close(f.done)
		return f.done
	}
	s.flights[key] = f
	counted := counter.Counter{Policy: c.Policy, Subject: slices.Clone(c.Subject)}
	s.running.Go(func() {
		s.fly(key, &counted, f, need, who)
		s.mu.Lock()
		delete(s.flights, key)
		_, tidying := s.tidies[key]
		s.tidies[key] = true
		s.mu.Unlock()
		close(f.done)
		if !tidying {
			s.tidy(key, &counted)
		}
	})
	return f.done
}

// tidyEvery is how often a node checks whether its region still needs borrowed tokens of a counter that gets no
// requests. With requests, each of them checks it.
const tidyEvery = 2 * time.Second

// tidy returns borrowed tokens that aren't needed. If it waited until their term ends, they would be lost. It stops
// once nothing is borrowed, unless another request to regions ended in the meantime and may have borrowed more.
func (s *stakes) tidy(key string, c *counter.Counter) {
	more := true
	for more && rediscall.Sleep(s.life, tidyEvery) {
		s.mu.Lock()
		s.tidies[key] = false
		s.mu.Unlock()
		ctx, cancel := context.WithTimeout(s.life, s.link.timeout)
		var to []string
		var borrowed bool
		err := s.update(ctx, key, c.Policy, func(k *stake.Stake, share stake.Share, now int64) {
			to, borrowed = k.Owed(c.Policy, share, now)
		})
		cancel()
		more = err == nil && borrowed // after an error, the update may still take effect
		if more && len(to) > 0 {
			s.ask(key, c, 0, lenders{first: to})
		}
		s.mu.Lock()
		if more = more || s.tidies[key]; !more {
			delete(s.tidies, key)
		}
		s.mu.Unlock()
	}
}

// fly sends a request to the lenders, after a delay in which other checks can join it.
func (s *stakes) fly(key string, c *counter.Counter, f *flight, need int64, who lenders) {
	ctx, cancel := context.WithTimeout(context.Background(), s.link.timeout)
	defer cancel()
	if need > 0 {
		time.Sleep(gather)
	}
	s.mu.Lock()
	f.left = true
	s.mu.Unlock()
	for _, of := range [][]string{who.first, who.rest} {
		var brought atomic.Int64
		var all sync.WaitGroup
		for _, name := range of {
			all.Go(func() { brought.Add(s.askOne(ctx, key, c, f, name)) })
		}
		if all.Wait(); brought.Load() >= f.need {
			return
		}
	}
}

// askOne asks one region, and returns how many tokens the region lent before ctx ended. If the answer comes later, it
// is still recorded.
func (s *stakes) askOne(ctx context.Context, key string, c *counter.Counter, f *flight, of string) int64 {
	p := s.link.peers[of]
	if p == nil || p.silent() || ctx.Err() != nil { // without recording a failure: other nodes may still reach the region
		return 0
	}
	m, err := changed(ctx, s, key, c.Policy, func(k *stake.Stake, share stake.Share, now int64) *stake.Message {
		return k.Ask(c.Policy, share, now, of, f.need)
	})
	if err != nil {
		return 0
	}
	m.Most = f.most
	answers := make(chan *stake.Message, 1) // closed without a value if there was no answer
	s.running.Go(func() {
		defer close(answers)
		if answer, err := s.link.talk(s.life, of, c, m); err == nil {
			answers <- answer
		}
	})
	select {
	case answer := <-answers:
		if answer != nil {
			return s.heard(key, c, p, m, answer)
		}
	case <-ctx.Done():
		s.running.Go(func() {
			if answer := <-answers; answer != nil {
				answer.Late = true
				s.heard(key, c, p, m, answer)
			}
		})
	}
	_ = s.update(s.life, key, c.Policy, func(k *stake.Stake, _ stake.Share, now int64) { k.Unheard(of, now) })
	return 0
}

// heard records a region's answer, and returns how many tokens the answer brought.
func (s *stakes) heard(key string, c *counter.Counter, p *peer, ask, answer *stake.Message) int64 {
	p.mu.Lock()
	p.Asks++
	if answer.Short {
		p.Short++
	}
	p.mu.Unlock()
	brought, _ := changed(s.life, s, key, c.Policy, func(k *stake.Stake, share stake.Share, now int64) int64 {
		return k.Heard(c.Policy, share, now, p.name, ask, answer)
	})
	return brought
}

// hear handles another region's message about a counter and returns the reply.
func (s *stakes) hear(ctx context.Context, from string, c *counter.Counter, m *stake.Message) (*stake.Message, error) {
	return changed(ctx, s, keyOf(c), c.Policy, func(k *stake.Stake, share stake.Share, now int64) *stake.Message {
		return k.Hear(c.Policy, share, now, from, m)
	})
}
