package httplimit

import (
	"context"
	"crypto/rand"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/private"
)

// Estimate says what a request is likely to take beside its cost, such as tokens or money. Pass it
// to the limiter with [WithEstimate].
type Estimate struct {
	// Amounts holds the amounts by name. Rules that count an amount which is missing here charge
	// their default.
	Amounts map[string]counter.Amount
	// Assumed repeats Amounts, with an assumed number for what isn't known yet: see
	// [weir.Request.Assumed].
	Assumed map[string]counter.Amount
	// Choices is how many answers the request wants from a model: see [weir.Request.Choices].
	Choices int64
	// Model is the model whose prices apply.
	Model string
	// Reserve is for how long the estimate is reserved if [Settle] isn't called; see
	// [weir.Request.Reserve]. Zero means that the amounts are exact, not an estimate.
	Reserve time.Duration
	// Guess says that the amounts are guesses, for example from the amounts that earlier requests
	// used. Each is capped at the limit's capacity, because a guess must not lock a client out
	// forever.
	Guess bool
}

type estimateKey struct{}

// WithEstimate returns a copy of the request that carries an estimate to the limiter behind it.
func WithEstimate(r *http.Request, e *Estimate) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), estimateKey{}, e))
}

// fill copies the estimate of a context into the request to check.
func (v *Verdict) fill(ctx context.Context) {
	if e, ok := ctx.Value(estimateKey{}).(*Estimate); ok {
		req := &v.Request
		req.Amounts, req.Assumed, req.Choices, req.Reserve = e.Amounts, e.Assumed, e.Choices, e.Reserve
		if e.Guess {
			private.Guess(req)
		}
		v.attrs.model = e.Model
	}
}

// Reserved reports whether the limiter in front of a handler has reserved an amount for the
// request, so that [Settle] has an effect.
func Reserved(r *http.Request) bool {
	a, ok := r.Context().Value(answerKey{}).(*answer)
	return ok && a.reserved
}

// Settle replaces the amounts that the request reserved by the amounts that it really used. It
// takes effect once the handler has returned, and the last call wins. Without a call, the reserved
// amounts stay taken. If nothing was reserved, Settle does nothing.
func Settle(r *http.Request, amounts map[string]counter.Amount) {
	settle(r, weir.Outcome{Amounts: amounts})
}

// SettleAtLeast is [Settle] for amounts that are estimates: it takes what exceeds the reservation,
// and never gives anything back.
func SettleAtLeast(r *http.Request, amounts map[string]counter.Amount) {
	settle(r, weir.Outcome{Amounts: amounts, AtLeast: true})
}

func settle(r *http.Request, o weir.Outcome) {
	if a, ok := r.Context().Value(answerKey{}).(*answer); ok && a.reserved {
		o.Amounts = maps.Clone(o.Amounts)
		a.settled.Store(&o)
	}
}

// counted says which amounts rules count, and at which paths.
type counted struct {
	names []string // names of the amounts
	// where matches the paths at which amounts are counted, regardless of the client. It always
	// allows.
	where *weir.Limiter
}

// newCounted returns which amounts the rules count, and where. It returns nil if they count none.
func newCounted(rules weir.Rules) *counted {
	c := &counted{}
	var where weir.Rules
	for _, r := range rules.Rules {
		if r.Amount == "" || r.Descriptor != nil {
			continue
		}
		c.names = append(c.names, r.Amount)
		endpoint := r.Match.Endpoint
		if _, path, ok := strings.Cut(endpoint, " "); ok {
			endpoint = strings.TrimSpace(path)
		}
		where.Rules = append(where.Rules, weir.Rule{
			ID: r.ID, Match: weir.Match{Endpoint: endpoint, EndpointRegex: r.Match.EndpointRegex},
			By: []string{}, Limits: []weir.Limit{weir.PerSecond(1)},
		})
	}
	if c.names == nil {
		return nil
	}
	if set, err := weir.Compile(where); err == nil { // the rules have compiled before, so these do
		c.where = weir.NewLimiter(yes{}, set, weir.Options{})
	}
	return c
}

// CountsAmounts reports whether a rule in force may count an amount for the request's path, so that
// an estimate is of use. The method doesn't matter; see [weir.Request.Reserve].
func (m *Middleware) CountsAmounts(r *http.Request) bool {
	c := m.headers().counted
	if c == nil || c.where == nil {
		return c != nil
	}
	d, _ := c.where.Check(r.Context(), &weir.Request{Path: requestPath(r.URL)})
	return d.Reason == weir.ReasonWithin
}

