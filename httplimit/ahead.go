package httplimit

import (
	"crypto/rand"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/private"
)

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
