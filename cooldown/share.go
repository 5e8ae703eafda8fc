package cooldown

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/weirhq/weir/counter"
)

// Shared is what nodes tell each other through.
type Shared interface {
	// AddUp adds to what all nodes have counted, and returns the sums. A sum is forgotten a window after it has begun.
	AddUp(ctx context.Context, counts []Count) ([]int64, error)
	// Announce tells all nodes something about clients, and forgets what was counted of them.
	Announce(ctx context.Context, about []ID, words []string) error
	// Announced returns the next announcements after a place, and the place of the last one. The place "" is the beginning. If the
	// announcement at the given place is lost, it returns ErrLost.
	Announced(ctx context.Context, after string) (words []string, next string, err error)
}

// ErrLost is returned by [Shared] when announcements are lost that were there before.
var ErrLost = errors.New("cooldown: announcements are lost")

// Count is refusals of one client that nodes add up.
type Count struct {
	ID     ID
	N      int64
	Window time.Duration
}

// sharing is what the other nodes are to be told.
type sharing struct {
	mu     sync.Mutex
	counts map[ID]*counted
	words  []Cooldown
	place  string // of the last announcement that was read
	// round counts how often they were read again from the beginning, as they are after a loss.
	round uint64
	// lost is, after a loss, the number of exchanges until this node puts back what is missing. 0 means that nothing is.
	lost int
}

// counted is a client whose refusals are to be added up.
type counted struct {
	Count
	need    int64 // what begins a cooldown
	counter counter.Counter
}

const (
	every      = 500 * time.Millisecond // between two exchanges
	mostCounts = 10_000                 // that wait for one
	mostWords  = 10_000
	batch      = 1000 // in one call
)

// count has the next exchange add up a client's refusals, if this node alone has counted more than its share of need. The client's
// shard is locked.
func (s *sharing) count(x *client, id ID, need int64, nodes int, c *counter.Charge) {
	if part := (need + int64(nodes) - 1) / int64(max(1, nodes)); x.count < part {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.counts[id]
	if w == nil {
		if len(s.counts) >= mostCounts {
			return
		}
		if s.counts == nil {
			s.counts = map[ID]*counted{}
		}
		w = &counted{Count{id, 0, c.Policy.Abuse.Window}, need, counter.Counter{Policy: c.Policy, Subject: append([]byte(nil), c.Subject...)}}
		s.counts[id] = w
	}
	w.N += x.count - x.told
	x.told = x.count
}

// announce tells the other nodes of a cooldown with the next exchange, and returns the current round.
func (s *sharing) announce(c Cooldown) (round uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.counts, c.ID)
	if len(s.words) < mostWords {
		s.words = append(s.words, c)
	}
	return s.round
}

// restart makes the next exchanges read all announcements from the beginning. After lost exchanges, this node announces its
// cooldowns that are missing there; if lost is 0, it doesn't.
func (s *sharing) restart(lost int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.place, s.lost = "", lost
	s.round++
}

