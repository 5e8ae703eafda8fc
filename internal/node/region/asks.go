package region

import (
	"context"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/node/stake"
)

// flight is an ask that is under way. Requests wait for it.
type flight struct {
	done chan struct{}
	// need is what requests wait for, and most what one of them does: guarded by stakes.mu until it has left.
	need, most int64
	left       bool
}

// gather is how long an ask waits before it leaves, so that requests which the last answer left short can join it.
const gather = 5 * time.Millisecond

// enter lets a request wait for other regions, unless too many do: each keeps a place that others could have. A client for whom all others had too
// little is likely above its limit, and has a quarter of what there is. Whoever enters must leave.
func (s *stakes) enter(key string, little bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if most := s.link.maxWaiting; most > 0 && (s.waiting >= most || little && s.waits[key] >= max(1, most/4)) {
		return false
	}
	s.waiting++
	s.waits[key]++
	return true
}

func (s *stakes) leave(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting--
	if s.waits[key]--; s.waits[key] == 0 {
		delete(s.waits, key)
	}
}

// lenders are regions to ask: all of the first at once, and then the rest, if those had less than requests wait for. If nobody may be
// asked now, after is how long it is until somebody may. Little: all of them had too little the last time.
type lenders struct {
	first, rest []string
	after       time.Duration
	little      bool
}

// patience is how long a request waits until others may be asked again.
const patience = 250 * time.Millisecond

// toAsk is whom to ask for what requests wait for: the home first, or all at once if that had too little the last time.
func (s *stakes) toAsk(k *stake.Stake, home string, now int64) (who lenders) {
	after := int64(math.MaxInt64 / 1000)
	who.little = true
	for _, name := range s.reachable(home) {
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

// toAskAhead is whom to ask before requests wait: the home, or all if it had too little the last time. The home asks those that have something
// of it.
func (s *stakes) toAskAhead(k *stake.Stake, home string, now int64) lenders {
	names := []string{home}
	if home == "" {
		names = k.Borrowers()
	} else if k.HadLittle(home) {
		names = s.reachable(home)
	}
	return lenders{first: slices.DeleteFunc(names, func(name string) bool { return !k.MayAskAhead(name, now) })}
}

// reachable are the other regions, the home first. Those that aren't heard, or were forgotten, are left out.
func (s *stakes) reachable(home string) (names []string) {
	away := s.link.topology().Away
	for _, name := range slices.Sorted(maps.Keys(s.link.peers)) {
		switch {
		case away[name] == Forgotten || s.link.peers[name].silent():
		case name == home:
			names = slices.Insert(names, 0, name)
		default:
			names = append(names, name)
		}
	}
	return names
}

// ask asks other regions for what a request needs, or with 0 for what will be needed soon. It doesn't block: done is closed when they have
// answered. If an ask for this counter is under way, it adds to that one. If that one has left already, nothing is added: what it brings may
// be enough.
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
	if s.closed {
		close(f.done)
		return f.done
	}
	s.flights[key] = f
	counted := counter.Counter{Policy: c.Policy, Subject: slices.Clone(c.Subject)}
	s.running.Go(func() {
		s.fly(key, &counted, f, need, who)
		s.mu.Lock()
		delete(s.flights, key)
		s.tidyLocked(key, &counted)
		s.mu.Unlock()
		close(f.done)
	})
	return f.done
}

// tidyEvery is how often a node looks whether what its region has borrowed is still needed. Requests look, too: this is for when none come.
const tidyEvery = 2 * time.Second

// tidyLocked has a counter looked at after a while, if it isn't yet.
func (s *stakes) tidyLocked(key string, c *counter.Counter) {
	if s.closed || s.tidies[key] != nil {
		return
	}
	s.tidies[key] = time.AfterFunc(tidyEvery, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.tidies, key)
		if !s.closed {
			s.running.Go(func() { s.tidy(key, c) })
		}
	})
}

// tidy gives back what was borrowed and isn't needed, before its term is over and it is lost. It goes on until nothing is borrowed.
func (s *stakes) tidy(key string, c *counter.Counter) {
	ctx, cancel := context.WithTimeout(context.Background(), s.link.timeout)
	defer cancel()
	var to []string
	var borrowed bool
	err := s.update(ctx, key, c.Policy, func(k *stake.Stake, share stake.Share, now int64) {
		to, borrowed = k.Owed(c.Policy, share, now)
	})
	switch {
	case err != nil: // the change may still be made, and write to
	case len(to) > 0:
		s.ask(key, c, 0, lenders{first: to})
	case borrowed:
		s.mu.Lock()
		s.tidyLocked(key, c)
		s.mu.Unlock()
	}
}

// fly asks lenders, once the requests that come with this one have said what they need.
func (s *stakes) fly(key string, c *counter.Counter, f *flight, need int64, who lenders) {
	ctx, cancel := context.WithTimeout(context.Background(), s.link.timeout)
	defer cancel()
	if need > 0 {
		time.Sleep(gather)
	}
	s.mu.Lock()
	f.left = true
	s.mu.Unlock()
	if s.askAll(ctx, key, c, f, who.first) < f.need {
		s.askAll(ctx, key, c, f, who.rest)
	}
}

// askAll asks regions at once, and returns what they brought.
func (s *stakes) askAll(ctx context.Context, key string, c *counter.Counter, f *flight, of []string) int64 {
	var brought atomic.Int64
	var all sync.WaitGroup
	for _, name := range of {
		all.Go(func() { brought.Add(s.askOne(ctx, key, c, f, name)) })
	}
	all.Wait()
	return brought.Load()
}

// askOne asks a region, and returns what it brought before ctx ended. An answer that comes later is heard all the same.
func (s *stakes) askOne(ctx context.Context, key string, c *counter.Counter, f *flight, of string) int64 {
	p := s.link.peers[of]
	if p == nil || p.silent() || ctx.Err() != nil { // nothing is sent, and other nodes may hear it
		return 0
	}
	var m *stake.Message
	err := s.update(ctx, key, c.Policy, func(k *stake.Stake, share stake.Share, now int64) {
		m = k.Ask(c.Policy, share, now, of, f.need)
		m.Most = f.most
	})
	if err != nil {
		return 0
	}
	answers := make(chan *stake.Message, 1) // closed without one: nobody will answer
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

// heard takes in a region's answer, and returns what it brought.
func (s *stakes) heard(key string, c *counter.Counter, p *peer, ask, answer *stake.Message) int64 {
	p.asks.Add(1)
	if answer.Short {
		p.short.Add(1)
	}
	var brought int64
	err := s.update(s.life, key, c.Policy, func(k *stake.Stake, share stake.Share, now int64) {
		brought = k.Heard(c.Policy, share, now, p.name, ask, answer)
	})
	if err != nil {
		return 0 // the change may still be made, and write brought
	}
	return brought
}

// hear takes in what another region says of a counter, and returns the answer.
func (s *stakes) hear(ctx context.Context, from string, c *counter.Counter, m *stake.Message) (*stake.Message, error) {
	var answer *stake.Message
	err := s.update(ctx, keyOf(c), c.Policy, func(k *stake.Stake, share stake.Share, now int64) {
		answer = k.Hear(c.Policy, share, now, from, m)
	})
	if err != nil {
		return nil, err // it may be heard yet, and answer be written
	}
	return answer, nil
}
