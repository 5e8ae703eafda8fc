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

// checkTarget rejects requests that can't be forwarded unchanged, or whose path an upstream may
// read differently than the limiter. It returns the request to serve, whose path isn't empty.
func (g *Gateway) checkTarget(r *http.Request) (*http.Request, *jsonerror.Error) {
	if r.Method == http.MethodConnect {
		return r, badTarget("CONNECT is not forwarded: the gateway is not a tunnel")
	}
	if notToken.MatchString(r.Method) { // HTTP/2 carries it, but forwarding it fails as if the upstream had failed
		return r, failure(http.StatusBadRequest, jsonerror.BadRequest, "The method isn't a token of HTTP")
	}
	if r.URL.Opaque != "" { // GET http:login HTTP/1.1
		return r, badTarget("The request target must be a path")
	}
	if r.URL.Path == "" { // GET http://host HTTP/1.1: the upstream will be asked for /, so the limits of / apply
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
		// An upstream might treat # as the beginning of a fragment, or a space (which HTTP/2 can
		// carry) as the end of the path, and so see a shorter path than the limiter.
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

// notToken matches what isn't a token of HTTP, as methods and names of fields are.
var notToken = regexp.MustCompile("^$|[^0-9A-Za-z!#$%&'*+.^_`|~-]")

func badTarget(message string) *jsonerror.Error {
	return failure(http.StatusBadRequest, jsonerror.BadTarget, message)
}

// rawPath returns the path of a request as the client sent it, with its escapes.
func rawPath(r *http.Request) string {
	raw, _, _ := strings.Cut(r.RequestURI, "?")
	// The target may have a scheme and a host, or may have been rewritten.
	if !strings.HasPrefix(raw, "/") {
		return r.URL.EscapedPath()
	}
	if path, err := url.PathUnescape(raw); err != nil || path != r.URL.Path {
		return r.URL.EscapedPath()
	}
	return raw
}

var (
	// unsafeEscape matches escapes that servers read differently: escapes of a slash, a backslash
	// or a NUL; double escapes of these or of a dot; and invalid UTF-8 that careless decoders read
	// as a slash or a dot, such as %c0%af.
	unsafeEscape = regexp.MustCompile(`(?i)%(?:(?:25)+(?:2f|5c|00|2e)|2f|5c|00|(?:25)*c[01]%[89a-f].)`)
	// unsafeDots matches . or .. with parameters. Some servers resolve dots before they remove
	// parameters, others afterwards.
	unsafeDots = regexp.MustCompile(`(?i)(?:^|/)(?:\.|%2e){1,2};`)
	parent     = regexp.MustCompile(`(?i)(?:^|/)(?:\.|%2e){2}(?:/|$)`)
)

var escaped = map[string]string{"2f": "slash", "5c": "backslash", "00": "NUL", "2e": "dot"}

// unsafePart returns the part of an escaped path that servers read differently, or "".
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

// target returns the upstream's URL for a request: the upstream's own path, then the request's path
// byte for byte, and the query.
func (g *Gateway) target(in *http.Request) *url.URL {
	raw := strings.TrimSuffix(g.prefix, "/") + rawPath(in)
	u := &url.URL{Scheme: g.opts.Upstream.Scheme, Host: g.opts.Upstream.Host, RawQuery: in.URL.RawQuery, ForceQuery: in.URL.ForceQuery}
	// Package url would escape characters such as | or {. It leaves only opaque data unchanged, but would read opaque data that
	// starts with // as a host. So such a path is escaped where it must be.
	if !strings.HasPrefix(raw, "//") {
		u.Opaque = raw
		return u
	}
	u.RawPath = escapeInvalid(raw)
	u.Path, _ = url.PathUnescape(u.RawPath) // can't fail, because it was unescaped when the request was read
	return u
}

// escapeInvalid escapes bytes that an escaped path must not contain.
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

// setForwarded sets the headers that tell the upstream who the client is. It passes on what a
// trusted proxy says, with the proxy's address appended. Otherwise it sends what the gateway sees.
func (g *Gateway) setForwarded(in *http.Request, out http.Header) {
	peer := httplimit.ClientIP(in, nil) // with no trusted proxies, this is the other end of the connection
	trusted := edge.Trusts(g.opts.TrustedProxies, peer)
	maps.DeleteFunc(out, func(name string, _ []string) bool {
		// Some servers treat X_Forwarded_For, and some X.Forwarded.For, like X-Forwarded-For. A
		// proxy that overwrites one spelling lets the others through.
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

// setOr sets a header to what a trusted proxy sent or, without that, to value. If value is "", it
// removes the header.
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
		// Some frameworks route by these headers, so a client could reach a path for which it
		// wasn't limited.
		return true
	}
	return strings.HasPrefix(name, "x-forwarded-")
}

func notInHeader(c rune) bool {
	return c != '-' && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9')
}
