package grpclimit

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/weirhq/weir/httplimit"
)

// call is a call in the form in which it is checked: the HTTP request that it is on the wire. Calls are reused.
type call struct {
	request http.Request
	url     url.URL
	address []byte
	user    string      // that the client's certificate names, if nothing else says it
	told    http.Header // what the client is told of its limits
}

var calls = sync.Pool{New: func() any {
	c := &call{told: http.Header{}}
	c.request = http.Request{Method: http.MethodPost, URL: &c.url, Header: http.Header{}}
	return c
}}

// release forgets the client's values, which would otherwise live as long as the pool.
func (c *call) release() {
	clear(c.request.Header)
	clear(c.told)
	c.request.Host, c.request.RemoteAddr, c.request.RequestURI, c.url, c.user = "", "", "", url.URL{}, ""
	calls.Put(c)
}

// names are the metadata that calls are identified by, in both spellings.
type names struct{ canonical, lower []string }

// watched are those of the rules in force.
func (i *Interceptors) watched() *names {
	canonical := i.limit.Headers()
	n := i.names.Load()
	if n != nil && len(n.canonical) == len(canonical) && (len(canonical) == 0 || &n.canonical[0] == &canonical[0]) {
		return n
	}
	n = &names{canonical: canonical, lower: make([]string, len(canonical))}
	for at, name := range canonical {
		n.lower[at] = strings.ToLower(name)
	}
	i.names.Store(n)
	return n
}

// read fills in what identifies a call.
func (c *call) read(ctx context.Context, i *Interceptors, method string) {
	c.url.Path, c.request.RequestURI = method, method
	n := i.watched()
	for at, name := range n.lower {
		if name != "host" {
			c.header(ctx, n.canonical[at], name)
		} else if host := metadata.ValueFromIncomingContext(ctx, ":authority"); len(host) == 1 {
			c.request.Host = host[0]
		}
	}
	if len(i.opts.TrustedProxies) > 0 {
		c.header(ctx, "X-Forwarded-For", "x-forwarded-for")
	}
	p, ok := peer.FromContext(ctx)
	if !ok {
		return
	}
	if tcp, ok := p.Addr.(*net.TCPAddr); ok {
		c.address = tcp.AddrPort().AppendTo(c.address[:0])
		c.request.RemoteAddr = string(c.address)
	} else if p.Addr != nil {
		c.request.RemoteAddr = p.Addr.String()
	}
	if i.opts.Identity.User == (httplimit.Source{}) {
		c.user = certified(p.AuthInfo)
	}
}

// header hands over the values that a name has in the metadata.
func (c *call) header(ctx context.Context, canonical, lower string) {
	if v := metadata.ValueFromIncomingContext(ctx, lower); len(v) > 0 {
		c.request.Header[canonical] = v
	}
}

// certified is the user that a verified client certificate names, as Envoy names it: by its first URI, else its first DNS
// name, else its subject.
func certified(info credentials.AuthInfo) string {
	t, ok := info.(credentials.TLSInfo)
	if !ok || len(t.State.VerifiedChains) == 0 { // a certificate that nobody has verified proves nothing
		return ""
	}
	switch cert := t.State.VerifiedChains[0][0]; {
	case len(cert.URIs) > 0:
		return cert.URIs[0].String()
	case len(cert.DNSNames) > 0:
		return cert.DNSNames[0]
	default:
		return cert.Subject.String()
	}
}

// traced returns the context of the check.
func (i *Interceptors) traced(ctx context.Context) context.Context {
	if i.opts.Trace == nil {
		return ctx
	}
	parent := metadata.ValueFromIncomingContext(ctx, "traceparent")
	if len(parent) == 0 {
		return ctx
	}
	state := append(metadata.ValueFromIncomingContext(ctx, "tracestate"), "")
	return i.opts.Trace(ctx, parent[0], state[0])
}
