// Package forwardauth answers gateways that ask about each request before they forward it: nginx
// (auth_request), Caddy and Traefik (forward auth), HAProxy (Lua), and Envoy (ext_authz over HTTP;
// package envoy serves it over gRPC).
//
// A gateway describes its client's request in headers. From these headers, forwardauth reconstructs the request as the
// gateway received it, and limits it like any other request. The request counts for the same client as if it had come
// through package gateway or through a middleware.
//
// Anybody who can write these headers can impersonate any client. So the headers are accepted only from trusted peers,
// and only those that the particular gateway sets itself. Each header must appear exactly once, because a second one
// would come from the client.
package forwardauth

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"unicode"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/server/internal/edge"
	"github.com/weirhq/weir/server/internal/edge/guard"
)

// Options are the options of New. The zero value is useful.
type Options struct {
	// Limit says how clients are identified and how requests are answered, as in the gateway. New sets its Edge. Only
	// peers in its TrustedProxies and peers on loopback are allowed to ask.
	Limit httplimit.Options
	// Guard checks the token in the header X-Weir-Token, if the Guard requires a token. The header Authorization
	// belongs to the client's request.
	Guard *guard.Guard
	// Logger logs that a gateway's requests can't be decided, once for each kind of fault. If nil, nothing is logged.
	Logger *slog.Logger
}

const tokenHeader = "X-Weir-Token"

// New returns a handler for all paths at which gateways ask.
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

// Handler decides requests for gateways. Create one with [New].
type Handler struct {
	opts     Options
	gateways map[string]*gateway              // by path
	limits   map[string]*httplimit.Middleware // by edge
	said     sync.Map                         // faults that have been logged
}

// InFlight returns the number of requests that are being decided for the kind of gateway with the most requests.
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

func (h *Handler) serve(w http.ResponseWriter, r *http.Request, g *gateway) {
	reply := &edge.Recorder{Status: http.StatusOK, Head: w.Header()}
	defer send(w, reply, g)
	if refused := h.admit(r); refused != nil {
		h.warn(g.path, r.RemoteAddr, refused)
		refused.Write(reply)
		return
	}
	in, fault := g.original(r)
	if fault != nil {
		h.refuse(reply, g.path, r.RemoteAddr, fault)
		return
	}
	if g.masks {
		in.Header.Del("Accept") // nginx's configuration sets the type of the body, so the client's Accept has no effect
	}
	h.decide(r.Context(), reply, g, r.RemoteAddr, in)
}

// Envoy decides a client's request about which Envoy asks over gRPC, in the same way as at /check/envoy. The request
// needs no URL. Its RemoteAddr is the client's address as Envoy saw it, and peer is Envoy's own address. The reply has
// status 200 if the request is admitted. shed reports that the node had no capacity for the request.
func (h *Handler) Envoy(ctx context.Context, peer string, in *http.Request) (reply *edge.Recorder, shed bool) {
	reply = &edge.Recorder{Status: http.StatusOK, Head: http.Header{}}
	if _, err := netip.ParseAddr(in.RemoteAddr); err == nil {
		shed = h.decide(ctx, reply, h.gateways[envoyPath], peer, in)
	} else {
		h.refuse(reply, "--grpc", peer, jsonerror.Bad("Envoy doesn't tell the address of its client (attributes.source.address): have it listen on an address, not on a pipe"))
	}
	return reply, shed
}

// decide decides a client's request, and reports whether the node had no capacity for it. If rules count by the status
// of the response, the charge stays, since forward auth never sees that response.
func (h *Handler) decide(ctx context.Context, reply *edge.Recorder, g *gateway, peer string, in *http.Request) (shed bool) {
	var err error
	if in.URL, err = url.ParseRequestURI(in.RequestURI); err != nil { // in the same way as net/http parses the target of a request
		h.refuse(reply, g.path, peer, jsonerror.New(http.StatusBadRequest, jsonerror.BadTarget, "The request target can't be read"))
		return false
	}
	limit := h.limits[g.edge]
	v := limit.Ask(ctx, in, nil)
	defer v.Release()
	limit.Answer(reply, in, v)
	return !v.Serve() && v.Refused().Code == jsonerror.Overloaded
}

func (h *Handler) refuse(reply *edge.Recorder, at, peer string, fault *jsonerror.Error) {
	if fault.Code == jsonerror.BadRequest { // the fault is in the gateway's configuration, and not the client's
		h.warn(at, peer, fault)
	}
	fault.Write(reply)
}

// admit returns an error if the peer isn't allowed to ask, and otherwise nil.
func (h *Handler) admit(r *http.Request) *jsonerror.Error {
	if peer := httplimit.ClientIP(r, nil); !peer.IsLoopback() && !edge.Trusts(h.opts.Limit.TrustedProxies, peer) {
		return jsonerror.New(http.StatusForbidden, jsonerror.UntrustedPeer,
			"%s is not trusted to speak for clients: if it is your gateway, start weir with --trusted-proxies %s", peer, peer)
	}
	if g := h.opts.Guard; g != nil && g.Asks() {
		if refused := g.AdmitToken(r.RemoteAddr, r.Header.Get(tokenHeader)); refused != nil {
			refused.Message = strings.ReplaceAll(refused.Message, "Authorization: Bearer TOKEN", tokenHeader+": TOKEN, which the gateway is to set")
			return refused
		}
	}
	return nil
}

func (h *Handler) warn(at, peer string, fault *jsonerror.Error) {
	said := at + fault.Code
	if fault.Code == jsonerror.BadRequest {
		said += fault.Message // log each message about the configuration once
	}
	if _, before := h.said.LoadOrStore(said, true); !before {
		h.opts.Logger.Warn("a gateway asks in a way that can't be answered", "at", at, "peer", peer, "why", fault.Message)
	}
}

// maxMasked is the size of the longest body that is sent in a header. nginx reads response headers into a buffer of 4
// KiB.
const maxMasked = 2 << 10

// send sends a complete response in the form that a gateway expects. It is the response to the gateway's request, and
// not the client's: even if a refused request has the method HEAD, a gateway that asks with GET waits for a body.
func send(w http.ResponseWriter, a *edge.Recorder, g *gateway) {
	body := a.Body.Bytes()
	if g.marks {
		a.Head["X-Weir-Status"] = []string{strconv.Itoa(a.Status)}
	}
	if g.masks && a.Status != http.StatusOK {
		if line := bytes.TrimSpace(body); len(line) <= maxMasked && !bytes.ContainsFunc(line, unicode.IsControl) {
			a.Head["X-Weir-Body"] = []string{string(line)}
		}
		a.Status = http.StatusForbidden
	}
	a.Head["Content-Length"] = []string{strconv.Itoa(len(body))}
	w.WriteHeader(a.Status)
	_, _ = w.Write(body) // the gateway may have disconnected
}
