package top

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"
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
	// callTime is the longest that a call waits for Redis.
	callTime = 500 * time.Millisecond
	// largest is how long a list can be.
	largest = 4 << 20
)

// Shared is a Top with those of the other nodes that use a Redis. While somebody asks, each node writes
// its list there every second, with a short life.
type Shared struct {
	top   *Top
	redis *redisstore.Store
	node  string
	asked atomic.Int64 // when this node was last asked, Unix ns
}

// Share shares what a node knows.
func Share(t *Top, redis *redisstore.Store, node string) *Shared {
	return &Shared{top: t, redis: redis, node: node}
}

func (s *Shared) key(name string) string { return s.redis.Prefix() + "{top}" + name }

// askedKey has no node's name behind it: those begin with a colon.
func (s *Shared) askedKey() string { return s.key("asked") }

func (s *Shared) listKey(node string) string { return s.key(":" + node) }

// Run tells the other nodes what this one knows, while somebody asks, until ctx is done.
func (s *Shared) Run(ctx context.Context) error {
	for rediscall.Sleep(ctx, rediscall.Jittered(lookEvery)) {
		_ = s.tell(ctx) // a list that is missing is named where it is missed
	}
	return nil
}

func (s *Shared) tell(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	c, err := s.redis.Client()
	if err != nil {
		return err
	}
	if err := c.Do(ctx, c.B().Get().Key(s.askedKey()).Build()).Error(); err != nil {
		return err // mostly it isn't there
	}
	list, err := pack(s.top.List(s.node))
	if err != nil {
		return err
	}
	return c.Do(ctx, c.B().Set().Key(s.listKey(s.node)).Value(rueidis.BinaryString(list)).ExSeconds(asking).Build()).Error()
}

// Lists returns what the nodes know, this one's list first, and the names of living nodes whose lists aren't there. An error
// says why those of others can't be asked for.
func (s *Shared) Lists(ctx context.Context) (lists []List, missing []string, err error) {
	before := s.asked.Swap(time.Now().UnixNano())
	wait := time.Duration(0)
	if time.Since(time.Unix(0, before)) > (asking-2)*time.Second {
		wait = patience
	}
	lists, missing, err = s.others(ctx, wait)
	return slices.Insert(lists, 0, s.top.List(s.node)), missing, err
}

// others asks for lists until all are there, or for as long as the others may need to hear of the question.
func (s *Shared) others(ctx context.Context, wait time.Duration) (lists []List, missing []string, err error) {
	ends := time.Now().Add(wait)
	if !s.redis.Health().Up {
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
	for _, p := range peers {
		if p.Name != s.node {
			missing = append(missing, p.Name)
		}
	}
	for {
		var gets rueidis.Commands
		for _, name := range missing {
			gets = append(gets, c.B().Get().Key(s.listKey(name)).Build())
		}
		var still []string
		for i, reply := range c.DoMulti(call, gets...) {
			b, err := reply.AsBytes()
			if err != nil && !rueidis.IsRedisNil(err) {
				return lists, missing, err
			}
			list, err := unpack(b)
			if err != nil {
				still = append(still, missing[i])
				continue
			}
			list.Node = missing[i]
			lists = append(lists, list)
		}
		missing = still
		if len(missing) == 0 || time.Now().After(ends) || !rediscall.Sleep(call, again) {
			return lists, missing, nil
		}
	}
}

func pack(l List) ([]byte, error) {
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	if err := json.NewEncoder(z).Encode(l); err != nil {
		return nil, err
	}
	err = z.Close()
	return b.Bytes(), err
}

var errTooLarge = errors.New("the list is too large")

func unpack(b []byte) (l List, err error) {
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return l, err
	}
	text, err := io.ReadAll(io.LimitReader(z, largest+1))
	if err == nil && len(text) > largest {
		err = errTooLarge
	}
	if err == nil {
		err = json.Unmarshal(text, &l)
	}
	return l, err
}
