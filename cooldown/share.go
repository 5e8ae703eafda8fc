package cooldown

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/weirhq/weir/counter"
)

// Shared exchanges counts and cooldowns between nodes.
type Shared interface {
	// AddUp adds the counts to those of all nodes, and returns the sums. A sum expires one window after its first count.
	AddUp(ctx context.Context, counts []Count) ([]int64, error)
	// Announce sends announcements to all nodes, and deletes the summed counts of the clients that they are about.
	Announce(ctx context.Context, about []ID, announcements []string) error
	// Announced returns the announcements after a position, and the position of the last one. The position "" is the beginning.
	// If the announcement at the given position is lost, Announced returns ErrLost.
	Announced(ctx context.Context, after string) (announcements []string, next string, err error)
	// Now is the clock that nodes share. Announcements use it, and it may jump.
	Now() time.Time
	// Nodes returns the number of nodes.
	Nodes() int
}

// ErrLost is what [Shared.Announced] returns if announcements were lost.
var ErrLost = errors.New("cooldown: announcements are lost")

// Count is a number of refusals of one client, to be added to those of other nodes.
type Count struct {
	ID     ID
	N      int64
	Window time.Duration
}

// sharing is what this node has yet to send to other nodes, and how far it has read their announcements.
type sharing struct {
	mu        sync.Mutex
	counts    map[ID]*counted
	cooldowns []Cooldown
	place     string // position of the last announcement read
	// round is how many times this node has started to read the announcements from the beginning, as it does after a loss.
	round uint64
	// lost is after how many exchanges this node announces lost cooldowns again; 0 if nothing was lost.
	lost int
}

// counted is a number of refusals of one client, to be added to those of other nodes.
type counted struct {
	Count
	need    int64 // the sum that begins a cooldown
	counter counter.Counter
}

const (
	every         = 500 * time.Millisecond // interval between exchanges
	mostCounts    = 10_000                 // the most counts that wait for an exchange
	mostCooldowns = 10_000                 // the most cooldowns that wait for an exchange
	batch         = 1000                   // the most counts or cooldowns in one call
)

// count queues a client's refusals for the next exchange if this node alone has counted at least its share of need. The caller
// holds the shard's lock.
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
		of := counter.Counter{Policy: c.Policy, Subject: bytes.Clone(c.Subject)}
		w = &counted{Count{id, 0, c.Policy.Abuse.Window}, need, of}
		s.counts[id] = w
	}
	w.N += x.count - x.told
	x.told = x.count
}

// announce queues a cooldown for the next exchange, and returns the current round.
func (s *sharing) announce(c Cooldown) (round uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.counts, c.ID)
	if len(s.cooldowns) < mostCooldowns {
		s.cooldowns = append(s.cooldowns, c)
	}
	return s.round
}

// restart makes the next exchange read all announcements from the beginning. If lost isn't 0, this node announces the missing
// cooldowns again after that many exchanges.
func (s *sharing) restart(lost int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.place, s.lost = "", lost
	s.round++
}

// Run exchanges counts and cooldowns with other nodes, and forgets old clients, until ctx ends.
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

// exchange sends the counts and cooldowns that other nodes don't have yet, and reads theirs. If a step fails, the next exchange
// repeats it.
func (g *Guard) exchange(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*every)
	defer cancel()
	for g.addUp(ctx) && g.announce(ctx) {
	}
	if g.listen(ctx) {
		g.restore()
	}
}

// CatchUp reads the cooldowns that other nodes have announced, if a rule has an Abuse. Call it before the first request: until
// then, a node that has just started admits clients that other nodes keep out.
func (g *Guard) CatchUp(ctx context.Context) {
	if g.options.Shared != nil && g.used.Load() {
		g.listen(ctx)
	}
}

// listen reads all new announcements, and reports whether it succeeded.
func (g *Guard) listen(ctx context.Context) bool {
	s := &g.sharing
	for {
		s.mu.Lock()
		place, round := s.place, s.round
		s.mu.Unlock()
		texts, next, err := g.options.Shared.Announced(ctx, place)
		switch {
		case errors.Is(err, ErrLost):
			// Each node waits for a random time, and reads what others restore, so that not all nodes announce the same.
			s.restart(1 + rand.IntN(max(1, min(g.options.Shared.Nodes(), 20))))
			continue
		case err != nil:
			return false
		}
		for _, text := range texts {
			var c Cooldown
			if json.Unmarshal([]byte(text), &c) == nil {
				g.hear(&c, round)
			}
		}
		s.mu.Lock()
		if s.round == round {
			s.place = next
		}
		s.mu.Unlock()
		if len(texts) == 0 {
			return true
		}
	}
}

