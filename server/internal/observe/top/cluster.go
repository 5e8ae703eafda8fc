package top

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/weirhq/weir/internal/rediscall"
	"github.com/weirhq/weir/redisstore"
)

const (
	// lookEvery is how often a node looks in Redis for questions.
	lookEvery = time.Second
	// asking is for how many seconds a question stays in Redis, and the answers to it.
	asking = 10
	// callTime is the longest that a call to Redis may take.
	callTime = 500 * time.Millisecond
	// allTold limits the compressed size of all answers to one question, which Redis keeps for ten
	// seconds. Each node gets an equal share of it, but from leastTold to mostTold bytes.
	allTold, leastTold, mostTold = 16 << 20, 16 << 10, 2 << 20
	// questions is how many questions a node answers in a second, and looked is how many it reads,
	// since answered questions stay in Redis for a while.
	questions, looked = 8, 64
)

// Cluster answers questions about the clients of all nodes: this one, and the other nodes on the
// same Redis.
//
// Nodes exchange nothing until one of them is asked. That node writes the question to Redis, where
// all nodes look once a second. Each of them answers with only what the question needs, so a node
// never sends its whole hour.
type Cluster struct {
	top   *Top
	node  string
	redis *redisstore.Store // nil if there are no other nodes
	// sealer encrypts clients' identities on their way through Redis.
	sealer   sealer
	answered map[string]float64 // when each question was asked that this node has answered; only Run uses it
	roster   roster

	mu       sync.Mutex
	asks     map[question]*asked // answers of other nodes, by question; guarded by mu
	asking   int                 // questions without answers yet; guarded by mu
	hotAsked time.Time           // when the others were last asked for hot clients; guarded by mu
	seats    chan struct{}       // holds a value for each question that is being asked
	room     atomic.Int64        // how many more bytes of answers may be held
	reading  sync.Mutex          // held while an answer of another node is unpacked
	merging  sync.Mutex          // held while answers are combined: some have a million numbers
}

// NewCluster makes a Cluster over a node's Top. Redis is nil if there are no other nodes. Digest
// returns a digest of the admin tokens, which nodes have in common outside of Redis. If it returns
// nil, nodes don't send each other the identity behind a fingerprint.
func NewCluster(t *Top, node string, redis *redisstore.Store, digest func() []byte) *Cluster {
	c := &Cluster{top: t, node: node, redis: redis, asks: map[question]*asked{}, seats: make(chan struct{}, atOnce)}
	c.sealer.digest, c.roster.seen = digest, map[string]time.Time{}
	c.room.Store(heard)
	return c
}

// The kinds of questions.
const (
	hotNow   = "hot"    // the hottest clients at present
	ofRules  = "rules"  // the last hour of all rules, without their keys
	ofRule   = "rule"   // the last hour of one rule, with its keys
	ofClient = "client" // the last hour of the client with a fingerprint: the rules that count it, and its identity
)

// question is a question to all nodes.
type question struct{ kind, name string }

func (q question) String() string {
	if q.name == "" {
		return q.kind
	}
	return q.kind + ":" + q.name
}

func parseQuestion(text string) (q question, ok bool) {
	q.kind, q.name, _ = strings.Cut(text, ":")
	switch q.kind {
	case hotNow, ofRules:
		ok = q.name == ""
	case ofRule:
		ok = q.name != "" && clean(q.name)
	case ofClient:
		_, err := parsePrint(q.name)
		ok = err == nil
	}
	return q, ok
}

// print returns the fingerprint in a question about a client.
func (q question) print() uint32 {
	n, _ := parsePrint(q.name) // whoever made the question has validated it
	return n
}

func (c *Cluster) key(name string) string { return c.redis.Prefix() + "{top}" + name }

func (c *Cluster) questionsKey() string { return c.key("questions") }

func (c *Cluster) toldKey(question, node string) string {
	sum := sha256.Sum256([]byte(question))
	return c.key("told:" + hex.EncodeToString(sum[:8]) + ":" + node)
}

// budget returns how many bytes a node's answer may have.
func budget(nodes int) int { return min(mostTold, max(leastTold, allTold/max(1, nodes))) }

// Run answers the questions of other nodes until ctx is done.
func (c *Cluster) Run(ctx context.Context) error {
	for {
		c.sealer.box(c.top.key.Load()) // derive the cipher early, so that no question waits for it
		if !rediscall.Sleep(ctx, rediscall.Jittered(lookEvery)) {
			return nil
		}
		c.answer(ctx)
		c.roster.note(c.redis.Heard().Peers, time.Now())
	}
}

// answer answers the questions since the last look. While a question about hot clients stays in
// Redis, it is answered at every look, because consoles repeat it every two seconds. Errors aren't
// logged here: the node that asked reports missing answers.
func (c *Cluster) answer(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	client, err := c.redis.Client()
	if err != nil {
		return
	}
	look := client.B().Zrange().Key(c.questionsKey()).Min("0").Max(strconv.Itoa(looked - 1)).Rev().Withscores().Build()
	asked, err := client.Do(ctx, look).AsZScores()
	if err != nil {
		return
	}
	stands := float64(c.top.options.Now().Add(-asking * time.Second).UnixMilli())
	answered, left := make(map[string]float64, len(asked)), questions
	for _, q := range slices.Backward(asked) { // oldest first
		parsed, ok := parseQuestion(q.Member)
		switch again := parsed.kind == hotNow && q.Score >= stands; {
		case !ok:
			continue
		case c.answered[q.Member] >= q.Score && !again:
			answered[q.Member] = q.Score
			continue
		case left == 0:
			continue // answered one second later
		}
		left--
		b, err := c.top.packTold(parsed, c.node, budget(c.redis.Nodes()), c.sealer.box(c.top.key.Load()))
		if err == nil {
			tell := client.B().Set().Key(c.toldKey(q.Member, c.node)).Value(rueidis.BinaryString(b)).ExSeconds(asking).Build()
			err = client.Do(ctx, tell).Error()
		}
		if err == nil { // if it failed, try again at the next look
			answered[q.Member] = q.Score
		}
	}
	c.answered = answered
}

// Gone is a node that has ended. Its counts are lost.
type Gone struct {
	Name string    `json:"name"`
	Seen time.Time `json:"seen"` // when it last announced itself
}

// roster remembers which nodes there were in the last hour. Answers lack the requests of those that
// have ended.
type roster struct {
	mu   sync.Mutex
	seen map[string]time.Time // by node name; the times are of this node's clock
}

// mostSeen limits the size of the roster, since anybody who can write to Redis can make up nodes.
const mostSeen = 10_000

func (r *roster) note(peers []redisstore.Peer, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.seen, func(_ string, at time.Time) bool { return now.Sub(at) > HourSlots*HourSlot })
	for _, p := range peers {
		if _, known := r.seen[p.Name]; (known || len(r.seen) < mostSeen) && clean(p.Name) {
			r.seen[p.Name] = p.Seen
		}
	}
}

// gone returns the nodes that are no longer live. At is the current time of the clock that nodes
// share.
func (r *roster) gone(live []redisstore.Peer, at time.Time) []Gone {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := []Gone{}
	for name, seen := range r.seen {
		if !slices.ContainsFunc(live, func(p redisstore.Peer) bool { return p.Name == name }) {
			all = append(all, Gone{name, at.Add(-time.Since(seen)).UTC().Truncate(time.Second)})
		}
	}
	slices.SortFunc(all, func(a, b Gone) int { return strings.Compare(a.Name, b.Name) })
	return all
}
