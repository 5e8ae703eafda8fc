package jwt_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"maps"
	"math/big"
	"strings"
	"sync"
	"testing"
	"time"

	gojwt "github.com/golang-jwt/jwt/v5"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/jwt"
)

type claims = gojwt.MapClaims

var secret = []byte("a secret that two parties share!")

// The keys of an identity provider.
var (
	rsaKey   = sync.OnceValue(func() *rsa.PrivateKey { return must(rsa.GenerateKey(rand.Reader, 2048)) })
	ecKey    = sync.OnceValue(func() *ecdsa.PrivateKey { return must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)) })
	edKey    = sync.OnceValue(func() ed25519.PrivateKey { _, k, err := ed25519.GenerateKey(rand.Reader); return must(k, err) })
	otherRSA = sync.OnceValue(func() *rsa.PrivateKey { return must(rsa.GenerateKey(rand.Reader, 2048)) })
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func verifier(t testing.TB, opts jwt.Options) *jwt.Verifier {
	t.Helper()
	v, err := jwt.NewVerifier(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// claimsOf returns the claims of a token, or nil if it isn't verified.
func claimsOf(v *jwt.Verifier, token string) httplimit.Claims {
	claims, _ := v.Verify(token)
	return claims
}

// sign makes a token, signed with the usual method for its key.
func sign(t testing.TB, key any, c claims) string {
	t.Helper()
	var m gojwt.SigningMethod
	switch key.(type) {
	case []byte:
		m = gojwt.SigningMethodHS256
	case *rsa.PrivateKey:
		m = gojwt.SigningMethodRS256
	case *ecdsa.PrivateKey:
		m = gojwt.SigningMethodES256
	case ed25519.PrivateKey:
		m = gojwt.SigningMethodEdDSA
	}
	return signAs(t, m, key, c, "")
}

func signAs(t testing.TB, m gojwt.SigningMethod, key any, c claims, kid string) string {
	t.Helper()
	token := gojwt.NewWithClaims(m, c)
	if kid != "" {
		token.Header["kid"] = kid
	}
	s, err := token.SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// unsigned makes a token whose header says that it has no signature.
func unsigned(t testing.TB, c claims) string {
	return signAs(t, gojwt.SigningMethodNone, gojwt.UnsafeAllowNoneSignatureType, c, "")
}

func publicPEM(key crypto.PublicKey) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: must(x509.MarshalPKIXPublicKey(key))})
}

func TestEachKindOfKeyVerifies(t *testing.T) {
	cert := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "idp"}}
	der := must(x509.CreateCertificate(rand.Reader, cert, cert, rsaKey().Public(), rsaKey()))
	for _, c := range []struct {
		name    string
		options jwt.Options
		key     any
		methods []gojwt.SigningMethod
	}{
		{"a secret", jwt.Options{Secret: secret}, secret, []gojwt.SigningMethod{gojwt.SigningMethodHS256, gojwt.SigningMethodHS384, gojwt.SigningMethodHS512}},
		{"RSA", jwt.Options{PublicKey: publicPEM(rsaKey().Public())}, rsaKey(), []gojwt.SigningMethod{gojwt.SigningMethodRS256, gojwt.SigningMethodRS512, gojwt.SigningMethodPS256}},
		{"RSA, PKCS 1", jwt.Options{PublicKey: pem.EncodeToMemory(&pem.Block{Type: "RSA PUBLIC KEY", Bytes: x509.MarshalPKCS1PublicKey(&rsaKey().PublicKey)})}, rsaKey(), []gojwt.SigningMethod{gojwt.SigningMethodRS256}},
		{"a certificate", jwt.Options{PublicKey: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}, rsaKey(), []gojwt.SigningMethod{gojwt.SigningMethodRS256}},
		{"ECDSA", jwt.Options{PublicKey: publicPEM(ecKey().Public())}, ecKey(), []gojwt.SigningMethod{gojwt.SigningMethodES256}},
		{"Ed25519", jwt.Options{PublicKey: publicPEM(edKey().Public())}, edKey(), []gojwt.SigningMethod{gojwt.SigningMethodEdDSA}},
	} {
		v := verifier(t, c.options)
		for _, m := range c.methods {
			if got := claimsOf(v, signAs(t, m, c.key, claims{"sub": "u"}, "")).Text("sub"); got != "u" {
				t.Errorf("%s, %s: sub is %q", c.name, m.Alg(), got)
			}
		}
	}
}

