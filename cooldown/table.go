package cooldown

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"slices"
	"sync"
	"time"

	"github.com/weirhq/weir/counter"
)

const shards = 64

// shard is a part of the clients.
type shard struct {
	mu      sync.Mutex
	clients map[ID]*client
}

func (g *Guard) shard(id ID) *shard { return &g.shards[id[0]%shards] }

// SetSecret names clients by another secret from now on, for when nodes learn what they share only after they have started, or
// share another one since the store has lost its data. Clients that are kept out stay so, and get their new names when they come
// again. What was known of others is forgotten.
func (g *Guard) SetSecret(secret []byte) {
	b := make([]byte, 16)
	if copy(b, secret) < len(b) {
		_, _ = rand.Read(b) // never fails
	}
	key := [2]uint64{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])}
	old := g.key.Swap(&key)
	if old != nil && *old == key {
		return // a store that has lost its data has got the secret back
	}
	g.former.Store(old)
	now := g.now()
	for i := range g.shards {
		s := &g.shards[i]
		s.mu.Lock()
		for id, x := range s.clients {
			if now >= x.ends {
				g.drop(s, id)
			}
		}
		s.mu.Unlock()
	}
	if g.kept.Load() == 0 {
		g.former.Store(nil)
	}
	g.sharing.restart(0)
}

// rename gives a client that is kept out under its former name the one that it has now, on all nodes, and returns when its
// cooldown ends, or 0 if there is none that refuses it.
func (g *Guard) rename(c *counter.Counter, id ID) (ends int64) {
	key := g.former.Load()
	if key == nil {
		return 0
	}
	former := nameOf(key, c)
	s, now, ahead := g.shard(former), g.now(), g.ahead()
	s.mu.Lock()
	x := s.clients[former]
	if x == nil || now >= x.ends {
		s.mu.Unlock()
		return 0
	}
	word := x.cooldown(id, ahead)
	if !x.shadow {
		ends = x.ends
	}
	gone := word
	gone.ID, gone.N, gone.Ends = former, 0, time.UnixMicro(x.said)
	g.drop(s, former)
	s.mu.Unlock()
	g.hear(&word, 0)
	if g.options.Shared != nil {
		g.sharing.announce(word)
		g.sharing.announce(gone)
	}
	return ends
}

// add makes room for a client. Its shard is locked.
func (g *Guard) add(s *shard, id ID, now int64) *client {
	if len(s.clients) >= max(1, g.options.Clients/shards) {
		g.drop(s, s.mildest(now))
	}
	x := &client{}
	s.clients[id] = x
	g.known.Add(1)
	return x
}

func (g *Guard) drop(s *shard, id ID) {
	x := s.clients[id]
	if x.n > 0 {
		g.kept.Add(-1)
	}
	g.dropped.set(x, 0)
	delete(s.clients, id)
	g.known.Add(-1)
}

// looked is how many clients are compared to find one that can be forgotten. They fall to hand in no order,
// so one of the worst tenth is forgotten once in a hundred million times.
const looked = 8

// mildest is the least of some offenders.
func (s *shard) mildest(now int64) (least ID) {
	var mild *client
	i := 0
	for id, x := range s.clients {
		if mild == nil || x.milder(mild, now) {
			least, mild = id, x
		}
		if i++; i == looked {
			break
		}
	}
	return least
}

func (x *client) milder(y *client, now int64) bool {
	return cmp.Or(
		cmp.Compare(x.repeats(now), y.repeats(now)),
		cmp.Compare(x.count, y.count),
		cmp.Compare(x.row, y.row),
		cmp.Compare(x.answered, y.answered)) < 0
}

// repeats is how many cooldowns it has had, one after the other.
func (x *client) repeats(now int64) int {
	if now >= x.forgets {
		return 0
	}
	return x.n
}

// idle is for how long a client without a cooldown is remembered after its last wait.
const idle = int64(5 * time.Minute / time.Microsecond)

// sweep forgets clients of a shard that are forgiven.
func (g *Guard) sweep(i int) {
	s, now := &g.shards[i%shards], g.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, x := range s.clients {
		if now >= max(x.forgets, x.ends, x.until+idle, x.window+idle) {
			g.drop(s, id)
		}
	}
}

// All lists the cooldowns in force, those that end last first.
func (g *Guard) All() []Cooldown {
	g.Use() // an operator may ask for other nodes' cooldowns before this node has had a request
	now, ahead := g.now(), g.ahead()
	var all []Cooldown
	for i := range g.shards {
		s := &g.shards[i]
		s.mu.Lock()
		for id, x := range s.clients {
			if now < x.ends {
				all = append(all, x.cooldown(id, ahead))
			}
		}
		s.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b Cooldown) int { return cmp.Or(b.Ends.Compare(a.Ends), a.ID.compare(b.ID)) })
	return all
}

// cooldown describes a client's cooldown by the clock that nodes share, which is ahead of this node's by the given µs. Unless that
// clock has stepped, the times are exactly those that were announced, and so the same on all nodes.
func (x *client) cooldown(id ID, ahead int64) Cooldown {
	if said := x.said - x.ends; max(said-ahead, ahead-said) < second {
		ahead = said
	}
	c := Cooldown{
		ID: id, Rule: x.rule, Client: x.shown, Fingerprint: x.print, N: x.n, Shadow: x.shadow,
		Ends: time.UnixMicro(x.ends + ahead), Forgets: time.UnixMicro(x.forgets + ahead),
	}
	if x.begun != 0 {
		c.Begun = time.UnixMicro(x.begun + ahead)
	}
	return c
}

// find returns the cooldown of a client, if it is in force, and when it was announced to end.
func (g *Guard) find(id ID) (c Cooldown, said int64, found bool) {
	s := g.shard(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.clients[id]; x != nil && g.now() < x.ends {
		return x.cooldown(id, g.ahead()), x.said, true
	}
	return c, 0, false
}

// Stats are figures of a Guard.
type Stats struct {
	InForce int    // cooldowns, without those in shadow
	Shadow  int    // cooldowns in shadow
	Begun   uint64 // by this node, ever
	Clients int64  // that are remembered
}

// Stats counts.
func (g *Guard) Stats() Stats {
	out := Stats{Begun: g.begun.Load(), Clients: g.known.Load()}
	if g.kept.Load() == 0 {
		return out
	}
	now := g.now()
	for i := range g.shards {
		s := &g.shards[i]
		s.mu.Lock()
		for _, x := range s.clients {
			switch {
			case now >= x.ends:
			case x.shadow:
				out.Shadow++
			default:
				out.InForce++
			}
		}
		s.mu.Unlock()
	}
	return out
}
