package httplimit

import (
	"crypto/sha256"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/weirhq/weir"
)

// Identity says where a request's identities come from, and which are proven.
//
// A key is verified when it comes from a verified token or is among KnownKeys;
// a tier when it comes from a verified token. Claims of a token that isn't
// verified don't exist. What isn't verified is still counted by, but is granted
// nothing: see [weir.Request].
type Identity struct {
	// APIKey is where the key comes from. The zero value is the header X-API-Key.
	APIKey Source
	// User, Org and Tier come from nowhere unless told.
	User, Org, Tier Source
	// JWT verifies bearer tokens. Nil means that no claim is known.
	JWT *Verifier
	// KnownKeys proves API keys. Nil proves none.
	KnownKeys KnownKeys
	// TrustUnverified takes every key and tier for proven: for when only your own
	// services can reach this, or something in front has verified them.
	TrustUnverified bool
}

// Source is a place in a request. Of several that are given, the first that has
// a value counts: the claim, the header, the bearer token, the query parameter.
type Source struct {
	Header string // a header's name
	Query  string // a query parameter's name
	Claim  string // a claim of the verified token
	Bearer bool   // the bearer token itself
}

// KnownKeys holds SHA-256 hashes of API keys that are genuine.
type KnownKeys map[[sha256.Size]byte]struct{}

// Contains reports whether a key is known.
func (k KnownKeys) Contains(key string) bool {
	_, ok := k[sha256.Sum256([]byte(key))]
	return ok
}

// Identifier finds out who is asking. Make one with [NewIdentifier].
type Identifier struct {
	id      Identity
	trusted []netip.Prefix
	claims  bool // an identity is a claim
}

// NewIdentifier prepares an Identity.
func NewIdentifier(id Identity, trusted []netip.Prefix) *Identifier {
	if id.APIKey == (Source{}) {
		id.APIKey.Header = "X-API-Key"
	}
	x := &Identifier{trusted: make([]netip.Prefix, len(trusted))}
	for _, s := range []*Source{&id.APIKey, &id.User, &id.Org, &id.Tier} {
		s.Header = http.CanonicalHeaderKey(s.Header)
		x.claims = x.claims || s.Claim != ""
	}
	x.id = id
	for i, p := range trusted {
		if p.Addr().Is4In6() && p.Bits() >= 96 {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
		x.trusted[i] = p.Masked()
	}
	return x
}

// Identify fills in what a check wants to know of a request. With attributes it
// also answers for headers and claims that rules count by.
func (x *Identifier) Identify(r *http.Request, req *weir.Request, attributes bool) {
	req.Method, req.Path = r.Method, requestPath(r.URL)
	req.IP = ClientIP(r, x.trusted)
	req.Preflight = r.Method == http.MethodOptions && r.Header.Get("Origin") != "" && r.Header.Get("Access-Control-Request-Method") != ""
	var claims Claims
	if x.id.JWT != nil && (x.claims || attributes) {
		claims = x.id.JWT.Verify(bearer(r))
	}
	var proven bool
	req.APIKey, proven = x.id.APIKey.read(r, claims)
	req.KeyVerified = req.APIKey != "" && (proven || x.id.TrustUnverified || x.id.KnownKeys != nil && x.id.KnownKeys.Contains(req.APIKey))
	req.User, _ = x.id.User.read(r, claims)
	req.Org, _ = x.id.Org.read(r, claims)
	req.Tier, proven = x.id.Tier.read(r, claims)
	req.TierVerified = req.Tier != "" && (proven || x.id.TrustUnverified)
	if attributes {
		req.Attr = lookUp(r, claims)
	}
}

// lookUp answers for the attributes of a request.
func lookUp(r *http.Request, claims Claims) func(string) string {
	return func(name string) string {
		switch kind, name, _ := strings.Cut(name, ":"); kind {
		case "header":
			return header(r, http.CanonicalHeaderKey(name))
		case "claim":
			return claims.Text(name)
		}
		return ""
	}
}

// header is the first value of a header, given in its canonical form.
func header(r *http.Request, name string) string {
	if v := r.Header[name]; len(v) > 0 {
		return v[0]
	}
	if name == "Host" { // net/http keeps it elsewhere
		return strings.ToLower(r.Host)
	}
	return ""
}

// requestPath is the path of a URL as it came. A request has one even if its
// target names none, as "GET http://example.com HTTP/1.1" does, or hides it, as
// "GET http:login HTTP/1.1" does.
func requestPath(u *url.URL) string {
	if u.Opaque != "" {
		return u.Opaque
	}
	path := u.EscapedPath()
	if u.RawPath != "" && u.RawPath != path {
		// What Go would escape, such as a #, others may take for the end of the path: the rules see it bare.
		if raw, err := url.PathUnescape(u.RawPath); err == nil && raw == u.Path {
			return u.RawPath
		}
	}
	if path == "" {
		return "/"
	}
	return path
}

// read returns the value, and whether it comes from a verified token.
func (s *Source) read(r *http.Request, claims Claims) (value string, proven bool) {
	if s.Claim != "" {
		if v := claims.Text(s.Claim); v != "" {
			return v, true
		}
	}
	if s.Header != "" {
		// Given twice, it is nobody's: servers disagree on which one counts, and a client could rotate the other.
		if len(r.Header[s.Header]) > 1 {
			return "", false
		}
		if v := header(r, s.Header); v != "" {
			return v, false
		}
	}
	if s.Bearer {
		if v := bearer(r); v != "" {
			return v, false
		}
	}
	if s.Query != "" {
		return queryValue(r.URL.RawQuery, s.Query), false
	}
	return "", false
}

// queryValue is a parameter's value, or "" if it is given twice, without making a map.
func queryValue(query, name string) (found string) {
	seen := false
	for query != "" {
		var pair string
		pair, query, _ = strings.Cut(query, "&")
		if pair == "" || strings.Contains(pair, ";") {
			continue // net/url, and so the handler, doesn't see it either
		}
		key, value, _ := strings.Cut(pair, "=")
		if key, err := url.QueryUnescape(key); err != nil || key != name {
			continue
		}
		if value, err := url.QueryUnescape(value); err == nil {
			if seen {
				return ""
			}
			found, seen = value, true
		}
	}
	return found
}

// bearer is the token of an Authorization header.
func bearer(r *http.Request) string {
	scheme, token, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	if !ok || !strings.EqualFold(scheme, "bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}
