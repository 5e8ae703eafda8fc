package jwt_test

import (
	"crypto"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/MicahParks/jwkset"
	gojwt "github.com/golang-jwt/jwt/v5"
	"github.com/weirhq/weir/internal/loopback"
	"github.com/weirhq/weir/jwt"
)

// published is a key in the form that an identity provider publishes.
type published struct {
	id  string
	key crypto.PublicKey
	alg jwkset.ALG
	use jwkset.USE
}

func keySet(t testing.TB, keys ...published) []byte {
	t.Helper()
	set := jwkset.JWKSMarshal{Keys: []jwkset.JWKMarshal{}}
	for _, k := range keys {
		jwk, err := jwkset.NewJWKFromKey(k.key, jwkset.JWKOptions{Metadata: jwkset.JWKMetadataOptions{KID: k.id, ALG: k.alg, USE: k.use}})
		if err != nil {
			t.Fatal(err)
		}
		set.Keys = append(set.Keys, jwk.Marshal())
	}
	text, err := json.Marshal(set)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// provider is an identity provider whose response a test can change. If the response is nil, requests fail.
type provider struct {
	answer  atomic.Pointer[[]byte]
	fetches atomic.Int64
}

func (p *provider) publish(text []byte) { p.answer.Store(&text) }

func (p *provider) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	p.fetches.Add(1)
	text := p.answer.Load()
	if text == nil {
		http.Error(w, "out of order", http.StatusBadGateway)
		return
	}
	_, _ = w.Write(*text)
}

func TestKeysFromAProvider(t *testing.T) {
	p := &provider{}
	secretKey := []byte(`{"keys":[{"kty":"oct","kid":"shared","k":"c2VjcmV0"},{"kty":"unheard-of","kid":"new"},`)
	set := keySet(t,
		published{id: "rsa", key: rsaKey().Public()}, published{id: "ec", key: ecKey().Public(), alg: jwkset.AlgES256},
		published{id: "ed", key: edKey().Public()}, published{id: "rs256", key: rsaKey().Public(), alg: jwkset.AlgRS256},
		published{id: "enc", key: otherRSA().Public(), use: jwkset.UseEnc})
	p.publish(append(secretKey, set[len(`{"keys":[`):]...))
	srv := httptest.NewServer(p)
	defer srv.Close()
	fetched := make(chan error, 1)
	v := verifier(t, jwt.Options{JWKSURL: srv.URL, OnFetch: func(err error) { fetched <- err }})
	if err := <-fetched; err != nil {
		t.Fatal(err)
	}
	c := claims{"sub": "u"}
	for _, x := range []struct {
		name, token string
		want        bool
	}{
		{"RSA", signAs(t, gojwt.SigningMethodRS256, rsaKey(), c, "rsa"), true},
		{"RSA-PSS", signAs(t, gojwt.SigningMethodPS512, rsaKey(), c, "rsa"), true},
		{"ECDSA", signAs(t, gojwt.SigningMethodES256, ecKey(), c, "ec"), true},
		{"Ed25519", signAs(t, gojwt.SigningMethodEdDSA, edKey(), c, "ed"), true},
		{"without a key id", signAs(t, gojwt.SigningMethodEdDSA, edKey(), c, ""), true},
		{"the key's algorithm", signAs(t, gojwt.SigningMethodRS256, rsaKey(), c, "rs256"), true},
		{"another algorithm than the key's", signAs(t, gojwt.SigningMethodPS256, rsaKey(), c, "rs256"), false},
		{"another's key id", signAs(t, gojwt.SigningMethodRS256, rsaKey(), c, "ec"), false},
		{"an unknown key id", signAs(t, gojwt.SigningMethodRS256, rsaKey(), c, "nope"), false},
		{"a key for encryption", signAs(t, gojwt.SigningMethodRS256, otherRSA(), c, "enc"), false},
		{"another key", signAs(t, gojwt.SigningMethodRS256, otherRSA(), c, "rsa"), false},
		{"a shared secret that was published", signAs(t, gojwt.SigningMethodHS256, []byte("secret"), c, "shared"), false},
		{"HS256 with the public key", signAs(t, gojwt.SigningMethodHS256, publicPEM(rsaKey().Public()), c, "rsa"), false},
		{"none", signAs(t, gojwt.SigningMethodNone, gojwt.UnsafeAllowNoneSignatureType, c, "rsa"), false},
	} {
		if got := claimsOf(v, x.token); (got != nil) != x.want {
			t.Errorf("%s: %v", x.name, got)
		}
	}
}

