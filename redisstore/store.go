// Package redisstore keeps counters in Redis, so that any number of nodes enforce one limit. Redis may be a single server, one
// watched by Sentinels, or a Cluster. Every decision is one script call, which uses Redis' own clock. Decisions that are under
// way at the same moment share a call.
//
// Each subject, such as a client, has one hash with a small field for each of its counters. A sliding log has another hash. If
// a counter has holds, they have a hash and a sorted set. Every key except the nodes' common secret has a TTL, set by the script
// that writes it.
//
// If Redis can't be reached, a charge returns an error, never a refusal. The rule says what happens then. See [weir.Rule].
package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/ledger"
)

var _ counter.Store = (*Store)(nil)

// Store is a [counter.Store] in Redis. Make one with [New].
type Store struct {
	address  address
	prefix   string
	timeout  time.Duration
	clock    func() time.Time // replaces Redis' clock, in tests; otherwise nil
	reckoned clock            // Redis' time, estimated
	clockOff bool             // this node's clock differs from Redis', and that was logged
	leastTTL int64            // ms
	logger   *slog.Logger
	onSecret func([]byte)
	trace    func(ctx context.Context, shard string) func(failure string)
	told     sync.Map    // when each warning was last logged, a time.Time by text
	tight    atomic.Bool // guests get no new counters

	client  atomic.Pointer[rueidis.Client] // nil until Redis was reached once
	names   atomic.Pointer[namer]          // nil until the secret is known
	joiners []joiner                       // by tag in a Cluster; a single one otherwise
	first   *shard                         // stands for all shards until Redis is reached
	peers   peers

	credentials atomic.Pointer[rueidis.ClientOption] // holds the passwords and certificates that Redis accepted last
	rejected    atomic.Pointer[string]               // why newer credentials aren't in use; nil if there are none
	reread      signal                               // set when the files of credentials are to be read now

	sentinels *sentinels // nil without Sentinels
	lost      signal     // set when a shard was lost, and has to be looked for

	life    context.Context
	end     context.CancelFunc
	ready   chan struct{} // closed when Redis is reached for the first time
	tried   chan struct{} // closed after the first attempt to reach Redis
	endTry  func()        // closes tried, once
	running sync.WaitGroup
	mu      sync.Mutex // guards closed, and running against additions while Close waits for it
	closed  bool
}

// Options of a Store. All but URL have useful zero values.
type Options struct {
	// URL says where Redis is: redis://, rediss://, redis-sentinel://h1,h2/master, redis-cluster://h1,h2 or unix://.
	URL string
	// Prefix begins the name of every key. "" means "weir".
	Prefix string
	// Name identifies this node to the other nodes, and must be unique. "" means a random name.
	Name string
	// Secret is the key under which names of keys are hashed. All nodes share it. Nil means a random secret that is kept in
	// Redis.
	Secret []byte
	// Timeout is the longest that a check waits for Redis. 0 means 50 ms.
	Timeout time.Duration
	// Logger logs when Redis is lost, and when it is back. Nil logs nothing.
	Logger *slog.Logger
	// OnSecret is called with the secret that the nodes share when it becomes known, before any charge is decided under it, and
	// again when it changes. It isn't called if Secret is set. Nil is allowed.
	OnSecret func(secret []byte)
	// Trace starts a span for the time in which a check waits for a shard. It gets the check's context. The function that it
	// returns ends the span, with the cause of a failure: timeout, connection, reply or slot, as in [Failures]; unavailable
	// if the breaker was open and nothing was sent; canceled if the caller has gone; or "". Trace may be nil, and may return
	// nil for no span. Package tracing has one.
	Trace func(ctx context.Context, shard string) func(failure string)
	// Now replaces Redis' clock, in tests. Nil means that Redis' clock decides.
	Now func() time.Time
}

// CheckURL reports what is wrong with a store URL, without showing its password.
func CheckURL(url string) error {
	_, err := parseAddress(url)
	return err
}

