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
}

// NewIdentifier prepares an Identity.
func NewIdentifier(id Identity, trusted []netip.Prefix) *Identifier {
	if id.APIKey == (Source{}) {
		id.APIKey.Header = "X-API-Key"
	}
	for _, s := range []*Source{&id.APIKey, &id.User, &id.Org, &id.Tier} {
		s.Header = http.CanonicalHeaderKey(s.Header)
	}
	x := &Identifier{id: id, trusted: make([]netip.Prefix, len(trusted))}
	for i, p := range trusted {
		if p.Addr().Is4In6() && p.Bits() >= 96 {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
		x.trusted[i] = p.Masked()
	}
	return x
}

// Identify fills in what a check wants to know of a request. The headers and
// claims that rules count by are looked up when they are asked for.
func (x *Identifier) Identify(r *http.Request, req *weir.Request) {
	a := new(attributes)
	x.identify(r, req, a)
	req.Attr = a.lookUp
}

func (x *Identifier) identify(r *http.Request, req *weir.Request, a *attributes) {
	*a = attributes{r: r, jwt: x.id.JWT}
	req.Method, req.Path = r.Method, requestPath(r.URL)
	req.IP = ClientIP(r, x.trusted)
	req.Preflight = r.Method == http.MethodOptions && r.Header.Get("Origin") != "" && r.Header.Get("Access-Control-Request-Method") != ""
	var proven bool
	req.APIKey, proven = a.read(&x.id.APIKey)
	req.KeyVerified = req.APIKey != "" && (proven || x.id.TrustUnverified || x.id.KnownKeys != nil && x.id.KnownKeys.Contains(req.APIKey))
	req.User, _ = a.read(&x.id.User)
	req.Org, _ = a.read(&x.id.Org)
	req.Tier, proven = a.read(&x.id.Tier)
	req.TierVerified = req.Tier != "" && (proven || x.id.TrustUnverified)
}

// attributes answers for what a request says of its client.
type attributes struct {
	r        *http.Request
	jwt      *Verifier
	claims   Claims
	verified bool // the token has been looked at
}

// lookUp answers what rules ask beyond the fields of a request.
func (a *attributes) lookUp(name string) string {
	switch kind, name, _ := strings.Cut(name, ":"); kind {
	case "header":
		value, _ := a.header(http.CanonicalHeaderKey(name))
		return value
	case "claim":
		return a.claim(name)
	}
	return ""
}

// claim is a claim of the verified token. Verifying costs more than all the rest of a check, so it waits until someone asks.
func (a *attributes) claim(name string) string {
	if !a.verified && a.jwt != nil {
		token, _ := a.bearer()
		a.claims = a.jwt.Verify(token)
	}
	a.verified = true
	return a.claims.Text(name)
}

// header is the value of a header, given in its canonical form. Given twice, it is nobody's: servers
// disagree on which one counts, and a client could rotate the other.
func (a *attributes) header(name string) (value string, twice bool) {
	switch v := a.r.Header[name]; {
	case len(v) > 1:
		return "", true
	case len(v) == 1:
		return v[0], false
	case name == "Host": // net/http keeps it elsewhere
		return strings.ToLower(a.r.Host), false
	}
	return "", false
}

// bearer is the token of the Authorization header.
func (a *attributes) bearer() (token string, twice bool) {
	value, twice := a.header("Authorization")
	scheme, token, ok := strings.Cut(value, " ")
	if !ok || !strings.EqualFold(scheme, "bearer") {
		return "", twice
	}
	return strings.TrimSpace(token), false
}

// read returns the value at a source, and whether it comes from a verified token.
func (a *attributes) read(s *Source) (value string, proven bool) {
	if s.Claim != "" {
		if v := a.claim(s.Claim); v != "" {
			return v, true
		}
	}
	if s.Header != "" {
		if v, twice := a.header(s.Header); v != "" || twice {
			return v, false
		}
	}
	if s.Bearer {
		if v, twice := a.bearer(); v != "" || twice {
			return v, false
		}
	}
	if s.Query != "" {
		return queryValue(a.r.URL.RawQuery, s.Query), false
	}
	return "", false
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
