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
	// lookEvery is how often a node looks for questions in Redis.
	lookEvery = time.Second
	// asking is for how many seconds questions and their answers stay in Redis.
	asking = 10
	// callTime is the longest time that a call to Redis may take.
	callTime = 500 * time.Millisecond
	// allTold bounds the compressed size of all answers to one question. Redis keeps them for ten seconds. Each node
	// gets an equal share of it, but at least leastTold and at most mostTold bytes.
	allTold, leastTold, mostTold = 16 << 20, 16 << 10, 2 << 20
	// questions is how many questions a node answers per second. looked is how many it reads: more than it answers,
	// because answered questions stay in Redis for a while.
	questions, looked = 8, 64
)

// Cluster answers questions about the clients of all nodes: this node, and the other nodes that use the same Redis.
//
// Nodes exchange nothing until someone asks one of them a question. That node writes the question to Redis, where all
// nodes look once a second. Each of them sends only what the answer needs, so a node never sends everything that it
// remembers of the last hour.
type Cluster struct {
	top   *Top
	node  string
	redis *redisstore.Store // nil if there are no other nodes
	// sealer encrypts clients' identities while they are in Redis.
	sealer   sealer
	answered map[string]float64 // when the questions were asked that this node has answered; only Run uses it
	roster   roster

	mu       sync.Mutex
	asks     map[question]*asked // questions, with the answers of other nodes; guarded by mu
	asking   int                 // number of questions that aren't answered yet; guarded by mu
	hotAsked time.Time           // when the other nodes were last asked for hot clients; guarded by mu
	seats    chan struct{}       // holds a value for each question that is being asked
	room     atomic.Int64        // how many more bytes of answers may be kept in memory
	reading  sync.Mutex          // held while another node's answer is unpacked
	merging  sync.Mutex          // held while answers are merged, because some have a million numbers
}

// NewCluster makes a Cluster from a node's Top. redis is nil if there are no other nodes. digest returns a digest of
// the admin tokens, which is a secret that nodes share without Redis. If it returns nil, nodes don't send each other
// the identities of clients.
func NewCluster(t *Top, node string, redis *redisstore.Store, digest func() []byte) *Cluster {
	c := &Cluster{top: t, node: node, redis: redis, asks: map[question]*asked{}, seats: make(chan struct{}, atOnce)}
	c.sealer.digest, c.roster.seen = digest, map[string]time.Time{}
	c.room.Store(heard)
	return c
}

// The kinds of questions.
const (
	hotNow   = "hot"    // the hottest clients now
	ofRules  = "rules"  // the last hour of all rules, without their keys
	ofRule   = "rule"   // the last hour of one rule, with its keys
	ofClient = "client" // the last hour of the client that has a fingerprint: the rules that count it, and its identity
)

// question is a question that all nodes are asked.
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
	n, _ := parsePrint(q.name) // the fingerprint was validated when the question was made
	return n
}

func (c *Cluster) key(name string) string { return c.redis.Prefix() + "{top}" + name }

func (c *Cluster) questionsKey() string { return c.key("questions") }

func (c *Cluster) toldKey(question, node string) string {
	sum := sha256.Sum256([]byte(question))
	return c.key("told:" + hex.EncodeToString(sum[:8]) + ":" + node)
}

// budget returns the maximum size of a node's answer, in bytes.
func budget(nodes int) int { return min(mostTold, max(leastTold, allTold/max(1, nodes))) }

// Run answers the questions of other nodes until ctx is done.
func (c *Cluster) Run(ctx context.Context) error {
	for {
		c.sealer.box(c.top.key.Load()) // derive the cipher early, so that no question has to wait for it
		if !rediscall.Sleep(ctx, rediscall.Jittered(lookEvery)) {
			return nil
		}
		c.answer(ctx)
		c.roster.note(c.redis.Heard().Peers, time.Now())
	}
}

// answer answers the questions that were asked since the last look. A question about hot clients is answered at every
// look, as long as it stays in Redis, because consoles repeat it every two seconds. Errors aren't logged here, because
// the node that asked reports missing answers.
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
			continue // it is answered at the next look, one second later
		}
		left--
		b, err := c.top.packTold(parsed, c.node, budget(c.redis.Nodes()), c.sealer.box(c.top.key.Load()))
		if err == nil {
			tell := client.B().Set().Key(c.toldKey(q.Member, c.node)).Value(rueidis.BinaryString(b)).ExSeconds(asking).Build()
			err = client.Do(ctx, tell).Error()
		}
		if err == nil { // after an error, try again at the next look
			answered[q.Member] = q.Score
		}
	}
	c.answered = answered
}

// Gone is a node that has ended. Its counts are lost.
type Gone struct {
	Name string    `json:"name"`
	Seen time.Time `json:"seen"` // when the node last announced itself
}

// roster remembers which nodes there were in the last hour. The requests that went to nodes which have ended are
// missing in answers.
type roster struct {
	mu   sync.Mutex
	seen map[string]time.Time // by the node's name; the times are by this node's clock
}

// mostSeen bounds the size of the roster, because anybody who can write to Redis can make up nodes.
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

// gone returns the nodes that are no longer live. at is the current time by the clock that nodes share.
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
