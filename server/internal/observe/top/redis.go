package top

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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
	// lookEvery is how often a node looks whether somebody asks which clients are hot. While nobody
	// asks, it does no more.
	lookEvery = time.Second
	// asking is for how many seconds after a question nodes send their lists, and how long Redis
	// keeps them.
	asking = 10
	// patience is how long the first question waits for the other nodes.
	patience = 1500 * time.Millisecond
	// again is how soon it looks again for their lists.
	again = 50 * time.Millisecond
	// old is the age from which a list is left from an earlier question.
	old = 3 * time.Second
	// oldest is the oldest list that is used: hot clients are those of the last ten seconds.
	oldest = asking * time.Second
	// callTime is the longest that a call to Redis may take.
	callTime = 500 * time.Millisecond
	// largest is how many bytes a list may have, compressed; unpackedList is how many it may have
	// unpacked, and allLists how many all lists may have together.
	largest, unpackedList, allLists = 1 << 20, 4 << 20, 128 << 20
)

// Shared combines a Top with those of the other nodes on the same Redis. While somebody asks, each
// node writes its list there every second, with a short life.
type Shared struct {
	top   *Top
	redis *redisstore.Store
	node  string
	// sealer encrypts names on their way through Redis.
	sealer sealer

	turn  chan struct{} // held by the goroutine that asks; it guards the fields below
	asked time.Time     // when the others were last asked
	lists []List        // the lists of all nodes, this node's first
	// missing are live nodes whose lists aren't there, and failed is why.
	missing []string
	failed  error

	reading  sync.Mutex // held while an answer of another node is unpacked
	hour     sync.Mutex
	asks     map[string]*asked  // answers about the hour, by question; guarded by hour
	asking   int                // questions that aren't answered yet; guarded by hour
	room     atomic.Int64       // how many more bytes of answers may be held
	seats    chan struct{}      // holds a value for each question that is being asked
	answered map[string]float64 // the questions that this node has answered, and when they were asked; only Run uses it
	roster   roster
}

// Share shares a node's Top with the other nodes. Digest returns a digest of the secrets that the
// nodes have in common outside of Redis, or nil if there are none: then nodes don't tell each other
// which client a fingerprint stands for.
func Share(t *Top, redis *redisstore.Store, node string, digest func() []byte) *Shared {
	s := &Shared{top: t, redis: redis, node: node, sealer: sealer{digest: digest}, turn: make(chan struct{}, 1), asks: map[string]*asked{}, seats: make(chan struct{}, atOnce)}
	s.room.Store(heard)
	return s
}

func (s *Shared) key(name string) string { return s.redis.Prefix() + "{top}" + name }

func (s *Shared) askedKey() string { return s.key("asked") }

// listKey differs from the key of older releases, whose lists have another format. During an
// upgrade, nodes of one release count as missing for the other.
func (s *Shared) listKey(node string) string { return s.key("hot:" + node) }

// Run writes this node's list for the others while somebody asks, until ctx is done.
func (s *Shared) Run(ctx context.Context) error {
	for {
		s.sealer.box(s.top.key.Load()) // so that no question waits for it
		if !rediscall.Sleep(ctx, rediscall.Jittered(lookEvery)) {
			return nil
		}
		_ = s.tell(ctx) // whoever needs the list reports that it is missing
		s.roster.note(s.redis.Heard().Peers, time.Now())
		s.hour.Lock()
		s.forgetOldLocked()
		s.hour.Unlock()
	}
}

func (s *Shared) tell(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	c, err := s.redis.Client()
	if err != nil {
		return err
	}
	replies := c.DoMulti(ctx, c.B().Get().Key(s.askedKey()).Build(),
		c.B().Zrange().Key(s.questionsKey()).Min("0").Max(strconv.Itoa(looked-1)).Rev().Withscores().Build())
	if asked, err := replies[1].AsZScores(); err == nil {
		s.answer(ctx, c, asked)
	}
	if err := replies[0].Error(); err != nil {
		return err // usually the key doesn't exist
	}
	told := s.top.List(s.node)
	list, _, err := told.packed()
	if err != nil {
		return err
	}
	return c.Do(ctx, c.B().Set().Key(s.listKey(s.node)).Value(rueidis.BinaryString(list)).ExSeconds(asking).Build()).Error()
}

