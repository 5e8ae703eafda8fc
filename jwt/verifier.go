package jwt

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	gojwt "github.com/golang-jwt/jwt/v5"
	"github.com/weirhq/weir/httplimit"
)

// Options says how tokens are verified. Set exactly one of Secret, PublicKey and JWKSURL.
type Options struct {
	// Secret verifies tokens signed with HS256, HS384 or HS512.
	Secret []byte
	// PublicKey is an RSA, ECDSA or Ed25519 public key, or a certificate with one, in PEM.
	PublicKey []byte
	// JWKSURL is where an identity provider publishes its keys. The verifier fetches them in the background, and again
	// when a token names a key that it doesn't know. No token is verified before the first fetch succeeds.
	JWKSURL string
	// Client fetches from JWKSURL. If nil, it is a client with a timeout of 10 seconds.
	Client *http.Client
	// OnFetch is called after each attempt to fetch JWKSURL, with nil if it succeeded. If it failed, keys that were fetched
	// earlier stay in use. If OnFetch is nil, failures aren't reported.
	OnFetch func(error)
	// Issuer and Audience, if set, must match those of the token.
	Issuer, Audience string
}

var _ httplimit.TokenVerifier = (*Verifier)(nil)

// Verifier verifies tokens. Make one with [NewVerifier].
type Verifier struct {
	parser *gojwt.Parser
	key    gojwt.Keyfunc
}

const (
	// maxToken is the longest token in bytes. Longer ones wouldn't fit into the headers that a server should accept.
	maxToken = 16 << 10
	// leeway is how long a token is valid before its nbf and after its exp, as in ASP.NET. With less, a service might still
	// accept a user whom the limiter no longer sees.
	leeway = 5 * time.Minute
)

// The algorithms of each kind of key. The token must not choose the kind of key that verifies it: otherwise, an attacker could
// sign with HS256 and use the public key as the shared secret.
var (
	hmacMethods  = []string{"HS256", "HS384", "HS512"}
	rsaMethods   = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}
	ecdsaMethods = []string{"ES256", "ES384", "ES512"}
	eddsaMethods = []string{"EdDSA"}
)

// NewVerifier returns a Verifier. With a JWKSURL, it doesn't wait for the keys: a goroutine fetches them and keeps them up to
// date until ctx is done.
func NewVerifier(ctx context.Context, opts Options) (*Verifier, error) {
	var find gojwt.Keyfunc
	var methods []string
	switch {
	case len(opts.Secret) > 0 && opts.PublicKey == nil && opts.JWKSURL == "":
		methods = hmacMethods
		find = func(*gojwt.Token) (any, error) { return opts.Secret, nil }
	case opts.PublicKey != nil && opts.Secret == nil && opts.JWKSURL == "":
		key, of, err := parsePublicKey(opts.PublicKey)
		if err != nil {
			return nil, err
		}
		methods = of
		find = func(*gojwt.Token) (any, error) { return key, nil }
	case opts.JWKSURL != "" && opts.Secret == nil && opts.PublicKey == nil:
		keys, err := newKeySet(opts)
		if err != nil {
			return nil, err
		}
		go keys.keepFresh(ctx)
		methods = slices.Concat(rsaMethods, ecdsaMethods, eddsaMethods)
		find = keys.find
	default:
		return nil, errors.New("jwt: give one of secret, public key and jwks_url")
	}
	checks := []gojwt.ParserOption{gojwt.WithValidMethods(methods), gojwt.WithJSONNumber(), gojwt.WithLeeway(leeway), gojwt.WithIssuer(opts.Issuer)}
	if opts.Audience != "" {
		checks = append(checks, gojwt.WithAudience(opts.Audience))
	}
	return &Verifier{gojwt.NewParser(checks...), func(t *gojwt.Token) (any, error) {
		// The header crit lists extensions that the reader must understand (RFC 7515, section 4.1.11), and this package supports
		// none. With the extension b64 (RFC 7797), the signed payload would differ from the decoded one.
		_, crit := t.Header["crit"]
		if _, b64 := t.Header["b64"]; crit || b64 {
			return nil, errExtension
		}
		return find(t)
	}}, nil
}

