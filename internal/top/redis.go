package top

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
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
	// largest is how long a list can be.
	largest = 4 << 20
)

// Shared is a Top with those of the other nodes that use a Redis. While somebody asks, each node writes
// its list there every second, with a short life.
type Shared struct {
	top   *Top
	redis *redisstore.Store
	node  string

	turn  chan struct{} // is held by whoever asks, and guards what follows
	asked time.Time     // when the others were last asked
	lists []List        // what all said, this node first
	// missing are living nodes whose lists aren't there, and failed is why.
	missing []string
	failed  error
}

// Share shares what a node knows.
func Share(t *Top, redis *redisstore.Store, node string) *Shared {
	return &Shared{top: t, redis: redis, node: node, turn: make(chan struct{}, 1)}
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
	switch {
	case s.failed == nil:
	case errors.Is(s.failed, errBadList):
		out.Partial = s.failed.Error()
	case len(s.lists) > 1:
		out.Partial = "Redis stopped answering, so not all nodes are in this"
	default:
		out.Partial = "Redis can't be reached, so this is what this node knows alone"
	}
	return out, s.failed
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
	var names []string
	for _, p := range peers {
		if p.Name != s.node {
			names = append(names, p.Name)
		}
	}
	found := map[string]List{}
	for waiting := names; ; {
		waiting, err = s.get(call, c, waiting, found)
		if err != nil && !errors.Is(err, errBadList) || len(waiting) == 0 || time.Now().After(ends) || !rediscall.Sleep(call, again) {
			break
		}
	}
	for _, name := range names {
		if list, there := found[name]; there {
			lists = append(lists, list)
		} else {
			missing = append(missing, name)
		}
	}
	return lists, missing, err
}

// get looks for the lists of nodes, and returns those whose lists aren't there, or are old.
func (s *Shared) get(ctx context.Context, c rueidis.Client, names []string, found map[string]List) (waiting []string, failed error) {
	var gets rueidis.Commands
	for _, name := range names {
		gets = append(gets, c.B().Get().Key(s.listKey(name)).Build())
	}
	for i, reply := range c.DoMulti(ctx, gets...) {
		b, err := reply.AsBytes()
		if err != nil && !rueidis.IsRedisNil(err) {
			failed = err
		}
		if err != nil {
			waiting = append(waiting, names[i])
			continue
		}
		now := s.top.options.Now()
		list, err := unpack(b)
		if err == nil {
			err = list.check(now)
		}
		if err != nil {
			failed = cmp.Or(failed, fmt.Errorf("%w of %q: %w", errBadList, names[i], err))
		} else if now.Sub(list.At) <= oldest {
			list.Node = names[i]
			found[list.Node] = list
		}
		if err != nil || now.Sub(list.At) > old {
			waiting = append(waiting, names[i])
		}
	}
	return waiting, failed
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

// errBadList is a list that no node has written.
var errBadList = errors.New("the list in Redis makes no sense")

var errTooLarge = errors.New("it is too large")

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

// Bounds of what nodes tell.
const (
	mostRate = 1e12 // a second
	mostOne  = 1e9  // decisions that one stands for
	longest  = 1024 // bytes of a name
	aCentury = 100 * 365 * 24 * time.Hour
)

// check says what no node would tell. Whoever can write to Redis can put anything there, and one number that
// isn't a rate would take the answer of all nodes with it.
func (l *List) check(now time.Time) error {
	latest := now.Add(oldest) // clocks differ
	past := func(t time.Time) bool { return !t.After(latest) && now.Sub(t) < aCentury }
	switch {
	case !past(l.At) || !past(l.Began):
		return errors.New("its times are not of now")
	case !(l.OneIn >= 1 && l.OneIn <= mostOne):
		return errors.New("one_in must be 1 or more")
	case len(l.Rules) > maxRules:
		return errors.New("it has too many rules")
	}
	if err := l.Clients.check(); err != nil {
		return fmt.Errorf("clients: %w", err)
	}
	if err := l.Pairs.check(); err != nil {
		return fmt.Errorf("pairs: %w", err)
	}
	for i := range l.Rules {
		if r := &l.Rules[i]; !r.Rates.sane() || !(r.Shadow >= 0 && r.Shadow <= mostRate) || !clean(r.Rule) || !r.LastHit.IsZero() && !past(r.LastHit) || !r.LastRefusal.IsZero() && !past(r.LastRefusal) {
			return fmt.Errorf("rules[%d] is none", i)
		}
	}
	return nil
}

func (k *clients) check() error {
	switch {
	case len(k.Hot) > 2*listed:
		return errors.New("there are too many")
	case !k.Missing.sane():
		return errors.New("missing must be rates")
	}
	for i := range k.Hot {
		if c := &k.Hot[i]; !c.Rates.sane() || !(c.Lacks >= 0 && c.Lacks <= mostRate) || !clean(c.Client) || !clean(c.Rule) || !slices.Contains(kindNames[:], c.Kind) {
			return fmt.Errorf("hot[%d] is none", i)
		}
	}
	return nil
}

func (r Rates) sane() bool {
	return r.Requests >= 0 && r.Requests <= mostRate && r.Refused >= 0 && r.Refused <= mostRate
}

// clean reports whether a name can be shown.
func clean(name string) bool {
	return len(name) <= longest && strings.IndexFunc(name, func(r rune) bool { return !strconv.IsPrint(r) }) < 0
}