// Amounts returns the names of the amounts that the rules in force count.
func (m *Middleware) Amounts() []string {
	if c := m.headers().counted; c != nil {
		return c.names
	}
	return nil
}

// Price returns what amounts cost under the rules in force.
func (m *Middleware) Price(asked []string, answered string, of map[string]counter.Amount) (usd counter.Amount, known bool) {
	return private.Price(m.limiter.Rules(), asked, answered, of)
}

// yes is a store without counters that allows everything.
type yes struct{ counter.Store }

func (yes) Take(_ context.Context, _ []counter.Charge, results []counter.Result) {
	for i := range results {
		results[i] = counter.Result{Allowed: true}
	}
}

// Client identifies the sender of a request to a server that divides its memory among clients.
type Client struct {
	// Address is the client's network: its IPv4 address, or the /64 of its IPv6 address.
	Address netip.Prefix
	// ID tells clients of one address apart by key, user and organization. It is empty if the
	// request names none of them. A verified client's ID depends on its key alone, so it is the
	// same for every address.
	ID string
	// Verified reports whether the key is genuine. Otherwise the client can choose its ID freely.
	Verified bool
}

func clientOf(req *weir.Request) Client {
	c := Client{Verified: req.KeyVerified && req.APIKey != ""}
	ip, bits := req.IP.Unmap(), 32
	if ip.Is6() {
		bits = 64
	}
	c.Address, _ = ip.Prefix(bits) // the zero Prefix stands for clients without an address
	switch {
	case c.Verified:
		c.ID = req.APIKey
	case req.APIKey != "" || req.User != "" || req.Org != "":
		c.ID = strings.Join([]string{c.Address.String(), req.APIKey, req.User, req.Org}, "\x00")
	}
	return c
}

// unknownModel stands for the model of a request whose body hasn't been read. It is random, so no
// request can use up the limits of a model of this name.
var unknownModel = rand.Text()

// RefuseAhead refuses a request before the server reads its body to estimate amounts, if the
// refusal doesn't depend on the body: the client is on the deny list, in a cooldown, unidentified,
// or past a limit that counts no amount. It reports whether it has answered the request. If it
// hasn't, nothing was taken, and the handler of [Middleware.Wrap] decides the request.
func (m *Middleware) RefuseAhead(w http.ResponseWriter, r *http.Request) (c Client, refused bool) {
	none := &Estimate{Model: unknownModel, Amounts: map[string]counter.Amount{}}
	for _, name := range m.Amounts() {
		none.Amounts[name] = 0 // without an entry, the rule would charge its default
	}
	r = WithEstimate(r, none)
	ctx := r.Context()

	v := m.check(ctx, r, func(req *weir.Request) { req.Peek = true })
	defer func() { v.Release() }()
	c = clientOf(&v.Request)
	if v.fate == decided {
		if !v.refusedAhead() {
			return c, false
		}
		// Check again, because peeks are invisible to observers, cooldowns and limits on refused
		// requests. If a counter has refilled in between and the request is allowed now, the
		// receipt gives everything back.
		v.Release()
		v = m.check(ctx, r, func(req *weir.Request) { req.Receipt = true })
		if v.Serve() {
			m.finish(ctx, r, &v.Decision, weir.Outcome{Abandoned: true})
			return c, false
		}
	}
	m.dropOrAnswer(w, r, v)
	return c, true
}

// refusedAhead reports whether a request is refused whatever its amounts are. Limits that count an
// amount are left to the later check, which knows the amount and can tell how long to wait.
func (v *Verdict) refusedAhead() bool {
	d := &v.Decision
	if d.Allowed || d.Reason != weir.ReasonLimited {
		return !d.Allowed
	}
	return slices.ContainsFunc(d.Limits(), func(l weir.LimitStatus) bool {
		return !l.Allowed && !l.Policy.Shadow && l.Policy.Amount == ""
	})
}

// Overloaded refuses a request with 503 OVERLOADED, for a server that has no room for it.
func (m *Middleware) Overloaded(w http.ResponseWriter, r *http.Request) {
	private.Tell(m.limiter, r.Context(), &m.unread, weir.Decision{Reason: weir.ReasonOverloaded})
	x := overloaded
	m.answers.send(w, r, &x, &weir.Decision{})
}
