package httplimit

import (
	"cmp"
	"context"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/inflight"
)

// Options of a Middleware. The zero value identifies clients by X-API-Key and
// their address, and sends the default headers.
type Options struct {
	// Identity says where identities come from.
	Identity Identity
	// Identify, if set, has the last word on the request that is checked: what it
	// fills in is as good as what it marks verified. It must not keep either argument.
	Identify func(*http.Request, *weir.Request)
	// TrustedProxies are those whose X-Forwarded-For counts. None means that the peer is the client.
	TrustedProxies []netip.Prefix
	// Answers says which headers and bodies clients get.
	Answers Answers
	// MaxInFlight is how many requests are decided at a time. Others wait for up to a second, and are then answered with 503
	// and the code OVERLOADED, which costs less than to decide them. A request counts until it is decided: in
	// the handler, or in a queue, it doesn't, lest slow ones keep all others out. 0 means no bound.
	MaxInFlight int
	// MaxWaiting is how many requests may wait in queues at a time; a rule may have half of them. More are refused with 503 QUEUE_FULL.
	// 0 means DefaultMaxWaiting.
	MaxWaiting int
	// OnError is told when the store couldn't be reached. The request goes on as its rules say. Nil means nobody is told.
	OnError func(*http.Request, error)
	// Edge is the [weir.Request.Edge] of requests. "" means http.
	Edge string
}

// Middleware limits requests. Make one with [New].
type Middleware struct {
	limiter  *weir.Limiter
	opts     Options
	identity *Identifier
	answers  *Answerer
	gate     *inflight.Gate
	room     *room
	watched  atomic.Pointer[watched]
	unread   weir.Request // stands for requests that are shed, of which nothing was read
}

// watched is the headers that identities come from, and those that some rules count by.
type watched struct {
	rules   *weir.RuleSet
	headers watch
	bearer  bool // Authorization is one of them, and its faults count
}

// headers are those to watch under the rules in force.
func (m *Middleware) headers() *watched {
	rules := m.limiter.Rules()
	if w := m.watched.Load(); w != nil && w.rules == rules {
		return w
	}
	names := m.identity.headerNames()
	for _, name := range rules.Attributes() {
		if name, ok := strings.CutPrefix(name, "header:"); ok {
			names = append(names, http.CanonicalHeaderKey(name))
		}
	}
	w := &watched{rules, newWatch(names...), slices.Contains(names, "Authorization")}
	m.watched.Store(w)
	return w
}

// New prepares a middleware. It panics if the options can't be: an unknown
// header dialect, or a template that doesn't parse; [NewAnswerer] returns that as an error.
func New(l *weir.Limiter, opts Options) *Middleware {
	a, err := NewAnswerer(opts.Answers)
	if err != nil {
		panic(err)
	}
	opts.Edge = cmp.Or(opts.Edge, "http")
	return &Middleware{
		limiter: l, opts: opts, unread: weir.Request{Edge: opts.Edge}, identity: NewIdentifier(opts.Identity, opts.TrustedProxies), answers: a,
		gate: inflight.New(opts.MaxInFlight), room: newRoom(opts.MaxWaiting),
	}
}

// Wrap puts the limiter in front of a handler.
func (m *Middleware) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, next) })
}

// visit is what a check needs of a request. Visits are reused: a limiter may
// hand the request to an observer, so it can't live on the stack.
type visit struct {
	req    weir.Request
	attrs  attributes
	lookUp func(string) string // of attrs, bound once
	fault  string              // why the client's identity is ambiguous; "" if it isn't
	asked  time.Time           // before the check, so that the times of its answer, added to this, are never late
}

var visits = sync.Pool{New: func() any {
	v := new(visit)
	v.lookUp = v.attrs.lookUp
	return v
}}

