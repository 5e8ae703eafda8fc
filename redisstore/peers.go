package redisstore

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/rediscall"
)

// peers is what a node knows of the other nodes, and tells them about itself.
type peers struct {
	name   string // of this node
	id     uint32 // of this node, for accounts that remember which node asks; never 0
	given  bool   // the secret was given, and isn't in Redis
	says   atomic.Pointer[string]
	news   chan struct{} // holds a value when the others don't know yet what this node says
	live   atomic.Int32
	heard  atomic.Pointer[Heard]
	mu     sync.Mutex
	secret []byte // guarded by mu; nil until it is known
}

const (
	beatEvery = 2 * time.Second
	silentFor = "10" // s, until a node counts as gone
	// leastSecret is how many bytes a secret in Redis has at least.
	leastSecret = "16"
	firstBeat   = 50 * time.Millisecond  // between attempts to reach Redis at first
	slowestTry  = 300 * time.Millisecond // likewise, after a while
)

func (p *peers) init(name string, secret []byte) {
	id := make([]byte, 8)
	_, _ = rand.Read(id) // never fails
	p.name, p.secret, p.given = cmp.Or(name, hex.EncodeToString(id)), secret, secret != nil
	p.id = max(1, uint32(id[0])|uint32(id[1])<<8|uint32(id[2])<<16)
	p.news = make(chan struct{}, 1)
	p.says.Store(new(string))
	p.live.Store(1)
	p.heard.Store(&Heard{})
}

// Say tells the other nodes something about this one, in place of what it said before: at once, and with
// every heartbeat from then on. It doesn't wait until they know. See [Store.Peers].
func (s *Store) Say(text string) {
	if *s.peers.says.Swap(&text) == text {
		return
	}
	select {
	case s.peers.news <- struct{}{}:
	default: // it holds one
	}
}

// Peer is a node that uses this Redis.
type Peer struct {
	Name string
	Says string // see [Store.Say]
	Seen time.Time
}

// Peers asks Redis for the nodes that were heard in the last ten seconds, this one included. When they
// were seen is by this node's clock.
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

// Heard is what a node remembers of the nodes that use its Redis.
type Heard struct {
	Peers []Peer // as [Store.Peers] returned them; they aren't to be changed
	At    time.Time
	Stale bool // Redis should have told more since then
}

// Heard returns the nodes as this one last heard of them, with a heartbeat. It makes no call and never waits, and so it has an
// answer while Redis is lost, too.
func (s *Store) Heard() Heard {
	h := *s.peers.heard.Load()
	h.Stale = time.Since(h.At) > s.listEvery()+beatEvery+time.Second
	return h
}

// listEvery is how often a node asks what all the others say. With many nodes that is seldom: each asks for as many
// lines as there are nodes, and Redis has better to do.
func (s *Store) listEvery() time.Duration {
	return max(beatEvery, time.Duration(s.Nodes())*20*time.Millisecond)
}

// hear tells the others about this node, and learns about them.
func (s *Store) hear() {
	ctx, cancel := context.WithTimeout(s.life, time.Second)
	defer cancel()
	if err := s.beat(ctx); err != nil {
		return
	}
	s.list(ctx)
}

// list asks for the other nodes if it is time to.
func (s *Store) list(ctx context.Context) {
	if time.Since(s.peers.heard.Load().At) >= 3*s.listEvery()/4 { // heartbeats come that early
		_, _ = s.Peers(ctx) // what was known stays
	}
}

// Nodes is how many nodes use this Redis, this one included; during an outage, how many did before it.
func (s *Store) Nodes() int { return int(s.peers.live.Load()) }

// Secret is what the nodes share, or nil until it is known. It seals receipts, too.
func (s *Store) Secret() []byte {
	s.peers.mu.Lock()
	defer s.peers.mu.Unlock()
	return s.peers.secret
}

// run reaches Redis, and stays in touch with it.
func (s *Store) run() {
	if !s.connect() {
		return
	}
	switch {
	case s.address.cluster:
		s.running.Go(s.follow)
	case s.sentinels != nil:
		s.running.Go(s.followPrimary)
	}
	s.weigh()
	s.first.close()
	close(s.ready)
	s.endTry()
	s.logger.Info("connected", "store", s.address.shown, "nodes", s.Nodes())
	s.running.Go(s.watch)
	s.hear()
	timer := time.NewTimer(rediscall.Jittered(beatEvery))
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			s.weigh()
			timer.Reset(rediscall.Jittered(beatEvery))
		case <-s.peers.news:
		case <-s.life.Done():
			return
		}
		s.hear()
	}
}

// guestShare is the part of a server's memory up to which guests get new counters: what they make up must leave room for
// the others.
const guestShare = 0.75

// weigh asks every server how full it is, how many keys it keeps, and whether it evicts them. Guests get no new counters while a
// server is nearly full. A server that doesn't answer counts as one with room. All are asked at once, since one that is lost would
// use up the others' time.
func (s *Store) weigh() {
	ctx, cancel := context.WithTimeout(s.life, time.Second)
	defer cancel()
	client := *s.client.Load()
	servers := map[string]rueidis.Client{s.address.shown: client}
	if s.address.cluster {
		servers = client.Nodes()
	}
	shards := map[string]*shard{}
	for _, sh := range s.shards() {
		shards[sh.name] = sh
	}
	var tight atomic.Bool
	var asked sync.WaitGroup
	for name, c := range servers {
		asked.Go(func() {
			info, err := c.Do(ctx, c.B().Info().Section("memory", "keyspace").Build()).ToString()
			if err != nil {
				return
			}
			var used, most float64
			var keys int64
			var policy string
			db := fmt.Sprintf("db%d:keys=%%d", s.address.option.SelectDB)
			for line := range strings.Lines(info) {
				_, _ = fmt.Sscanf(line, "used_memory:%g", &used)
				_, _ = fmt.Sscanf(line, "maxmemory:%g", &most)
				_, _ = fmt.Sscanf(line, "maxmemory_policy:%s", &policy)
				_, _ = fmt.Sscanf(line, db, &keys)
			}
			if most > 0 && used > guestShare*most {
				tight.Store(true)
			}
			if sh := shards[name]; sh != nil {
				sh.keys.Store(keys)
				s.noteEviction(sh, policy)
			}
		})
	}
	asked.Wait()
	s.tight.Store(tight.Load())
}