// Answer lists the hot clients of all nodes that can be asked. If it fails for some nodes, the
// error says why, and the answer is about the others. The nodes are asked once a second at most,
// because a list may have megabytes.
func (s *Shared) Answer(ctx context.Context, q Query) (Answer, error) {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return Merge(q, []List{s.top.List(s.node)}, s.top.options.Now()), ctx.Err()
	}
	if time.Since(s.asked) >= lookEvery {
		s.ask(ctx)
	}
	out := Merge(q, s.lists, s.top.options.Now())
	out.NodesMissing = append(out.NodesMissing, s.missing...)
	out.Partial = partial(s.failed, len(s.lists))
	return out, s.failed
}

// partial says why nodes may be missing from an answer.
func partial(err error, nodes int) string {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, errBadList):
		return err.Error()
	}
	why := "Redis can't be reached"
	if said, ok := rueidis.IsRedisErr(err); ok {
		why = "Redis answers " + strconv.Quote(said.Error())
	} else if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, rueidis.ErrNoSlot) {
		why = "Redis, or the part of it that nodes meet in, doesn't answer"
	}
	if nodes > 1 {
		return why + ", so not all nodes are in this"
	}
	return why + ", so this is what this node knows alone"
}

// lost reports whether no server of Redis can be reached. If one can, it may be the one through
// which nodes meet.
func (s *Shared) lost() bool {
	return !slices.ContainsFunc(s.redis.Health().Shards, func(sh redisstore.ShardHealth) bool { return sh.Up })
}

func (s *Shared) ask(ctx context.Context) {
	wait := time.Duration(0)
	if time.Since(s.asked) > (asking-2)*time.Second {
		wait = patience
	}
	var lists []List
	lists, s.missing, s.failed = s.others(ctx, wait)
	s.lists = slices.Insert(lists, 0, s.top.List(s.node))
	if ctx.Err() == nil {
		s.asked = time.Now()
	} else {
		s.asked = time.Time{} // the caller has left, so the next one starts over
	}
}

// others asks for the lists of the other nodes until all are there and new, or the wait is over.
func (s *Shared) others(ctx context.Context, wait time.Duration) (lists []List, missing []string, err error) {
	ends := time.Now().Add(wait)
	if s.lost() {
		return nil, nil, redisstore.ErrUnavailable
	}
	call, cancel := context.WithTimeout(ctx, wait+callTime)
	defer cancel()
	c, err := s.redis.Client()
	if err != nil {
		return nil, nil, err
	}
	if err := c.Do(call, c.B().Set().Key(s.askedKey()).Value("1").ExSeconds(asking).Build()).Error(); err != nil {
		return nil, nil, err
	}
	peers, err := s.redis.Peers(call)
	if err != nil {
		return nil, nil, err
	}
	var names []string
	for _, p := range peers {
		if p.Name != s.node {
			names = append(names, p.Name)
		}
	}
	f := &found{lists: map[string]List{}, waiting: names, left: allLists}
	for {
		err = s.get(call, c, f)
		if err != nil || len(f.waiting) == 0 || time.Now().After(ends) || !rediscall.Sleep(call, again) {
			break
		}
	}
	for _, name := range names {
		if list, there := f.lists[name]; there {
			lists = append(lists, list)
		} else {
			missing = append(missing, name)
		}
	}
	return lists, missing, cmp.Or(f.failed, err)
}

// found collects the lists of other nodes.
type found struct {
	lists   map[string]List
	waiting []string // nodes whose lists are missing or old
	left    int      // how many more bytes all lists may have
	failed  error    // why some lists can't be read; those aren't read again
}

