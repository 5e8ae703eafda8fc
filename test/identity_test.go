package test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/MicahParks/jwkset"
	"github.com/golang-jwt/jwt/v5"
)

// tiers shows which tier a client got: the gateway's headers have a limit of 5 for an unknown client, 50 for pro, and
// none for a client on the allow list.
const tiers = `
tiers: {free: 5/hour, pro: 50/hour}
keys: {"sk_prod_*": pro}
rules:
  - id: quota
whitelist: ["sk_internal_*"]
`

// gatewayWith starts a node with a gateway and settings. It returns a function that sends a request with the given
// headers and returns its limit.
func gatewayWith(t *testing.T, settings string) (*node, func(headers ...string) string) {
	t.Helper()
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(upstream.Close)
	dir := t.TempDir()
	rules := write(t, filepath.Join(dir, "rules.yaml"), tiers)
	config := write(t, filepath.Join(dir, "weir.yaml"), settings)
	n := serve(t, "--config", config, "--rules", rules, "--gateway", "127.0.0.1:0", "--upstream", upstream.URL)
	return n, func(headers ...string) string {
		t.Helper()
		r, err := http.NewRequest("GET", n.Gateway+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(headers); i += 2 {
			r.Header.Add(headers[i], headers[i+1])
		}
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != 200 {
			t.Errorf("%v: %s", headers, res.Status)
		}
		return res.Header.Get("X-RateLimit-Limit")
	}
}

// A key's pattern assigns a tier or the allow list only if the file of known keys has the key's hash.
func TestKnownKeysOfAGateway(t *testing.T) {
	t.Parallel()
	hash := func(key string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(key))) }
	keys := write(t, filepath.Join(t.TempDir(), "keys.sha256"),
		"# ours\n\n"+hash("sk_internal_ours")+"\n"+strings.ToUpper(hash("sk_prod_ours"))+"  -\n")
	_, limitOf := gatewayWith(t, "identity: {known_keys: "+keys+"}\n")
	for key, want := range map[string]string{"sk_internal_x": "5", "sk_internal_ours": "", "sk_prod_x": "5", "sk_prod_ours": "50"} {
		if got := limitOf("X-API-Key", key); got != want {
			t.Errorf("%s: limit %q, want %q", key, got, want)
		}
	}
}

// Tokens are verified with a secret, a public key, or an identity provider, as configured, even if the provider is down
// at first.
func TestTokensOfAGateway(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	secret := []byte("a secret that two parties share!")
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	public := write(t, filepath.Join(dir, "idp.pem"), string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})))
	shared := write(t, filepath.Join(dir, "idp.secret"), string(secret)+"\n")
	token := func(m jwt.SigningMethod, key any, issuer string) string {
		s, err := jwt.NewWithClaims(m, jwt.MapClaims{"sub": "ada", "plan": "pro", "iss": issuer}).SignedString(key)
		if err != nil {
			t.Fatal(err)
		}
		return "Bearer " + s
	}
	settings := func(jwt string) string {
		return "identity:\n  user: {claim: sub}\n  tier: {claim: plan}\n  jwt: {issuer: idp, " + jwt + "}\n"
	}
	byKey, bySecret := token(jwt.SigningMethodES256, key, "idp"), token(jwt.SigningMethodHS256, secret, "idp")
	none := token(jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, "idp")
	for with, tokens := range map[string]map[string]string{
		"secret_file: " + shared:     {bySecret: "50", byKey: "5", none: "5", token(jwt.SigningMethodHS256, secret, "evil"): "5"},
		"public_key_file: " + public: {bySecret: "5", byKey: "50", none: "5", token(jwt.SigningMethodES256, key, "evil"): "5"},
	} {
		_, limitOf := gatewayWith(t, settings(with))
		for token, want := range tokens {
			if got := limitOf("Authorization", token); got != want {
				t.Errorf("%s, %s: limit %q, want %q", with, token, got, want)
			}
		}
	}

	var up atomic.Bool
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !up.Load() {
			http.Error(w, "not yet", http.StatusServiceUnavailable)
			return
		}
		k, err := jwkset.NewJWKFromKey(key.Public(), jwkset.JWKOptions{})
		if err != nil {
			t.Error(err)
		}
		_ = json.NewEncoder(w).Encode(jwkset.JWKSMarshal{Keys: []jwkset.JWKMarshal{k.Marshal()}})
	}))
	defer provider.Close()
	n, limitOf := gatewayWith(t, settings("jwks_url: "+provider.URL))
	n.await("identity: keys of tokens can't be fetched: those fetched before stay", func(l map[string]any) bool { return strings.Contains(l["error"].(string), "503") })
	if got := limitOf("Authorization", byKey); got != "5" {
		t.Errorf("without keys: limit %q", got)
	}
	up.Store(true)
	n.await("identity: keys of tokens fetched", func(map[string]any) bool { return true })
	if got := limitOf("Authorization", byKey); got != "50" {
		t.Errorf("with keys: limit %q", got)
	}
}

