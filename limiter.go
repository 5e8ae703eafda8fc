package weir

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir/counter"
)

// Limiter decides requests by rules. It is safe for concurrent use. It doesn't need to be closed.
type Limiter struct {
	store     counter.Store
	local     counter.Store
	emergency *counter.Policy
	preflight *counter.Policy
	networks  networks
	guard     counter.Guard
	holds     counter.HoldObserver
	observe   func(*Observation)
	trace     func(context.Context) (context.Context, func(*Observation))
	now       func() time.Time
	sealer    atomic.Pointer[sealer]
	rules     atomic.Pointer[RuleSet]
	scratch   sync.Pool
	stripes   atomic.Uint32
	nameless  sync.Once // warns of the first request that names no client
}

// Options of a Limiter. The zero value is useful.
type Options struct {
	// Observe is called with every decision, in the caller's goroutine. It must be quick and keep nothing. See package metrics.
	Observe func(*Observation)
	// Trace starts the span of a decision. It returns the context for the store, and a function that ends the span, or nil if
	// this decision has none. See package tracing.
	Trace func(context.Context) (context.Context, func(*Observation))
	// Secret seals receipts. Give all nodes of a store the same secret, so that each accepts the others' receipts. Nil means
	// a random one.
	Secret []byte
	// Local counts while the store can't be reached: for FailLocal rules, and for FailAllow rules if this node knows the counter
	// (see [counter.Result.Local]). If nil, those rules allow.
	Local counter.Store
	// Emergency is a limit for requests that rules allow because the store can't be reached. It counts in Local, by address, or
	// by key if a request has no address. Nil means none.
	Emergency *counter.Policy
	// Preflight is the limit of CORS preflights, by address. Nil means 50 a second.
	Preflight *counter.Policy
	// IPv4Prefix and IPv6Prefix are how many bits of an address count unless a rule says otherwise. 0 means 32 and 64.
	IPv4Prefix, IPv6Prefix int
	// Now returns the time of the store, for receipts and reset times, since a node's own clock may be wrong. Nil means time.Now.
	Now func() time.Time
	// Guard refuses clients that keep coming while they are refused. See package cooldown.
	Guard counter.Guard
	// Holds is told about slots and reservations. See package metrics.
	Holds counter.HoldObserver
}

// Observation is what [Options.Observe] learns of a decision.
type Observation struct {
	Request  *Request
	Decision *Decision
	// Took is how long the decision took. It is measured for one decision in 64, because reading the clock is slow, and 0 otherwise.
	Took time.Duration
	// Err is why the store couldn't be reached for some limit, or nil.
	Err error
	// Stripe is a small number that mostly differs between simultaneous decisions. Observers that count by stripe contend less.
	Stripe uint32
	// Entry is the entry of the deny or the allow list that decided, or "". It may be a client's key.
	Entry string
	// Context is what [Options.Trace] returned, or nil.
	Context context.Context
	// Charges are what was asked of the store, in the order of [Decision.Limits].
	Charges []counter.Charge
	// Spread is spread evenly over all values. To sample one decision in n, take those with Spread < math.MaxUint64/n.
	Spread uint64
}

const (
	// timed is one in 64 of all values: the time of decisions whose Spread is below it is measured.
	timed = math.MaxUint64 / 64
	// golden is 2^64 divided by the golden ratio. Added again and again it spreads values more evenly than random numbers
	// would be, and has no period that could coincide with one in which requests come.
	golden = 0x9e3779b97f4a7c15
)

// NewLimiter returns a Limiter. If rules is nil, it refuses every request as ReasonUnavailable until [Limiter.SetRules].
func NewLimiter(store counter.Store, rules *RuleSet, opts Options) *Limiter {
	l := &Limiter{store: store, local: opts.Local, observe: opts.Observe, trace: opts.Trace, now: opts.Now, guard: opts.Guard, holds: opts.Holds}
	l.networks = serverNetworks(opts.IPv4Prefix, opts.IPv6Prefix)
	if l.now == nil {
		l.now = time.Now
	}
	if opts.Local != nil {
		l.emergency = opts.Emergency
	}
	preflight := opts.Preflight
	if preflight == nil {
		preflight, _ = counter.NewPolicy("preflight", PerSecond(50)) // which can be a limit
	}
	l.preflight = preflight.With(func(d *counter.Definition) { d.OnStoreFailure = FailLocal })
	l.scratch.New = func() any {
		m := &match{observation: Observation{Stripe: l.stripes.Add(1), Spread: rand.Uint64()}}
		m.observation.Decision = &m.decision
		return m
	}
	l.setSecret(opts.Secret)
	l.SetRules(rules)
	return l
}

