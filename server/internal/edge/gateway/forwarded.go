package gateway

import (
	"net/http"
	"net/netip"
	"strings"
	"unicode"

	"github.com/weirhq/weir/httplimit"
)

// setForwarded tells the upstream which client the gateway speaks for. A trusted proxy's word is
// passed on with its own address appended; a stranger's is replaced by what the gateway sees.
func (g *Gateway) setForwarded(in *http.Request, out http.Header) {
	peer := httplimit.ClientIP(in, nil) // trusting nobody, it is the one at the other end of the connection
	trusted := g.trusts(peer)
	for name := range out {
		// Servers that hand headers on as variables take X_Forwarded_For, and some X.Forwarded.For, for
		// X-Forwarded-For, and proxies that overwrite the one let the other through.
		if isForwarding(name) && (!trusted || strings.ContainsFunc(name, notInHeader)) {
			delete(out, name)
		}
	}
	var prior http.Header
	if trusted {
		prior = in.Header
	}
	if v := prior["Forwarded"]; v != nil {
		out["Forwarded"] = v
	}
	chain := strings.Join(prior["X-Forwarded-For"], ", ")
	if peer.IsValid() {
		if chain != "" {
			chain += ", "
		}
		chain += peer.String()
	}
	setOr(out, "X-Forwarded-For", chain, nil)
	proto := "http"
	if in.TLS != nil {
		proto = "https"
	}
	setOr(out, "X-Forwarded-Proto", proto, prior)
	setOr(out, "X-Forwarded-Host", in.Host, prior)
}

// setOr sets a header as a trusted proxy has it, or else to a value, or else not at all.
func setOr(out http.Header, name, value string, prior http.Header) {
	if v := prior[name]; len(v) > 0 {
		out[name] = v
	} else if value != "" {
		out[name] = []string{value}
	} else {
		delete(out, name)
	}
}

// isForwarding reports whether a header speaks for the client of a proxy.
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
		// Some frameworks route by these: a stranger could name a path that wasn't limited.
		return true
	}
	return strings.HasPrefix(name, "x-forwarded-")
}

// notInHeader: a character of none of those names.
func notInHeader(c rune) bool {
	return c != '-' && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9')
}

// trusts reports whether an address is a trusted proxy's.
func (g *Gateway) trusts(ip netip.Addr) bool {
	for _, p := range g.trusted {
		if p.Contains(ip) {
			return true
		}
	}
	return false
}

// foldPrefixes brings prefixes into the form of addresses that httplimit reads: IPv4 in IPv6 clothes is IPv4.
func foldPrefixes(prefixes []netip.Prefix) []netip.Prefix {
	folded := make([]netip.Prefix, len(prefixes))
	for i, p := range prefixes {
		if p.Addr().Is4In6() && p.Bits() >= 96 {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
		folded[i] = p
	}
	return folded
}
