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
	// pollEvery is how often it looks for their answers.
	pollEvery = 50 * time.Millisecond
	// readAtOnce is how many answers it reads at a time.
	readAtOnce = 16
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

// ask asks for the lists of the other nodes. Without a list that is new, it takes an older one.
func (s *Shared) ask(ctx context.Context) {
	wait := time.Duration(0)
	if time.Since(s.asked) > (asking-2)*time.Second {
		wait = patience
	}
	f := &found{lists: map[string]List{}, left: allLists}
	nodes, err := s.inquire(ctx, inquiry{
		ask: func(b rueidis.Builder) []rueidis.Completed {
			return rueidis.Commands{b.Set().Key(s.askedKey()).Value("1").ExSeconds(asking).Build()}
		},
		wait: wait, key: s.listKey, most: largest,
		read: func(node string, b []byte) (again bool, err error) {
			now := s.top.options.Now()
			err = s.unpackList(b, node, now, f)
			list, there := f.lists[node]
			return !there || now.Sub(list.At) > old, err
		},
	})
	lists, missing := sorted(nodes, f.lists)
	s.lists, s.missing, s.failed = slices.Insert(lists, 0, s.top.List(s.node)), missing, err
	s.asked = time.Now()
	if ctx.Err() != nil {
		s.asked = time.Time{} // the caller has left, so the next one starts over
	}
}

// inquiry is a question to all other nodes. Each of them writes its answer to a key of its own.
type inquiry struct {
	ask  func(rueidis.Builder) []rueidis.Completed // the commands that write the question
	wait time.Duration                             // for the answers
	key  func(node string) string                  // of an answer
	most int                                       // bytes of an answer
	// read reads an answer, and reports whether to look for a newer one. Answers that can't be read
	// aren't looked at again.
	read func(node string, b []byte) (again bool, err error)
}

// inquire asks the other nodes until all have answered, or the wait is over. It returns their
// names. If some couldn't be asked or their answers couldn't be read, the error says why.
func (s *Shared) inquire(ctx context.Context, q inquiry) (nodes []string, err error) {
	if s.lost() {
		return nil, redisstore.ErrUnavailable
	}
	ctx, cancel := context.WithTimeout(ctx, q.wait+callTime)
	defer cancel()
	c, err := s.redis.Client()
	if err != nil {
		return nil, err
	}
	for _, reply := range c.DoMulti(ctx, q.ask(c.B())...) {
		if err := reply.Error(); err != nil {
			return nil, err
		}
	}
	peers, err := s.redis.Peers(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range peers {
		if p.Name != s.node {
			nodes = append(nodes, p.Name)
		}
	}
	var failed error
	for waiting, ends := nodes, time.Now().Add(q.wait); ; {
		var bad error
		waiting, bad, err = q.readAll(ctx, c, waiting)
		failed = cmp.Or(failed, bad)
		if err != nil || len(waiting) == 0 || time.Now().After(ends) || !rediscall.Sleep(ctx, pollEvery) {
			return nodes, cmp.Or(failed, err)
		}
	}
}

// readAll reads the answers that have arrived, a few at a time, so that checks on the same
// connection don't wait for megabytes. It returns the nodes whose answers to look for again, and
// why some answers can't be read.
func (q *inquiry) readAll(ctx context.Context, c rueidis.Client, nodes []string) (waiting []string, bad, err error) {
	for some := range slices.Chunk(nodes, readAtOnce) {
		var gets rueidis.Commands
		for _, node := range some {
			gets = append(gets, c.B().Getrange().Key(q.key(node)).Start(0).End(int64(q.most)).Build())
		}
		for i, reply := range c.DoMulti(ctx, gets...) {
			b, wrong, err := valueOf(reply, q.most)
			if err != nil {
				return nil, bad, err
			}
			again := true
			if len(b) > 0 && wrong == nil {
				again, wrong = q.read(some[i], b)
			}
			switch {
			case wrong != nil && wrong != errUnwanted:
				bad = cmp.Or(bad, fmt.Errorf("the list of %q in Redis %w: %w", some[i], errBadList, wrong))
			case again:
				waiting = append(waiting, some[i])
			}
		}
	}
	return waiting, bad, nil
}

// sorted returns the answers in the order of the nodes, and the nodes that have none.
func sorted[T any](nodes []string, answers map[string]T) (all []T, missing []string) {
	for _, node := range nodes {
		if answer, there := answers[node]; there {
			all = append(all, answer)
		} else {
			missing = append(missing, node)
		}
	}
	return all, missing
}

// found collects the lists of other nodes.
type found struct {
	lists map[string]List
	left  int // how many more bytes all lists may have
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
