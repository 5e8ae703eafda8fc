package weir

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir/counter"
)

// Limiter decides requests by rules. It is safe for concurrent use. It doesn't need to be closed.
type Limiter struct {
	store    counter.Store
	opts     Options // with their defaults filled in
	networks networks
	sealer   atomic.Pointer[sealer]
	rules    atomic.Pointer[RuleSet]
	scratch  sync.Pool
	stripes  atomic.Uint32
	nameless sync.Once // warns about the first request that names no client
}

// Options of a Limiter. The zero value is useful.
type Options struct {
	// Observe is called with every decision, in the caller's goroutine. It must be quick and keep nothing. See package metrics.
	Observe func(*Observation)
	// Trace starts the span of a decision. It returns the context for calls to the store, and a function that ends the span, or
	// nil for no span. See package tracing.
	Trace func(context.Context) (context.Context, func(*Observation))
	// Secret encrypts receipts. Nodes that share a store need the same secret, to accept each other's receipts. If nil, the
	// secret is random.
	Secret []byte
	// Local counts while the store can't be reached: for FailLocal rules, and for FailAllow rules if this node knows the
	// counter (see [counter.Result.Local]). If nil, those rules allow the request.
	Local counter.Store
	// Emergency limits requests that rules allow because the store can't be reached. It counts in Local, by IP address, or by
	// key if a request has no address. If nil, there is no such limit.
	Emergency *counter.Policy
	// Preflight limits CORS preflights, by IP address. If nil, the limit is 50 a second.
	Preflight *counter.Policy
	// IPv4Prefix and IPv6Prefix are how many bits of an address count, unless a rule has its own. 0 means 32 and 64.
	IPv4Prefix, IPv6Prefix int
	// Now returns the store's time, for receipts and reset times, since the node's clock may be wrong. If nil, it is time.Now.
	Now func() time.Time
	// Guard keeps out clients that ignore refusals. See package cooldown.
	Guard counter.Guard
	// Holds observes slots and reservations. See package metrics.
	Holds counter.HoldObserver
}

// Observation is what [Options.Observe] gets for each decision.
type Observation struct {
	Request  *Request
	Decision *Decision
	// Took is how long the decision took. It is measured for one decision in 64, because reading the clock is slow, and is 0
	// for the others.
	Took time.Duration
	// Err is why the store couldn't be reached for some limit, or nil.
	Err error
	// Stripe is a small number that mostly differs between simultaneous decisions. Observers that count by stripe contend less.
	Stripe uint32
	// Entry is the entry of the deny or the allow list that decided, or "". It may contain a client's key.
	Entry string
	// Context is what [Options.Trace] returned, or nil.
	Context context.Context
	// Charges are what the store was asked for, in the order of [Decision.Limits].
	Charges []counter.Charge
	// Spread is distributed evenly over all values. To sample one decision in n, take those with Spread < math.MaxUint64/n.
	Spread uint64
}

const (
	// timed is a 64th of the range of Spread. Decisions with a lower Spread are timed.
	timed = math.MaxUint64 / 64
	// golden is 2^64 divided by the golden ratio. Adding it again and again spreads values more evenly than random numbers, and
	// without a period that could coincide with a period of the requests.
	golden = 0x9e3779b97f4a7c15
)

// NewLimiter returns a Limiter. If rules is nil, it refuses all requests with ReasonUnavailable until [Limiter.SetRules] is
// called.
func NewLimiter(store counter.Store, rules *RuleSet, opts Options) *Limiter {
	l := &Limiter{store: store, opts: opts, networks: serverNetworks(opts.IPv4Prefix, opts.IPv6Prefix)}
	if opts.Now == nil {
		l.opts.Now = time.Now
	}
	if opts.Local == nil {
		l.opts.Emergency = nil
	}
	if opts.Preflight == nil {
		opts.Preflight, _ = counter.NewPolicy("preflight", PerSecond(50)) // a valid limit
	}
	l.opts.Preflight = opts.Preflight.With(func(d *counter.Definition) { d.OnStoreFailure = FailLocal })
	l.scratch.New = func() any {
		m := newMatch()
		m.observation.Stripe, m.observation.Spread = l.stripes.Add(1), rand.Uint64()
		return m
	}
	l.setSecret(opts.Secret)
	l.SetRules(rules)
	return l
}