// DefaultTimeout is how long a check waits for Redis if the options don't say.
const DefaultTimeout = 50 * time.Millisecond

// New makes a store without waiting for Redis. Until Redis is reached for the first time, every charge fails at once. See
// [Store.Ready].
func New(o Options) (*Store, error) {
	a, err := parseAddress(o.URL)
	if err != nil {
		return nil, err
	}
	s := &Store{
		address:  a,
		prefix:   cmp.Or(o.Prefix, "weir"),
		timeout:  cmp.Or(max(0, o.Timeout), DefaultTimeout),
		clock:    o.Now,
		logger:   cmp.Or(o.Logger, slog.New(slog.DiscardHandler)),
		onSecret: o.OnSecret,
		trace:    o.Trace,
		ready:    make(chan struct{}),
		tried:    make(chan struct{}),
		lost:     make(signal, 1),
		reread:   make(signal, 1),
	}
	if s.onSecret == nil {
		s.onSecret = func([]byte) {}
	}
	s.endTry = sync.OnceFunc(func() { close(s.tried) })
	s.credentials.Store(&a.option)
	s.address.option = s.connectionOption(a.option, s.credentials.Load)
	if s.clock != nil {
		s.leastTTL = time.Hour.Milliseconds() // the TTLs go by another clock than the test's
	}
	if o.Secret != nil {
		if len(o.Secret) == 0 {
			return nil, errors.New("the secret is empty: give at least one byte, better 32 random ones, or none at all")
		}
		s.names.Store(newNamer(s.prefix, o.Secret))
	}
	s.peers.init(o.Name, o.Secret)
	if a.option.Sentinel.MasterSet != "" {
		s.sentinels = newSentinels(s.address.option, s.credentials.Load)
	}
	s.joiners = make([]joiner, 1)
	if a.cluster {
		s.joiners = make([]joiner, tags)
	}
	s.first = newShard(a.server())
	s.first.trip(errors.New("not connected yet"))
	for i := range s.joiners {
		s.joiners[i].store, s.joiners[i].tag = s, i
		s.joiners[i].shard.Store(s.first)
	}
	s.life, s.end = context.WithCancel(context.Background())
	s.running.Go(s.run)
	if len(a.files) > 0 {
		s.running.Go(func() { s.followFiles(o.URL) })
	}
	return s, nil
}

// Close tells the other nodes that this one leaves, and ends all connections. Later charges fail.
func (s *Store) Close() {
	s.end()
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.running.Wait()
	if s.sentinels != nil {
		s.sentinels.close()
	}
	if c := s.client.Load(); c != nil {
		s.leave()
		(*c).Close()
	}
}

// background runs f in a goroutine that Close waits for. After Close, f finds the client closed and ends at once.
func (s *Store) background(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		go f()
		return
	}
	s.running.Go(f)
}

// tell logs a warning that may occur many times a second, but not more than once a minute.
func (s *Store) tell(what string, args ...any) {
	now := time.Now()
	last, known := s.told.LoadOrStore(what, now)
	if known && (now.Sub(last.(time.Time)) < time.Minute || !s.told.CompareAndSwap(what, last, now)) {
		return
	}
	s.logger.Warn(what, args...)
}

// Ready waits until Redis was reached for the first time.
func (s *Store) Ready(ctx context.Context) error {
	select {
	case <-s.ready:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", s.joiners[0].shard.Load().unavailable(), ctx.Err())
	}
}

// Tried is closed when the first attempt to reach Redis has ended. If it failed, more attempts follow, perhaps for a long time,
// so a node that starts shouldn't wait for them.
func (s *Store) Tried() <-chan struct{} { return s.tried }

func (s *Store) time() int64 {
	if s.clock != nil {
		return s.clock().UnixMicro()
	}
	return 0
}

// Cluster reports whether keys are spread over the servers of a Cluster.
func (s *Store) Cluster() bool { return s.address.cluster }