// SetRules puts other rules in force. Checks under way finish with those they began with; the next
// one sees only these.
func (l *Limiter) SetRules(rules *RuleSet) {
	if rules != nil && rules.networks != l.networks {
		c := *rules
		c.networks, rules = l.networks, &c
	}
	l.rules.Store(rules)
	if g, ok := l.guard.(interface{ Use() }); ok && rules != nil && rules.abuse {
		g.Use()
	}
}

// setSecret is private.SetSecret.
func (l *Limiter) setSecret(secret []byte) { l.sealer.Store(newSealer(secret)) }

// Rules returns the rules in force. As long as there are none, it is a set without rules.
func (l *Limiter) Rules() *RuleSet {
	if rs := l.rules.Load(); rs != nil {
		return rs
	}
	return noRules
}

var noRules = &RuleSet{}

// Check decides a request and, if it is allowed, takes its cost from every limit
// that applies. A refusal takes nothing, and is not an error. An error means that
// the store couldn't be reached for some limit; the decision is then what
// the rules say should happen, and is to be followed all the same.
func (l *Limiter) Check(ctx context.Context, req *Request) (d Decision, err error) {
	rs := l.rules.Load()
	ctx, m := l.begin(ctx)
	if rs == nil {
		m.reset()
		d.Degraded, d.Reason, d.RetryAfter = true, ReasonUnavailable, time.Second
		l.end(req, m, &d, nil)
		return d, nil
	}
	rs.run(req, m)
	if m.nameless {
		l.nameless.Do(func() {
			slog.Warn("weir: a request names no client (it has no key, user, organization or address), so it shares a counter with all such requests", "edge", req.Edge)
		})
	}
	m.watched = l.guard != nil && rs.abuse
	if req.Preflight && m.reason == ReasonWithin {
		m.addByIP(l.preflight, req, l.networks)
	}
	d.RulesVersion = rs.doc.Version
	switch {
	case m.reason != ReasonWithin:
		d.Reason = m.reason
		if d.Allowed = m.reason == ReasonBypassed; !d.Allowed {
			d.RetryAfter = Never
		}
		if m.rule != nil {
			d.Rule = m.rule.ID
		}
	default:
		if rs.slots || req.Reserve > 0 || req.Repeat != (counter.Once{}) {
			m.hold(req)
		}
		err = l.decide(ctx, req, m, &d)
	}
	l.end(req, m, &d, err)
	return d, err
}

// begin gets scratch space for a decision, looks at the clock if its time is to be measured, and begins its span.
func (l *Limiter) begin(ctx context.Context) (context.Context, *match) {
	m := l.scratch.Get().(*match)
	if m.observation.Spread += golden; m.observation.Spread < timed && l.observe != nil {
		m.began = time.Now()
	}
	if l.trace != nil {
		ctx, m.traced = l.trace(ctx)
		m.observation.Context = ctx
	}
	return ctx, m
}

// end tells the observer and the span, and ends the use of the scratch space.
func (l *Limiter) end(req *Request, m *match, d *Decision, err error) {
	if l.observe != nil || m.traced != nil {
		m.decision = *d // a copy, since handing out d itself would move it to the heap
		o := &m.observation
		o.Request, o.Entry, o.Charges, o.Took, o.Err = req, m.pattern, m.charges, 0, err
		if !m.began.IsZero() {
			o.Took, m.began = time.Since(m.began), time.Time{}
		}
		if l.observe != nil {
			l.observe(o)
		}
		if m.traced != nil {
			m.traced(o)
		}
		o.Request = nil
	}
	if l.trace != nil {
		m.traced, m.observation.Context = nil, nil
	}
	l.scratch.Put(m)
}

// tell is private.Tell.
func (l *Limiter) tell(ctx context.Context, req *Request, d Decision) {
	m := l.scratch.Get().(*match)
	if l.trace != nil {
		m.observation.Context = ctx
	}
	m.observation.Spread += golden
	m.reset()
	d.RulesVersion = l.Rules().doc.Version
	l.end(req, m, &d, nil)
}