// If checks come without an address, and a rule counts by address, the node warns once.
func TestChecksWithoutAnAddressAreWarnedAboutOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	rules := write(t, filepath.Join(dir, "rules.yaml"), "rules: [{id: quota, limit: 9/s}]\n")
	n := serve(t, "--rules", rules)
	const warning = `a check came without "ip", and a rule counts by it: all such checks share one counter; send the address of the client`
	check := func(body string) {
		t.Helper()
		if status, answer := post(t, http.DefaultClient, n.HTTP+"/v1/check", body); status != 200 {
			t.Fatal(status, answer)
		}
	}
	check(`{"key": "a"}`)
	write(t, rules, "rules: [{id: quota, limit: 9/s}, {id: address, by: [ip], limit: 1000/s}]\n")
	n.await("rules applied", func(map[string]any) bool { return true })
	check(`{"key": "b", "ip": "203.0.113.7"}`)
	if n.said(warning) {
		t.Error("the node warns although the check has an address")
	}
	check(`{"key": "c"}`)
	check(`{"key": "d"}`)
	if status, answer := post(t, http.DefaultClient, n.HTTP+"/v1/checks", `{"checks": [{"key": "e"}, {"key": "f"}]}`); status != 200 {
		t.Fatal(status, answer)
	}
	if l := n.await(warning, func(map[string]any) bool { return true }); l["rule"] != "address" || l["level"] != "WARN" {
		t.Errorf("%v", l)
	}
	n.stop()
	<-n.exited
	said := 0
	for _, l := range n.log {
		if l["msg"] == warning {
			said++
		}
	}
	if said != 1 {
		t.Errorf("the node warns %d times", said)
	}
}

// A node counts addresses by its own prefix lengths, unless a rule sets others. explain says which ones apply.
func TestNetworksOfANode(t *testing.T) {
	t.Parallel()
	rules := write(t, filepath.Join(t.TempDir(), "rules.yaml"), `rules:
  - {id: node, match: {endpoint: /node}, by: [ip], limit: 1/hour}
  - {id: own, match: {endpoint: /own}, by: [ip], ipv6_prefix: 128, limit: 1/hour}
`)
	n := serve(t, "--rules", rules, "--ipv4-prefix", "24", "--ipv6-prefix", "48")
	for _, c := range []struct {
		path, ip string
		status   int
	}{
		{"/node", "203.0.113.7", 200}, {"/node", "203.0.113.250", 429}, {"/node", "::ffff:203.0.113.1", 429}, {"/node", "203.0.114.7", 200},
		{"/node", "2001:db8::1", 200}, {"/node", "2001:db8:0:9::1", 429}, {"/node", "2001:db8:1::1", 200},
		{"/own", "2001:db8::1", 200}, {"/own", "2001:db8::2", 200}, {"/own", "2001:db8::1", 429}, {"/own", "203.0.113.7", 200}, {"/own", "203.0.113.8", 429},
	} {
		if got, answer := post(t, http.DefaultClient, n.HTTP+"/v1/check", fmt.Sprintf(`{"path": %q, "ip": %q}`, c.path, c.ip)); got != c.status {
			t.Errorf("%s from %s: %d, want %d: %v", c.path, c.ip, got, c.status, answer)
		}
	}
	status, answer := post(t, http.DefaultClient, n.Admin+"/v1/explain", `{"path": "/node", "ip": "203.0.113.7"}`)
	if status != 200 || !strings.Contains(fmt.Sprint(answer), "ip 203.0.113.0/24") {
		t.Errorf("%d %v", status, answer)
	}
}
