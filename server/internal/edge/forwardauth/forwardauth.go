package forwardauth

import (
	"context"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/server/internal/edge/guard"
)

// Options of New. The zero value is useful.
type Options struct {
	// Limit is how requests are identified and answered, as for those of the gateway. Its edge is set here. Its
	// TrustedProxies may ask, beside peers on loopback.
	Limit httplimit.Options
	// Guard, if it asks for a token, gets that of the header X-Weir-Token: Authorization is the client's.
	Guard *guard.Guard
	// Logger is told of gateways that ask in a way that can't be answered, once of each. Nil means that nobody is told.
	Logger *slog.Logger
}

// tokenHeader is where gateways send the port's token.
const tokenHeader = "X-Weir-Token"

// New returns a handler for the paths of every gateway.
func New(l *weir.Limiter, opts Options) *Handler {
	h := &Handler{opts: opts, gateways: map[string]*gateway{}, limits: map[string]*httplimit.Middleware{}}
	if h.opts.Logger == nil {
		h.opts.Logger = slog.New(slog.DiscardHandler)
	}
	for _, g := range gateways {
		h.gateways[g.path] = g
		if h.limits[g.edge] == nil {
			o := opts.Limit
			o.Edge = g.edge
			h.limits[g.edge] = httplimit.New(l, o)
		}
	}
	return h
}

// Handler answers gateways. Make one with [New].
type Handler struct {
	opts     Options
	gateways map[string]*gateway              // by path
	limits   map[string]*httplimit.Middleware // by edge
	said     sync.Map                         // faults that were logged
}

// InFlight is how many requests are being decided, for the gateways that ask about the most.
func (h *Handler) InFlight() (most int) {
	for _, m := range h.limits {
		most = max(most, m.InFlight())
	}
	return most
}

func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Path
	if Behind(r) {
		path = envoyPath
	}
	if g := h.gateways[path]; g != nil {
		h.serve(w, r, g)
		return
	}
	jsonerror.New(http.StatusNotFound, jsonerror.NotFound, "there is nothing here: gateways ask at %s", strings.Join(Paths(), ", ")).Write(w)
}

// serve answers a gateway.
func (h *Handler) serve(w http.ResponseWriter, r *http.Request, g *gateway) {
	reply := &reply{header: w.Header(), status: http.StatusOK}
	defer reply.send(w, g)
	if refused := h.admit(r); refused != nil {
		h.warn(g.path, r.RemoteAddr, refused)
		refused.Write(reply)
		return
	}
	o, fault := g.original(r)
	if fault != nil {
		h.refuse(reply, g.path, r.RemoteAddr, fault)
		return
	}
	if g.masks {
		o.Header.Del("Accept") // the body becomes part of nginx' configuration, which says what type it has
	}
	h.decide(r.Context(), reply, g, r.RemoteAddr, o)
}

// Answer is what a client is to be told. Its status is 200 if the request is admitted.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
	Shed   bool // the node had no place for the request, and nothing was decided
}

// Envoy decides a request that Envoy asks about over gRPC, as it decides those at /check/envoy. Peer is Envoy's own address.
func (h *Handler) Envoy(ctx context.Context, peer string, o *Original) Answer {
	reply := &reply{header: http.Header{}, status: http.StatusOK}
	var shed bool
	if o.Peer.IsValid() {
		shed = h.decide(ctx, reply, h.gateways[envoyPath], peer, o)
	} else {
		h.refuse(reply, "--grpc", peer, jsonerror.Bad("Envoy doesn't tell the address of its client (attributes.source.address): have it listen on an address, not on a pipe"))
	}
	return Answer{reply.status, reply.header, reply.body.Bytes(), shed}
}

// decide decides a client's request, and reports whether there was no place for it. Nobody here learns what the service makes
// of a request: rules that count by that keep what they took.
func (h *Handler) decide(ctx context.Context, reply *reply, g *gateway, peer string, o *Original) (shed bool) {
	in, fault := o.request()
	if fault != nil {
		h.refuse(reply, g.path, peer, fault)
		return false
	}
	limit := h.limits[g.edge]
	v := limit.Ask(ctx, in, nil)
	defer v.Release()
	limit.Answer(reply, in, v)
	return !v.Serve() && v.Refused().Code == jsonerror.Overloaded
}

// refuse answers a gateway about a request that can't be decided.
func (h *Handler) refuse(reply *reply, at, peer string, fault *jsonerror.Error) {
	if fault.Code == jsonerror.BadRequest { // the gateway's, not its client's
		h.warn(at, peer, fault)
	}
	fault.Write(reply)
}

// admit says why a peer may not ask, or returns nil.
func (h *Handler) admit(r *http.Request) *jsonerror.Error {
	if peer := httplimit.ClientIP(r, nil); !h.trusts(peer) {
		return jsonerror.New(http.StatusForbidden, jsonerror.UntrustedPeer,
			"%s is not trusted to speak for clients: if it is your gateway, start weir with --trusted-proxies %s", peer, peer)
	}
	if g := h.opts.Guard; g != nil && g.Asks() {
		asks := &http.Request{RemoteAddr: r.RemoteAddr, Header: http.Header{}}
		if token := r.Header.Get(tokenHeader); token != "" {
			asks.Header.Set("Authorization", "Bearer "+token)
		}
		if _, refused := g.Admit(asks); refused != nil {
			e := *refused.Error
			e.Message = strings.ReplaceAll(e.Message, "Authorization: Bearer TOKEN", tokenHeader+": TOKEN, which the gateway is to set")
			return &e
		}
	}
	return nil
}

// trusts reports whether a peer may speak for clients.
func (h *Handler) trusts(peer netip.Addr) bool {
	return peer.IsLoopback() || peer.IsValid() && slices.ContainsFunc(h.opts.Limit.TrustedProxies, func(p netip.Prefix) bool {
		return p.Contains(peer) || p.Contains(netip.AddrFrom16(peer.As16())) // IPv4 in IPv6 clothes
	})
}

// warn logs the first of each kind of fault: whoever set up the gateway must learn of it, and a flood of them tells no more.
func (h *Handler) warn(at, peer string, fault *jsonerror.Error) {
	said := at + fault.Code
	if fault.Code == jsonerror.BadRequest {
		said += fault.Message // which is about the configuration
	}
	if _, before := h.said.LoadOrStore(said, true); !before {
		h.opts.Logger.Warn("a gateway asks in a way that can't be answered", "at", at, "peer", peer, "why", fault.Message)
	}
}
