// Package redisstore keeps counters in Redis, so that any number of nodes enforce
// one limit: a single server, one watched by Sentinels, or a Cluster. Every
// decision is one script call on Redis' own clock; decisions that are
// under way at the same moment share a call.
//
// A subject is one hash with a small field for each of its counters, and a
// sliding log is another beside it. Every key but the nodes' common secret has a TTL,
// set by the script that writes it.
//
// A Redis that can't be reached is an error of the charge, never a refusal: what
// then happens is up to the rule. See [weir.Rule].
package redisstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/ledger"
)

var _ weir.Store = (*Store)(nil)

// Store is a [weir.Store] in Redis. Make one with [New].
type Store struct {
	address  address
	prefix   string
	timeout  time.Duration
	clock    func() time.Time
	leastTTL int64 // ms
	logger   *slog.Logger
	onSecret func([]byte)
	told     sync.Map    // of what was said: when, a time.Time
	tight    atomic.Bool // guests get no new counters

	client atomic.Pointer[rueidis.Client] // nil until Redis was reached once
	names  atomic.Pointer[namer]          // nil until the secret is known
	lanes  []lane                         // by tag in a Cluster; a single one otherwise
	peers  peers

	sentinels *sentinels    // nil without
	lost      chan struct{} // holds a value when a shard was lost since it was last looked for

	life    context.Context
	end     context.CancelFunc
	ready   chan struct{} // closed when Redis was reached first
	running sync.WaitGroup
	mu      sync.Mutex // guards closed, and running against additions while Close waits for it
	closed  bool
}

// Options of a Store. The zero value of all but URL is useful.
type Options struct {
	// URL says where Redis is: redis://, rediss://, redis-sentinel://h1,h2/master,
	// redis-cluster://h1,h2 or unix://.
	URL string
	// Prefix begins the name of every key. "" means "weir".
	Prefix string
	// Name is what other nodes call this one, and no other node's. "" means that one is made up.
	Name string
	// Secret is what names of keys are hashed under; all nodes share it. Nil
	// means one that is made up and kept in Redis.
	Secret []byte
	// Timeout is the longest that a check waits for Redis. 0 means 50 ms.
	Timeout time.Duration
	// Logger is told when Redis is lost, and when it is back. Nil means nobody is.
	Logger *slog.Logger
	// OnSecret is told the secret that the nodes share when it becomes known, before
	// any charge is decided under it, and when it changes. It isn't told one that was given. Nil means nobody is.
	OnSecret func(secret []byte)
	// Now replaces Redis' clock, in tests. Nil means that Redis' clock decides.
	Now func() time.Time
}

// CheckURL reports what is wrong with a store URL, without showing its password.
func CheckURL(url string) error {
	_, err := parseAddress(url)
	return err
}

// DefaultTimeout is the budget of a check whose options name none.
const DefaultTimeout = 50 * time.Millisecond

// New makes a store. It doesn't wait for Redis: until Redis is reached, every
// charge fails at once, and from then on none does. See [Store.Ready].
func New(o Options) (*Store, error) {
	a, err := parseAddress(o.URL)
	if err != nil {
		return nil, err
	}
	s := &Store{
		address: a,
		prefix:  o.Prefix,
		timeout: o.Timeout,
		clock:   o.Now,
		logger:  o.Logger,
		ready:   make(chan struct{}),
		lost:    make(chan struct{}, 1),

		onSecret: o.OnSecret,
	}
	if s.onSecret == nil {
		s.onSecret = func([]byte) {}
	}
	if s.prefix == "" {
		s.prefix = "weir"
	}
	if s.timeout <= 0 {
		s.timeout = DefaultTimeout
	}
	if s.logger == nil {
		s.logger = slog.New(slog.DiscardHandler)
	}
	if s.clock != nil {
		s.leastTTL = time.Hour.Milliseconds() // its time and that of the TTLs have nothing in common
	}
	if o.Secret != nil && len(o.Secret) == 0 {
		return nil, errors.New("the secret is empty: give at least one byte, better 32 random ones, or none at all")
	}
	if o.Secret != nil {
		s.names.Store(newNamer(s.prefix, o.Secret))
	}
	s.peers.init(o.Name, o.Secret)
	if a.option.Sentinel.MasterSet != "" {
		s.sentinels = newSentinels(a.option)
	}
	s.lanes = make([]lane, 1)
	if a.cluster {
		s.lanes = make([]lane, tags)
	}
	first := newShard(a.shown)
	first.trip(errors.New("not connected yet"))
	for i := range s.lanes {
		s.lanes[i].store = s
		s.lanes[i].shard.Store(first)
	}
	s.life, s.end = context.WithCancel(context.Background())
	s.running.Go(func() { s.run(first) })
	return s, nil
}

