package redisstore

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	random "math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/rediscall"
)

// peers is what a node knows about the other nodes, and what it tells them about itself.
type peers struct {
	name  string                 // of this node
	id    uint32                 // this node's random number, by which accounts remember the node that borrows; never 0
	given bool                   // the secret came from the options, and isn't in Redis
	says  atomic.Pointer[string] // what this node tells the others: see Say
	news  signal                 // set when what this node says has changed, and must be sent
	live  atomic.Int32           // how many nodes use this Redis
	heard atomic.Pointer[Heard]
}

const (
	beatEvery = 2 * time.Second
	silentFor = "10" // seconds without a heartbeat until a node counts as gone
	// leastSecret is how many bytes a secret in Redis must have at least.
	leastSecret = "16"
)

func (p *peers) init(name string, secret []byte) {
	p.name, p.given, p.id = cmp.Or(name, rand.Text()), secret != nil, 1+random.Uint32N(1<<24-1)
	p.news = make(signal, 1)
	p.says.Store(new(string))
	p.live.Store(1)
	p.heard.Store(&Heard{})
}

// Say publishes a text about this node to the other nodes, in place of the previous one. It is sent at once, and with every
// heartbeat from then on. Say doesn't wait for that. See [Store.Peers].
func (s *Store) Say(text string) {
	if *s.peers.says.Swap(&text) == text {
		return
	}
	s.peers.news.set()
}

// Peer is a node that uses this Redis.
type Peer struct {
	Name string
	Says string // see [Store.Say]
	Seen time.Time
}

// Peers asks Redis for the nodes that sent a heartbeat in the last ten seconds, this one included. Peer.Seen is by this node's
// clock.
func (s *Store) Peers(ctx context.Context) ([]Peer, error) {
	m, err := listPeers.Run(ctx, s, rediscall.Twice, s.beatKeys()[:2], silentFor)
	if err != nil {
		return nil, err
	}
	reply, err := m.AsStrSlice()
	if err != nil {
		return nil, err
	}
	var all []Peer
	for ; len(reply) >= 3; reply = reply[3:] {
		ago, err := strconv.ParseFloat(reply[2], 64)
		if err != nil {
			return nil, err
		}
		all = append(all, Peer{reply[0], reply[1], time.Now().Add(-time.Duration(ago * float64(time.Second)))})
	}
	s.peers.heard.Store(&Heard{Peers: all, At: time.Now()})
	return all, nil
}

// Heard is the list of nodes that a node last got from Redis.
type Heard struct {
	Peers []Peer // as [Store.Peers] returned them; don't change them
	At    time.Time
	Stale bool // a newer list is overdue
}

// Heard returns the list of nodes that this one last got from Redis. It makes no call and never waits, so it works while Redis
// is lost, too.
func (s *Store) Heard() Heard {
	h := *s.peers.heard.Load()
	h.Stale = time.Since(h.At) > s.listEvery()+beatEvery+time.Second
	return h
}

// listEvery is how often a node asks for the list of nodes. With many nodes that is seldom, because every node gets a list
// with every other node.
func (s *Store) listEvery() time.Duration {
	return max(beatEvery, time.Duration(s.Nodes())*20*time.Millisecond)
}

// hear sends a heartbeat, and asks for the list of nodes if that is due.
func (s *Store) hear() {
	ctx, cancel := context.WithTimeout(s.life, time.Second)
	defer cancel()
	if s.beat(ctx) == nil && time.Since(s.peers.heard.Load().At) >= 3*s.listEvery()/4 { // 3/4, because heartbeats may come early
		_, _ = s.Peers(ctx) // on an error, the last list stays
	}
}

// Nodes returns how many nodes use this Redis, this one included. During an outage, it returns the number before.
func (s *Store) Nodes() int { return int(s.peers.live.Load()) }

// Secret returns the secret that the nodes share, or nil until it is known. The secret also seals receipts.
func (s *Store) Secret() []byte {
	if names := s.names.Load(); names != nil {
		return names.secret
	}
	return nil
}

