package jwt_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"hash"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	gojwt "github.com/golang-jwt/jwt/v5"
	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/jwt"
)

// identify returns the request that a check sees for these credentials.
func identify(t testing.TB, id httplimit.Identity, authorization string) *weir.Request {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("Authorization", authorization)
	req := new(weir.Request)
	if err := httplimit.NewIdentifier(id, nil).Identify(r, req); err != nil {
		t.Fatal(err)
	}
	return req
}

// Each claim of a valid token can be an identity. The claims of a forged token can't.
func TestClaimsAreIdentities(t *testing.T) {
	type source = httplimit.Source
	v := verifier(t, jwt.Options{Secret: secret})
	c := claims{"sub": "u-17", "plan": "pro", "n": 42, "admin": true, "list": []string{"x"}, "key": "sk_9"}
	genuine, forged := "Bearer "+sign(t, secret, c), "Bearer "+sign(t, []byte("another secret, of no less length"), c)
	for _, c := range []struct {
		name          string
		source        source
		authorization string
		want          string
		verified      bool
	}{
		{"text", source{Claim: "key"}, genuine, "sk_9", true},
		{"a number", source{Claim: "n"}, genuine, "42", true},
		{"a truth value", source{Claim: "admin"}, genuine, "true", true},
		{"a list", source{Claim: "list"}, genuine, "", false},
		{"no such claim", source{Claim: "nope"}, genuine, "", false},
		{"a forged token", source{Claim: "key"}, forged, "", false},
		{"beside the token itself", source{Claim: "key", Bearer: true}, genuine, "sk_9", true},
	} {
		req := identify(t, httplimit.Identity{APIKey: c.source, JWT: v}, c.authorization)
		if req.APIKey != c.want || req.KeyVerified != c.verified {
			t.Errorf("%s: got %q, verified %v; want %q, %v", c.name, req.APIKey, req.KeyVerified, c.want, c.verified)
		}
	}
	id := httplimit.Identity{User: source{Claim: "sub"}, Tier: source{Claim: "plan"}, JWT: v}
	if req := identify(t, id, genuine); req.User != "u-17" || req.Tier != "pro" || !req.TierVerified || req.Attr("claim:n") != "42" {
		t.Errorf("a genuine token: %+v, claim n is %q", req, req.Attr("claim:n"))
	}
	if req := identify(t, id, forged); req.User != "" || req.Tier != "" || req.TierVerified || req.Attr("claim:n") != "" {
		t.Errorf("a forged token: %+v, claim n is %q", req, req.Attr("claim:n"))
	}
}

// A token that fails verification is rejected with a reason, which doesn't contain the token. That holds whether the
// identity or a rule needs a claim.
func TestRejectedTokens(t *testing.T) {
	v := verifier(t, jwt.Options{Secret: secret, Issuer: "https://id.example", Audience: "api"})
	hour := time.Now().Add(time.Hour).Unix()
	good := claims{"sub": "ada", "iss": "https://id.example", "aud": "api", "exp": hour}
	with := func(name string, value any) claims {
		c := maps.Clone(good)
		if c[name] = value; value == nil {
			delete(c, name)
		}
		return c
	}
	extended := gojwt.NewWithClaims(gojwt.SigningMethodHS256, good)
	extended.Header["crit"] = []string{"b64"}
	for token, want := range map[string]string{
		"":                                  "",
		sign(t, secret, good):               "",
		"sk_prod_secret":                    "the token is not a JWT",
		"a.b.c":                             "the token is not a JWT",
		strings.Repeat("x", 20<<10):         "the token is too long",
		sign(t, []byte("another"), good):    "the token's signature or algorithm is wrong",
		unsigned(t, good):                   "the token's signature or algorithm is wrong",
		must(extended.SignedString(secret)): "the token asks for an extension",
		sign(t, secret, with("exp", 1)):     "the token has expired",
		sign(t, secret, with("nbf", hour)):  "the token is not valid yet",
		sign(t, secret, with("iss", "x")):   "the token has another issuer",
		sign(t, secret, with("aud", "x")):   "the token has another audience",
		sign(t, secret, with("iss", nil)):   "the token lacks the issuer or the audience",
	} {
		verified := token != "" && want == ""
		if got, why := v.Verify(token); why != want || (got != nil) != verified {
			t.Errorf("%.40s…: got %v and the reason %q, want the reason %q", token, got, why, want)
		}
		if req := identify(t, httplimit.Identity{User: httplimit.Source{Claim: "sub"}, JWT: v}, "Bearer "+token); req.Rejected != want || (req.User != "") != verified {
			t.Errorf("an identity, %.40s…: user %q, rejected %q, want %q", token, req.User, req.Rejected, want)
		}
		req := identify(t, httplimit.Identity{JWT: v}, "Bearer "+token)
		if user := req.Attr("claim:sub"); req.Rejected != want || (user != "") != verified {
			t.Errorf("a rule, %.40s…: user %q, rejected %q, want %q", token, user, req.Rejected, want)
		}
	}
}