// An unreachable provider blocks no clients. Until it is back, tokens are unverified.
func TestProviderIsDownAtStart(t *testing.T) {
	l, err := net.Listen("tcp", loopback.Host()+":0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	fetched := make(chan error, 1)
	v := verifier(t, jwt.Options{JWKSURL: "http://" + address, OnFetch: func(err error) { fetched <- err }})
	token := sign(t, edKey(), claims{"sub": "u"})
	if err := <-fetched; err == nil || claimsOf(v, token) != nil {
		t.Fatalf("the provider is down, but got %v, %v", err, claimsOf(v, token))
	}
	p := &provider{}
	p.publish(keySet(t, published{id: "ed", key: edKey().Public()}))
	srv := httptest.NewUnstartedServer(p)
	srv.Listener.Close()
	if srv.Listener, err = net.Listen("tcp", address); err != nil {
		t.Fatal(err)
	}
	srv.Start()
	defer srv.Close()
	for err := range fetched {
		if err == nil {
			break
		}
	}
	if claimsOf(v, token).Text("sub") != "u" {
		t.Error("the provider is back, but the token isn't verified")
	}
}

// The tests below depend on time, so they run in synctest bubbles.

func TestKeysAreKeptFresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &provider{}
		client := servePipes(t, p)
		var failures atomic.Int64
		v := verifier(t, jwt.Options{JWKSURL: "http://idp.example/keys", Client: client, OnFetch: func(err error) {
			if err != nil {
				failures.Add(1)
			}
		}})
		old := signAs(t, gojwt.SigningMethodRS256, rsaKey(), claims{"sub": "u"}, "old")
		young := signAs(t, gojwt.SigningMethodES256, ecKey(), claims{"sub": "u"}, "new")
		oldKey, newKey := published{id: "old", key: rsaKey().Public()}, published{id: "new", key: ecKey().Public()}
		expect := func(when string, fetches int64, isOld, isNew bool) {
			t.Helper()
			synctest.Wait()
			if got := p.fetches.Load(); got != fetches {
				t.Errorf("%s: %d fetches, want %d", when, got, fetches)
			}
			if (claimsOf(v, old) != nil) != isOld || (claimsOf(v, young) != nil) != isNew {
				t.Errorf("%s: old token %v, new token %v", when, claimsOf(v, old), claimsOf(v, young))
			}
		}
		expect("out of order", 1, false, false)
		time.Sleep(time.Second)
		expect("a second later", 2, false, false)
		time.Sleep(62 * time.Second) // fetched after 2, 4, 8, 16 and 32 s
		expect("a minute later", 7, false, false)
		time.Sleep(time.Hour)
		expect("an hour later", 67, false, false)
		if got := failures.Load(); got != 67 {
			t.Errorf("%d failures were reported, want 67", got)
		}

		p.publish(keySet(t, oldKey))
		time.Sleep(time.Minute)
		expect("in order", 68, true, false) // an unknown key is fetched at most every ten seconds
		time.Sleep(9 * time.Second)
		expect("nine seconds later", 68, true, false)
		p.publish(keySet(t, oldKey, newKey))
		time.Sleep(time.Second)
		expect("ten seconds later", 69, true, true)

		time.Sleep(30 * time.Minute)
		for range 100 { // tokens with key ids that don't exist
			claimsOf(v, signAs(t, gojwt.SigningMethodEdDSA, edKey(), claims{}, "invented"))
		}
		expect("a flood of invented key ids", 70, true, true)

		p.answer.Store(nil)
		time.Sleep(time.Hour)
		for name, broken := range map[string]string{"an error": "", "not JSON": "<html>", "no keys": "{}", "a broken key": `{"keys":[{"kty":"RSA","n":"!"}]}`} {
			if broken != "" {
				p.publish([]byte(broken))
			}
			time.Sleep(2 * time.Minute)
			synctest.Wait()
			if claimsOf(v, old) == nil {
				t.Errorf("%s: valid keys were dropped", name)
			}
		}
		p.publish([]byte(strings.Repeat(" ", 2<<20)))
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if claimsOf(v, old) == nil {
			t.Error("an endless response: valid keys were dropped")
		}

		p.publish(keySet(t, newKey))
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if claimsOf(v, old) != nil || claimsOf(v, young) == nil {
			t.Error("a key that was withdrawn still verifies")
		}
		p.publish(keySet(t))
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if claimsOf(v, young) != nil {
			t.Error("all keys were withdrawn, but one still verifies")
		}
	})
}