// restore announces cooldowns again that the store has lost, if this is due.
func (g *Guard) restore() {
	s := &g.sharing
	s.mu.Lock()
	due, round := s.lost == 1, s.round
	s.lost = max(0, s.lost-1)
	s.mu.Unlock()
	if !due {
		return
	}
	now, ahead := g.now(), g.ahead()
	g.each(func(_ *shard, id ID, x *client) {
		if x.last != nil && x.heard != round && now < x.forgets {
			x.heard = s.announce(x.cooldown(id, ahead))
		}
	})
}

// addUp shares a batch of counts, begins the cooldowns that their sums call for, and reports whether it succeeded.
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
		return false // the node continues with its own counts
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

// announce sends a batch of cooldowns, and reports whether there may be more.
func (g *Guard) announce(ctx context.Context) bool {
	s := &g.sharing
	s.mu.Lock()
	some := s.cooldowns[:min(batch, len(s.cooldowns))]
	s.mu.Unlock()
	if len(some) == 0 {
		return false
	}
	ids, texts := make([]ID, len(some)), make([]string, len(some))
	for i := range some {
		b, _ := json.Marshal(&some[i]) // can't fail
		ids[i], texts[i] = some[i].ID, string(b)
	}
	if err := g.options.Shared.Announce(ctx, ids, texts); err != nil {
		return false
	}
	s.mu.Lock()
	s.cooldowns = s.cooldowns[len(some):]
	s.mu.Unlock()
	return true
}

// Announcements beyond these bounds are ignored, since others may be able to write to the store.
const (
	longest  = 2 * 366 * 24 * time.Hour
	mostText = 256
)

// hear makes an announced cooldown effective, or lifts it if its N is 0.
func (g *Guard) hear(c *Cooldown, round uint64) {
	now, ahead := g.now(), g.ahead()
	s := g.shard(c.ID)
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.clients[c.ID]
	if c.N == 0 {
		if x != nil && x.last != nil && !x.last.Ends.After(c.Ends) {
			g.drop(s, c.ID)
		}
		return
	}
	if !c.Begun.IsZero() {
		ahead = max(ahead, c.Begun.UnixMicro()-now) // the shared clock was set back since the cooldown began
	}
	ends, forgets := c.Ends.UnixMicro()-ahead, c.Forgets.UnixMicro()-ahead
	if c.N < 0 || forgets <= now || forgets < ends || forgets > now+longest.Microseconds() ||
		len(c.Rule) > mostText || len(c.Client)+len(c.Fingerprint) > mostText {
		return
	}
	if x == nil {
		x = g.add(s, c.ID, now)
	}
	if x.last == nil || c.Ends.After(x.last.Ends) || now >= x.ends && !c.Ends.Equal(x.last.Ends) {
		g.take(x, c, ahead)
	}
	x.heard = round
}

// Forgive ends the cooldown of the counter's client, if there is one.
func (g *Guard) Forgive(ctx context.Context, c *counter.Counter) error {
	_, err := g.Lift(ctx, g.ID(c))
	return err
}

// Lift ends a client's cooldown on all nodes, forgives the client, and returns the cooldown, or nil if there is none.
func (g *Guard) Lift(ctx context.Context, id ID) (*Cooldown, error) {
	s := g.shard(id)
	s.mu.Lock()
	x := s.clients[id]
	if x == nil || g.now() >= x.ends {
		s.mu.Unlock()
		return nil, nil
	}
	c := x.cooldown(id, g.ahead())
	lifted := c
	lifted.N, lifted.Ends = 0, x.last.Ends
	g.drop(s, id)
	s.mu.Unlock()
	if g.options.Shared == nil {
		return &c, nil
	}
	text, _ := json.Marshal(&lifted) // can't fail
	return &c, g.options.Shared.Announce(ctx, []ID{id}, []string{string(text)})
}