func (s *Store) beatKeys() []string {
	return []string{s.prefix + "{nodes}", s.prefix + "{nodes}said", s.prefix + "{nodes}secret"}
}

// beat sends a heartbeat with what this node says. The answer has the number of nodes, the secret, and Redis' time. If Redis
// lost its data while a node started, nodes may have different secrets; then all of them switch to the one that is in Redis
// now.
func (s *Store) beat(ctx context.Context) error {
	offer := ""
	if !s.peers.given {
		offer = cmp.Or(string(s.Secret()), rand.Text()+rand.Text())
	}
	sent := time.Now()
	m, err := heartbeat.Run(ctx, s, rediscall.Once, s.beatKeys(), s.peers.name, silentFor, offer, leastSecret, *s.peers.says.Load())
	if err != nil {
		return err
	}
	reply, err := m.ToArray()
	if err != nil {
		return err
	}
	if len(reply) != 5 {
		return errReply
	}
	live, errLive := reply[0].AsInt64()
	secret, errSecret := reply[1].ToString()
	replaced, errReplaced := reply[2].AsInt64()
	seconds, errSeconds := reply[3].AsInt64()
	micros, errMicros := reply[4].AsInt64()
	if err := errors.Join(errLive, errSecret, errReplaced, errSeconds, errMicros); err != nil {
		return fmt.Errorf("%w: %w", errReply, err)
	}
	s.peers.live.Store(int32(max(1, live)))
	s.setClock(time.Unix(seconds, 1000*micros), sent)
	if replaced > 0 {
		s.tell("the nodes' secret in redis was empty, too short or no text: another was put in its place")
	}
	if !s.peers.given {
		s.adopt([]byte(secret))
	}
	return nil
}

// adopt switches to a secret, unless it is in use already. Only one goroutine calls it.
func (s *Store) adopt(secret []byte) {
	old := s.Secret()
	if bytes.Equal(secret, old) {
		return
	}
	if old != nil {
		s.logger.Warn("another secret is in redis: counters start over, and receipts made before are void")
	}
	s.onSecret(secret) // before charges use the new secret, so that their receipts aren't sealed with the old one
	s.names.Store(newNamer(s.prefix, secret))
}

// leave removes this node from the list of nodes.
func (s *Store) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	c, keys := *s.client.Load(), s.beatKeys()
	cmds := []rueidis.Completed{c.B().Zrem().Key(keys[0]).Member(s.peers.name).Build()}
	if *s.peers.says.Load() != "" {
		cmds = append(cmds, c.B().Hdel().Key(keys[1]).Field(s.peers.name).Build())
	}
	c.DoMulti(ctx, cmds...)
}

// Share returns a store for rules that count locally while Redis can't be reached. It takes from a local store, with limits
// divided by the number of nodes.
func (s *Store) Share(local counter.Store) counter.Store { return &share{Store: local, nodes: s.Nodes} }

type share struct {
	counter.Store
	nodes func() int
	cache sync.Map // of shareKey: *counter.Policy
}

type shareKey struct {
	policy *counter.Policy
	nodes  int
}

func (s *share) Take(ctx context.Context, charges []counter.Charge, results []counter.Result) {
	n := s.nodes()
	parts := make([]counter.Charge, len(charges))
	for i, c := range charges {
		parts[i] = c
		parts[i].Policy = s.policy(c.Policy, n)
	}
	s.Store.Take(ctx, parts, results)
}

// policy returns a node's share of a limit, which is at least one.
func (s *share) policy(p *counter.Policy, nodes int) *counter.Policy {
	if p.OnStoreFailure == counter.FailAllow {
		return p // a client that stays on one node must get the whole limit
	}
	key := shareKey{p, nodes}
	v, known := s.cache.Load(key)
	if !known {
		v, _ = s.cache.LoadOrStore(key, p.Share(nodes))
	}
	return v.(*counter.Policy)
}
