package cooldown

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"slices"
	"sync"
	"time"

	"github.com/weirhq/weir/counter"
)

const shards = 64

// shard holds some of the clients.
type shard struct {
	mu      sync.Mutex
	clients map[ID]*client
}

func (g *Guard) shard(id ID) *shard { return &g.shards[id[7]%shards] }

// each calls f for every client, with its shard locked.
func (g *Guard) each(f func(s *shard, id ID, x *client)) {
	for i := range g.shards {
		s := &g.shards[i]
		s.mu.Lock()
		for id, x := range s.clients {
			f(s, id, x)
		}
		s.mu.Unlock()
	}
}

// SetSecret changes the key under which clients' names are hashed. Nodes call it if they get the shared secret only after they
// have started, or if they share a new one because the store has lost its data. Clients in a cooldown stay in it, and get their
// new names when they send requests again. All other clients are forgotten.
func (g *Guard) SetSecret(secret []byte) {
	b := make([]byte, 16)
	if copy(b, secret) < len(b) {
		_, _ = rand.Read(b) // never fails
	}
	key := [2]uint64{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])}
	old := g.key.Swap(&key)
	if old != nil && *old == key {
		return // the store lost its data and has the same secret again
	}
	g.former.Store(old)
	now := g.now()
	g.each(func(s *shard, id ID, x *client) {
		if now >= x.ends {
			g.drop(s, id)
		}
	})
	if g.kept.Load() == 0 {
		g.former.Store(nil)
	}
	g.sharing.restart(0)
}

// rename moves a cooldown from a client's former ID to its current one, on all nodes. It returns when the cooldown ends, or 0
// if the client isn't kept out.
func (g *Guard) rename(c *counter.Counter, id ID) int64 {
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
	moved, ends := x.cooldown(id, ahead), x.enforced()
	gone := moved
	gone.ID, gone.N, gone.Ends = former, 0, x.last.Ends
	g.drop(s, former)
	s.mu.Unlock()
	g.hear(&moved, 0)
	if g.options.Shared != nil {
		g.sharing.announce(moved)
		g.sharing.announce(gone)
	}
	return ends
}

// add adds a client. If there is no room, it forgets another one. The caller holds the shard's lock.
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
	if x.last != nil {
		g.kept.Add(-1)
	}
	g.dropped.set(x, 0)
	delete(s.clients, id)
	g.known.Add(-1)
}

// looked is how many clients are compared to choose the mildest, which is forgotten. Their order is random. A client of the
// worst tenth is forgotten only if all eight are in that tenth, which happens once in a hundred million times.
const looked = 8

// mildest returns the mildest of a few random clients.
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
		cmp.Compare(x.streak, y.streak),
		cmp.Compare(x.answered, y.answered)) < 0
}

// repeats returns how many cooldowns in a row the client has had, or 0 if it is forgiven.
func (x *client) repeats(now int64) int {
	if now >= x.forgets {
		return 0
	}
	return x.last.N
}

// idle is how long after its last wait a client without a cooldown is remembered.
const idle = int64(5 * time.Minute / time.Microsecond)

// sweep forgets the clients of one shard that are forgiven or idle.
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

// All returns the cooldowns in force. Those that end last come first.
func (g *Guard) All() []Cooldown {
	g.Use() // so that Run reads other nodes' cooldowns even before this node's first request
	now, ahead := g.now(), g.ahead()
	var all []Cooldown
	g.each(func(_ *shard, id ID, x *client) {
		if now < x.ends {
			all = append(all, x.cooldown(id, ahead))
		}
	})
	slices.SortFunc(all, func(a, b Cooldown) int { return cmp.Or(b.Ends.Compare(a.Ends), bytes.Compare(a.ID[:], b.ID[:])) })
	return all
}

// cooldown describes a client's cooldown in shared time, which is ahead of this node's clock by ahead µs. Unless the shared
// clock has jumped, the result has exactly the announced times, so it is the same on all nodes.
func (x *client) cooldown(id ID, ahead int64) Cooldown {
	c := *x.last
	c.ID = id
	step := x.ends + ahead - c.Ends.UnixMicro()
	if max(step, -step) < second {
		step = 0
	}
	for _, at := range []*time.Time{&c.Begun, &c.Ends, &c.Forgets} {
		if !at.IsZero() {
			*at = time.UnixMicro(at.UnixMicro() + step)
		}
	}
	return c
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// Stats are numbers about a [Guard].
type Stats struct {
	InForce int    // cooldowns in force, not counting those in shadow
	Shadow  int    // cooldowns in shadow
	Begun   uint64 // cooldowns begun by this node
	Clients int64  // clients in memory
}

// Stats counts cooldowns and clients.
func (g *Guard) Stats() Stats {
	out := Stats{Begun: g.begun.Load(), Clients: g.known.Load()}
	if g.kept.Load() == 0 {
		return out
	}
	now := g.now()
	g.each(func(_ *shard, _ ID, x *client) {
		switch {
		case now >= x.ends:
		case x.last.Shadow:
			out.Shadow++
		default:
			out.InForce++
		}
	})
	return out
}