// SetRules replaces the rules. Checks in progress finish with the rules that they began with.
func (l *Limiter) SetRules(rules *RuleSet) {
	if rules != nil && rules.networks != l.networks {
		c := *rules
		c.networks, rules = l.networks, &c
	}
	l.rules.Store(rules)
	if g, ok := l.opts.Guard.(interface{ Use() }); ok && rules != nil && rules.abuse {
		g.Use()
	}
}

// setSecret changes the secret that encrypts and decrypts receipts.
func (l *Limiter) setSecret(secret []byte) { l.sealer.Store(newSealer(secret)) }

// Rules returns the rules in force. If there are none yet, it returns an empty set.
func (l *Limiter) Rules() *RuleSet {
	if rs := l.rules.Load(); rs != nil {
		return rs
	}
	return noRules
}

var noRules = &RuleSet{}

// Check decides a request and, if it is allowed, takes its cost from every limit that applies. A refusal takes nothing, and
// isn't an error. An error means that the store couldn't be reached for some limit. Even then, follow the decision: it is what
// the rules want in this case.
func (l *Limiter) Check(ctx context.Context, req *Request) (d Decision, err error) {
	err = l.check(ctx, req, &d) // Check is short enough to be inlined, which saves a copy of the decision
	return d, err
}

// check is like Check, but writes to d, which must be zero.
func (l *Limiter) check(ctx context.Context, req *Request, d *Decision) (err error) {
	rs := l.rules.Load()
	ctx, m := l.begin(ctx)
	if rs == nil {
		m.reset()
		*d = withoutRules
		l.end(req, m, d, nil)
		return nil
	}
	rs.run(req, m)
	if m.nameless {
		l.nameless.Do(func() {
			slog.Warn("weir: a request names no client (it has no key, user, organization or address), so it shares a counter with all such requests", "edge", req.Edge)
		})
	}
	m.watched = l.opts.Guard != nil && rs.abuse
	if req.Preflight && m.reason == ReasonWithin {
		m.addByIP(l.opts.Preflight, req, l.networks)
	}
	d.RulesVersion = rs.doc.Version
	if m.reason != ReasonWithin {
		m.decideUncounted(d)
	} else {
		if rs.slots || req.Reserve > 0 || req.Repeat != (counter.Once{}) {
			m.hold(req)
		}
		err = l.decide(ctx, req, m, d)
	}
	l.end(req, m, d, err)
	return err
}

// withoutRules is the decision of a Limiter that has no rules yet.
var withoutRules = Decision{Degraded: true, Reason: ReasonUnavailable, RetryAfter: time.Second}

// decideUncounted makes a decision without any limit, because of a list, the path or a missing identity.
func (m *match) decideUncounted(d *Decision) {
	d.Reason = m.reason
	if d.Allowed = m.reason == ReasonBypassed; !d.Allowed {
		d.RetryAfter = Never
	}
	if m.rule != nil {
		d.Rule = m.rule.ID
	}
}

// begin gets scratch space for a decision, and starts the decision's span.
func (l *Limiter) begin(ctx context.Context) (context.Context, *match) {
	m := l.scratch.Get().(*match)
	if m.observation.Spread += golden; m.observation.Spread < timed && l.opts.Observe != nil {
		m.began = time.Now()
	}
	if l.opts.Trace != nil {
		ctx, m.traced = l.opts.Trace(ctx)
		m.observation.Context = ctx
	}
	return ctx, m
}

// end reports a decision to the observer, ends its span, and returns the scratch space.
func (l *Limiter) end(req *Request, m *match, d *Decision, err error) {
	if l.opts.Observe != nil || m.traced != nil {
		m.decision = *d // a copy, so that d itself doesn't escape to the heap
		o := &m.observation
		o.Request, o.Entry, o.Charges, o.Took, o.Err = req, m.pattern, m.charges, 0, err
		if !m.began.IsZero() {
			o.Took, m.began = time.Since(m.began), time.Time{}
		}
		if l.opts.Observe != nil {
			l.opts.Observe(o)
		}
		if m.traced != nil {
			m.traced(o)
		}
		o.Request = nil
	}
	if l.opts.Trace != nil {
		m.traced, m.observation.Context = nil, nil
	}
	l.scratch.Put(m)
}