func (m *Middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if !m.gate.Enter(r.Context()) {
		m.limiter.Tell(&m.unread, weir.Decision{Reason: weir.ReasonOverloaded})
		shed(w, r)
		return
	}
	v := visits.Get().(*visit)
	req := &v.req
	d, err := m.decide(r, v)
	now := v.asked
	if err != nil {
		m.tell(r, err)
	}
	gone := false // given up, by the client or by us, and answered
	if d.Delay > 0 {
		body, ended := m.wait(w, r, &d)
		defer body.release()
		switch gone = ended != turnCame; ended {
		case clientLeft:
			m.finish(r, &d, weir.Outcome{Abandoned: true}) // its place goes to those behind
			m.answers.giveUp(w, r, &d)
		case roomFull:
			m.finish(r, &d, weir.Outcome{Abandoned: true}) // its place goes to those behind
			m.limiter.Tell(req, weir.Decision{Reason: weir.ReasonOverloaded, Rule: queueOf(&d), RulesVersion: d.RulesVersion, RetryAfter: d.Delay})
			m.answers.full(w, r, req, &d)
		}
		now, d.ResetAfter = now.Add(d.Delay), max(0, d.ResetAfter-d.Delay) // as seen from after the wait
	}
	switch {
	case v.fault != "":
		m.answers.ambiguous(w, r, v.fault)
	case gone:
	case !d.Allowed:
		m.answers.SetHeaders(w.Header(), req, &d, now)
		m.answers.Refuse(w, r, req, &d, now)
	case m.answers.speaks(&d): // else leave the headers alone: net/http copies those of handlers that ask for them
		m.answers.SetHeaders(w.Header(), req, &d, now)
	}
	v.req, v.attrs, v.fault = weir.Request{}, attributes{}, ""
	visits.Put(v) // before a handler that may run for hours
	switch {
	case gone || !d.Allowed:
	case d.Unfinished():
		m.serveAndFinish(w, r, next, d)
	default:
		next.ServeHTTP(w, r)
	}
}

// decide checks a request, and gives back its place among those that are decided. One that isn't clear is refused.
func (m *Middleware) decide(r *http.Request, v *visit) (weir.Decision, error) {
	defer m.gate.Leave()
	watched := m.headers()
	if v.fault = watched.headers.fault(r); v.fault == "" {
		v.fault = m.identity.identify(r, &v.req, &v.attrs, watched.bearer)
	}
	v.req.Edge = m.opts.Edge
	if v.fault != "" {
		m.identity.locate(r, &v.req)
		v.req.Rejected = v.fault
		m.limiter.Tell(&v.req, weir.Decision{Reason: weir.ReasonIdentityRequired, RulesVersion: watched.rules.Version(), RetryAfter: weir.Never})
		return weir.Decision{}, nil
	}
	v.req.Attr = v.lookUp
	if m.opts.Identify != nil {
		m.opts.Identify(r, &v.req)
	}
	v.asked = m.limiter.Now()
	return m.limiter.Check(r.Context(), &v.req)
}

// finish tells the limiter how an allowed request ended, also when the client has gone.
func (m *Middleware) finish(r *http.Request, d *weir.Decision, o weir.Outcome) {
	if err := m.limiter.Finish(context.WithoutCancel(r.Context()), d, o); err != nil {
		m.tell(r, err)
	}
}

func (m *Middleware) tell(r *http.Request, err error) {
	if m.opts.OnError != nil {
		m.opts.OnError(r, err)
	}
}

// waited is how a wait ended.
type waited uint8

const (
	turnCame waited = iota
	clientLeft
	roomFull
)

// wait waits for the request's turn. The body is what was read of it meanwhile.
func (m *Middleware) wait(w http.ResponseWriter, r *http.Request, d *weir.Decision) (body *early, ended waited) {
	rule := queueOf(d)
	if !m.room.enter(rule) {
		return nil, roomFull
	}
	defer m.room.leave(rule)
	body = readEarly(w, r, m.room)
	t := time.NewTimer(d.Delay)
	defer t.Stop()
	select {
	case <-t.C:
		body.hand()
		return body, turnCame
	case <-r.Context().Done():
		body.abandon()
		return body, clientLeft
	}
}