// take is private.Take.
func (l *Limiter) take(ctx context.Context, req *Request, charges []counter.Charge, override func(*Decision)) (d Decision, err error) {
	ctx, m := l.begin(ctx)
	m.reset()
	if !req.IP.IsValid() {
		m.key = req.APIKey // a caller's own word, where that of a check may be made up by its client
	}
	m.addOwn(req, charges)
	m.hold(req)
	if rs := l.rules.Load(); rs != nil {
		d.RulesVersion = rs.doc.Version
	}
	err = l.decide(ctx, req, m, &d)
	if override != nil {
		m.decision = d // a copy, since handing out d itself would move it to the heap
		override(&m.decision)
		d = m.decision
	}
	l.end(req, m, &d, err)
	return d, err
}

// addOwn adds charges that an edge makes itself.
func (m *match) addOwn(req *Request, charges []counter.Charge) {
	for _, c := range charges {
		c.Peek, c.Returnable = c.Peek || req.Peek, req.Receipt || len(c.Policy.Statuses) > 0
		if c.N != 0 || !c.Peek {
			c.N = min(max(c.N, 1), c.Policy.MaxCharge())
		}
		m.charges = append(m.charges, c)
	}
}

// giveBack is private.GiveBack.
func (l *Limiter) giveBack(ctx context.Context, returns []counter.Return) error {
	err := l.store.GiveBack(ctx, counter.Once{}, 0, returns)
	if err == nil {
		for i := range returns {
			l.tellSlot(&returns[i], false)
		}
	}
	return err
}

// decide makes a decision of the charges in m.
func (l *Limiter) decide(ctx context.Context, req *Request, m *match, d *Decision) error {
	if len(m.charges) == 0 {
		d.Allowed, d.Reason = true, ReasonUnlimited
		return nil
	}
	if m.watched {
		if i, wait := l.cooldown(m); wait > 0 {
			l.keepOut(ctx, m, d, i, wait)
			return nil
		}
	}
	m.results = slices.Grow(m.results[:0], len(m.charges))[:len(m.charges)]
	l.store.Take(ctx, m.charges, m.results)
	var err error
	for i := range m.results {
		if m.results[i].Err != nil {
			err = l.fallBack(ctx, req, m)
			break
		}
	}
	byStatus := l.conclude(m, d)
	undo := !d.Allowed && len(m.apart) > 0 // what the store took before a charge was decided apart
	if !req.Peek && (req.Receipt || byStatus || d.Delay > 0 || err != nil || undo || m.holds || req.Reserve > 0) {
		l.keep(ctx, req, m, d)
	}
	if m.watched {
		l.tellGuard(m, d)
	}
	return err
}

// cooldown finds the charge whose client is kept out the longest, if any is.
func (l *Limiter) cooldown(m *match) (i int, longest time.Duration) {
	for j := range m.charges {
		if c := &m.charges[j]; c.Policy.Abuse != nil && !m.guarded(j) {
			if wait := l.guard.Cooldown(c); wait > longest {
				i, longest = j, wait
			}
		}
	}
	return i, longest
}

// guarded: charge i is for the same client of the same rule as the one before it, which a guard doesn't tell apart.
func (m *match) guarded(i int) bool {
	return i > 0 && m.charges[i-1].Policy.Abuse != nil && m.charges[i].Policy.Rule == m.charges[i-1].Policy.Rule && bytes.Equal(m.charges[i].Subject, m.charges[i-1].Subject)
}

// keepOut refuses a request for charge i. The store is asked for nothing but what is booked in any case.
func (l *Limiter) keepOut(ctx context.Context, m *match, d *Decision, i int, wait time.Duration) {
	out := m.charges[i]
	m.charges = slices.DeleteFunc(m.charges, func(c counter.Charge) bool { return !c.Policy.Book })
	m.results = slices.Grow(m.results[:0], len(m.charges)+1)[:len(m.charges)]
	if len(m.charges) > 0 {
		l.store.Take(ctx, m.charges, m.results)
	}
	m.charges, m.results = append(m.charges, out), append(m.results, counter.Result{RetryAfter: wait, ResetAfter: wait})
	l.conclude(m, d)
	d.Reason = ReasonCooldown
	l.tellGuard(m, d)
}

// tellGuard tells it how long each client must wait that a rule refused the request for, or that all allowed it.
func (l *Limiter) tellGuard(m *match, d *Decision) {
	for i := 0; i < len(m.results); {
		c, told, wait := &m.charges[i], false, time.Duration(0)
		for first := true; i < len(m.results) && (first || m.guarded(i)); i++ {
			r := &m.results[i]
			first = false
			if c.Policy.Abuse == nil || c.Peek || r.Err != nil || r.Allowed != d.Allowed {
				continue
			}
			told = true
			if !r.Allowed && wait >= 0 && (r.RetryAfter < 0 || r.RetryAfter > wait) {
				c, wait = &m.charges[i], r.RetryAfter
			}
		}
		d.Drop = told && l.guard.Decided(c, wait) || d.Drop
	}
}

