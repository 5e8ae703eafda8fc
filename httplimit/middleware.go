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
	"github.com/weirhq/weir/internal/inuse"
	"github.com/weirhq/weir/internal/private"
)

// Options configures a [Middleware]. The zero value identifies clients by X-API-Key and their
// address, and sends the default headers.
type Options struct {
	// Identity says where the client's key, user, organization and tier come from.
	Identity Identity
	// Identify, if set, may change the request to check before the limiter sees it. The middleware trusts the values
	// that it marks as verified. It must not keep either argument.
	Identify func(*http.Request, *weir.Request)
	// TrustedProxies lists the proxies whose X-Forwarded-For is believed. If empty, the peer is the
	// client.
	TrustedProxies []netip.Prefix
	// Answers configures headers and bodies.
	Answers Answers
	// MaxInFlight bounds how many requests are decided at a time. Further requests wait for up to a
	// second, and then get 503 OVERLOADED. A request doesn't count while it is in a queue or in the
	// handler, so slow requests can't lock others out. Zero means no bound.
	MaxInFlight int
	// MaxWaiting bounds how many requests may wait in queues at a time; one rule may have half of
	// them. Further requests get 503 QUEUE_FULL. Zero means DefaultMaxWaiting. This bound is needed
	// because a queue's length bounds the requests of one counter only, and clients can create
	// counters.
	MaxWaiting int
	// OnError, if set, is called when the store can't be reached. It is also called when the slots of
	// a request can't be renewed: concurrently with the handler, and with a copy of the request.
	OnError func(*http.Request, error)
	// Edge is the [weir.Request.Edge] of requests. The default is "http".
	Edge string
}

// DefaultMaxWaiting is the default of [Options.MaxWaiting].
const DefaultMaxWaiting = 4096

// Middleware limits the requests to an HTTP handler. Make one with [New].
type Middleware struct {
	limiter  *weir.Limiter
	opts     Options
	identity *Identifier
	answers  *Answerer
	gate     *inflight.Gate
	waiting  inuse.Places[string] // requests in queues, by rule
	ahead    atomic.Int64         // bytes of bodies that are read ahead in queues
	watched  atomic.Pointer[watched]
	unread   weir.Request // stands for requests that are shed before anything of them is read
}

// watched has the headers to check for ambiguity: those that identify clients or that rules count by.
type watched struct {
	rules   *weir.RuleSet
	headers watch
	bearer  bool     // Authorization is among them
	counted *counted // nil if no rule counts an amount
}

// headers returns the headers to watch under the rules in force.
func (m *Middleware) headers() *watched {
	rules := m.limiter.Rules()
	if w := m.watched.Load(); w != nil && w.rules == rules {
		return w
	}
	names := m.identity.headerNames()
	for _, name := range private.Attributes(rules) {
		if name, ok := strings.CutPrefix(name, "header:"); ok {
			names = append(names, http.CanonicalHeaderKey(name))
		}
	}
	w := &watched{rules, newWatch(names...), slices.Contains(names, "Authorization"), newCounted(rules.Rules())}
	m.watched.Store(w)
	return w
}

// New returns a Middleware. It panics if the options are invalid, for example if a template doesn't
// parse; [NewAnswerer] returns that as an error.
func New(l *weir.Limiter, opts Options) *Middleware {
	a, err := NewAnswerer(opts.Answers)
	if err != nil {
		panic(err)
	}
	opts.Edge = cmp.Or(opts.Edge, "http")
	if opts.MaxWaiting <= 0 {
		opts.MaxWaiting = DefaultMaxWaiting
	}
	return &Middleware{
		limiter: l, opts: opts, unread: weir.Request{Edge: opts.Edge}, identity: NewIdentifier(opts.Identity, opts.TrustedProxies), answers: a,
		gate: inflight.New(opts.MaxInFlight),
	}
}

// PerUser returns a Middleware that holds each user to one limit, and needs no rules. The function
// names the user of a request; requests without one, "", are counted by their address. The options
// are those of [weir.New]. PerUser panics if the limit is invalid.
//
//	http.ListenAndServe(":8080", httplimit.PerUser(weir.PerMinute(100), user).Wrap(handler))
func PerUser(limit weir.Limit, user func(*http.Request) string, opts ...weir.Option) *Middleware {
	return New(private.PerUser(limit, opts), Options{Identify: func(r *http.Request, req *weir.Request) { req.User = user(r) }})
}

// Wrap puts the limiter in front of a handler.
func (m *Middleware) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, next) })
}

func (m *Middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	v := m.ask(r.Context(), w, r, nil)
	if v.Serve() && v.Decision.Degraded && r.Context().Err() != nil {
		v.fate = leftQueue // the client has gone, which alone may have kept the store from deciding
	}
	m.dropOrAnswer(w, r, v)
	serve, d, body := v.Serve(), v.Decision, v.body
	v.Release()
	defer body.release()
	switch {
	case !serve:
		if d.Unfinished() { // decided, but the client has left
			m.finish(r.Context(), r, &d, weir.Outcome{Abandoned: true})
		}
	case d.Unfinished():
		m.serveAndFinish(w, r, next, d)
	default:
		next.ServeHTTP(w, r)
	}
}

// dropOrAnswer answers a request, or only closes the connection if the decision says Drop.
func (m *Middleware) dropOrAnswer(w http.ResponseWriter, r *http.Request, v *Verdict) {
	// Don't drop the connection of a trusted proxy, which would take this server for dead.
	if v.fate == decided && v.Decision.Drop && !contains(m.identity.trusted, peerIP(r.RemoteAddr)) {
		panic(http.ErrAbortHandler) // net/http then closes the connection, or the HTTP/2 stream
	}
	m.Answer(w, r, v)
}

// InFlight returns how many requests are being decided; see [Options.MaxInFlight]. Without a bound
// it returns 0.
func (m *Middleware) InFlight() int { return m.gate.In() }

// finish reports to the limiter how an allowed request ended, even if the client has gone.
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