// Close says goodbye to the other nodes and ends all connections. Charges that come later fail.
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

// background runs f beside its caller. Close waits for it; what comes later finds
// the client closed, and ends at once.
func (s *Store) background(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		go f()
		return
	}
	s.running.Go(f)
}

// tell warns of something that may happen many times a second, once a minute.
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
		return fmt.Errorf("%w: %w", s.lanes[0].shard.Load().unavailable(), ctx.Err())
	}
}

func (s *Store) time() int64 {
	if s.clock != nil {
		return s.clock().UnixMicro()
	}
	return 0
}

func (s *Store) lane(tag int) *lane {
	if len(s.lanes) == 1 {
		return &s.lanes[0]
	}
	return &s.lanes[tag]
}

// part is what of a call goes to one lane.
type part struct {
	act
	lane    *lane
	tag     int
	indices []int // of charges: where they stand in what the caller gave
	err     error
}

// takeParts are used again once Redis has answered. After an error they may still be under way.
var takeParts = sync.Pool{New: func() any { return new(part) }}

func newPart(k kind, l *lane, tag int) *part {
	if k != kindTake {
		return &part{act: act{kind: k}, lane: l, tag: tag}
	}
	p := takeParts.Get().(*part)
	*p = part{act: act{kind: k, charges: p.charges[:0]}, lane: l, tag: tag, indices: p.indices[:0]}
	return p
}

// split sorts counters into acts by lane, each in the order in which they were given, and appends them to parts.
func (s *Store) split(parts []*part, k kind, n int, counter func(int) *weir.Counter) ([]*part, error) {
	names := s.names.Load()
	if names == nil {
		return nil, s.lanes[0].shard.Load().unavailable()
	}
	for i := range n {
		c := counter(i)
		key, tag := names.subject(c)
		l := s.lane(tag)
		at := 0
		for at < len(parts) && parts[at].lane != l {
			at++
		}
		if at == len(parts) {
			parts = append(parts, newPart(k, l, tag))
		}
		p := parts[at]
		p.charges = append(p.charges, charge{policy: c.Policy, key: key})
		p.indices = append(p.indices, i)
	}
	return parts, nil
}

// Take decides the charges, all or nothing. Charges whose keys lie in different
// slots of a Cluster are taken in parallel, and given back if one is refused.
func (s *Store) Take(ctx context.Context, charges []weir.Charge, results []weir.Result) {
	s.take(ctx, outcomes{results: results}, func(i int) *weir.Charge { return &charges[i] }, nil)
}

// Lend is Take for charges that would hold more tokens. See package lease.
func (s *Store) Lend(ctx context.Context, asks []ledger.Ask, grants []ledger.Grant) {
	s.take(ctx, outcomes{grants: grants}, func(i int) *weir.Charge { return &asks[i].Charge }, asks)
}

// outcomes is where the answers of a take go: results, or grants.
type outcomes struct {
	results []weir.Result
	grants  []ledger.Grant
}

func (a outcomes) len() int { return max(len(a.results), len(a.grants)) }

func (a outcomes) result(i int) *weir.Result {
	if a.grants != nil {
		return &a.grants[i].Result
	}
	return &a.results[i]
}

func (s *Store) take(ctx context.Context, to outcomes, charge func(int) *weir.Charge, asks []ledger.Ask) {
	var few [1]*part
	parts, err := s.split(few[:0], kindTake, to.len(), func(i int) *weir.Counter { return &charge(i).Counter })
	if err != nil {
		for i := range to.len() {
			*to.result(i) = weir.Result{Err: err}
		}
		return
	}
	for _, p := range parts {
		for j, i := range p.indices {
			var more *ledger.Ask
			if asks != nil {
				more = &asks[i]
			}
			p.charges[j].ask(charge(i), more)
			p.charges[j].guest = charge(i).Guest && s.tight.Load()
		}
		p.addUp()
	}
	if len(parts) == 1 {
		p := parts[0]
		p.err = p.lane.do(ctx, &p.act)
		s.report(p, to, p.err == nil && !p.refused())
		p.release()
		return
	}
	begun := time.Now()
	each(parts, func(p *part) { p.err = p.lane.do(ctx, &p.act) })

	refused := slices.ContainsFunc(parts, (*part).refused)
	each(parts, func(p *part) {
		taken := p.err == nil && !p.refused()
		s.report(p, to, taken)
		if taken && refused {
			s.undo(ctx, p, to, begun)
		}
		p.release()
	})
}

func (p *part) release() {
	if p.err == nil {
		takeParts.Put(p)
	}
}

