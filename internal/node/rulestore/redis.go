package rulestore

import (
	"cmp"
	"context"
	"crypto/rand"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/weirhq/weir/internal/rediscall"
	"github.com/weirhq/weir/redisstore"
)

//go:embed lua
var files embed.FS

var (
	lookScript    = rediscall.NewScript(files, "versions", "look")
	listScript    = rediscall.NewScript(files, "versions", "list")
	getScript     = apart("versions", "get")
	appendScript  = apart("versions", "append")
	restoreScript = apart("versions", "restore")
	blocksScript  = rediscall.NewScript(files, "blocks")
)

// apart returns a script whose calls carry whole documents: see Apart in [rediscall.Script].
func apart(names ...string) *rediscall.Script {
	s := rediscall.NewScript(files, names...)
	s.Apart = true
	return s
}

const (
	patience   = 2 * time.Second        // how long a call waits for Redis
	briefly    = 300 * time.Millisecond // the same after a failed call, since operators want to know soon
	watchAgain = 200 * time.Millisecond // about how long to wait before subscribing again
)

var errReply = errors.New("redis: the script's reply makes no sense: is another version of it in use?")

// Redis is a [Store] in the same Redis as the counters of a [redisstore.Store]. Its keys share a hash tag, so that
// scripts work in a Redis Cluster. Versions have no TTL.
type Redis struct {
	store *redisstore.Store

	numbers, about, texts string // a sorted set, and hashes by number, or by number-hash for orphans
	orphans               string // a sorted set of "number-hash"
	blocks                string // the emergency list, as text
	channel               string

	away atomic.Bool // the last call failed
}

// OverRedis creates a Redis that keeps versions in the same Redis as a store's counters. What nodes report about their
// rules is sent with the heartbeats of that store.
func OverRedis(s *redisstore.Store) *Redis {
	key := s.Prefix() + "{rules}"
	return &Redis{
		store:   s,
		numbers: key + "numbers", about: key + "about", texts: key + "texts", orphans: key + "orphans",
		blocks: key + "blocks", channel: key + "new",
	}
}

func (r *Redis) run(ctx context.Context, s *rediscall.Script, keys []string, args ...string) (reply []string, err error) {
	err = r.call(ctx, func(ctx context.Context) error {
		m, err := s.Run(ctx, r.store, rediscall.Twice, keys, args...)
		if err == nil {
			reply, err = m.AsStrSlice()
		}
		return err
	})
	return reply, err
}

// call runs f with a timeout and remembers whether it failed.
func (r *Redis) call(caller context.Context, f func(context.Context) error) error {
	wait := patience
	if r.away.Load() {
		wait = briefly
	}
	ctx, cancel := context.WithTimeout(caller, wait)
	defer cancel()
	err := f(ctx)
	if caller.Err() != nil {
		return err // the caller gave up, which says nothing about Redis
	}
	r.away.Store(err != nil)
	_, answered := rueidis.IsRedisErr(err)
	switch {
	case err == nil || answered || errors.Is(err, redisstore.ErrUnavailable):
		return err
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w: no answer within %s", redisstore.ErrUnavailable, wait)
	}
	return fmt.Errorf("%w: %w", redisstore.ErrUnavailable, err)
}

// Head returns the newest version.
func (r *Redis) Head(ctx context.Context) (Version, error) {
	reply, err := r.run(ctx, lookScript, []string{r.numbers, r.about, r.texts})
	if err != nil {
		return Version{}, err
	}
	return decodeHead(reply)
}

func decodeHead(reply []string) (Version, error) {
	switch {
	case len(reply) == 0:
		return Version{}, fmt.Errorf("%w: redis holds entries of them, and none is a version that Weir wrote", ErrDamaged)
	case len(reply) < 2:
		return Version{}, errReply
	case reply[0] == "0":
		return Version{}, nil
	}
	return decode(reply[0], reply[1])
}

