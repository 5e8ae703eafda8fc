package httplimit

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"

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
	// JWT verifies bearer tokens. It is usually a *jwt.Verifier of package github.com/weirhq/weir/jwt. If nil, no request has
	// claims. Don't store a nil pointer in it, which would count as a verifier.
	JWT TokenVerifier
	// KnownKeys proves API keys: those that it contains are genuine. Nil proves none. See [KnownKeys]; another type may
	// change what it contains at any time.
	KnownKeys interface{ Contains(key string) bool }
	// TrustUnverified takes every key and tier for proven: for when only your own
	// services can reach this, or something in front has verified them.
	TrustUnverified bool
}

// Source is a place in a request. Name every place at which your service looks. If several are named, the first that has a value
// counts: the claim, the header, the bearer token, the query parameter. Values that differ are ambiguous, see [Identifier.Identify];
// only a verified token may stand beside another key.
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

// Identifier finds out a client's identity. Make one with [NewIdentifier].
type Identifier struct {
	id      Identity
	trusted []netip.Prefix
	headers watch
	bearer  bool // the Authorization header says something
	opaque  bool // its token may be a key, and no JWT
}

// NewIdentifier prepares an Identity.
func NewIdentifier(id Identity, trusted []netip.Prefix) *Identifier {
	if id.APIKey == (Source{}) {
		id.APIKey.Header = "X-API-Key"
	}
	for _, s := range []*Source{&id.APIKey, &id.User, &id.Org, &id.Tier} {
		s.Header = http.CanonicalHeaderKey(s.Header)
		if s.Header == "Authorization" { // as services read it: the scheme can be spelled in many ways
			s.Header, s.Bearer = "", true
		}
	}
	x := &Identifier{id: id, trusted: make([]netip.Prefix, len(trusted))}
	x.opaque = id.APIKey.Bearer || id.User.Bearer || id.Org.Bearer || id.Tier.Bearer
	x.bearer = id.JWT != nil || x.opaque
	x.headers = newWatch(x.headerNames()...)
	for i, p := range trusted {
		if p.Addr().Is4In6() && p.Bits() >= 96 {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
		x.trusted[i] = p.Masked()
	}
	return x
}

// headerNames lists the headers that identities come from.
func (x *Identifier) headerNames() []string {
	names := []string{x.id.APIKey.Header, x.id.User.Header, x.id.Org.Header, x.id.Tier.Header}
	if x.bearer {
		names = append(names, "Authorization")
	}
	return names
}

// Identify fills in what a check wants to know of a request. The headers and
// claims that rules count by are looked up when they are asked for.
//
// The error, whose text is for the client, means that an identity is ambiguous: given twice, or in a way that servers read
// differently. The service might then serve another client than the one that the limiter has seen, so refuse the request with 400.
func (x *Identifier) Identify(r *http.Request, req *weir.Request) error {
	a := new(attributes)
	fault := x.headers.fault(r)
	if fault == "" {
		fault = x.identify(r, req, a, x.bearer)
	}
	req.Attr = a.lookUp
	if fault != "" {
		return errors.New(fault)
	}
	return nil
}

// identify is Identify for headers that were looked at already; bearer, if the Authorization header must be clear. It returns the fault.
func (x *Identifier) identify(r *http.Request, req *weir.Request, a *attributes, bearer bool) string {
	x.locate(r, req)
	*a = attributes{r: r, jwt: x.id.JWT, req: req, opaque: x.opaque}
	req.Rejected = ""
	if bearer {
		a.bearer() // for its faults
	}
	var proven bool
	req.APIKey, proven = a.read(&x.id.APIKey, "API key")
	req.KeyVerified = req.APIKey != "" && (proven || x.id.TrustUnverified || x.id.KnownKeys != nil && x.id.KnownKeys.Contains(req.APIKey))
	req.User, _ = a.read(&x.id.User, "user")
	req.Org, _ = a.read(&x.id.Org, "organisation")
	req.Tier, proven = a.read(&x.id.Tier, "tier")
	req.TierVerified = req.Tier != "" && (proven || x.id.TrustUnverified)
	req.Preflight = r.Method == http.MethodOptions && isPreflight(r) && req.APIKey == "" && req.User == "" && req.Org == "" && req.Tier == ""
	return a.doubt
}

// locate fills in what says nothing of who is asking.
func (x *Identifier) locate(r *http.Request, req *weir.Request) {
	req.Method, req.Path, req.IP = r.Method, requestPath(r.URL), ClientIP(r, x.trusted)
}

// isPreflight reports whether an OPTIONS request is a preflight as browsers send them: it asks for a method that there is, and has
// neither credentials nor a body, with which a service could be made to do something else than answer it.
func isPreflight(r *http.Request) bool {
	h := r.Header
	if len(h["Origin"]) != 1 || h["Origin"][0] == "" || len(h["Access-Control-Request-Method"]) != 1 {
		return false
	}
	switch h["Access-Control-Request-Method"][0] {
	case "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS":
	default:
		return false
	}
	return r.ContentLength == 0 && len(r.TransferEncoding) == 0 &&
		h["Authorization"] == nil && h["Cookie"] == nil && h["Proxy-Authorization"] == nil && h["Upgrade"] == nil && !overridden(h)
}

var overrides = newWatch("X-Http-Method-Override", "X-Method-Override", "X-Http-Method")

// overridden reports whether frameworks may take a request for one of another method.
func overridden(h http.Header) bool {
	for name := range h {
		if overrides.find(name) != "" {
			return true
		}
	}
	return false
}

// attributes answers for what a request says of its client.
type attributes struct {
	r        *http.Request
	req      *weir.Request
	jwt      TokenVerifier
	opaque   bool // the token may be a key, and no JWT
	claims   Claims
	verified bool   // the token has been looked at
	doubt    string // what is ambiguous, in words for the client
	model    string // that the request is for: see [Estimate]
}

// lookUp answers what rules ask beyond the fields of a request.
func (a *attributes) lookUp(name string) string {
	switch kind, name, _ := strings.Cut(name, ":"); kind {
	case "header":
		if name = http.CanonicalHeaderKey(name); name == "Authorization" {
			if token := a.bearer(); token != "" { // the scheme can be spelled in many ways
				return token
			}
		}
		// Over HTTP/2, blanks around a value arrive. They are gone where it is passed on over HTTP/1.
		return strings.TrimSpace(a.header(name))
	case "claim":
		return a.claim(name)
	case "attr":
		if name == "model" {
			return a.model
		}
	}
	return ""
}

// claim is a claim of the verified token.
func (a *attributes) claim(name string) string { return a.token().Text(name) }

// token is the claims of the verified token, or nil. Verifying costs more than all the rest of a check, so it waits until someone asks.
func (a *attributes) token() Claims {
	if !a.verified && a.jwt != nil {
		token, why := a.bearer(), ""
		if token != "" {
			a.claims, why = a.jwt.Verify(token)
		}
		if strings.Count(token, ".") == 2 || !a.opaque && a.saysBearer() { // else it wasn't meant as a JWT
			a.req.Rejected = why
		}
	}
	a.verified = true
	return a.claims
}

// saysBearer reports whether the Authorization header names that scheme: Basic credentials are no token.
func (a *attributes) saysBearer() bool {
	v := a.header("Authorization")
	return len(v) > len("bearer") && strings.EqualFold(v[:len("bearer")], "bearer")
}

// header is the value of a header, given in its canonical form. Given twice, it is nobody's.
func (a *attributes) header(name string) string {
	switch v := a.r.Header[name]; {
	case len(v) == 1:
		return v[0]
	case len(v) == 0 && name == "Host": // net/http keeps it elsewhere
		return hostName(a.r.Host)
	}
	return ""
}

// hostName is a host without what clients may add to it at will.
func hostName(host string) string {
	if colon := strings.LastIndexByte(host, ':'); colon > strings.LastIndexByte(host, ']') {
		host = host[:colon]
	}
	return strings.TrimSuffix(strings.ToLower(host), ".")
}

// bearer is the token of the Authorization header: the one word behind Bearer, with whatever blanks, or behind any other scheme,
// or alone. Many a service cuts off "Bearer ", or takes the second word, and doesn't look at the first.
func (a *attributes) bearer() string {
	value := a.header("Authorization")
	scheme, token := value, ""
	if at := strings.IndexAny(value, " \t"); at >= 0 {
		scheme, token = value[:at], strings.Trim(value[at:], " \t")
	}
	isBearer := strings.EqualFold(scheme, "bearer")
	if token == "" && !isBearer {
		token = scheme
	}
	if !plain(scheme) || !plain(strings.ReplaceAll(token, "\t", " ")) {
		a.doubtf("The Authorization header must be printable ASCII") // others than HTTP have blanks of their own
		return ""
	}
	named := isBearer || strings.EqualFold(scheme, "token")
	hidden := !isBearer && (hidesBearer(value) || len(scheme) > 6 && strings.EqualFold(scheme[:6], "bearer")) // Bearer=token
	if !isBearer && !hidden && isList(token) {
		first, _, _ := strings.Cut(token, ",")
		if !named || !strings.HasPrefix(first, "token=") {
			return ""
		}
		token = first // Token token="…", nonce="…", as Rails has it
	}
	if named {
		token = unwrap(token)
		hidden = hidden || strings.ContainsAny(token, `";`) // at which Rails ends a token
	}
	// Services that cut Bearer out, wherever it stands, make another token of sk_Bearer17.
	if hidden || strings.ContainsAny(token, " \t,") || strings.Contains(token, "Bearer") {
		a.doubtf("The Authorization header must be Bearer and one token")
		return ""
	}
	return token
}

// unwrap takes off what Rails does: the name and the quotes of token="…".
func unwrap(token string) string { return strings.Trim(strings.TrimPrefix(token, "token="), `"`) }

// isList reports whether credentials are several parameters, as those of Digest, to the last word: some services take that one.
func isList(credentials string) bool {
	at := strings.LastIndexAny(credentials, " \t,")
	return at >= 0 && isParameter(credentials) && (isParameter(credentials[at+1:]) || strings.HasSuffix(credentials, `"`))
}

// isParameter reports whether credentials begin with name=value, as those of Digest do.
func isParameter(credentials string) bool {
	name, value, ok := strings.Cut(credentials, "=")
	return ok && value != "" && value[0] != '=' && !strings.ContainsAny(name, " \t,")
}

// hidesBearer reports whether there is something in credentials that looks like a bearer token.
func hidesBearer(credentials string) bool {
	for i := 0; i+len("bearer ") <= len(credentials); i++ {
		if end := i + len("bearer"); strings.EqualFold(credentials[i:end], "bearer") && (credentials[end] == ' ' || credentials[end] == '\t') {
			return true
		}
	}
	return false
}

// plain reports whether every server reads a value alike: some cut off white space (Unicode's, too) at its ends, or end it at a NUL.
func plain(value string) bool {
	for i, r := range value {
		if !unicode.IsPrint(r) || r == utf8.RuneError || r == ' ' && (i == 0 || i == len(value)-1) {
			return false
		}
	}
	return true
}

// read returns the value at a source, and whether it comes from a verified token.
func (a *attributes) read(s *Source, what string) (value string, proven bool) {
	if s.Claim != "" {
		value = a.claim(s.Claim)
		proven = value != ""
	}
	if s.Header != "" {
		v := a.header(s.Header)
		if strings.Contains(v, ",") { // two lines, joined by a proxy
			a.doubtf("The header %s must hold one value, without a comma", s.Header)
		}
		value = a.agree(value, v, what)
	}
	if s.Bearer && !proven { // a claim is from the same token
		if v := a.bearer(); value == "" || v != value && a.token() == nil {
			value = a.agree(value, v, what)
		}
	}
	if s.Query != "" {
		v, doubt := queryValue(a.r.URL.RawQuery, s.Query)
		if doubt != "" {
			a.doubtf("%s", doubt)
		}
		value = a.agree(value, v, what)
	}
	return value, proven
}

// agree is the value that two places give, if they agree.
func (a *attributes) agree(value, other, what string) string {
	switch {
	case other == "":
	case !plain(other):
		a.doubtf("The %s must be printable UTF-8, without white space at its ends", what)
	case value == "":
		return other
	case value != other:
		a.doubtf("The %s is given twice, with different values", what)
	}
	return value
}

// doubtf notes what is ambiguous. The first doubt is the one that is told.
func (a *attributes) doubtf(format string, args ...any) {
	if a.doubt == "" {
		a.doubt = fmt.Sprintf(format, args...)
	}
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
