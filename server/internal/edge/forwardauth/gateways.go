package forwardauth

import (
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/weirhq/weir/internal/jsonerror"
)

// gateway is how one kind of gateway tells of a request, and what it makes of answers.
type gateway struct {
	path string // where it asks
	edge string

	method, uri, peer control
	// host is the header with the client's Host, if it isn't the Host of the gateway's own request.
	host control
	// behind: method and target are those of the gateway's own request, the target behind the path.
	behind bool
	// chain: the peer is the last address of a list, and the others are what the peer said of those before it.
	chain bool
	// marks: answers have their status in X-Weir-Status, too, by which the gateway tells them from those of something in between.
	marks bool
	// masks: the gateway understands no other refusal than 403, so the answer itself is in headers.
	masks bool
}

// control is a header in which a gateway tells something of a request.
type control struct {
	name string // in canonical form
	fix  string // what to write into the gateway's configuration, if it is missing
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

// envoyPath has the client's own target behind it.
const envoyPath = "/check/envoy"

// Behind reports whether a request is Envoy's, about the target behind its path. Such a request is not for a ServeMux, which
// redirects from paths that it would write otherwise.
func Behind(r *http.Request) bool { return strings.HasPrefix(r.RequestURI, envoyPath+"/") }

// Paths are those that gateways ask at.
func Paths() []string {
	var paths []string
	for _, g := range gateways {
		paths = append(paths, g.path)
	}
	return paths
}

// one is the value of a header that a gateway has set.
func (c *control) one(h http.Header) (string, *jsonerror.Error) {
	v, fault := c.ifAny(h)
	if v == "" && fault == nil {
		fault = jsonerror.Bad("the header %s is missing: %s", c.name, c.fix)
	}
	return v, fault
}

// ifAny is one of a header that may be missing.
func (c *control) ifAny(h http.Header) (string, *jsonerror.Error) {
	switch v := h[c.name]; len(v) {
	case 0:
		return "", nil
	case 1:
		return v[0], nil
	}
	return "", jsonerror.Bad("the header %s came twice, so that one of them may be the client's: %s", c.name, c.fix)
}

// Original is a client's request, as its gateway got it.
type Original struct {
	Method, Target, Host string
	Peer                 netip.Addr // that the gateway saw
	Header, Trailer      http.Header
	ContentLength        int64 // -1 if it isn't known
}

// original is the client's request.
func (g *gateway) original(r *http.Request) (*Original, *jsonerror.Error) {
	o := &Original{Method: r.Method, Host: r.Host, ContentLength: r.ContentLength, Header: make(http.Header, len(r.Header)), Trailer: r.Trailer}
	var fault *jsonerror.Error
	if g.behind {
		o.Target = strings.TrimPrefix(r.RequestURI, g.path)
		if !strings.HasPrefix(o.Target, "/") {
			return nil, jsonerror.Bad("the client's path is missing behind %s: write into Envoy's http_service: path_prefix: %s", g.path, g.path)
		}
	} else {
		if o.Method, fault = g.method.one(r.Header); fault != nil {
			return nil, fault
		}
		if o.Target, fault = g.uri.one(r.Header); fault != nil {
			return nil, fault
		}
	}
	from, fault := g.peer.one(r.Header)
	if fault != nil {
		return nil, fault
	}
	before := r.Header["X-Forwarded-For"] // as the client sent it
	if g.chain {
		if at := strings.LastIndexByte(from, ','); at >= 0 {
			before, from = []string{from[:at]}, from[at+1:]
		} else {
			before = nil
		}
	}
	host, fault := g.host.ifAny(r.Header)
	if fault != nil {
		return nil, fault
	}
	if host != "" {
		o.Host = host
	}
	var err error
	if o.Peer, err = netip.ParseAddr(strings.TrimSpace(from)); err != nil {
		return nil, jsonerror.Bad("the header %s must hold the address of the client: %s", g.peer.name, g.peer.fix)
	}
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

// request is the client's request as this process would have got it.
func (o *Original) request() (*http.Request, *jsonerror.Error) {
	u, err := url.ParseRequestURI(o.Target) // as package http reads the target of a request
	if err != nil {
		return nil, jsonerror.New(http.StatusBadRequest, jsonerror.BadTarget, "The request target can't be read")
	}
	return &http.Request{
		Method: o.Method, URL: u, RequestURI: o.Target, Host: o.Host, Header: o.Header, Trailer: o.Trailer, ContentLength: o.ContentLength,
		RemoteAddr: o.Peer.String(),
	}, nil
}