// joiner returns the joiner of a tag. Without a Cluster, all tags share one joiner.
func (s *Store) joiner(tag int) *joiner { return &s.joiners[tag%len(s.joiners)] }

// GiveBack returns tokens. The tokens of the first hash slot change together with the mark that they were returned, and
// tokens of other hash slots follow. Returns that end holds are marked in each hash slot, so that a repeated call can
// finish an incomplete one. Recorded returns need no mark.
func (s *Store) GiveBack(ctx context.Context, once counter.Once, keep time.Duration, returns []counter.Return) error {
	parts, err := s.split(nil, kindGiveBack, len(returns), func(i int) *counter.Counter { return &returns[i].Counter })
	if err != nil {
		return err
	}
	for _, p := range parts {
		for j, i := range p.indices {
			p.charges[j].settle(&returns[i])
		}
	}
	recorded := slices.ContainsFunc(parts, (*part).recorded)
	if recorded { // parts with records go first: the other parts go back only if a record was there
		others := slices.DeleteFunc(slices.Clone(parts), (*part).recorded)
		parts = append(slices.DeleteFunc(parts, func(p *part) bool { return !p.recorded() }), others...)
	} else if once != (counter.Once{}) {
		if len(parts) == 0 {
			tag := int(once[0]) % tags
			parts = append(parts, &part{act: act{kind: kindGiveBack}, joiner: s.joiner(tag), tag: tag})
		}
		for i, p := range parts {
			if i == 0 || p.ends() {
				p.once, p.keep = s.names.Load().once(once, p.tag), max(1, keep.Milliseconds())
			}
		}
	}
	// One after the other, because a part without a mark goes back only if the first part did.
	given, first := false, false
	for i, p := range parts {
		if (recorded || once != (counter.Once{})) && p.once == "" && !first && !p.recorded() && !p.slots() {
			continue
		}
		e := p.joiner.do(ctx, &p.act)
		if e == nil && p.full {
			e = errFull
		}
		if e != nil {
			err = errors.Join(err, e)
			continue
		}
		given = given || !p.used
		first = first || (i == 0 || p.recorded()) && !p.used
	}
	if err == nil && len(parts) > 0 && (!given || recorded && !first) {
		return counter.ErrUsed
	}
	return err
}

// recorded reports whether an act happens only if the record of a hold is there.
func (a *act) recorded() bool {
	return slices.ContainsFunc(a.charges, func(c charge) bool { return c.record })
}

// slots reports whether an act does nothing but free slots of Concurrency limits.
func (a *act) slots() bool {
	return !slices.ContainsFunc(a.charges, func(c charge) bool { return c.policy.Limit.Algorithm != counter.Concurrency })
}

// ends reports whether an act ends holds.
func (a *act) ends() bool {
	return slices.ContainsFunc(a.charges, func(c charge) bool { return c.hold != nil })
}

// TakeBack returns lent tokens that weren't spent.
func (s *Store) TakeBack(ctx context.Context, unspent []ledger.Unspent) error {
	parts, err := s.split(nil, kindTakeBack, len(unspent), func(i int) *counter.Counter { return &unspent[i].Counter })
	for _, p := range parts {
		for j, i := range p.indices {
			c, u := &p.charges[j], &unspent[i]
			c.giveBack(u.N, u.Interval)
			c.claim = u.Claim
		}
		err = errors.Join(err, p.joiner.do(ctx, &p.act))
	}
	return err
}

// Reset makes counters as new.
func (s *Store) Reset(ctx context.Context, counters []counter.Counter) error {
	parts, err := s.split(nil, kindReset, len(counters), func(i int) *counter.Counter { return &counters[i] })
	if err != nil {
		return err
	}
	for _, p := range parts {
		if err := p.joiner.do(ctx, &p.act); err != nil {
			return err
		}
	}
	return nil
}
