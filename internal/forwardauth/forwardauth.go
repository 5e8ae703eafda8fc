package forwardauth

import (
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/internal/guard"
	"github.com/weirhq/weir/internal/jsonerror"
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
func New(l *weir.Limiter, opts Options) http.Handler {
	h := &handler{opts: opts, gateways: map[string]http.HandlerFunc{}}
	if h.opts.Logger == nil {
		h.opts.Logger = slog.New(slog.DiscardHandler)
	}
	limits := map[string]http.Handler{}
	for _, g := range gateways {
		limit := limits[g.edge]
		if limit == nil {
			o := opts.Limit
			o.Edge = g.edge
			limit = httplimit.New(l, o).Wrap(http.HandlerFunc(admit))
			limits[g.edge] = limit
		}
		h.gateways[g.path] = func(w http.ResponseWriter, r *http.Request) { h.serve(w, r, g, limit) }
	}
	return h
}

// admit answers a request that is within its limits. Nobody here learns what the service makes of it.
func admit(w http.ResponseWriter, r *http.Request) {
	httplimit.NoAnswer(r)
	w.WriteHeader(http.StatusOK)
}

type handler struct {
	opts     Options
	gateways map[string]http.HandlerFunc // by path
	said     sync.Map                    // faults that were logged
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Path
	if Behind(r) {
		path = envoyPath
	}
	if serve := h.gateways[path]; serve != nil {
		serve(w, r)
		return
	}
	jsonerror.New(http.StatusNotFound, jsonerror.NotFound, "there is nothing here: gateways ask at %s", strings.Join(Paths(), ", ")).Write(w)
}

// serve answers a gateway.
func (h *handler) serve(w http.ResponseWriter, r *http.Request, g *gateway, limit http.Handler) {
	reply := &reply{header: w.Header(), status: http.StatusOK}
	defer reply.send(w, g)
	if refused := h.admit(r); refused != nil {
		h.warn(r, g, refused)
		refused.Write(reply)
		return
	}
	in, fault := g.original(r)
	if fault != nil {
		if fault.Code == jsonerror.BadRequest { // the gateway's, not its client's
			h.warn(r, g, fault)
		}
		fault.Write(reply)
		return
	}
	if g.masks {
		in.Header.Del("Accept") // the body becomes part of nginx' configuration, which says what type it has
	}
	limit.ServeHTTP(reply, in)
}

// admit says why a peer may not ask, or returns nil.
func (h *handler) admit(r *http.Request) *jsonerror.Error {
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
func (h *handler) trusts(peer netip.Addr) bool {
	return peer.IsLoopback() || peer.IsValid() && slices.ContainsFunc(h.opts.Limit.TrustedProxies, func(p netip.Prefix) bool {
		return p.Contains(peer) || p.Contains(netip.AddrFrom16(peer.As16())) // IPv4 in IPv6 clothes
	})
}

// warn logs the first of each kind of fault: whoever set up the gateway must learn of it, and a flood of them tells no more.
func (h *handler) warn(r *http.Request, g *gateway, fault *jsonerror.Error) {
	said := g.path + fault.Code
	if fault.Code == jsonerror.BadRequest {
		said += fault.Message // which is about the configuration
	}
	if _, before := h.said.LoadOrStore(said, true); !before {
		h.opts.Logger.Warn("a gateway asks in a way that can't be answered", "at", g.path, "peer", r.RemoteAddr, "why", fault.Message)
	}
}
