package httplimit

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/weirhq/weir"
)

// Identity says where the identities of a request come from, and which of them are proven.
//
// A key is verified if it comes from a verified token or is one of KnownKeys; a tier, if it comes
// from a verified token. Claims of unverified tokens are ignored. Weir still counts by unverified
// keys, users, organizations and tiers, but grants them nothing; see [weir.Request].
type Identity struct {
	// APIKey is where the API key comes from. The zero value means the header X-API-Key.
	APIKey Source
	// User, Org and Tier are where those come from. Zero values mean that requests have none.
	User, Org, Tier Source
	// JWT verifies bearer tokens. It is usually a *jwt.Verifier of package
	// github.com/weirhq/weir/jwt. If nil, requests have no claims. Don't set it to a nil pointer,
	// which would count as a verifier.
	JWT TokenVerifier
	// KnownKeys verifies the API keys that it contains; use [KnownKeys], or a type of your own
	// whose content may change at any time. If nil, it verifies none.
	KnownKeys interface{ Contains(key string) bool }
	// TrustUnverified treats every key and tier as verified. Set it if only your own services can
	// reach this handler, or if a proxy in front has verified them.
	TrustUnverified bool
}

// Source lists places in a request to read an identity from. Name every place that your service
// reads. If several have a value, the first one counts: claim, header, bearer token, query
// parameter. If the values differ, the request is ambiguous (see [Identifier.Identify]), except
// that a verified token may come with another key.
type Source struct {
	Header string // name of a header
	Query  string // name of a query parameter
	Claim  string // name of a claim of the verified token
	Bearer bool   // the bearer token itself
}

// KnownKeys is a set of SHA-256 hashes of genuine API keys.
type KnownKeys map[[sha256.Size]byte]struct{}

// Contains reports whether the key is known.
func (k KnownKeys) Contains(key string) bool {
	_, ok := k[sha256.Sum256([]byte(key))]
	return ok
}

// Identifier identifies the clients of requests. Make one with [NewIdentifier].
type Identifier struct {
	id      Identity
	trusted []netip.Prefix
	headers watch
	bearer  bool // the Authorization header is read
	opaque  bool // its token may be a key rather than a JWT
}

