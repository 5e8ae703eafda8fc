package gateway

import (
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/server/internal/edge"
)

// checkTarget rejects a request that can't be forwarded unchanged, or whose path the upstream might read differently
// from the limiter. Otherwise it returns the request to serve, in which an empty path is replaced by /.
func (g *Gateway) checkTarget(r *http.Request) (*http.Request, *jsonerror.Error) {
	if r.Method == http.MethodConnect {
		return r, badTarget("CONNECT is not forwarded: the gateway is not a tunnel")
	}
	if notToken.MatchString(r.Method) { // HTTP/2 allows such a method, but forwarding it would fail, as if the upstream had failed
		return r, failure(http.StatusBadRequest, jsonerror.BadRequest, "The method isn't a token of HTTP")
	}
	if r.URL.Opaque != "" { // for example GET http:login HTTP/1.1
		return r, badTarget("The request target must be a path")
	}
	if r.URL.Path == "" { // GET http://host HTTP/1.1 asks the upstream for /, so the limits of / apply
		u := *r.URL
		u.Path = "/"
		r = r.WithContext(r.Context())
		r.URL = &u
	}
	path := rawPath(r)
	switch {
	case path[0] != '/':
		return r, badTarget("The request target must be a path")
	case strings.ContainsAny(path, "# "), strings.Contains(r.URL.RawQuery, " "):
		// An upstream might treat # as the beginning of a fragment, or a space (which HTTP/2 allows) as the end of the
		// path. It would then see a shorter path than the limiter.
		return r, badTarget("The request target holds a space or #, which must be sent as %20 and %23")
	}
	what := unsafePart(path)
	if what == "" && g.prefix != "" && g.prefix != "/" && parent.MatchString(path) {
		what = "a .. segment, which could lead out of the upstream's own path and back into it"
	}
	if what != "" && !g.opts.AllowUnsafePaths {
		return r, failure(http.StatusBadRequest, jsonerror.UnsafePath, "The path holds "+what+
			": servers read that in different ways, so that a limit could be evaded; the gateway refuses it unless it runs with --allow-unsafe-paths")
	}
	for name := range r.Trailer {
		if notToken.MatchString(name) {
			return r, failure(http.StatusBadRequest, jsonerror.BadRequest, "The Trailer header must be a list of names of fields")
		}
	}
	if u := r.Header.Get("Upgrade"); strings.ContainsFunc(u, func(c rune) bool { return c < ' ' || c > '~' }) {
		return r, failure(http.StatusBadRequest, jsonerror.BadRequest, "The Upgrade header must be printable ASCII")
	}
	return r, nil
}

// notToken matches a text that isn't a token as defined by HTTP. Methods and names of headers are tokens.
var notToken = regexp.MustCompile("^$|[^0-9A-Za-z!#$%&'*+.^_`|~-]")

func badTarget(message string) *jsonerror.Error {
	return failure(http.StatusBadRequest, jsonerror.BadTarget, message)
}

// rawPath returns the path of a request as the client sent it, including escapes.
func rawPath(r *http.Request) string {
	raw, _, _ := strings.Cut(r.RequestURI, "?")
	// The target may include a scheme and a host, or may have been rewritten.
	if !strings.HasPrefix(raw, "/") {
		return r.URL.EscapedPath()
	}
	if path, err := url.PathUnescape(raw); err != nil || path != r.URL.Path {
		return r.URL.EscapedPath()
	}
	return raw
}

var (
	// unsafeEscape matches escapes that servers read in different ways: escapes of a slash, a backslash or a NUL;
	// double escapes of these or of a dot; and invalid UTF-8, such as %c0%af, which careless decoders read as a slash
	// or a dot.
	unsafeEscape = regexp.MustCompile(`(?i)%(?:(?:25)+(?:2f|5c|00|2e)|2f|5c|00|(?:25)*c[01]%[89a-f].)`)
	// unsafeDots matches . or .. with parameters. Some servers resolve dots before they remove parameters, and others
	// do so afterward.
	unsafeDots = regexp.MustCompile(`(?i)(?:^|/)(?:\.|%2e){1,2};`)
	parent     = regexp.MustCompile(`(?i)(?:^|/)(?:\.|%2e){2}(?:/|$)`)
)

var escaped = map[string]string{"2f": "slash", "5c": "backslash", "00": "NUL", "2e": "dot"}