// FuzzIdentity sends random Authorization headers, and compares the result with a simple, slow implementation. Claims must
// come only from tokens that were verified.
func FuzzIdentity(f *testing.F) {
	v := verifier(f, jwt.Options{Secret: secret, Issuer: "idp"})
	who := httplimit.NewIdentifier(httplimit.Identity{
		APIKey: httplimit.Source{Claim: "key"}, User: httplimit.Source{Claim: "sub"}, Tier: httplimit.Source{Claim: "plan"}, JWT: v,
	}, nil)
	good := claims{"iss": "idp", "key": "sk_internal_1", "plan": "pro", "sub": "u"}
	for _, credentials := range []string{
		"", "Bearer " + sign(f, secret, good), "Bearer " + sign(f, []byte("no"), good), "bearer\t" + sign(f, secret, good),
		"Bearer " + sign(f, secret, claims{"iss": "idp", "key": "k", "exp": 1}), "Bearer " + sign(f, secret, claims{"iss": "evil", "key": "k"}),
		"Bearer " + signAs(f, gojwt.SigningMethodHS512, secret, good, "kid"), "Bearer " + unsigned(f, good),
		"Bearer " + sign(f, secret, good) + "==", "Basic dTpw", "Bearer ..", "Bearer sk_prod_known",
	} {
		f.Add(credentials)
	}
	f.Fuzz(func(t *testing.T, authorization string) {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header["Authorization"] = []string{authorization}
		var req weir.Request
		if who.Identify(r, &req) != nil {
			return // and so the request is refused
		}
		proof := proven(bearerOf(authorization))
		for name, got := range map[string]string{"key": req.APIKey, "sub": req.User, "plan": req.Tier} {
			if want, _ := proof[name].(string); got != want || req.Attr("claim:"+name) != want {
				t.Errorf("%s is %q, as a claim %q; want %q", name, got, req.Attr("claim:"+name), want)
			}
		}
		if req.KeyVerified != (req.APIKey != "") || req.TierVerified != (req.Tier != "") {
			t.Errorf("key %q, verified %v; tier %q, verified %v", req.APIKey, req.KeyVerified, req.Tier, req.TierVerified)
		}
		if proof != nil && req.Rejected != "" {
			t.Errorf("a token with proof was rejected: %s", req.Rejected)
		}
	})
}

// bearerOf returns the token of an Authorization header.
func bearerOf(authorization string) string {
	switch words := strings.FieldsFunc(authorization, func(r rune) bool { return r == ' ' || r == '\t' }); {
	case len(words) >= 2 && strings.EqualFold(words[0], "token") && strings.HasPrefix(words[1], "token="):
		first, _, _ := strings.Cut(strings.Join(words[1:], " "), ",")
		return strings.Trim(first[len("token="):], `"`)
	case len(words) == 2 && !strings.Contains(words[1], ","):
		if strings.EqualFold(words[0], "token") || strings.EqualFold(words[0], "bearer") {
			return strings.Trim(strings.TrimPrefix(words[1], "token="), `"`)
		}
		return words[1]
	case len(words) == 1 && !strings.EqualFold(words[0], "bearer"):
		return words[0]
	}
	return ""
}

// proven returns the claims of a token if its signature is valid, it hasn't expired, and it has the right issuer.
func proven(token string) map[string]any {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return nil
	}
	parts[2] = regexp.MustCompile("[^A-Za-z0-9_-]").ReplaceAllString(strings.NewReplacer("+", "-", "/", "_").Replace(parts[2]), "")
	if len(parts[2])%4 == 1 {
		parts[2] = parts[2][:len(parts[2])-1]
	}
	var decoded [3][]byte
	for i, p := range parts {
		var err error
		if decoded[i], err = base64.RawURLEncoding.DecodeString(p); err != nil {
			return nil
		}
	}
	var head struct {
		Alg       string
		Crit, B64 json.RawMessage
	}
	if json.Unmarshal(decoded[0], &head) != nil || head.Crit != nil || head.B64 != nil {
		return nil
	}
	with, ok := map[string]func() hash.Hash{"HS256": sha256.New, "HS384": sha512.New384, "HS512": sha512.New}[head.Alg]
	if !ok {
		return nil
	}
	mac := hmac.New(with, secret)
	mac.Write([]byte(parts[0] + "." + parts[1]))
	var claims map[string]any
	if !hmac.Equal(mac.Sum(nil), decoded[2]) || json.Unmarshal(decoded[1], &claims) != nil || claims["iss"] != "idp" {
		return nil
	}
	if exp, ok := claims["exp"].(float64); ok && time.Now().After(time.Unix(int64(exp)+300, 0)) {
		return nil
	}
	return claims
}