// The claims of a token are ignored unless the right key signed it, whatever the token says about itself.
func TestForgedTokens(t *testing.T) {
	rsaPEM := publicPEM(rsaKey().Public())
	verifiers := map[string]*jwt.Verifier{
		"secret": verifier(t, jwt.Options{Secret: secret}),
		"rsa":    verifier(t, jwt.Options{PublicKey: rsaPEM}),
		"ecdsa":  verifier(t, jwt.Options{PublicKey: publicPEM(ecKey().Public())}),
		"eddsa":  verifier(t, jwt.Options{PublicKey: publicPEM(edKey().Public())}),
	}
	c := claims{"sub": "u", "exp": time.Now().Add(time.Hour).Unix()}
	none := unsigned(t, c)
	genuine := sign(t, rsaKey(), c)
	parts := strings.Split(genuine, ".")
	enc := base64.RawURLEncoding.EncodeToString
	der := must(x509.MarshalPKIXPublicKey(rsaKey().Public()))
	for name, token := range map[string]string{
		"none":                               none,
		"none in capitals":                   strings.Replace(none, parts[0], enc([]byte(`{"alg":"NONE","typ":"JWT"}`)), 1),
		"none with another's signature":      none + parts[2],
		"HS256 with the public key, as PEM":  sign(t, rsaPEM, c),
		"HS256 with the public key, trimmed": sign(t, []byte(strings.TrimSpace(string(rsaPEM))), c),
		"HS256 with the public key, as DER":  sign(t, der, c),
		"HS256 with an Ed25519 key":          sign(t, []byte(edKey().Public().(ed25519.PublicKey)), c),
		"HS256 with an empty secret":         sign(t, []byte{}, c),
		"another RSA key":                    sign(t, otherRSA(), c),
		"a changed payload":                  parts[0] + "." + enc([]byte(`{"sub":"root"}`)) + "." + parts[2],
		"a changed header":                   enc([]byte(`{"alg":"RS512"}`)) + "." + parts[1] + "." + parts[2],
		"no signature":                       parts[0] + "." + parts[1] + ".",
		"two parts":                          parts[0] + "." + parts[1],
		"four parts":                         genuine + ".x",
		"the key in its header":              enc([]byte(`{"alg":"HS256","jwk":{"kty":"oct","k":"AAAA"}}`)) + "." + parts[1] + "." + parts[2],
		"nothing":                            "",
		"dots":                               "..",
		"not base64":                         "a.b.c",
		"as long as a novel":                 genuine + strings.Repeat("A", 20_000),
	} {
		for kind, v := range verifiers {
			if got := claimsOf(v, token); got != nil {
				t.Errorf("%s: verified with %s: %v", name, kind, got)
			}
		}
	}
	for kind, v := range verifiers {
		if got := claimsOf(v, genuine); (got != nil) != (kind == "rsa") {
			t.Errorf("the genuine token, verified with %s: %v", kind, got)
		}
	}
}

// Libraries accept several spellings of the same signature, so the verifier must, too. Otherwise the limiter would see
// no user in a token that the service accepts.
func TestSignatureEncodings(t *testing.T) {
	c := claims{"sub": "u"}
	plain := sign(t, rsaKey(), c)
	at := strings.LastIndexByte(plain, '.') + 1
	hs384 := signAs(t, gojwt.SigningMethodHS384, secret, c, "")
	for name, token := range map[string]string{
		"bits that mean nothing":      loosen(plain),
		"padding":                     plain + "==",
		"base64's own letters":        plain[:at] + strings.NewReplacer("-", "+", "_", "/").Replace(plain[at:]),
		"what Python skips":           plain + "!*!*",
		"what Python skips, within":   plain[:at+9] + "~~~~" + plain[at+9:],
		"a character that is no byte": hs384 + "A",
	} {
		v := verifier(t, jwt.Options{PublicKey: publicPEM(rsaKey().Public())})
		if strings.HasPrefix(token, hs384) {
			v = verifier(t, jwt.Options{Secret: secret})
		}
		if claimsOf(v, token).Text("sub") != "u" {
			t.Errorf("%s: not verified", name)
		}
	}
}

// A token may have up to 16 KiB.
func TestLongestToken(t *testing.T) {
	v := verifier(t, jwt.Options{Secret: secret})
	token := sign(t, secret, claims{"sub": "u"})
	for length, want := range map[int]string{16 << 10: "u", 16<<10 + 1: ""} {
		padded := token + strings.Repeat("=", length-len(token))
		if got := claimsOf(v, padded).Text("sub"); got != want {
			t.Errorf("%d bytes: sub is %q, want %q", length, got, want)
		}
	}
}

