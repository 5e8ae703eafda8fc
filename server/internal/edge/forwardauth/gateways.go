package forwardauth

import (
	"cmp"
	"net/http"
	"net/netip"
	"strings"

	"github.com/weirhq/weir/internal/jsonerror"
)

// gateway says how one kind of gateway describes a client's request, and what it does with responses.
type gateway struct {
	path string // the path at which the gateway asks
	edge string

	method, uri, peer control
	host              control // the header with the client's Host, if the gateway's own request has a different Host
	behind            bool    // the gateway's own request has the client's method, and the client's target after the path
	chain             bool    // the header for the peer is a list, whose last address is the peer's
	marks             bool    // responses repeat their status in X-Weir-Status, by which the gateway recognizes them
	masks             bool    // the gateway passes on no refusal except 403, so headers contain the actual response
}

// control is a header in which a gateway describes part of a request.
type control struct {
	name string // the header's name, in canonical form
	fix  string // how to configure the gateway if the header is missing
}

func nginx(name, value string) control {
	return control{http.CanonicalHeaderKey(name), "write into nginx' location that asks Weir: proxy_set_header " + name + " " + value + ";"}
}

var gateways = []*gateway{
	{
		path: "/check/nginx", edge: "forwardauth", marks: true, masks: true,
		method: nginx("X-Original-Method", "$request_method"),
		uri:    nginx("X-Original-URI", "$request_uri"),
		peer:   nginx("X-Real-IP", "$remote_addr"),
	},
	{
		path: "/check/caddy", edge: "forwardauth", chain: true,
		method: control{"X-Forwarded-Method", "write into Caddy's reverse_proxy that asks Weir: header_up X-Forwarded-Method {method}"},
		uri:    control{"X-Forwarded-Uri", "write into Caddy's reverse_proxy that asks Weir: header_up X-Forwarded-Uri {uri}"},
		peer:   control{"X-Forwarded-For", byCaddy},
		host:   control{"X-Forwarded-Host", byCaddy},
	},
	{
		path: "/check/haproxy", edge: "forwardauth", marks: true,
		method: control{"X-Original-Method", byLua},
		uri:    control{"X-Original-Uri", byLua},
		peer:   control{"X-Real-Ip", byLua},
	},
	{
		path: "/check/traefik", edge: "forwardauth", chain: true,
		method: control{"X-Forwarded-Method", byTraefik},
		uri:    control{"X-Forwarded-Uri", byTraefik},
		peer:   control{"X-Forwarded-For", byTraefik},
		host:   control{"X-Forwarded-Host", byTraefik},
	},
	{
		path: envoyPath, edge: "extauthz", behind: true,
		peer: control{"X-Real-Ip", "write into authorization_request of Envoy's http_service: " +
			`headers_to_add: [{key: x-real-ip, value: "%DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT%"}]`},
	},
}

const (
	byCaddy   = "Caddy's reverse_proxy and forward_auth set it, unless header_up changes that"
	byLua     = "HAProxy sets it by weir.lua, of docs/guides/haproxy.md"
	byTraefik = "Traefik's middleware forwardAuth sets it: ask at /check/traefik with that"
)

// envoyPath is the path at which Envoy asks over HTTP. In a request, the client's target follows it.
const envoyPath = "/check/envoy"

// Behind reports whether a request comes from Envoy, so that the client's target follows the path. Don't route such
// requests with a ServeMux, because it redirects paths that aren't clean.
func Behind(r *http.Request) bool { return strings.HasPrefix(r.RequestURI, envoyPath+"/") }

// Paths returns the paths at which gateways ask.
func Paths() []string {
	var paths []string
	for _, g := range gateways {
		paths = append(paths, g.path)
	}
	return paths
}

// one returns the value of a header that the gateway must set exactly once. Otherwise it returns an error.
func (c *control) one(h http.Header) (string, *jsonerror.Error) {
	v, fault := c.ifAny(h)
	if v == "" && fault == nil {
		fault = jsonerror.Bad("the header %s is missing: %s", c.name, c.fix)
	}
	return v, fault
}

// ifAny returns the value of a header that may be missing, but must not be repeated.
func (c *control) ifAny(h http.Header) (string, *jsonerror.Error) {
	switch v := h[c.name]; len(v) {
	case 0:
		return "", nil
	case 1:
		return v[0], nil
	}
	return "", jsonerror.Bad("the header %s appears twice, so one may be the client's: %s", c.name, c.fix)
}

// original returns the client's request as the gateway received it. The URL isn't set: see [Handler.decide].
func (g *gateway) original(r *http.Request) (*http.Request, *jsonerror.Error) {
	o := &http.Request{Method: r.Method, Host: r.Host, ContentLength: r.ContentLength, Header: make(http.Header, len(r.Header)), Trailer: r.Trailer}
	var fault *jsonerror.Error // the first fault
	get := func(read func(http.Header) (string, *jsonerror.Error)) (value string) {
		if fault == nil {
			value, fault = read(r.Header)
		}
		return value
	}
	if g.behind {
		o.RequestURI = strings.TrimPrefix(r.RequestURI, g.path)
		if !strings.HasPrefix(o.RequestURI, "/") {
			return nil, jsonerror.Bad("the client's path is missing behind %s: write into Envoy's http_service: path_prefix: %s", g.path, g.path)
		}
	} else {
		o.Method, o.RequestURI = get(g.method.one), get(g.uri.one)
	}
	from, host := get(g.peer.one), get(g.host.ifAny)
	if fault != nil {
		return nil, fault
	}
	o.Host = cmp.Or(host, o.Host)
	before := r.Header["X-Forwarded-For"] // as the client sent it
	if g.chain {
		if at := strings.LastIndexByte(from, ','); at >= 0 {
			before, from = []string{from[:at]}, from[at+1:]
		} else {
			before = nil
		}
	}
	peer, err := netip.ParseAddr(strings.TrimSpace(from))
	if err != nil {
		return nil, jsonerror.Bad("the header %s must hold the address of the client: %s", g.peer.name, g.peer.fix)
	}
	o.RemoteAddr = peer.String()
	for name, values := range r.Header {
		switch name {
		case g.method.name, g.uri.name, g.peer.name, g.host.name, "X-Forwarded-For", tokenHeader:
		default:
			o.Header[name] = values
		}
	}
	if before != nil {
		o.Header["X-Forwarded-For"] = before
	}
	return o, nil
}
