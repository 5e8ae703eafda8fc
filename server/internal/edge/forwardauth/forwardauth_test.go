package forwardauth_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/server/internal/edge/forwardauth"
	"github.com/weirhq/weir/server/internal/edge/guard"
)

// world is a handler with its decisions and its log.
type world struct {
	http.Handler
	decided []string // edge, method, path, address, key, reason
	log     bytes.Buffer
}

func newWorld(t *testing.T, opts forwardauth.Options) *world {
	t.Helper()
	set, err := weir.Compile(weir.Rules{
		Deny:  []string{"blocked"},
		Rules: []weir.Rule{{ID: "all", Limits: []weir.Limit{{Count: 2, Window: time.Hour}}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	w := new(world)
	l := weir.NewLimiter(memstore.New(memstore.Options{}), set, weir.Options{Observe: func(o *weir.Observation) {
		r := o.Request
		w.decided = append(w.decided, fmt.Sprint(r.Edge, " ", r.Method, " ", r.Path, " ", r.IP, " ", r.APIKey, " ", o.Decision.Reason))
	}})
	opts.Logger = slog.New(slog.NewTextHandler(&w.log, nil))
	w.Handler = forwardauth.New(l, opts)
	return w
}

// ask sends a gateway's request from an address, and returns the response.
func (w *world) ask(from, method, target string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, "http://weir"+target, nil)
	r.RemoteAddr, r.RequestURI = from, target
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if name == "Host" {
			r.Host = value
			continue
		}
		r.Header.Add(name, value)
	}
	res := httptest.NewRecorder()
	w.ServeHTTP(res, r)
	return res
}

const local = "127.0.0.1:999"

// way is how a gateway describes a client's POST /login?a=b from 203.0.113.7. control has one header per entry.
type way struct {
	path    string
	method  string // of the gateway's own request
	target  string
	edge    string
	control []string
	refused int    // the status of a refusal by a limit
	host    string // the header with the client's Host, if the gateway sends one
}

var ways = []way{
	{"/check/nginx", "GET", "/check/nginx", "forwardauth", []string{"X-Original-Method: POST", "X-Original-URI: /login?a=b", "X-Real-IP: 203.0.113.7"}, 403, ""},
	{"/check/haproxy", "GET", "/check/haproxy", "forwardauth", []string{"X-Original-Method: POST", "X-Original-URI: /login?a=b", "X-Real-IP: 203.0.113.7"}, 429, ""},
	{"/check/caddy", "GET", "/check/caddy", "forwardauth", []string{"X-Forwarded-Method: POST", "X-Forwarded-Uri: /login?a=b", "X-Forwarded-For: 203.0.113.7"}, 429, "X-Forwarded-Host"},
	{"/check/traefik", "GET", "/check/traefik", "forwardauth", []string{"X-Forwarded-Method: POST", "X-Forwarded-Uri: /login?a=b", "X-Forwarded-For: 203.0.113.7"}, 429, "X-Forwarded-Host"},
	{"/check/envoy", "POST", "/check/envoy/login?a=b", "extauthz", []string{"X-Real-IP: 203.0.113.7"}, 429, ""},
}

// Each gateway's request is counted for the gateway's client.
func TestTheClientIsCounted(t *testing.T) {
	for _, g := range ways {
		w := newWorld(t, forwardauth.Options{})
		headers := append([]string{"X-API-Key: k"}, g.control...)
		for i, want := range []int{200, 200, g.refused} {
			res := w.ask(local, g.method, g.target, headers...)
			if res.Code != want || res.Header().Get("X-RateLimit-Remaining") != []string{"1", "0", "0"}[i] || (want != 200) != strings.Contains(res.Body.String(), "RATE_LIMIT_EXCEEDED") {
				t.Errorf("%s: %d %v %s", g.path, res.Code, res.Header(), res.Body)
			}
			status := res.Header().Get("X-Weir-Status")
			if marks := g.path == "/check/nginx" || g.path == "/check/haproxy"; marks != (status == []string{"200", "200", "429"}[i]) {
				t.Errorf("%s: marked %q", g.path, status)
			}
			if masked := g.refused == 403 && want != 200; masked != strings.HasPrefix(res.Header().Get("X-Weir-Body"), `{"error":{"code":"RATE_LIMIT_EXCEEDED"`) {
				t.Errorf("%s: %v", g.path, res.Header())
			}
		}
		if want := g.edge + " POST /login 203.0.113.7 k within"; w.decided[0] != want {
			t.Errorf("%s: %q, want %q", g.path, w.decided[0], want)
		}
	}
}

// A peer that isn't trusted is refused, whatever it claims. Loopback addresses and --trusted-proxies are trusted.
func TestUntrustedPeersAreRefused(t *testing.T) {
	opts := forwardauth.Options{Limit: httplimit.Options{TrustedProxies: []netip.Prefix{
		netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("::ffff:172.16.0.0/108"),
	}}}
	for _, g := range ways {
		for from, trusted := range map[string]bool{
			"127.0.0.9:1": true, "[::1]:1": true, "10.1.2.3:1": true, "[::ffff:10.1.2.3]:1": true, "172.16.0.1:1": true,
			"192.0.2.1:1": false, "[2001:db8::1]:1": false, "11.0.0.1:1": false, "@": false, "": false,
		} {
			w := newWorld(t, opts)
			res := w.ask(from, g.method, g.target, g.control...)
			if trusted != (res.Code == 200) || trusted == strings.Contains(res.Body.String(), "UNTRUSTED_PEER") || trusted != (len(w.decided) == 1) {
				t.Errorf("%s from %q: %d %s %q", g.path, from, res.Code, res.Body, w.decided)
			}
			if trusted != (w.log.Len() == 0) {
				t.Errorf("%s from %q: logged %s", g.path, from, &w.log)
			}
		}
	}
}

// If a header of the gateway is missing or repeated, no client is counted. The response names the header and, once, so
// does the log.
func TestControlHeadersAreGivenOnce(t *testing.T) {
	for _, g := range ways {
		for i, h := range g.control {
			name, _, _ := strings.Cut(h, ": ")
			lacks := append(append([]string{}, g.control[:i]...), g.control[i+1:]...)
			for what, headers := range map[string][]string{
				"missing": lacks,
				"alias":   append([]string{strings.ReplaceAll(h, "-", "_")}, lacks...),
				"empty":   append([]string{name + ": "}, lacks...),
				"twice":   append([]string{h}, g.control...),
			} {
				w := newWorld(t, forwardauth.Options{})
				for range 2 {
					res := w.ask(local, g.method, g.target, headers...)
					status := res.Header().Get("X-Weir-Status")
					if g.refused != 403 {
						status = fmt.Sprint(res.Code)
					}
					if status != "400" || !strings.Contains(res.Body.String(), http.CanonicalHeaderKey(name)) || len(w.decided) > 0 {
						t.Errorf("%s, %s %s: %d %v %s %q", g.path, name, what, res.Code, res.Header(), res.Body, w.decided)
					}
				}
				if strings.Count(w.log.String(), "\n") != 1 {
					t.Errorf("%s, %s %s: logged %s", g.path, name, what, &w.log)
				}
			}
		}
	}
}

// X-Forwarded-For is followed back through trusted proxies, starting at the address that the gateway saw.
func TestProxiesBeforeTheGateway(t *testing.T) {
	opts := forwardauth.Options{Limit: httplimit.Options{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}}
	for _, g := range ways {
		for peer, want := range map[string]string{"10.0.0.9": "203.0.113.7", "203.0.113.8": "203.0.113.8", "127.0.0.1": "127.0.0.1"} {
			w := newWorld(t, opts)
			headers := []string{"X-Forwarded-For: 1.2.3.4, 203.0.113.7"} // as that peer sent it
			for _, h := range g.control {
				if strings.HasPrefix(h, "X-Forwarded-For: ") {
					headers[0] += ", " + peer
				} else {
					headers = append(headers, strings.Replace(h, "X-Real-IP: 203.0.113.7", "X-Real-IP: "+peer, 1))
				}
			}
			w.ask(local, g.method, g.target, headers...)
			if len(w.decided) != 1 || !strings.Contains(w.decided[0], " "+want+" ") {
				t.Errorf("%s: %s became %q, want %s", g.path, peer, w.decided, want)
			}
		}
	}
}

// If a token is configured, the gateway must send it in X-Weir-Token. Authorization belongs to the client.
func TestTheTokenIsAskedFor(t *testing.T) {
	tokens, err := guard.OneToken("http", "secret-of-the-port")
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range ways {
		w := newWorld(t, forwardauth.Options{
			Guard: guard.New(guard.Options{Tokens: tokens}),
			Limit: httplimit.Options{Identity: httplimit.Identity{APIKey: httplimit.Source{Bearer: true}}},
		})
		bearer := append([]string{"Authorization: Bearer client"}, g.control...)
		for token, ok := range map[string]bool{"": false, "X-Weir-Token: wrong": false, "Authorization: Bearer secret-of-the-port": false, "X-Weir-Token: secret-of-the-port": true} {
			headers := bearer
			if token != "" {
				headers = append([]string{token}, bearer...)
			}
			w.decided = nil
			if res := w.ask(local, g.method, g.target, headers...); ok != (res.Code == 200) || ok != (len(w.decided) == 1) || strings.Contains(res.Body.String()+w.log.String(), "secret-of") {
				t.Errorf("%s, %q: %d %s", g.path, token, res.Code, res.Body)
			}
			if ok && w.decided[0] != g.edge+" POST /login 203.0.113.7 client within" {
				t.Errorf("%s: %q", g.path, w.decided)
			}
		}
	}
}

// The gateway's own headers aren't part of its client's request: neither the port's token nor a header that describes
// the request can become the client's key.
func TestGatewayHeadersAreNotTheClients(t *testing.T) {
	tokens, err := guard.OneToken("http", "secret-of-the-port")
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range ways {
		says := append([]string{"X-Weir-Token: secret-of-the-port"}, g.control...)
		if g.host != "" {
			says = append(says, g.host+": shop.example")
		}
		for _, h := range says {
			name, _, _ := strings.Cut(h, ": ")
			w := newWorld(t, forwardauth.Options{
				Guard: guard.New(guard.Options{Tokens: tokens}),
				Limit: httplimit.Options{Identity: httplimit.Identity{APIKey: httplimit.Source{Header: name}}},
			})
			res := w.ask(local, g.method, g.target, says...)
			if want := g.edge + " POST /login 203.0.113.7  within"; res.Code != 200 || w.decided[0] != want {
				t.Errorf("%s, %s as the key: %d %s, %q instead of %q", g.path, name, res.Code, res.Body, w.decided, want)
			}
		}
		if g.host != "" {
			w := newWorld(t, forwardauth.Options{})
			if res := w.ask(local, g.method, g.target, append([]string{g.host + ": a", g.host + ": b"}, g.control...)...); res.Code != 400 || len(w.decided) > 0 {
				t.Errorf("%s, %s twice: %d %s, %q", g.path, g.host, res.Code, res.Body, w.decided)
			}
		}
	}
}

// A refused HEAD request has a body if the gateway asks with a GET. An invalid target is the client's fault.
func TestAnswersFitTheGatewaysRequest(t *testing.T) {
	for _, g := range ways {
		w := newWorld(t, forwardauth.Options{})
		if g.method == "GET" {
			control := strings.ReplaceAll(strings.Join(g.control, "\n"), "POST", "HEAD")
			res := w.ask(local, "GET", g.target, append(strings.Split(control, "\n"), "X-API-Key: blocked")...)
			if res.Code != 403 || res.Header().Get("Content-Length") != fmt.Sprint(res.Body.Len()) {
				t.Errorf("%s: HEAD: %d %v %q", g.path, res.Code, res.Header(), res.Body)
			}
			control = strings.ReplaceAll(strings.Join(g.control, "\n"), "/login", "login")
			if res = w.ask(local, "GET", g.target, strings.Split(control, "\n")...); !strings.Contains(res.Body.String(), "BAD_TARGET") || w.log.Len() > 0 {
				t.Errorf("%s: %d %s, logged %s", g.path, res.Code, res.Body, &w.log)
			}
		}
	}
}

// Only so many requests are decided at a time, and the rest is shed.
func TestOverload(t *testing.T) {
	for _, g := range ways {
		synctest.Test(t, func(t *testing.T) {
			set, err := weir.Compile(weir.Rules{})
			if err != nil {
				t.Fatal(err)
			}
			goOn := make(chan struct{})
			var told []string
			l := weir.NewLimiter(memstore.New(memstore.Options{}), set, weir.Options{Observe: func(o *weir.Observation) {
				if o.Decision.Reason == weir.ReasonOverloaded {
					told = append(told, o.Request.Edge)
					return
				}
				<-goOn
			}})
			w := &world{Handler: forwardauth.New(l, forwardauth.Options{Limit: httplimit.Options{MaxInFlight: 1}})}
			first := make(chan int, 1)
			go func() { first <- w.ask(local, g.method, g.target, g.control...).Code }()
			synctest.Wait()
			res := w.ask(local, g.method, g.target, g.control...)
			if !strings.Contains(res.Body.String(), "OVERLOADED") || res.Header().Get("Retry-After") != "1" || len(told) != 1 || told[0] != g.edge {
				t.Errorf("%s: %d %s, told %q", g.path, res.Code, res.Body, told)
			}
			close(goOn)
			if code := <-first; code != 200 {
				t.Errorf("%s: %d", g.path, code)
			}
		})
	}
}

func TestOtherPathsAreNotFound(t *testing.T) {
	w := newWorld(t, forwardauth.Options{})
	if res := w.ask(local, "GET", "/check/apache"); res.Code != 404 || !strings.Contains(res.Body.String(), "/check/nginx") {
		t.Errorf("%d %s", res.Code, res.Body)
	}
}

// Envoy appends the client's target to the path of its own request. The target is kept, however it is spelled.
func TestEnvoysTargetIsKept(t *testing.T) {
	w := newWorld(t, forwardauth.Options{})
	for _, target := range []string{"/", "//login", "/a/../login", "/login%2Fx", "/check/envoy/x", "/a;b=c?d=e"} {
		w.decided = nil
		res := w.ask(local, "POST", "/check/envoy"+target, "X-Real-IP: 203.0.113.7")
		path, _, _ := strings.Cut(target, "?")
		if len(w.decided) != 1 || !strings.HasPrefix(w.decided[0], "extauthz POST "+path+" 203.0.113.7 ") {
			t.Errorf("%s: %d %q", target, res.Code, w.decided)
		}
	}
	for _, path := range []string{"/check/envoy", "/check/envoy?a=b"} {
		if res := w.ask(local, "GET", path, "X-Real-IP: 203.0.113.7"); res.Code != 400 || !strings.Contains(res.Body.String(), "path_prefix: /check/envoy") {
			t.Errorf("%s: %d %s", path, res.Code, res.Body)
		}
	}
}
