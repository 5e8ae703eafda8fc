package httplimit

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
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// JWT says how bearer tokens are verified. Exactly one of Secret, PublicKey and JWKSURL is given.
type JWT struct {
	// Secret of HS256, HS384 and HS512.
	Secret []byte
	// PublicKey is an RSA, ECDSA or Ed25519 key, or a certificate of one, in PEM.
	PublicKey []byte
	// JWKSURL is where an identity provider publishes its keys. They are fetched in the
	// background and again when a token names a new one; until they are there, no token is verified.
	JWKSURL string
	// Client fetches from JWKSURL. Nil means one that gives up after ten seconds.
	Client *http.Client
	// OnFetch is told what became of each attempt at JWKSURL; nil is success. Keys fetched
	// earlier stay in force when one fails. A nil OnFetch means that nobody is told.
	OnFetch func(error)
	// Issuer and Audience, if given, must be the token's.
	Issuer, Audience string
}

var _ TokenVerifier = (*Verifier)(nil)

// Verifier verifies tokens. Make one with [NewVerifier].
type Verifier struct {
	parser *jwt.Parser
	key    jwt.Keyfunc
}

const (
	// maxToken is longer than any token that fits the headers a server should accept.
	maxToken = 16 << 10
	// leeway is how long before its time, and after it, a token is still good. It is what ASP.NET
	// grants: with less, a service might still accept a user whom the limiter no longer sees.
	leeway = 5 * time.Minute
)

// The algorithms of each kind of key. What a token says of itself never decides
// which kind it is: a public key must not pass for a shared secret.
var (
	hmacMethods  = []string{"HS256", "HS384", "HS512"}
	rsaMethods   = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}
	ecdsaMethods = []string{"ES256", "ES384", "ES512"}
	eddsaMethods = []string{"EdDSA"}
)

// NewVerifier prepares a JWT. It doesn't wait for a JWKSURL, whose keys are kept up to date until ctx is done.
func NewVerifier(ctx context.Context, j JWT) (*Verifier, error) {
	var v Verifier
	var methods []string
	switch {
	case len(j.Secret) > 0 && j.PublicKey == nil && j.JWKSURL == "":
		methods = hmacMethods
		v.key = func(*jwt.Token) (any, error) { return j.Secret, nil }
	case j.PublicKey != nil && j.Secret == nil && j.JWKSURL == "":
		key, of, err := parsePublicKey(j.PublicKey)
		if err != nil {
			return nil, err
		}
		methods = of
		v.key = func(*jwt.Token) (any, error) { return key, nil }
	case j.JWKSURL != "" && j.Secret == nil && j.PublicKey == nil:
		keys, err := newKeySet(j)
		if err != nil {
			return nil, err
		}
		go keys.keepFresh(ctx)
		methods = append(append(append(methods, rsaMethods...), ecdsaMethods...), eddsaMethods...)
		v.key = keys.find
	default:
		return nil, errors.New("jwt: give one of secret, public key and jwks_url")
	}
	opts := []jwt.ParserOption{jwt.WithValidMethods(methods), jwt.WithJSONNumber(), jwt.WithLeeway(leeway)}
	if j.Issuer != "" {
		opts = append(opts, jwt.WithIssuer(j.Issuer))
	}
	if j.Audience != "" {
		opts = append(opts, jwt.WithAudience(j.Audience))
	}
	v.parser = jwt.NewParser(opts...)
	v.key = understood(v.key)
	return &v, nil
}

// understood refuses tokens that ask for extensions. A token lists in crit what its reader must understand (RFC 7515,
// section 4.1.11), and we know no extension. With b64 (RFC 7797), another payload would be signed than the one we read.
func understood(key jwt.Keyfunc) jwt.Keyfunc {
	return func(t *jwt.Token) (any, error) {
		for _, extension := range []string{"crit", "b64"} {
			if _, ok := t.Header[extension]; ok {
				return nil, errExtension
			}
		}
		return key(t)
	}
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

// Verify implements [TokenVerifier]: it returns the claims of a token that is genuine and in force, or says why it isn't. The reason
// is in our own words, since the library's errors repeat parts of the token. An empty token has neither claims nor a reason.
func (v *Verifier) Verify(token string) (claims Claims, why string) {
	if token == "" {
		return nil, ""
	}
	if len(token) > maxToken {
		return nil, "the token is too long"
	}
	var found jwt.MapClaims
	t, err := v.parser.ParseWithClaims(respell(token), &found, v.key)
	if err == nil && t.Valid {
		return Claims(found), ""
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

// rejections are in order: a token can be wrong in several ways.
var rejections = []struct {
	err error
	why string
}{
	{jwt.ErrTokenMalformed, "the token is not a JWT"},
	{errExtension, "the token asks for an extension"},
	{errNoKey, "the token's key is not known"},
	{jwt.ErrTokenUnverifiable, "the token can't be verified"},
	{jwt.ErrTokenSignatureInvalid, "the token's signature or algorithm is wrong"},
	{jwt.ErrTokenExpired, "the token has expired"},
	{jwt.ErrTokenNotValidYet, "the token is not valid yet"},
	{jwt.ErrTokenUsedBeforeIssued, "the token is not valid yet"},
	{jwt.ErrTokenRequiredClaimMissing, "the token lacks the issuer or the audience"},
	{jwt.ErrTokenInvalidIssuer, "the token has another issuer"},
	{jwt.ErrTokenInvalidAudience, "the token has another audience"},
}

// respell brings the signature of a token to one form. Header and payload are signed as they stand, but libraries decode
// the signature with more or less care, and a token that they accept must not be nobody's here.
func respell(token string) string {
	at := strings.LastIndexByte(token, '.') + 1
	clean := strings.Map(func(c rune) rune {
		switch {
		case c == '+':
			return '-'
		case c == '/':
			return '_'
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_':
			return c
		}
		return -1
	}, token[at:])
	if len(clean)%4 == 1 {
		clean = clean[:len(clean)-1] // six bits are no byte
	}
	if clean == token[at:] {
		return token
	}
	return token[:at] + clean
}