// noteEviction records a server's maxmemory-policy, and logs a change once. Health and metrics go on showing the policy.
func (s *Store) noteEviction(sh *shard, policy string) {
	if policy == "noeviction" {
		policy = ""
	}
	switch before := sh.evicts.Swap(&policy); {
	case before != nil && *before == policy:
	case policy != "":
		s.logger.Warn("redis evicts counters when it is full, and their limits start from zero: set maxmemory-policy to noeviction",
			"shard", s.shown(sh), "maxmemory_policy", policy)
	case before != nil:
		s.logger.Info("redis doesn't evict counters any more", "shard", s.shown(sh))
	}
}

// Tight reports whether a server is nearly full, so that guests get no new counters.
func (s *Store) Tight() bool { return s.tight.Load() }

// connect tries until Redis is there, and reports false if the store was closed first.
func (s *Store) connect() bool {
	for pause := firstBeat; ; pause = min(2*pause, slowestTry) {
		err := s.dial()
		if err == nil {
			return true
		}
		if text := err.Error(); text != *s.first.cause.Load() {
			s.logger.Warn("redis can't be reached", "store", s.address.shown, "error", text)
			s.first.cause.Store(&text)
		}
		s.endTry()
		if !rediscall.Sleep(s.life, rediscall.Jittered(pause)) {
			return false
		}
	}
}

// endTry says that reaching Redis was tried. It is called by one goroutine only.
func (s *Store) endTry() {
	select {
	case <-s.tried:
	default:
		close(s.tried)
	}
}

func (s *Store) dial() error {
	ctx, cancel := context.WithTimeout(s.life, time.Second)
	defer cancel()
	old := s.client.Load()
	if old == nil || s.sentinels != nil {
		if old != nil {
			s.sentinels.next() // the one that was asked last may not know of a failover
		}
		c, err := s.newClient(ctx)
		if err != nil && old == nil {
			return err
		}
		if c != nil { // otherwise the primary is where it was, or no Sentinel knows
			s.client.Store(&c)
			if old != nil {
				(*old).Close()
			}
		}
	}
	if s.address.cluster {
		if err := s.mapSlots(ctx); err != nil {
			return err
		}
	}
	err := s.beat(ctx)
	if s.peers.given && err != nil && ofSlot(err) {
		return nil // the other slots are served, and nothing in this one is needed
	}
	return err
}

func (s *Store) newClient(ctx context.Context) (rueidis.Client, error) {
	if s.sentinels != nil {
		return s.sentinels.find(ctx)
	}
	return rueidis.NewClient(s.address.option)
}

func (s *Store) beatKeys() []string {
	return []string{s.prefix + "{nodes}", s.prefix + "{nodes}said", s.prefix + "{nodes}secret"}
}

// beat tells the others that this node lives and what it says, and learns how many do and what the
// secret is. Nodes that disagree on it, after Redis lost its data while a node
// started, follow what is in Redis now.
func (s *Store) beat(ctx context.Context) error {
	offer := ""
	if !s.peers.given {
		if offer = string(s.Secret()); offer == "" {
			fresh := make([]byte, 32)
			_, _ = rand.Read(fresh)
			offer = string(fresh)
		}
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
	live, err := reply[0].AsInt64()
	if err != nil {
		return err
	}
	s.peers.live.Store(int32(max(1, live)))
	seconds, errS := reply[3].AsInt64()
	micros, errM := reply[4].AsInt64()
	if errS != nil || errM != nil {
		return errReply
	}
	s.setClock(time.Unix(seconds, 1000*micros), sent)
	if s.peers.given {
		return nil
	}
	secret, err := reply[1].ToString()
	if err != nil {
		return err
	}
	if replaced, err := reply[2].AsInt64(); err == nil && replaced > 0 {
		s.tell("the nodes' secret in redis was empty, too short or no text: another was put in its place")
	}
	s.adopt([]byte(secret))
	return nil
}

// adopt goes over to another secret. It is called by one goroutine only.
func (s *Store) adopt(secret []byte) {
	old := s.Secret()
	if string(secret) == string(old) {
		return
	}
	if old != nil {
		s.logger.Warn("another secret is in redis: counters start over, and receipts made before are void")
	}
	s.peers.mu.Lock()
	s.peers.secret = secret
	s.peers.mu.Unlock()
	s.onSecret(secret) // before charges go by it: no receipt for one of them is to be sealed with another
	s.names.Store(newNamer(s.prefix, secret))
}

// leave takes this node out of the count.
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

// Share is a store for rules that go on by themselves while Redis can't be
// reached: it takes from a local store, by limits divided by the number of nodes.
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

// policy is a node's share of a limit: at least one.
func (s *share) policy(p *counter.Policy, nodes int) *counter.Policy {
	key := shareKey{p, nodes}
	if p.OnStoreFailure == counter.FailAllow {
		return p // a client that stays on one node must get the whole limit
	}
	if v, ok := s.cache.Load(key); ok {
		return v.(*counter.Policy)
	}
	v, _ := s.cache.LoadOrStore(key, p.Share(nodes))
	return v.(*counter.Policy)
}