// fallBack decides the charges that the store couldn't, by the failure modes of their policies. Those that
// are counted locally, the emergency limit among them, are decided together, all or nothing; if the request is
// refused anyway, they take nothing.
func (l *Limiter) fallBack(ctx context.Context, req *Request, m *match) error {
	var err error
	refused := m.refused()
	for i := range m.results {
		r, c := &m.results[i], &m.charges[i]
		if r.Err == nil || l.chargeAddress(ctx, req, m, i, refused) {
			refused = refused || !r.Allowed && !c.Policy.Shadow
			continue
		}
		err = errors.Join(err, r.Err)
		switch {
		case errors.Is(r.Err, counter.ErrPartition):
			refused = refused || !c.Policy.Shadow
		case l.local != nil && (c.Policy.OnStoreFailure == FailLocal || c.Policy.OnStoreFailure == FailAllow && r.Local):
			m.local = append(m.local, i)
		case c.Policy.OnStoreFailure == FailRefuse:
			refused = refused || !c.Policy.Shadow
		default:
			r.Allowed = true
		}
	}
	if err != nil && l.emergency != nil {
		m.addByIP(l.emergency, req, l.networks)
		m.results = append(m.results, counter.Result{})
		m.local = append(m.local, len(m.charges)-1)
	}
	if len(m.local) == 0 {
		return err
	}
	charges, results := make([]counter.Charge, len(m.local)), make([]counter.Result, len(m.local))
	for j, i := range m.local {
		charges[j] = m.charges[i]
	}
	takeApart(ctx, l.local, charges, results, refused)
	for j, i := range m.local {
		known := m.results[i].Local
		if m.results[i] = results[j]; results[j].Err != nil { // there was no room for the counter
			m.results[i].Allowed = known && charges[j].Policy.OnStoreFailure == FailAllow
		}
	}
	m.apart = append(m.apart, m.local...)
	return err
}

// chargeAddress counts a guest for whose subject there is no room by its address instead: subjects can be
// made up, and must not fill the store. It reports whether the store decided.
func (l *Limiter) chargeAddress(ctx context.Context, req *Request, m *match, i int, refused bool) bool {
	if !m.charges[i].Guest || !req.IP.IsValid() || !errors.Is(m.results[i].Err, counter.ErrNoRoom) {
		return false
	}
	from := len(m.subjects)
	m.subjects = append(m.subjects, 0xff) // no subject of the rule's begins so
	m.appendIP(req, l.networks, true)
	c := []counter.Charge{m.charges[i]}
	c[0].Subject, c[0].Guest = m.subjects[from:], false
	m.apart = append(m.apart, i)
	takeApart(ctx, l.store, c, m.results[i:i+1], refused)
	m.charges[i].Counter, m.charges[i].Peek = c[0].Counter, c[0].Peek
	return m.results[i].Err == nil
}

// takeApart has a store decide charges apart from the others of their request. If those refused it, these are peeks,
// but for what is taken all the same: bookings, and what a window that counts refusals refuses itself.
func takeApart(ctx context.Context, s counter.Store, charges []counter.Charge, results []counter.Result, refused bool) {
	var counts []int
	for i := range charges {
		if c := &charges[i]; refused && !c.Peek && !c.Policy.Book {
			if c.Peek = true; c.Policy.CountRefused {
				counts = append(counts, i)
			}
		}
	}
	s.Take(ctx, charges, results)
	for _, i := range counts {
		if r := &results[i]; !r.Allowed && r.Err == nil {
			charges[i].Peek = false
			s.Take(ctx, charges[i:i+1], results[i:i+1])
		}
	}
}

// addByIP adds a charge that is counted by the request's address, or by the key in place of it, behind those that run has found.
func (m *match) addByIP(p *counter.Policy, req *Request, by networks) {
	from := len(m.subjects)
	m.appendIP(req, by, true)
	if m.key != "" {
		m.subjects = append(append(m.subjects, 0xff), m.key...) // no address of a client begins so
	}
	m.charges = append(m.charges, counter.Charge{Counter: counter.Counter{Policy: p, Subject: m.subjects[from:]}, N: min(max(req.Cost, 1), p.MaxCharge()), Peek: req.Peek, Returnable: req.Receipt})
}

