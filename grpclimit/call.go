package grpclimit

import (
	"context"
	"net/http"
	"net/url"
	"slices"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/weirhq/weir/httplimit"
)

// request returns a call in the form in which it is checked: the HTTP request that it is on the
// wire, with the headers that identify its client. user is the one that the client's certificate
// names, if nothing else names it.
func (i *Interceptors) request(ctx context.Context, method string) (r *http.Request, user string) {
	r = &http.Request{Method: http.MethodPost, URL: &url.URL{Path: method}, RequestURI: method, Header: http.Header{}}
	names := i.limit.Headers()
	if len(i.opts.TrustedProxies) > 0 {
		names = append(slices.Clip(names), "X-Forwarded-For")
	}
	for _, name := range names {
		if name != "Host" {
			if v := metadata.ValueFromIncomingContext(ctx, name); len(v) > 0 {
				r.Header[name] = v
			}
		} else if host := metadata.ValueFromIncomingContext(ctx, ":authority"); len(host) == 1 {
			r.Host = host[0]
		}
	}
	p, ok := peer.FromContext(ctx)
	if !ok {
		return r, ""
	}
	if p.Addr != nil {
		r.RemoteAddr = p.Addr.String()
	}
	if i.opts.Identity.User == (httplimit.Source{}) {
		user = certified(p.AuthInfo)
	}
	return r, user
}

// certified returns the user that a verified client certificate names, as Envoy names it: the first
// URI, or else the first DNS name, or else the subject.
func certified(info credentials.AuthInfo) string {
	t, ok := info.(credentials.TLSInfo)
	if !ok || len(t.State.VerifiedChains) == 0 { // an unverified certificate proves nothing
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
	parent := metadata.ValueFromIncomingContext(ctx, "traceparent")
	if i.opts.Trace == nil || len(parent) == 0 {
		return ctx
	}
	state := append(metadata.ValueFromIncomingContext(ctx, "tracestate"), "")
	return i.opts.Trace(ctx, parent[0], state[0])
}