// Get fetches a version.
func (r *Redis) Get(ctx context.Context, n int64) (Version, error) { return r.get(ctx, n, "") }

// Orphan fetches an orphan.
func (r *Redis) Orphan(ctx context.Context, n int64, hash string) (Version, error) {
	if hash == "" {
		return Version{}, missing(n)
	}
	v, err := r.get(ctx, n, hash)
	v.Orphan = true
	return v, err
}

func (r *Redis) get(ctx context.Context, n int64, hash string) (Version, error) {
	number := strconv.FormatInt(n, 10)
	reply, err := r.run(ctx, getScript, []string{r.about, r.texts, r.orphans}, number, hash)
	switch {
	case err != nil:
		return Version{}, err
	case len(reply) == 0:
		return Version{}, missing(n)
	case len(reply) != 2:
		return Version{}, errReply
	}
	v, err := decode(number, reply[0])
	if err != nil {
		return v, err
	}
	return checked(v, []byte(reply[1]))
}

func decode(number, known string) (Version, error) {
	number, hash, orphan := strings.Cut(number, "-")
	n, err := strconv.ParseInt(number, 10, 64)
	v := Version{Number: n, Orphan: orphan}
	if err == nil {
		err = json.Unmarshal([]byte(known), &v)
	}
	if err != nil {
		return Version{Number: n}, fmt.Errorf("%w: version %s in redis isn't one that Weir wrote: %w", ErrDamaged, number, err)
	}
	if orphan {
		v.Hash = hash
	}
	return v, nil
}

// List lists versions without their texts. It leaves out entries that Weir didn't write.
func (r *Redis) List(ctx context.Context, before int64, limit int) ([]Version, error) {
	below := "+inf"
	if before > 0 {
		below = "(" + strconv.FormatInt(before, 10)
	}
	reply, err := r.run(ctx, listScript, []string{r.numbers, r.about, r.orphans}, below, strconv.Itoa(limit))
	var all []Version
	for i := 0; err == nil && i+1 < len(reply); i += 2 {
		if v, err := decode(reply[i], reply[i+1]); err == nil {
			all = append(all, v)
		}
	}
	sortVersions(all)
	return all, err
}

// Append writes a version. If the answer is lost, the caller can repeat the call with the same nonce, and gets the
// number that the first call assigned.
func (r *Redis) Append(ctx context.Context, floor int64, v Version) (Version, error) {
	if v.Time.IsZero() {
		v.Time = r.store.Now()
	}
	v = dated(v)
	nonce := rand.Text()
	known, err := json.Marshal(struct {
		Version
		Nonce string `json:"nonce"`
	}{v, nonce})
	if err != nil {
		return Version{}, err
	}
	reply, err := r.run(ctx, appendScript, []string{r.numbers, r.about, r.texts, r.orphans},
		strconv.FormatInt(v.Parent, 10), v.ParentHash, strconv.FormatInt(floor, 10), string(known), rueidis.BinaryString(v.Text), nonce,
		strconv.FormatInt(r.highest(ctx), 10), r.channel)
	if err != nil {
		return Version{}, err
	}
	if len(reply) < 2 {
		return Version{}, errReply
	}
	number, err := strconv.ParseInt(reply[0], 10, 64)
	switch {
	case err != nil:
		return Version{}, errReply
	case reply[1] == "1":
		v.Number = number
		return v, nil
	case reply[1] == "2":
		return Version{}, awaited(number)
	case reply[1] == "3":
		return decodeHead(nil)
	case len(reply) < 3:
		return Version{}, errReply
	}
	return Version{}, conflict(v, Version{Number: number, Hash: reply[2]})
}