// refused reports whether the store refused the charges, and so took nothing.
func (m *match) refused() bool {
	for i := range m.results {
		if r := &m.results[i]; !r.Allowed && r.Err == nil && !m.charges[i].Policy.Shadow && !slices.Contains(m.apart, i) {
			return true
		}
	}
	return false
}

// conclude makes one decision of the results: the most restrictive wins. It reports whether a limit counts by the
// answer's status.
func (l *Limiter) conclude(m *match, d *Decision) (byStatus bool) {
	if len(m.results) > len(d.few) {
		d.many = make([]LimitStatus, len(m.results))
	}
	d.n = len(m.results)
	statuses := d.Limits()
	d.Allowed, d.Degraded = true, len(m.apart) > 0
	binding := -1
	for i := range m.results {
		r, c := &m.results[i], &m.charges[i]
		s := &statuses[i]
		if r.Err != nil {
			r.ResetAfter = c.Policy.LatestReset(l.now())
		}
		s.Policy, s.Allowed, s.Degraded, s.Local = c.Policy, r.Allowed, r.Err != nil, r.Local
		s.Remaining, s.RetryAfter, s.ResetAfter, s.left = c.Policy.Exact(r.Remaining).Tokens(), r.RetryAfter, r.ResetAfter, r.Remaining
		byStatus = byStatus || len(c.Policy.Statuses) > 0
		if c.Policy.Shadow {
			continue
		}
		d.Degraded = d.Degraded || s.Degraded || s.Local
		d.Allowed = d.Allowed && r.Allowed
		d.Delay = max(d.Delay, r.Delay)
		if binding < 0 || m.binds(i, binding) {
			binding = i
		}
	}
	for _, i := range m.local {
		statuses[i].Local = true
	}
	if !d.Allowed {
		d.Reason, d.Delay = ReasonLimited, 0
	}
	if binding < 0 {
		return byStatus
	}
	r, p := &m.results[binding], m.charges[binding].Policy
	d.Rule, d.Policy = p.Rule, p
	d.Remaining, d.RetryAfter, d.ResetAfter = p.Exact(r.Remaining).Tokens(), r.RetryAfter, r.ResetAfter
	if r.Err != nil && !r.Allowed {
		d.Reason = ReasonUnavailable
	}
	return byStatus
}

// binds reports whether charge i says more about the decision than charge j:
// refusals before the rest, then what was really counted, then the longest
// wait of refusals or the fewest such requests left.
func (m *match) binds(i, j int) bool {
	a, b := &m.results[i], &m.results[j]
	if a.Allowed != b.Allowed {
		return !a.Allowed
	}
	if (a.Err != nil) != (b.Err != nil) {
		return a.Err == nil
	}
	if !a.Allowed {
		return b.RetryAfter != Never && (a.RetryAfter == Never || a.RetryAfter > b.RetryAfter)
	}
	return a.Remaining/max(1, m.charges[i].N) < b.Remaining/max(1, m.charges[j].N)
}

var errNoRules = errors.New("there are no rules yet, so nobody knows which counters are meant")

// Reset makes the counters that the request would be charged to untouched, ends the cooldowns of their clients, and returns how
// many counters they are.
func (l *Limiter) Reset(ctx context.Context, req *Request) (int, error) {
	rs := l.rules.Load()
	if rs == nil {
		return 0, errNoRules
	}
	m := new(match)
	rs.run(req, m)
	var err error
	counters := make([]counter.Counter, len(m.charges))
	for i, c := range m.charges {
		counters[i] = c.Counter
		if l.guard != nil && c.Policy.Abuse != nil && !m.guarded(i) {
			err = errors.Join(err, l.guard.Forgive(ctx, &c.Counter))
		}
	}
	return len(counters), errors.Join(err, l.store.Reset(ctx, counters))
}

// credit is private.Credit.
func (l *Limiter) credit(ctx context.Context, req *Request) error {
	rs := l.rules.Load()
	if rs == nil {
		return errNoRules
	}
	m := new(match)
	rs.run(req, m)
	returns := make([]counter.Return, len(m.charges))
	for i, c := range m.charges {
		returns[i] = counter.Return{Counter: c.Counter, N: c.N}
	}
	return l.giveBack(ctx, returns)
}

// counters is private.Counters.
func (l *Limiter) counters(req *Request) []counter.Counter {
	rs := l.rules.Load()
	if rs == nil {
		return nil
	}
	m := new(match)
	rs.run(req, m)
	counters := make([]counter.Counter, len(m.charges))
	for i, c := range m.charges {
		counters[i] = c.Counter
	}
	return counters
}