// unsafePart returns a part of an escaped path that servers read in different ways, or "".
func unsafePart(path string) string {
	e := unsafeEscape.FindString(path)
	switch {
	case strings.Contains(path, `\`):
		return "a backslash"
	case strings.Count(e, "%") > 1:
		return "an overlong character (" + e + ")"
	case len(e) > len("%2f"):
		return "a twice encoded " + escaped[strings.ToLower(e[len(e)-2:])] + " (" + e + ")"
	case e != "":
		return "an encoded " + escaped[strings.ToLower(e[1:])] + " (" + e + ")"
	case unsafeDots.MatchString(path):
		return "a dot segment with parameters (..;)"
	}
	return ""
}

// target returns the upstream's URL for a request. It consists of the upstream's own path, the request's path byte for
// byte, and the query.
func (g *Gateway) target(in *http.Request) *url.URL {
	raw := strings.TrimSuffix(g.prefix, "/") + rawPath(in)
	u := &url.URL{Scheme: g.opts.Upstream.Scheme, Host: g.opts.Upstream.Host, RawQuery: in.URL.RawQuery, ForceQuery: in.URL.ForceQuery}
	// Package url would escape characters such as | or {, except in opaque data. But if opaque data starts with //, it
	// would be read as a host. So such a path is escaped where necessary.
	if !strings.HasPrefix(raw, "//") {
		u.Opaque = raw
		return u
	}
	u.RawPath = escapeInvalid(raw)
	u.Path, _ = url.PathUnescape(u.RawPath) // can't fail: it was unescaped when the request was read
	return u
}

// escapeInvalid escapes the bytes of an escaped path that URLs don't allow.
func escapeInvalid(raw string) string {
	const (
		valid = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~!$&'()*+,;=:@[]/%"
		hex   = "0123456789ABCDEF"
	)
	b := make([]byte, 0, len(raw)+2)
	for i := range len(raw) {
		if c := raw[i]; strings.IndexByte(valid, c) >= 0 {
			b = append(b, c)
		} else {
			b = append(b, '%', hex[c>>4], hex[c&15])
		}
	}
	return string(b)
}

// setForwarded sets the headers that tell the upstream about the client. If the peer is a trusted proxy, they are what
// the proxy says, with the proxy's address appended. Otherwise they describe the connection to the gateway.
func (g *Gateway) setForwarded(in *http.Request, out http.Header) {
	peer := httplimit.ClientIP(in, nil) // without trusted proxies, ClientIP returns the address of the connection's other end
	trusted := edge.Trusts(g.opts.TrustedProxies, peer)
	maps.DeleteFunc(out, func(name string, _ []string) bool {
		// Some servers treat X_Forwarded_For, and some X.Forwarded.For, like X-Forwarded-For. A proxy that overwrites
		// one spelling lets the others pass.
		return isForwarding(name) && (!trusted || strings.ContainsFunc(name, notInHeader))
	})
	var prior http.Header
	if trusted {
		prior = in.Header
		setOr(out, "Forwarded", "", prior)
	}
	chain := slices.Clone(prior["X-Forwarded-For"])
	if peer.IsValid() {
		chain = append(chain, peer.String())
	}
	setOr(out, "X-Forwarded-For", strings.Join(chain, ", "), nil)
	proto := "http"
	if in.TLS != nil {
		proto = "https"
	}
	setOr(out, "X-Forwarded-Proto", proto, prior)
	setOr(out, "X-Forwarded-Host", in.Host, prior)
}

// setOr sets a header to what a trusted proxy sent. If the proxy didn't send the header, it sets it to value or, if
// value is "", removes it.
func setOr(out http.Header, name, value string, prior http.Header) {
	if v := prior[name]; len(v) > 0 {
		out[name] = v
	} else if value != "" {
		out[name] = []string{value}
	} else {
		delete(out, name)
	}
}

// isForwarding reports whether proxies use a header to describe their client.
func isForwarding(name string) bool {
	if name == "" || name[0] != 'X' && name[0] != 'x' && name[0] != 'F' && name[0] != 'f' {
		return false
	}
	name = strings.Map(func(c rune) rune {
		if notInHeader(c) {
			return '-'
		}
		return unicode.ToLower(c)
	}, name)
	switch name {
	case "forwarded", "x-real-ip":
		return true
	case "x-original-url", "x-original-uri", "x-rewrite-url":
		// Some frameworks use these headers for routing, so a client could reach a path for which it wasn't limited.
		return true
	}
	return strings.HasPrefix(name, "x-forwarded-")
}

func notInHeader(c rune) bool {
	return c != '-' && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9')
}