// Run shares with the other nodes, and forgets whom it may, until ctx ends.
func (g *Guard) Run(ctx context.Context) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for i := 0; ; i++ {
		g.sweep(i)
		if g.options.Shared != nil && g.used.Load() {
			g.exchange(ctx)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// exchange tells the other nodes what they don't know, and learns what they know. What can't be told now is told later.
func (g *Guard) exchange(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*every)
	defer cancel()
	for g.addUp(ctx) && g.announce(ctx) {
	}
	if g.listenToAll(ctx) {
		g.putBack()
	}
}

// CatchUp learns of the cooldowns that other nodes have announced, if some rule has an Abuse. Call it before the first
// request: until Run has listened, a node that has just started admits clients that the others keep out.
func (g *Guard) CatchUp(ctx context.Context) {
	if g.options.Shared != nil && g.used.Load() {
		g.listenToAll(ctx)
	}
}

// listenToAll reports whether it has learned of all cooldowns that were announced.
func (g *Guard) listenToAll(ctx context.Context) bool {
	for {
		more, err := g.listen(ctx)
		switch {
		case errors.Is(err, ErrLost):
			// Nodes wait for random times, and read meanwhile what others have put back, so that not all announce the same.
			g.sharing.restart(1 + rand.IntN(max(1, min(g.options.Nodes(), 20))))
		case err != nil:
			return false
		case !more:
			return true
		}
	}
}

// putBack announces the cooldowns that are lost with the store's data, once that is due.
func (g *Guard) putBack() {
	s := &g.sharing
	s.mu.Lock()
	due, round := s.lost == 1, s.round
	s.lost = max(0, s.lost-1)
	s.mu.Unlock()
	if !due {
		return
	}
	now, ahead := g.now(), g.ahead()
	for i := range g.shards {
		sh := &g.shards[i]
		sh.mu.Lock()
		for id, x := range sh.clients {
			if x.n > 0 && x.heard != round && now < x.forgets {
				x.heard = s.announce(x.cooldown(id, ahead))
			}
		}
		sh.mu.Unlock()
	}
}

// addUp shares some counts, and reports whether there may be more.
func (g *Guard) addUp(ctx context.Context) bool {
	s := &g.sharing
	s.mu.Lock()
	var some []*counted
	var counts []Count
	for id, w := range s.counts {
		if len(some) == batch {
			break
		}
		some, counts = append(some, w), append(counts, w.Count)
		delete(s.counts, id)
	}
	s.mu.Unlock()
	if len(some) == 0 {
		return true
	}
	sums, err := g.options.Shared.AddUp(ctx, counts)
	if err != nil || len(sums) != len(some) {
		return false // the node goes on with what it has counted itself
	}
	now := g.now()
	for i, w := range some {
		if sums[i] >= w.need && sums[i]-w.N < w.need {
			sh := g.shard(w.ID)
			sh.mu.Lock()
			if x := sh.clients[w.ID]; x != nil && now >= x.ends {
				g.begin(x, w.ID, now, w.counter.Policy.Abuse, &w.counter)
			}
			sh.mu.Unlock()
		}
	}
	return true
}

// announce tells of some cooldowns, and reports whether there are more to tell of.
func (g *Guard) announce(ctx context.Context) bool {
	s := &g.sharing
	s.mu.Lock()
	some := s.words[:min(batch, len(s.words))]
	s.mu.Unlock()
	if len(some) == 0 {
		return false
	}
	ids, words := make([]ID, len(some)), make([]string, len(some))
	for i := range some {
		b, err := json.Marshal(&some[i])
		if err != nil {
			b = nil // which it can't be
		}
		ids[i], words[i] = some[i].ID, string(b)
	}
	if err := g.options.Shared.Announce(ctx, ids, words); err != nil {
		return false
	}
	s.mu.Lock()
	s.words = s.words[len(some):]
	s.mu.Unlock()
	return true
}

// listen learns of some cooldowns, and reports whether there are more.
func (g *Guard) listen(ctx context.Context) (more bool, err error) {
	s := &g.sharing
	s.mu.Lock()
	place, round := s.place, s.round
	s.mu.Unlock()
	words, next, err := g.options.Shared.Announced(ctx, place)
	if err != nil {
		return false, err
	}
	for _, w := range words {
		var c Cooldown
		if json.Unmarshal([]byte(w), &c) == nil {
			g.hear(&c, round)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.round == round {
		s.place = next
	}
	return len(words) > 0, nil
}

// Bounds on what a node believes: the store may hold what no node has written.
const (
	longest  = 2 * 366 * 24 * time.Hour
	mostText = 256
)

// hear puts a cooldown in force that some node has announced, or lifts it.
func (g *Guard) hear(c *Cooldown, round uint64) {
	now, ahead, said := g.now(), g.ahead(), c.Ends.UnixMicro()
	s := g.shard(c.ID)
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.clients[c.ID]
	if c.N == 0 {
		if x != nil && x.n > 0 && x.said <= said {
			g.drop(s, c.ID)
		}
		return
	}
	if !c.Begun.IsZero() {
		ahead = max(ahead, c.Begun.UnixMicro()-now) // the shared clock has stepped back since
	}
	ends, forgets := said-ahead, c.Forgets.UnixMicro()-ahead
	if forgets <= now || forgets < ends || forgets > now+longest.Microseconds() || len(c.Rule) > mostText || len(c.Client)+len(c.Fingerprint) > mostText || c.N < 0 {
		return
	}
	switch {
	case x == nil:
		x = g.add(s, c.ID, now)
		g.take(x, c, ahead)
	case said > x.said || now >= x.ends && said != x.said:
		g.take(x, c, ahead)
	}
	x.heard = round
}

// Forgive ends the cooldown of a counter's client, if it is in one.
func (g *Guard) Forgive(ctx context.Context, c *counter.Counter) error {
	_, err := g.Lift(ctx, g.ID(c))
	return err
}

// Lift ends a client's cooldown on all nodes, forgives the client, and returns the cooldown; or nil, if there is none.
func (g *Guard) Lift(ctx context.Context, id ID) (*Cooldown, error) {
	c, said, found := g.find(id)
	if !found {
		return nil, nil
	}
	lifted := c
	lifted.N, lifted.Ends = 0, time.UnixMicro(said)
	g.hear(&lifted, 0)
	if g.options.Shared == nil {
		return &c, nil
	}
	word, err := json.Marshal(&lifted)
	if err != nil {
		return &c, err
	}
	return &c, g.options.Shared.Announce(ctx, []ID{id}, []string{string(word)})
}
