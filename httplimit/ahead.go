package httplimit

import (
	"context"
	"crypto/rand"
	"net/http"
	"net/netip"
	"strings"

	"github.com/weirhq/weir"
)

// Client is the sender of a request, for a server that gives every client a share of its memory.
type Client struct {
	// Address is the client's network: its IPv4 address, or the /64 of its IPv6 address.
	Address netip.Prefix
	// ID tells the clients of an address apart by their keys, users and organizations. It is empty if the request names none. The ID
	// of a verified client is made of its key alone, and is the same for every address.
	ID string
	// Verified says that the key is genuine. Otherwise the client could choose its ID freely.
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

// unknownModel stands for the model of a request whose body hasn't been read. It is random, so that no request can use up the
// limits of a model of this name.
var unknownModel = rand.Text()

// RefuseAhead refuses a request that doesn't depend on its body, before a server reads that body to find the request's amounts: the
// client is on the deny list, in a cooldown, can't be identified, or is past a limit that counts no amount. It reports whether it has
// answered the request. If it hasn't, nothing was taken, and the handler of [Middleware.Wrap] decides the request.
func (m *Middleware) RefuseAhead(w http.ResponseWriter, r *http.Request) (c Client, refused bool) {
	none := &Estimate{Model: unknownModel, Amounts: map[string]weir.Amount{}}
	for _, name := range m.Amounts() {
		none.Amounts[name] = 0 // else the rule would ask for its default
	}
	r = WithEstimate(r, none)
	ctx := r.Context()

	v := m.askAhead(ctx, r, func(req *weir.Request) { req.Peek = true })
	c = clientOf(&v.Request)
	if v.fate == decided && !v.refusedAhead() {
		v.Release()
		return c, false
	}
	if v.fate == decided {
		// Ask again, since a peek counts for no observer, cooldown or limit on refused requests. A counter may have refilled in
		// between. The receipt then gives everything back.
		v.Release()
		v = m.askAhead(ctx, r, func(req *weir.Request) { req.Receipt = true })
		if v.Serve() {
			m.finish(ctx, r, &v.Decision, weir.Outcome{Abandoned: true})
			v.Release()
			return c, false
		}
	}
	m.dropOrAnswer(w, r, v)
	v.Release()
	return c, true
}

// askAhead decides a request without waiting in a queue.
func (m *Middleware) askAhead(ctx context.Context, r *http.Request, fill func(*weir.Request)) *Verdict {
	v := verdicts.Get().(*Verdict)
	if !m.enter(ctx, v) {
		return v
	}
	if err := m.decide(ctx, r, v, fill); err != nil {
		m.tell(r, err)
	}
	return v
}

// refusedAhead reports whether a request is refused whatever amounts it has. Limits that count an amount are left to the check that
// knows the amount, which can also tell how long to wait.
func (v *Verdict) refusedAhead() bool {
	d := &v.Decision
	if d.Allowed || d.Reason != weir.ReasonLimited {
		return !d.Allowed
	}
	for _, l := range d.Limits() {
		if !l.Allowed && !l.Policy.Shadow && l.Policy.Amount == "" {
			return true
		}
	}
	return false
}

// Overloaded refuses a request for which a server has no room, with 503 OVERLOADED.
func (m *Middleware) Overloaded(w http.ResponseWriter, r *http.Request) {
	m.limiter.Tell(r.Context(), &m.unread, weir.Decision{Reason: weir.ReasonOverloaded})
	refuseOverloaded(w, r)
}