// NewIdentifier returns an Identifier that trusts X-Forwarded-For from the given proxies.
func NewIdentifier(id Identity, trusted []netip.Prefix) *Identifier {
	if id.APIKey == (Source{}) {
		id.APIKey.Header = "X-API-Key"
	}
	for _, s := range []*Source{&id.APIKey, &id.User, &id.Org, &id.Tier} {
		s.Header = http.CanonicalHeaderKey(s.Header)
		if s.Header == "Authorization" { // parsed as services do: the scheme can be spelled in many ways
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

// Identify fills in the fields of a check from an HTTP request. Headers and claims that rules count
// by are looked up on demand.
//
// An error, whose text is meant for the client, says that an identity is ambiguous. The service
// might then serve another client than the one that the limiter counts, so refuse the request with
// status 400.
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

// identify is [Identifier.Identify] after the headers were checked. It returns the fault, or "". If
// bearer is set, the Authorization header must be unambiguous.
func (x *Identifier) identify(r *http.Request, req *weir.Request, a *attributes, bearer bool) string {
	x.locate(r, req)
	*a = attributes{r: r, jwt: x.id.JWT, req: req, opaque: x.opaque}
	req.Rejected = ""
	if bearer {
		a.bearer() // called only to record doubts
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

// locate fills in the fields that don't identify the client.
func (x *Identifier) locate(r *http.Request, req *weir.Request) {
	req.Method, req.Path, req.IP = r.Method, requestPath(r.URL), ClientIP(r, x.trusted)
}

// isPreflight reports whether an OPTIONS request is a preflight as browsers send it, without
// credentials or a body that could make a service do anything but answer it.
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
	for name := range h {
		if overrides.find(name) != "" {
			return false
		}
	}
	return r.ContentLength == 0 && len(r.TransferEncoding) == 0 &&
		h["Authorization"] == nil && h["Cookie"] == nil && h["Proxy-Authorization"] == nil && h["Upgrade"] == nil
}

// overrides are headers by which a framework might treat a request as one of another method.
var overrides = newWatch("X-Http-Method-Override", "X-Method-Override", "X-Http-Method")

// attributes looks up what a request says about its client.
type attributes struct {
	r        *http.Request
	req      *weir.Request
	jwt      TokenVerifier
	opaque   bool // the token may be a key rather than a JWT
	claims   Claims
	verified bool   // the token has been verified, whatever the result
	doubt    string // what is ambiguous, in words for the client
	model    string // the request's model, from its [Estimate]
}

// lookUp returns what rules ask for beyond the fields of a request.
func (a *attributes) lookUp(name string) string {
	switch kind, name, _ := strings.Cut(name, ":"); kind {
	case "header":
		if name = http.CanonicalHeaderKey(name); name == "Authorization" {
			if token := a.bearer(); token != "" { // the scheme can be spelled in many ways
				return token
			}
		}
		// Over HTTP/2, white space around a value survives until the request is passed on over
		// HTTP/1.
		return strings.TrimSpace(a.header(name))
	case "claim":
		return a.token().Text(name)
	case "attr":
		if name == "model" {
			return a.model
		}
	}
	return ""
}

// token returns the claims of the verified token, or nil. Verifying costs more than the rest of a
// check, so it waits until something asks for a claim.
func (a *attributes) token() Claims {
	if !a.verified && a.jwt != nil {
		token, why := a.bearer(), ""
		if token != "" {
			a.claims, why = a.jwt.Verify(token)
		}
		if strings.Count(token, ".") == 2 || !a.opaque && a.saysBearer() { // otherwise it wasn't meant to be a JWT
			a.req.Rejected = why
		}
	}
	a.verified = true
	return a.claims
}

// saysBearer reports whether the Authorization header names the scheme Bearer. Basic credentials
// are no token.
func (a *attributes) saysBearer() bool {
	v := a.header("Authorization")
	return len(v) > len("bearer") && strings.EqualFold(v[:len("bearer")], "bearer")
}

// header returns a header's value by its canonical name, and "" if the header is given twice.
func (a *attributes) header(name string) string {
	switch v := a.r.Header[name]; {
	case len(v) == 1:
		return v[0]
	case len(v) == 0 && name == "Host": // net/http keeps Host apart
		return hostName(a.r.Host)
	}
	return ""
}

// hostName strips a host of the parts that clients can vary: port, case and final dot.
func hostName(host string) string {
	if colon := strings.LastIndexByte(host, ':'); colon > strings.LastIndexByte(host, ']') {
		host = host[:colon]
	}
	return strings.TrimSuffix(strings.ToLower(host), ".")
}

// bearer returns the token in the Authorization header. It accepts one word after Bearer, after any
// other scheme, or without a scheme, because many services cut off "Bearer " or take the second
// word without looking at the first.
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
		a.doubtf("The Authorization header must be printable ASCII") // other servers recognize other white space
		return ""
	}
	named := isBearer || strings.EqualFold(scheme, "token")
	// hidden means that the scheme is joined to the token, as in Bearer=token.
	hidden := !isBearer && (hidesBearer.MatchString(value) || len(scheme) > 6 && strings.EqualFold(scheme[:6], "bearer"))
	if !isBearer && !hidden && isList(token) {
		first, _, _ := strings.Cut(token, ",")
		if !named || !strings.HasPrefix(first, "token=") {
			return ""
		}
		token = first // Rails: Token token="…", nonce="…"
	}
	if named {
		token = strings.Trim(strings.TrimPrefix(token, "token="), `"`) // as Rails does
		hidden = hidden || strings.ContainsAny(token, `";`)            // Rails ends a token there
	}
	// A service that removes "Bearer" wherever it occurs would turn sk_Bearer17 into another token.
	if hidden || strings.ContainsAny(token, " \t,") || strings.Contains(token, "Bearer") {
		a.doubtf("The Authorization header must be Bearer and one token")
		return ""
	}
	return token
}

// isList reports whether credentials are several parameters, as in Digest, up to the last word,
// which some services take for the token.
func isList(credentials string) bool {
	at := strings.LastIndexAny(credentials, " \t,")
	return at >= 0 && isParameter(credentials) && (isParameter(credentials[at+1:]) || strings.HasSuffix(credentials, `"`))
}

// isParameter reports whether credentials begin with name=value, as in Digest.
func isParameter(credentials string) bool {
	name, value, ok := strings.Cut(credentials, "=")
	return ok && value != "" && value[0] != '=' && !strings.ContainsAny(name, " \t,")
}

// hidesBearer matches credentials that contain something that looks like a bearer token.
var hidesBearer = regexp.MustCompile("(?i)bearer[ \t]")

// plain reports whether every server reads a value alike. Some trim white space, Unicode's
// included, and some end a value at a NUL.
func plain(value string) bool {
	for i, r := range value {
		if !unicode.IsPrint(r) || r == utf8.RuneError || r == ' ' && (i == 0 || i == len(value)-1) {
			return false
		}
	}
	return true
}

// read returns the value of a source, and whether it comes from a verified token.
func (a *attributes) read(s *Source, what string) (value string, proven bool) {
	if s.Claim != "" {
		value = a.token().Text(s.Claim)
		proven = value != ""
	}
	if s.Header != "" {
		v := a.header(s.Header)
		if strings.Contains(v, ",") { // two lines that a proxy has joined
			a.doubtf("The header %s must hold one value, without a comma", s.Header)
		}
		value = a.agree(value, v, what)
	}
	if s.Bearer && !proven { // a claim comes from the same token
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

// agree merges the values of two places. If they differ, the request is ambiguous.
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

// doubtf records why the request is ambiguous. Only the first reason is reported.
func (a *attributes) doubtf(format string, args ...any) {
	if a.doubt == "" {
		a.doubt = fmt.Sprintf(format, args...)
	}
}

// requestPath returns the path of a URL as the client sent it. It also finds the path of targets
// that have none, such as "GET http://example.com HTTP/1.1", or hide it, such as "GET http:login
// HTTP/1.1".
func requestPath(u *url.URL) string {
	if u.Opaque != "" {
		return u.Opaque
	}
	path := u.EscapedPath()
	if u.RawPath != "" && u.RawPath != path {
		// Go would escape characters such as #, at which other servers end the path. Rules must see
		// the raw path.
		if raw, err := url.PathUnescape(u.RawPath); err == nil && raw == u.Path {
			return u.RawPath
		}
	}
	if path == "" {
		return "/"
	}
	return path
}