// PutBack writes a version or an orphan, unless it already exists.
func (r *Redis) PutBack(ctx context.Context, v Version) error {
	v = dated(v)
	known, err := json.Marshal(v)
	if err != nil {
		return err
	}
	orphan := "0"
	if v.Orphan {
		orphan = "1"
	}
	reply, err := r.run(ctx, restoreScript, []string{r.numbers, r.about, r.texts, r.orphans},
		strconv.FormatInt(v.Number, 10), v.Hash, string(known), rueidis.BinaryString(v.Text), r.channel, orphan)
	switch {
	case err != nil:
		return err
	case len(reply) != 1:
		return errReply
	case reply[0] != "1":
		return taken(v)
	}
	return nil
}

type nodeReport struct {
	Node
	File int64 `json:"file,omitempty"` // set instead of Node.RulesVersion if the rules come from a file, because other nodes must not wait for their versions
}

// mostLost bounds how many unreachable servers a node reports, because all other nodes receive the report every two
// seconds.
const mostLost = 16

// Say encodes a node's report for [redisstore.Store.Say]. [NodesOf] decodes it.
func Say(n Node) string {
	s := nodeReport{Node: n}
	s.Lost = n.Lost[:min(mostLost, len(n.Lost))]
	if n.InFile {
		s.RulesVersion, s.File = 0, n.RulesVersion
	}
	text, err := json.Marshal(s)
	if err != nil {
		panic(err) // can't happen: there are only strings and numbers
	}
	return string(text)
}

// NodesOf decodes the reports of nodes. It sorts them by name.
func NodesOf(peers []redisstore.Peer) (all []Node) {
	for _, p := range peers {
		var s nodeReport
		if json.Unmarshal([]byte(p.Says), &s) == nil {
			n := s.Node
			n.Name, n.Seen, n.InFile, n.RulesVersion = p.Name, p.Seen, s.File > 0, n.RulesVersion+s.File
			all = append(all, n)
		}
	}
	slices.SortFunc(all, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// Beat reports this node to the others with the next heartbeat of its counter store, and asks about versions. It
// doesn't retry.
func (r *Redis) Beat(ctx context.Context, n Node, kept ...Version) (p Pulse, err error) {
	r.store.Say(Say(n))
	var args []string
	for _, v := range kept {
		args = append(args, strconv.FormatInt(v.Number, 10), v.Hash)
	}
	m, err := lookScript.Run(ctx, r.store, rediscall.Once, []string{r.numbers, r.about, r.texts}, args...)
	r.away.Store(err != nil)
	if err != nil {
		return p, err
	}
	reply, err := m.AsStrSlice()
	if err != nil {
		return p, err
	}
	if p.Head, err = decodeHead(reply); err != nil {
		return p, err
	}
	if len(reply) != 2+len(kept) {
		return p, errReply
	}
	for i, v := range kept {
		has := reply[2+i]
		p.Mine = map[string]Presence{"1": InLine, "2": Orphaned, "3": InLine}[has]
		if has == "0" || has == "3" {
			p.Lost = append(p.Lost, v)
		}
	}
	return p, nil
}

// highest returns the highest version number that a living node has. If Redis doesn't answer, it returns 0. The rules
// can then still be changed, and hashes tell versions with the same number apart.
func (r *Redis) highest(ctx context.Context) (n int64) {
	ctx, cancel := context.WithTimeout(ctx, beatTimeout)
	defer cancel()
	_ = r.call(ctx, func(ctx context.Context) error {
		peers, err := r.store.Peers(ctx)
		for _, node := range NodesOf(peers) {
			if !node.InFile {
				n = max(n, node.RulesVersion)
			}
		}
		return err
	})
	return n
}

// Watch listens for the messages that announce new versions.
func (r *Redis) Watch(ctx context.Context, f func(n int64)) {
	for {
		if c, err := r.store.Client(); err == nil {
			_ = c.Receive(ctx, c.B().Subscribe().Channel(r.channel).Build(), func(m rueidis.PubSubMessage) {
				if n, err := strconv.ParseInt(m.Message, 10, 64); err == nil {
					f(n)
				}
			}) // ignore errors: the next poll finds the version
		}
		if !rediscall.Sleep(ctx, rediscall.Jittered(watchAgain)) {
			return
		}
	}
}
