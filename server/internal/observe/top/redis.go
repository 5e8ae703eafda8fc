package top

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/weirhq/weir/internal/rediscall"
	"github.com/weirhq/weir/redisstore"
)

const (
	// lookEvery is how often a node looks whether somebody asks who is hot. As long as nobody does, that is all.
	lookEvery = time.Second
	// asking is how many seconds after a question nodes go on to tell, and how long Redis keeps what they have told.
	asking = 10
	// patience is how long the first question waits for the others.
	patience = 1500 * time.Millisecond
	// again is how soon it looks again meanwhile.
	again = 50 * time.Millisecond
	// old is a list that the last question left behind.
	old = 3 * time.Second
	// oldest is how old a list may be: what is hot was seen in the last ten seconds.
	oldest = asking * time.Second
	// callTime is the longest that a call waits for Redis.
	callTime = 500 * time.Millisecond
	// largest is how many bytes a list has, compressed, unpackedList what it weighs when it is unpacked, and allLists what all weigh.
	largest, unpackedList, allLists = 1 << 20, 4 << 20, 128 << 20
)

// Shared is a Top with those of the other nodes that use a Redis. While somebody asks, each node writes
// its list there every second, with a short life.
type Shared struct {
	top   *Top
	redis *redisstore.Store
	node  string
	// sealer seals names on their way through Redis.
	sealer sealer

	turn  chan struct{} // is held by whoever asks, and guards what follows
	asked time.Time     // when the others were last asked
	lists []List        // what all said, this node first
	// missing are living nodes whose lists aren't there, and failed is why.
	missing []string
	failed  error

	reading  sync.Mutex // is held while an answer of another node is unpacked
	hour     sync.Mutex
	asks     map[string]*asked  // of the hour, by question; guarded by hour
	asking   int                // questions that aren't over; likewise
	room     atomic.Int64       // for more answers
	seats    chan struct{}      // is full while as many questions are asked as may be at a time
	answered map[string]float64 // questions, with when they were asked; for Run alone
	roster   roster
}

// Share shares what a node knows. Digest stands for what the nodes have in common that isn't in Redis, and is nil where that is nothing:
// then nodes don't tell each other who a fingerprint stands for.
func Share(t *Top, redis *redisstore.Store, node string, digest func() []byte) *Shared {
	s := &Shared{top: t, redis: redis, node: node, sealer: sealer{digest: digest}, turn: make(chan struct{}, 1), asks: map[string]*asked{}, seats: make(chan struct{}, atOnce)}
	s.room.Store(heard)
	return s
}

func (s *Shared) key(name string) string { return s.redis.Prefix() + "{top}" + name }

func (s *Shared) askedKey() string { return s.key("asked") }

// listKey isn't that of older releases, whose lists were of another form. So nodes of either are missing at the others while they are upgraded.
func (s *Shared) listKey(node string) string { return s.key("hot:" + node) }

// Run tells the other nodes what this one knows, while somebody asks, until ctx is done.
func (s *Shared) Run(ctx context.Context) error {
	for {
		s.sealer.box(s.top.key.Load()) // so that nobody waits for it
		if !rediscall.Sleep(ctx, rediscall.Jittered(lookEvery)) {
			return nil
		}
		_ = s.tell(ctx) // a list that is missing is named where it is missed
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
		return err // mostly it isn't there
	}
	told := s.top.List(s.node)
	list, _, err := told.packed()
	if err != nil {
		return err
	}
	return c.Do(ctx, c.B().Set().Key(s.listKey(s.node)).Value(rueidis.BinaryString(list)).ExSeconds(asking).Build()).Error()
}

// Answer says who is hot on all nodes that can be asked. An error is why some can't; the answer is of the others then.
// The nodes are asked once a second, however many questions there are: a list may have some megabytes.
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

// partial says why nodes may be missing.
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

// lost reports whether no server of Redis can be reached. If one can, it may be that where nodes meet.
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
		s.asked = time.Time{} // whoever asked has left, and the next one begins anew
	}
}

// others asks for lists until all are there and new, or for as long as the others may need to hear of the question.
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

// found are the lists of other nodes.
type found struct {
	lists   map[string]List
	waiting []string // nodes whose lists aren't there, or are old
	left    int      // of what all may weigh
	failed  error    // why some can't be read: nobody looks at those again
}

// get looks for lists.
func (s *Shared) get(ctx context.Context, c rueidis.Client, f *found) error {
	names := f.waiting
	f.waiting = nil
	for some := range slices.Chunk(names, toldAtOnce) {
		names = names[len(some):]
		var gets rueidis.Commands
		for _, name := range some {
			gets = append(gets, c.B().Getrange().Key(s.listKey(name)).Start(0).End(largest).Build())
		}
		for i, reply := range c.DoMulti(ctx, gets...) {
			b, wrong, err := valueOf(reply, largest)
			if err != nil {
				f.waiting = append(append(f.waiting, some[i:]...), names...)
				return err
			}
			now, name := s.top.options.Now(), some[i]
			if len(b) > 0 {
				wrong = s.unpackList(b, name, now, f)
			}
			list, there := f.lists[name]
			switch {
			case wrong != nil && wrong != errUnwanted:
				f.failed = cmp.Or(f.failed, badList(name, wrong))
			case !there || now.Sub(list.At) > old:
				f.waiting = append(f.waiting, name)
			}
		}
	}
	return nil
}

// unpackList reads a list. One is read at a time.
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

// valueOf is a value, none if it isn't there, or what is wrong with it. It must have no more than so many bytes. An error is one of the connection.
func valueOf(reply rueidis.RedisResult, most int) (b []byte, wrong, err error) {
	b, err = reply.AsBytes()
	if refused, is := rueidis.IsRedisErr(err); is {
		return nil, refused, nil // it is no text, or a permission is missing
	}
	if len(b) > most {
		return nil, errTooLarge, nil
	}
	return b, nil, err
}

func badList(node string, err error) error {
	return fmt.Errorf("the list of %q in Redis %w: %w", node, errBadList, err)
}
