package httplimit

import (
	"cmp"
	"context"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"

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
	// OnError is told when the store couldn't be reached. The request goes on as its rules say. It is also told when slots of a
	// request couldn't be renewed: while the handler runs, and with a copy of the request. Nil means nobody is told.
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
	bearer  bool     // Authorization is one of them, and its faults count
	counted *counted // nil if no rule counts an amount
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
	w := &watched{rules, newWatch(names...), slices.Contains(names, "Authorization"), newCounted(rules.Rules())}
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

func (m *Middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	v := m.ask(r.Context(), w, r, nil)
	if v.Serve() && v.Decision.Degraded && r.Context().Err() != nil {
		v.fate = leftQueue // its client has gone, and by that alone may have kept the store from deciding
	}
	m.dropOrAnswer(w, r, v)
	serve, d, body := v.Serve(), v.Decision, v.body
	v.Release()
	defer body.release()
	switch {
	case !serve:
		if d.Unfinished() { // it was decided, and its client has left
			m.finish(r.Context(), r, &d, weir.Outcome{Abandoned: true})
		}
	case d.Unfinished():
		m.serveAndFinish(w, r, next, d)
	default:
		next.ServeHTTP(w, r)
	}
}

// dropOrAnswer is Answer, except that it hangs up on a client that isn't worth an answer.
func (m *Middleware) dropOrAnswer(w http.ResponseWriter, r *http.Request, v *Verdict) {
	if v.fate == decided && v.Decision.Drop && !contains(m.identity.trusted, peerIP(r.RemoteAddr)) { // a proxy would take this server for dead
		v.Release()
		panic(http.ErrAbortHandler) // net/http closes the connection, and of HTTP/2 the stream
	}
	m.Answer(w, r, v)
}

// InFlight is how many requests are being decided: see [Options.MaxInFlight]. It is 0 where there is no bound.
func (m *Middleware) InFlight() int { return m.gate.In() }

// finish tells the limiter how an allowed request ended, also when the client has gone.
func (m *Middleware) finish(ctx context.Context, r *http.Request, d *weir.Decision, o weir.Outcome) {
	if err := m.limiter.Finish(context.WithoutCancel(ctx), d, o); err != nil {
		m.tell(r, err)
	}
}

func (m *Middleware) tell(r *http.Request, err error) {
	if m.opts.OnError != nil {
		m.opts.OnError(r, err)
	}
}