func parsePublicKey(text []byte) (key any, methods []string, err error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, nil, errors.New("public key: must be PEM")
	}
	switch block.Type {
	case "RSA PUBLIC KEY":
		key, err = x509.ParsePKCS1PublicKey(block.Bytes)
	case "CERTIFICATE":
		var cert *x509.Certificate
		if cert, err = x509.ParseCertificate(block.Bytes); err == nil {
			key = cert.PublicKey
		}
	case "PUBLIC KEY":
		key, err = x509.ParsePKIXPublicKey(block.Bytes)
	default:
		return nil, nil, fmt.Errorf("public key: must be a PUBLIC KEY or a CERTIFICATE, got a %s", block.Type)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("public key: %w", err)
	}
	switch key.(type) {
	case *rsa.PublicKey:
		return key, rsaMethods, nil
	case *ecdsa.PublicKey:
		return key, ecdsaMethods, nil
	case ed25519.PublicKey:
		return key, eddsaMethods, nil
	}
	return nil, nil, fmt.Errorf("public key: %T is not RSA, ECDSA or Ed25519", key)
}

// Verify returns the claims of a token that is genuine and currently valid. Otherwise it returns nil and the reason, which
// never repeats parts of the token. Verify never waits: it rejects a token whose key hasn't been fetched yet. For an empty
// token, it returns neither claims nor a reason.
func (v *Verifier) Verify(token string) (claims httplimit.Claims, why string) {
	if token == "" {
		return nil, ""
	}
	if len(token) > maxToken {
		return nil, "the token is too long"
	}
	var found gojwt.MapClaims
	t, err := v.parser.ParseWithClaims(respell(token), &found, v.key)
	if err == nil && t.Valid {
		return httplimit.Claims(found), ""
	}
	for _, r := range rejections {
		if errors.Is(err, r.err) {
			return nil, r.why
		}
	}
	return nil, "the token can't be verified"
}

var (
	errExtension = errors.New("the token asks for an extension")
	errNoKey     = errors.New("no key for the token")
)

// rejections are the reasons that Verify returns. The library's own errors would repeat parts of the token. If a token is wrong
// in several ways, the first matching reason is returned.
var rejections = []struct {
	err error
	why string
}{
	{gojwt.ErrTokenMalformed, "the token is not a JWT"},
	{errExtension, "the token asks for an extension"},
	{errNoKey, "the token's key is not known"},
	{gojwt.ErrTokenUnverifiable, "the token can't be verified"},
	{gojwt.ErrTokenSignatureInvalid, "the token's signature or algorithm is wrong"},
	{gojwt.ErrTokenExpired, "the token has expired"},
	{gojwt.ErrTokenNotValidYet, "the token is not valid yet"},
	{gojwt.ErrTokenUsedBeforeIssued, "the token is not valid yet"},
	{gojwt.ErrTokenRequiredClaimMissing, "the token lacks the issuer or the audience"},
	{gojwt.ErrTokenInvalidIssuer, "the token has another issuer"},
	{gojwt.ErrTokenInvalidAudience, "the token has another audience"},
}

// respell rewrites the signature of a token in its canonical form. Some libraries decode signatures leniently, and if a service
// accepts a token, the limiter must see its user, too. The header and the payload stay as they are, since they are signed as
// written.
func respell(token string) string {
	at := strings.LastIndexByte(token, '.') + 1
	clean := notBase64.ReplaceAllString(urlSafe.Replace(token[at:]), "")
	if len(clean)%4 == 1 {
		clean = clean[:len(clean)-1] // six remaining bits make no byte
	}
	return token[:at] + clean
}

var (
	urlSafe   = strings.NewReplacer("+", "-", "/", "_")
	notBase64 = regexp.MustCompile("[^A-Za-z0-9_-]")
)