// get reads the lists that have arrived.
func (s *Shared) get(ctx context.Context, c rueidis.Client, f *found) (err error) {
	f.waiting, err = s.fetch(ctx, c, f.waiting, s.listKey, largest, func(node string, b []byte, wrong error) (again bool) {
		now := s.top.options.Now()
		if len(b) > 0 {
			wrong = s.unpackList(b, node, now, f)
		}
		if wrong != nil && wrong != errUnwanted {
			f.failed = cmp.Or(f.failed, badList(node, wrong))
			return false
		}
		list, there := f.lists[node]
		return !there || now.Sub(list.At) > old
	})
	return err
}

// fetch reads a value of each node, a few at a time, so that checks on the same connection don't wait for megabytes. It
// calls read with each value of at most that many bytes, or with what is wrong with it, and returns the nodes whose
// values to read again.
func (s *Shared) fetch(ctx context.Context, c rueidis.Client, nodes []string, key func(node string) string, most int, read func(node string, b []byte, wrong error) (again bool)) (waiting []string, err error) {
	for some := range slices.Chunk(nodes, toldAtOnce) {
		nodes = nodes[len(some):]
		var gets rueidis.Commands
		for _, node := range some {
			gets = append(gets, c.B().Getrange().Key(key(node)).Start(0).End(int64(most)).Build())
		}
		for i, reply := range c.DoMulti(ctx, gets...) {
			b, wrong, err := valueOf(reply, most)
			if err != nil {
				return append(append(waiting, some[i:]...), nodes...), err
			}
			if read(some[i], b, wrong) {
				waiting = append(waiting, some[i])
			}
		}
	}
	return waiting, nil
}

// unpackList unpacks a list, one at a time.
func (s *Shared) unpackList(b []byte, name string, now time.Time, f *found) error {
	s.reading.Lock()
	defer s.reading.Unlock()
	left := min(f.left, unpackedList)
	before := left
	list, err := unpackList(b, &left, now, f.lists[name].At)
	f.left -= before - left
	if err == nil && now.Sub(list.At) <= oldest {
		list.Node = name
		f.lists[name] = list
	}
	return err
}

// valueOf returns a value, which is empty if the key doesn't exist, or what is wrong with it. The
// value may have at most that many bytes. An error is one of the connection.
func valueOf(reply rueidis.RedisResult, most int) (b []byte, wrong, err error) {
	b, err = reply.AsBytes()
	if refused, is := rueidis.IsRedisErr(err); is {
		return nil, refused, nil // the value isn't a string, or a permission is missing
	}
	if len(b) > most {
		return nil, errTooLarge, nil
	}
	return b, nil, err
}

func badList(node string, err error) error {
	return fmt.Errorf("the list of %q in Redis %w: %w", node, errBadList, err)
}

// Gone is a node that has ended. What it had counted is lost.
type Gone struct {
	Name string    `json:"name"`
	Seen time.Time `json:"seen"` // when it was last heard
}

// roster remembers the nodes of the last hour. Those that have ended leave a gap in the answers of
// the others.
type roster struct {
	mu   sync.Mutex
	live []redisstore.Peer
	seen map[string]time.Time // by this node's clock
}

// mostSeen bounds the roster: whoever can write to Redis can make up nodes.
const mostSeen = 10_000

func (r *roster) note(peers []redisstore.Peer, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seen == nil {
		r.seen = map[string]time.Time{}
	}
	r.live = peers
	for name, at := range r.seen {
		if now.Sub(at) > HourSlots*HourSlot {
			delete(r.seen, name)
		}
	}
	for _, p := range peers {
		if _, known := r.seen[p.Name]; (known || len(r.seen) < mostSeen) && clean(p.Name) {
			r.seen[p.Name] = p.Seen
		}
	}
}

// gone returns the nodes that have ended. At is the present time of the clock that nodes share.
func (r *roster) gone(at time.Time) (all []Gone) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, seen := range r.seen {
		if !slices.ContainsFunc(r.live, func(p redisstore.Peer) bool { return p.Name == name }) {
			all = append(all, Gone{name, at.Add(-time.Since(seen)).UTC().Truncate(time.Second)})
		}
	}
	slices.SortFunc(all, func(a, b Gone) int { return strings.Compare(a.Name, b.Name) })
	return all
}
