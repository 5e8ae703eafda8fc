package gateway

import (
	"net/http"
	"slices"
	"strings"
	"unicode"

	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/server/internal/edge"
)

// setForwarded tells the upstream which client the gateway speaks for: what a trusted proxy says,
// with the proxy's address appended, or else what the gateway sees.
func (g *Gateway) setForwarded(in *http.Request, out http.Header) {
	peer := httplimit.ClientIP(in, nil) // trusting no proxy, this is the other end of the connection
	trusted := edge.Trusts(g.opts.TrustedProxies, peer)
	for name := range out {
		// Servers that pass headers on as variables read X_Forwarded_For, and some X.Forwarded.For,
		// as X-Forwarded-For. Proxies that overwrite one spelling let the others through.
		if isForwarding(name) && (!trusted || strings.ContainsFunc(name, notInHeader)) {
			delete(out, name)
		}
	}
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

// setOr sets a header to what a trusted proxy sent, or else to value, or else removes it.
func setOr(out http.Header, name, value string, prior http.Header) {
	if v := prior[name]; len(v) > 0 {
		out[name] = v
	} else if value != "" {
		out[name] = []string{value}
	} else {
		delete(out, name)
	}
}

// isForwarding reports whether a proxy uses a header to describe its client.
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
		// Some frameworks route by these, so a client could reach a path that wasn't limited.
		return true
	}
	return strings.HasPrefix(name, "x-forwarded-")
}

func notInHeader(c rune) bool {
	return c != '-' && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9')
}
