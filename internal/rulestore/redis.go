package rulestore

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/weirhq/weir/redisstore"
)

// Redis is a [Store] beside the counters of a [redisstore.Store]. Its keys share a
// hash tag, so that scripts work in a Cluster; versions have no TTL.
type Redis struct {
	store *redisstore.Store

	numbers, about, texts string // a sorted set; hashes by number
	nodes, said           string // a sorted set by when they were last heard; a hash by name
	channel               string
}

// OverRedis keeps versions where a store keeps counters.
func OverRedis(s *redisstore.Store) *Redis {
	key := s.Prefix() + "{rules}"
	return &Redis{
		store:   s,
		numbers: key + "numbers", about: key + "about", texts: key + "texts",
		nodes: key + "nodes", said: key + "said",
		channel: key + "new",
	}
}

// Head is the number of the newest version.
func (r *Redis) Head(ctx context.Context) (int64, error) {
	all, err := r.List(ctx, 0, 1)
	if err != nil || len(all) == 0 {
		return 0, err
	}
	return all[0].Number, nil
}

// Get fetches a version.
func (r *Redis) Get(ctx context.Context, n int64) (Version, error) {
	number := strconv.FormatInt(n, 10)
	reply, err := r.carry(ctx, getScript, []string{r.about, r.texts}, number)
	switch {
	case err != nil:
		return Version{}, err
	case len(reply) == 0:
		return Version{}, missing(n)
	case len(reply) != 2:
		return Version{}, errReply
	}
	v, err := decode(number, reply[0])
	v.Text = []byte(reply[1])
	return v, err
}

func decode(number, known string) (Version, error) {
	n, err := strconv.ParseInt(number, 10, 64)
	var a about
	if err == nil {
		err = json.Unmarshal([]byte(known), &a)
	}
	if err != nil {
		return Version{}, fmt.Errorf("version %s in redis isn't one that Weir wrote: %w", number, err)
	}
	return a.version(n), nil
}

// List lists versions without their texts.
func (r *Redis) List(ctx context.Context, before int64, limit int) ([]Version, error) {
	below := "+inf"
	if before > 0 {
		below = "(" + strconv.FormatInt(before, 10)
	}
	reply, err := r.read(ctx, listScript, []string{r.numbers, r.about}, below, strconv.Itoa(limit))
	var all []Version
	for i := 0; err == nil && i+1 < len(reply); i += 2 {
		var v Version
		v, err = decode(reply[i], reply[i+1])
		all = append(all, v)
	}
	return all, err
}

// Append writes a version. An answer that is lost doesn't make it a conflict: who
// asks again under the same nonce is told the number that it got.
func (r *Redis) Append(ctx context.Context, floor int64, v Version) (Version, error) {
	v = dated(v)
	nonce := rand.Text()
	known, err := json.Marshal(struct {
		about
		Nonce string `json:"nonce"`
	}{aboutOf(v), nonce})
	if err != nil {
		return Version{}, err
	}
	number, outcome, err := r.write(ctx, appendScript, []string{r.numbers, r.about, r.texts, r.nodes, r.said},
		strconv.FormatInt(v.Parent, 10), strconv.FormatInt(floor, 10), string(known), rueidis.BinaryString(v.Text), nonce, silentFor, r.channel)
	switch {
	case err != nil:
		return Version{}, err
	case outcome == "2":
		return Version{}, awaited(number)
	case outcome != written:
		return Version{}, conflict(v.Parent, number)
	}
	v.Number = number
	return v, nil
}

// Restore puts a version back.
func (r *Redis) Restore(ctx context.Context, v Version) error {
	known, err := json.Marshal(aboutOf(dated(v)))
	if err != nil {
		return err
	}
	head, outcome, err := r.write(ctx, restoreScript, []string{r.numbers, r.about, r.texts},
		strconv.FormatInt(v.Number, 10), string(known), rueidis.BinaryString(v.Text), r.channel)
	if err == nil && outcome != written {
		return notAbove(v.Number, head)
	}
	return err
}

// said is what a node says about itself.
type said struct {
	Version string `json:"version"`
	Rules   int64  `json:"rules"`
	Store   string `json:"store"`
}

// Beat tells the others about this node. It is tried once.
func (r *Redis) Beat(ctx context.Context, n Node) (head int64, err error) {
	says, err := json.Marshal(said{n.Version, n.RulesVersion, n.Store})
	if err != nil {
		return 0, err
	}
	c, err := r.store.Client()
	if err != nil {
		return 0, err
	}
	return beatScript.Exec(ctx, c, []string{r.numbers, r.nodes, r.said}, []string{n.Name, string(says), silentFor}).AsInt64()
}

// Nodes lists the nodes that live. When they were seen is by this node's clock.
func (r *Redis) Nodes(ctx context.Context) ([]Node, error) {
	reply, err := r.read(ctx, nodesScript, []string{r.nodes, r.said}, silentFor)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	var all []Node
	for i := 0; i+2 < len(reply); i += 3 {
		var s said
		if err := json.Unmarshal([]byte(reply[i+1]), &s); err != nil {
			return nil, fmt.Errorf("what node %q says in redis isn't from Weir: %w", reply[i], err)
		}
		ago, err := strconv.ParseInt(reply[i+2], 10, 64)
		if err != nil {
			return nil, err
		}
		all = append(all, Node{reply[i], s.Version, s.Rules, s.Store, now.Add(-time.Duration(ago) * time.Millisecond)})
	}
	slices.SortFunc(all, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	return all, nil
}

// Watch listens for the message that comes with every version.
func (r *Redis) Watch(ctx context.Context, f func(n int64)) {
	for {
		if c, err := r.store.Client(); err == nil {
			_ = c.Receive(ctx, c.B().Subscribe().Channel(r.channel).Build(), func(m rueidis.PubSubMessage) {
				if n, err := strconv.ParseInt(m.Message, 10, 64); err == nil {
					f(n)
				}
			}) // which polls make good, whatever it is
		}
		if !sleep(ctx, jittered(watchAgain)) {
			return
		}
	}
}