// A token with critical extensions isn't verified, whether or not others know these extensions (RFC 7515, section
// 4.1.11).
func TestCriticalExtensions(t *testing.T) {
	v := verifier(t, jwt.Options{Secret: secret})
	for name, c := range map[string]struct {
		header map[string]any
		want   bool
	}{
		"none":                     {nil, true},
		"a header that may be new": {map[string]any{"x-new": 1}, true},
		"unknown":                  {map[string]any{"crit": []string{"x-new"}, "x-new": 1}, false},
		"unknown and absent":       {map[string]any{"crit": []string{"x-new"}}, false},
		"b64":                      {map[string]any{"crit": []string{"b64"}, "b64": false}, false},
		"b64 without crit":         {map[string]any{"b64": false}, false},
		"registered":               {map[string]any{"crit": []string{"alg"}}, false},
		"an empty list":            {map[string]any{"crit": []string{}}, false},
		"no list":                  {map[string]any{"crit": "exp"}, false},
		"null":                     {map[string]any{"crit": nil}, false},
	} {
		token := gojwt.NewWithClaims(gojwt.SigningMethodHS256, claims{"sub": "u"})
		maps.Copy(token.Header, c.header)
		if got := claimsOf(v, must(token.SignedString(secret))); (got != nil) != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// loosen spells the same signature differently: four bits of the last of its 342 characters aren't used.
func loosen(token string) string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	last := strings.IndexByte(alphabet, token[len(token)-1])
	return token[:len(token)-1] + alphabet[last^1:last^1+1]
}

func TestTokensOutsideTheirTime(t *testing.T) {
	now := time.Now()
	in := func(d time.Duration) int64 { return now.Add(d).Unix() }
	v := verifier(t, jwt.Options{Secret: secret, Issuer: "https://idp.example", Audience: "weir"})
	good := func(change claims) claims {
		c := claims{"sub": "u", "iss": "https://idp.example", "aud": "weir", "exp": in(time.Hour)}
		for k, x := range change {
			if c[k] = x; x == nil {
				delete(c, k)
			}
		}
		return c
	}
	for _, c := range []struct {
		name string
		c    claims
		want bool
	}{
		{"as it should be", good(nil), true},
		{"one of several audiences", good(claims{"aud": []string{"other", "weir"}}), true},
		{"expired", good(claims{"exp": in(-6 * time.Minute)}), false},
		{"expired, but not for a patient service", good(claims{"exp": in(-4 * time.Minute)}), true},
		{"not yet", good(claims{"nbf": in(6 * time.Minute)}), false},
		{"an expiry that isn't a time", good(claims{"exp": "tomorrow"}), false},
		{"another issuer", good(claims{"iss": "https://evil.example"}), false},
		{"no issuer", good(claims{"iss": nil}), false},
		{"another audience", good(claims{"aud": "other"}), false},
		{"no audience", good(claims{"aud": nil}), false},
	} {
		if got := claimsOf(v, sign(t, secret, c.c)); (got != nil) != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

func TestVerifierOptions(t *testing.T) {
	private := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: must(x509.MarshalPKCS8PrivateKey(edKey()))})
	for name, opts := range map[string]jwt.Options{
		"nothing":                {},
		"two things":             {Secret: secret, JWKSURL: "https://idp.example/keys"},
		"two others":             {PublicKey: publicPEM(edKey().Public()), JWKSURL: "https://idp.example/keys"},
		"a secret and a key":     {Secret: secret, PublicKey: publicPEM(edKey().Public())},
		"all of them":            {Secret: secret, PublicKey: publicPEM(edKey().Public()), JWKSURL: "https://idp.example/keys"},
		"an empty secret":        {Secret: []byte{}},
		"an empty secret, too":   {Secret: []byte{}, JWKSURL: "https://idp.example/keys"},
		"no PEM":                 {PublicKey: []byte("ssh-rsa AAAA")},
		"a private key":          {PublicKey: private},
		"a broken key":           {PublicKey: pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: []byte("x")})},
		"a URL without a scheme": {JWKSURL: "idp.example/keys"},
		"a URL without a host":   {JWKSURL: "https:///keys"},
		"a URL of a file":        {JWKSURL: "file:///etc/passwd"},
		"no URL":                 {JWKSURL: "https://%zz"},
	} {
		if v, err := jwt.NewVerifier(t.Context(), opts); err == nil || v != nil {
			t.Errorf("%s: no error", name)
		}
	}
}