// each calls f with every part, in parallel if there are several.
func each(parts []*part, f func(*part)) {
	if len(parts) == 0 {
		return
	}
	var others sync.WaitGroup
	for _, p := range parts[1:] {
		others.Go(func() { f(p) })
	}
	f(parts[0])
	others.Wait()
}

// addUp finds charges that name one counter, and has each ask for the tokens of all of them. One debits
// them; the others are sent as peeks, so that a script that looks before it writes needn't know.
func (p *part) addUp() {
	again := false
	for i := range p.charges {
		for j := range i {
			again = again || p.charges[j].sameCounter(&p.charges[i])
		}
	}
	if !again {
		return
	}
	for i := range p.charges {
		c := &p.charges[i]
		if c.payer > 0 {
			continue
		}
		var all []*charge
		payer, n := -1, int64(0)
		for j := range p.charges {
			if d := &p.charges[j]; d.sameCounter(c) {
				all = append(all, d)
				n = min(n+d.n, 2*weir.MaxTokens)
				if payer < 0 || p.charges[payer].policy.Shadow && !d.policy.Shadow { // one that certainly takes
					payer = j
				}
			}
		}
		if len(all) == 1 {
			continue
		}
		for _, d := range all {
			d.n, d.want, d.waiting, d.claim = n, 0, 0, ledger.Claim{}
			if d != &p.charges[payer] {
				d.peek = true
			}
			d.payer = payer + 1
		}
	}
}

func (c *charge) sameCounter(d *charge) bool { return c.policy.ID == d.policy.ID && c.key == d.key }

// debit is the charge that takes for this one: mostly itself.
func (p *part) debit(c *charge) *charge {
	if c.payer > 0 {
		return &p.charges[c.payer-1]
	}
	return c
}

// refused: nothing of the part was taken, because one of its charges doesn't fit.
func (p *part) refused() bool {
	return p.err == nil && slices.ContainsFunc(p.charges, func(c charge) bool { return !c.fits && !c.policy.Shadow })
}

// report writes what became of the charges.
func (s *Store) report(p *part, to outcomes, taken bool) {
	for j, i := range p.indices {
		c, r := &p.charges[j], to.result(i)
		switch {
		case p.err != nil:
			*r = weir.Result{Err: p.err}
			continue
		case !c.fits:
			c.report(r, p.now, weir.Refused)
		case taken && p.debit(c).full:
			*r = weir.Result{Err: errFull}
		case taken && !p.debit(c).peek:
			c.account = p.debit(c).account
			c.report(r, p.now, weir.Taken)
		default:
			c.report(r, p.now, weir.Fits)
		}
		s.grant(p, to, j)
	}
}

func (c *charge) report(r *weir.Result, now int64, v weir.Verdict) {
	if c.policy.Limit.Algorithm == weir.SlidingLog {
		*r = c.reportLog(now, v)
		return
	}
	c.account.Report(c.policy, r, now, c.n, v)
}

// grant writes what else a node that borrows is told of a charge.
func (s *Store) grant(p *part, to outcomes, j int) {
	c := &p.charges[j]
	if to.grants == nil || !ledger.Lends(c.policy) {
		return
	}
	g := &to.grants[p.indices[j]]
	g.Account, g.Now, g.Lent = c.account, p.now, c.lent
	g.LeaseTime, g.Interval = c.account.Lease(c.policy, p.now, s.peers.id)
}

// reportLog is [weir.Policy.ReportLog] of a log that is in Redis. Of its state
// came the newest entry's moment, the sum, and, of a refusal, the moment of the entry
// whose leaving makes room.
func (c *charge) reportLog(now int64, v weir.Verdict) weir.Result {
	newest, sum, blocking := c.account.Time, c.account.Level, c.account.Prev
	count, window := c.policy.Limit.Count, c.policy.Limit.Window
	in := func(moment int64) time.Duration { return time.Duration(moment-now)*time.Microsecond + window }
	r := weir.Result{Allowed: v != weir.Refused, Remaining: max(0, count-sum), Slot: now}
	if newest != 0 {
		r.ResetAfter = in(newest)
	}
	if v == weir.Refused {
		r.RetryAfter = weir.Never
		if c.n <= count {
			r.RetryAfter = in(blocking)
		}
	}
	return r
}

// ask says what to take, and what to lend beside that, if anything.
func (c *charge) ask(of *weir.Charge, more *ledger.Ask) {
	c.n, c.peek = min(of.N, 2*weir.MaxTokens), of.Peek
	if more == nil || !ledger.Lends(c.policy) {
		return
	}
	c.claim = more.Claim
	if !c.peek {
		c.waiting, c.want = min(more.Waiting, weir.MaxTokens), min(more.Want, weir.MaxTokens)
	}
}