// tell reports to the observer a decision that an edge, such as the HTTP server, made without a check.
func (l *Limiter) tell(ctx context.Context, req *Request, d Decision) {
	m := l.scratch.Get().(*match)
	if l.opts.Trace != nil {
		m.observation.Context = ctx
	}
	m.observation.Spread += golden
	m.reset()
	d.RulesVersion = l.Rules().doc.Version
	l.end(req, m, &d, nil)
}

// take decides charges that an edge makes with its own policies, all or nothing. Override, if not nil, may change the decision.
func (l *Limiter) take(ctx context.Context, req *Request, charges []counter.Charge, override func(*Decision)) (d Decision, err error) {
	ctx, m := l.begin(ctx)
	m.reset()
	if !req.IP.IsValid() {
		m.key = req.APIKey // the edge has verified the key; in a check, a client may have invented it
	}
	m.addOwn(req, charges)
	m.hold(req)
	d.RulesVersion = l.Rules().doc.Version
	err = l.decide(ctx, req, m, &d)
	if override != nil {
		m.decision = d // a copy, for the same reason as in end
		override(&m.decision)
		d = m.decision
	}
	l.end(req, m, &d, err)
	return d, err
}

// addOwn adds charges that an edge makes with its own policies.
func (m *match) addOwn(req *Request, charges []counter.Charge) {
	for _, c := range charges {
		c.Peek, c.Returnable = c.Peek || req.Peek, req.Receipt || len(c.Policy.Statuses) > 0
		if c.N != 0 || !c.Peek {
			c.N = min(max(c.N, 1), c.Policy.MaxCharge())
		}
		m.charges = append(m.charges, c)
	}
}

// giveBack returns tokens that take has taken.
func (l *Limiter) giveBack(ctx context.Context, returns []counter.Return) error {
	err := l.store.GiveBack(ctx, counter.Once{}, 0, returns)
	if err == nil {
		for i := range returns {
			l.tellSlot(&returns[i], false)
		}
	}
	return err
}

var errNoRules = errors.New("there are no rules yet, so it isn't known which counters are meant")

// charges returns what the request would be charged.
func (l *Limiter) charges(req *Request) ([]counter.Charge, error) {
	rs := l.rules.Load()
	if rs == nil {
		return nil, errNoRules
	}
	m := new(match)
	rs.run(req, m)
	return m.charges, nil
}

// counters returns the counters that the request would be charged to, and charges nothing.
func (l *Limiter) counters(req *Request) []counter.Counter {
	charges, _ := l.charges(req)
	return countersOf(charges)
}

func countersOf(charges []counter.Charge) []counter.Counter {
	counters := make([]counter.Counter, len(charges))
	for i := range charges {
		counters[i] = charges[i].Counter
	}
	return counters
}

// Reset resets the counters that the request would be charged to, and ends their clients' cooldowns. It returns their number.
func (l *Limiter) Reset(ctx context.Context, req *Request) (int, error) {
	charges, err := l.charges(req)
	if err != nil {
		return 0, err
	}
	counters := countersOf(charges)
	for i := range counters {
		if l.opts.Guard != nil && counters[i].Policy.Abuse != nil {
			err = errors.Join(err, l.opts.Guard.Forgive(ctx, &counters[i]))
		}
	}
	return len(counters), errors.Join(err, l.store.Reset(ctx, counters))
}

// credit gives the request's cost back to every counter that it would be charged to.
func (l *Limiter) credit(ctx context.Context, req *Request) error {
	charges, err := l.charges(req)
	if err != nil {
		return err
	}
	returns := make([]counter.Return, len(charges))
	for i, c := range charges {
		returns[i] = counter.Return{Counter: c.Counter, N: c.N}
	}
	return l.giveBack(ctx, returns)
}