// The key set is fetched again every hour, even if no token needs a new key.
func TestKeysAreFetchedEveryHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &provider{}
		p.publish(keySet(t, published{id: "ed", key: edKey().Public()}))
		client := servePipes(t, p)
		verifier(t, jwt.Options{JWKSURL: "http://idp.example/keys", Client: client})
		for hour := range int64(3) {
			synctest.Wait()
			if got := p.fetches.Load(); got != hour+1 {
				t.Errorf("%d fetches in %d hours", got, hour)
			}
			time.Sleep(time.Hour - time.Nanosecond)
			synctest.Wait()
			if got := p.fetches.Load(); got != hour+1 {
				t.Errorf("%d fetches before hour %d is over", got, hour+1)
			}
			time.Sleep(time.Nanosecond)
		}
	})
}

// A key set may have up to 1 MiB.
func TestLongestKeySet(t *testing.T) {
	set := string(keySet(t, published{id: "ed", key: edKey().Public()}))
	token := signAs(t, gojwt.SigningMethodEdDSA, edKey(), claims{"sub": "u"}, "ed")
	for length, want := range map[int]string{1 << 20: "u", 1<<20 + 1: ""} {
		p := &provider{}
		p.publish([]byte(strings.Repeat(" ", length-len(set)) + set))
		srv := httptest.NewServer(p)
		fetched := make(chan error, 10)
		v := verifier(t, jwt.Options{JWKSURL: srv.URL, OnFetch: func(err error) { fetched <- err }})
		if err := <-fetched; (err == nil) != (want != "") || claimsOf(v, token).Text("sub") != want {
			t.Errorf("%d bytes: %v, sub is %q, want %q", length, err, claimsOf(v, token).Text("sub"), want)
		}
		srv.Close()
	}
}

// If a provider accepts connections and doesn't respond, the fetch times out.
func TestProviderDoesNotRespond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := servePipes(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
		begin, fetched := time.Now(), make(chan error)
		v := verifier(t, jwt.Options{JWKSURL: "http://idp.example/keys", Client: client, OnFetch: func(err error) {
			select {
			case fetched <- err:
			case <-t.Context().Done():
			}
		}})
		if claimsOf(v, sign(t, edKey(), claims{})) != nil || time.Since(begin) != 0 {
			t.Error("a token was verified, or its check waited")
		}
		if err := <-fetched; err == nil || time.Since(begin) != 10*time.Second {
			t.Errorf("%v after %s", err, time.Since(begin))
		}
	})
}

// Errors about a provider never contain the password or the tokens in its URL.
func TestErrorsHideProviderSecrets(t *testing.T) {
	const user, password, token = "us3r", "hunter2", "t0ken"
	hide := func(address string) string {
		return strings.Replace(address, "http://", "http://"+user+":"+password+"@", 1) + "?token=" + token
	}
	answer := func(h http.HandlerFunc) string {
		srv := httptest.NewServer(h)
		t.Cleanup(srv.Close)
		return hide(srv.URL + "/keys")
	}
	gone := httptest.NewServer(nil)
	gone.Close()
	for name, address := range map[string]string{
		"not there": hide(gone.URL + "/keys"),
		"a status":  answer(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }),
		"no JSON":   answer(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("no")) }),
		"too long":  answer(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 2<<20)) }),
		"broken off": answer(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write([]byte("{"))
		}),
		"a redirect to nowhere": answer(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, hide(gone.URL), http.StatusFound)
		}),
		"redirects without end": answer(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/keys?token="+token, http.StatusFound)
		}),
	} {
		fetched := make(chan error, 10)
		verifier(t, jwt.Options{JWKSURL: address, OnFetch: func(err error) { fetched <- err }})
		err := <-fetched
		if err == nil || !strings.Contains(err.Error(), "127.0.0.1") {
			t.Errorf("%s: the message doesn't say which provider: %v", name, err)
			continue
		}
		for _, secret := range []string{user, password, token} {
			if strings.Contains(err.Error(), secret) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	for _, address := range []string{"https://us3r:hunter2@%zz?t0ken", "ftp://us3r:hunter2@idp/?t0ken", "us3r:hunter2@idp/?t0ken", "https://us3r:hunter2@idp:port/?t0ken"} {
		_, err := jwt.NewVerifier(t.Context(), jwt.Options{JWKSURL: address})
		if err == nil || strings.Contains(err.Error(), password) || strings.Contains(err.Error(), token) {
			t.Errorf("%s: %v", address, err)
		}
	}
}