// giveBack says what to give back.
func (c *charge) giveBack(n, slot int64) { c.n, c.slot = min(n, weir.MaxTokens), max(0, slot) }

// undo gives back what a part took for a request that another part refused. If
// Redis is lost meanwhile, the tokens are stranded: that mints none. It happens
// also when the caller has gone, and when the rest of its budget is too short to wait for it.
func (s *Store) undo(ctx context.Context, p *part, to outcomes, begun time.Time) {
	spent, lent := act{kind: kindGiveBack}, act{kind: kindTakeBack}
	for j, i := range p.indices {
		c := &p.charges[j]
		if !c.fits || c.peek || c.full {
			continue
		}
		if c.lent > 0 {
			_, interval := c.account.Lease(c.policy, p.now, s.peers.id)
			back := ledger.Unspent{N: c.lent, Interval: interval}
			lent.charges = append(lent.charges, charge{policy: c.policy, key: c.key, n: c.lent, slot: interval})
			c.account = c.account.TakeBack(c.policy, p.now, s.peers.id, &back)
			c.lent = 0
		}
		g := charge{policy: c.policy, key: c.key, n: c.n, slot: to.result(i).Slot}
		spent.charges = append(spent.charges, g)
		if c.policy.Limit.Algorithm == weir.SlidingLog {
			c.account.State = weir.State{Time: c.account.Prev, Level: c.account.Level - c.n} // of a take came the newest entry before it
		} else {
			c.account = c.account.Refund(c.policy, p.now, g.n, g.slot)
		}
		c.report(to.result(i), p.now, weir.Fits)
		s.grant(p, to, j)
	}
	for j, i := range p.indices {
		if c := &p.charges[j]; c.fits && c.payer > 0 {
			c.account = p.debit(c).account
			c.report(to.result(i), p.now, weir.Fits)
		}
	}
	if len(spent.charges) == 0 {
		return
	}
	given := make(chan struct{})
	s.background(func() {
		defer close(given)
		if len(lent.charges) > 0 {
			_ = p.lane.do(context.Background(), &lent)
		}
		_ = p.lane.do(context.Background(), &spent)
	})
	enough := time.NewTimer(s.timeout - time.Since(begun))
	defer enough.Stop()
	select {
	case <-given:
	case <-enough.C:
	case <-ctx.Done():
	}
}

// GiveBack returns tokens. Those of one slot, and the mark that it happened,
// change together; the rest follows.
func (s *Store) GiveBack(ctx context.Context, once weir.Once, keep time.Duration, returns []weir.Return) error {
	parts, err := s.split(nil, kindGiveBack, len(returns), func(i int) *weir.Counter { return &returns[i].Counter })
	if err != nil {
		return err
	}
	for _, p := range parts {
		for j, i := range p.indices {
			p.charges[j].giveBack(returns[i].N, returns[i].Slot)
		}
	}
	if once != (weir.Once{}) {
		if len(parts) == 0 {
			tag := int(once[0]) % tags
			parts = append(parts, &part{act: act{kind: kindGiveBack}, lane: s.lane(tag), tag: tag})
		}
		parts[0].once = s.names.Load().once(once, parts[0].tag)
		parts[0].keep = max(1, keep.Milliseconds())
	}
	// One after the other: what isn't marked as used must not be given back.
	for _, p := range parts {
		if err := p.lane.do(ctx, &p.act); err != nil {
			return err
		}
		if p.used {
			return weir.ErrUsed
		}
		if p.full {
			return errFull
		}
	}
	return nil
}

// TakeBack returns lent tokens that weren't spent.
func (s *Store) TakeBack(ctx context.Context, unspent []ledger.Unspent) error {
	parts, err := s.split(nil, kindTakeBack, len(unspent), func(i int) *weir.Counter { return &unspent[i].Counter })
	for _, p := range parts {
		for j, i := range p.indices {
			c, u := &p.charges[j], &unspent[i]
			c.giveBack(u.N, u.Interval)
			c.claim = u.Claim
		}
		err = errors.Join(err, p.lane.do(ctx, &p.act))
	}
	return err
}

// Reset makes counters untouched.
func (s *Store) Reset(ctx context.Context, counters []weir.Counter) error {
	parts, err := s.split(nil, kindReset, len(counters), func(i int) *weir.Counter { return &counters[i] })
	if err != nil {
		return err
	}
	for _, p := range parts {
		if err := p.lane.do(ctx, &p.act); err != nil {
			return err
		}
	}
	return nil
}
