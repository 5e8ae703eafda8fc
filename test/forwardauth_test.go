package test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/server/test/gateways"
)

// askedRules are the rules of the node behind each gateway.
const askedRules = `
blacklist: ["blocked_*"]
rules:
  - {id: window, match: {endpoint: "/window"}, algorithm: fixed_window, limit: 100/day}
  - {id: bucket, match: {endpoint: "/bucket"}, limit: 100/minute}
  - {id: login, match: {endpoint: "POST /login"}, by: [ip], algorithm: fixed_window, limit: 100000/day}
  - {id: status, match: {endpoint: "/status"}, algorithm: fixed_window, limit: 3/day, count: {status: [401]}}
  - {id: queue, match: {endpoint: "/queue"}, algorithm: leaky_bucket, mode: queue, limit: 20/second, burst: 100}
`

// asked is a gateway that asks Weir, and the service behind it.
type asked struct {
	node    *node
	url     string
	service string       // the service's address
	served  atomic.Int64 // number of requests that reached the service
	gateway *gateways.Gateway
}

// askAll runs a test for each gateway, in parallel.
func askAll(t *testing.T, test func(t *testing.T, a *asked)) {
	for _, g := range gateways.All() {
		t.Run(g.Name, func(t *testing.T) {
			t.Parallel()
			test(t, startAsked(t, g))
		})
	}
}

// startAsked starts a gateway, a service and a node, with changes to the gateway's configuration.
func startAsked(t *testing.T, g *gateways.Gateway, change ...string) *asked {
	a := startBehind(t, g)
	a.start(t, strings.TrimPrefix(a.node.HTTP, "http://"), change...)
	return a
}

// startBehind starts the service and the node behind a gateway, with additional flags for the node.
func startBehind(t *testing.T, g *gateways.Gateway, flags ...string) *asked {
	a := &asked{gateway: g}
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.served.Add(1)
		n, _ := io.Copy(io.Discard, r.Body)
		w.Header().Set("Got-Length", strconv.FormatInt(n, 10))
		for name, values := range r.Header {
			if g.Mute && strings.Contains(name, "Ratelimit") { // the gateway's guide tells services to do so
				w.Header()[name] = values
			}
		}
		for name, values := range r.Header {
			if strings.EqualFold(strings.NewReplacer("_", "-", ".", "-").Replace(name), "X-API-Key") { // services might read any of these spellings
				w.Header()["Got-Key"] = append(w.Header()["Got-Key"], values...)
			}
		}
		w.Header()["Got-Upgrade"] = r.Header["Upgrade"]
		w.Header()["Got-Token"] = r.Header["X-Weir-Token"]
		fmt.Fprintln(w, r.Method, r.RequestURI)
	}))
	t.Cleanup(service.Close)
	a.service = strings.TrimPrefix(service.URL, "http://")
	rules := write(t, filepath.Join(t.TempDir(), "rules.yaml"), askedRules)
	a.node = serve(t, append([]string{"--rules", rules, "--gateway", "127.0.0.1:0", "--upstream", service.URL}, flags...)...)
	return a
}

// start starts only the gateway.
func (a *asked) start(t *testing.T, weir string, change ...string) {
	t.Helper()
	listen, stop, err := a.gateway.Start("../docs", a.service, weir, change...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	a.url = "http://" + listen
}

// With a fixed window of 100 a day, exactly 100 of 500 requests get a 200, and 400 get Weir's usual refusal.
func TestGatewaysThatAskAreExact(t *testing.T) {
	t.Parallel()
	askAll(t, func(t *testing.T, a *asked) {
		for day := -1; day != time.Now().UTC().Day(); { // repeated if the window ends in the middle
			day = time.Now().UTC().Day()
			a.served.Store(0)
			key := fmt.Sprint("exact-", day)
			refused := a.flood(t, "/window", key)
			if day != time.Now().UTC().Day() {
				continue
			}
			if refused != 400 || a.served.Load() != 100 {
				t.Errorf("%d were refused, %d served", refused, a.served.Load())
			}
			// Weir's own gateway uses the same counter.
			if res, _ := call(t, "GET", a.node.Gateway+"/window", "", "X-API-Key: "+key); res.StatusCode != 429 {
				t.Errorf("Weir's gateway: %d", res.StatusCode)
			}
		}
		begun := time.Now()
		refused := a.flood(t, "/bucket", "k")
		refilled := int(time.Since(begun).Minutes()*100) + 1
		if admitted := 500 - refused; admitted < 100 || admitted > 100+refilled {
			t.Errorf("a bucket of 100 admitted %d, and refilled by at most %d", admitted, refilled)
		}
	})
}

// flood sends 500 requests, four at a time, checks the responses, and returns how many were refused.
func (a *asked) flood(t *testing.T, path, key string) int {
	t.Helper()
	var refused atomic.Int64
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 125 {
				req, err := http.NewRequest("GET", a.url+path, nil)
				if err != nil {
					t.Error(err)
					return
				}
				req.Header.Set("X-API-Key", key)
				res, err := http.DefaultClient.Do(req)
				if err != nil {
					t.Error(err)
					return
				}
				body, err := io.ReadAll(res.Body)
				res.Body.Close()
				h := res.Header
				left, _ := strconv.Atoi(h.Get("X-RateLimit-Remaining"))
				rule := `"` + path[1:] + `"`
				ok := err == nil && h.Get("X-RateLimit-Limit") == "100" && h.Get("X-RateLimit-Reset") != "" &&
					strings.HasPrefix(h.Get("RateLimit-Policy"), rule) && strings.HasPrefix(h.Get("RateLimit"), rule) && left < 100
				switch res.StatusCode {
				case 200:
					ok = ok && string(body) == "GET "+path+"\n" && h.Get("Retry-After") == ""
				case 429:
					refused.Add(1)
					wait, _ := strconv.Atoi(h.Get("Retry-After"))
					ok = ok && left == 0 && wait >= 1 && h.Get("X-RateLimit-Rule") == path[1:] && h.Get("Cache-Control") == "no-store" &&
						h.Get("Content-Type") == "application/json" && strings.HasPrefix(string(body), `{"error":{"code":"RATE_LIMIT_EXCEEDED",`)
				default:
					ok = false
				}
				if !ok || slices.ContainsFunc([]string{"X-RateLimit-Limit", "RateLimit", "Retry-After"}, func(name string) bool { return len(h.Values(name)) > 1 }) {
					t.Errorf("%d %v %s", res.StatusCode, h, body)
					return
				}
			}
		})
	}
	all.Wait()
	return int(refused.Load())
}

// Clients also get Weir's other responses, not only refusals by limits.
func TestGatewaysThatAskPassOnRefusals(t *testing.T) {
	t.Parallel()
	askAll(t, func(t *testing.T, a *asked) {
		for _, c := range []struct {
			method, path string
			status       int
			code         string
			headers      []string
		}{
			{"GET", "/window", 403, "KEY_BLOCKED", []string{"X-API-Key: blocked_1"}},
			{"HEAD", "/window", 403, "", []string{"X-API-Key: blocked_1"}},
			{"GET", "/window", 400, "AMBIGUOUS_IDENTITY", []string{"X-API-Key: a,b"}},
			{"GET", "/" + strings.Repeat("a/", 2500), 400, "UNREADABLE_PATH", nil},
			{"POST", "/free", 200, "POST /free", nil},
			{"POST", "/status", 200, "POST /status", []string{"X-API-Key: s"}},
			{"POST", "/status", 200, "POST /status", []string{"X-API-Key: s"}},
			{"POST", "/status", 200, "POST /status", []string{"X-API-Key: s"}},
			{"POST", "/status", 429, "RATE_LIMIT_EXCEEDED", []string{"X-API-Key: s"}}, // Weir doesn't learn the status of the service's responses
			{"GET", "/queue", 200, "GET /queue", nil},
			{"GET", "/queue", 200, "GET /queue", nil}, // queued first
		} {
			body := ""
			if c.method == "POST" && c.status == 200 { // a client that is still sending may not see the refusal
				body = strings.Repeat("a body that Weir never sees ", 10_000)
			}
			res, text := call(t, c.method, a.url+c.path, body, c.headers...)
			if res.StatusCode != c.status || !strings.Contains(text, c.code) {
				t.Errorf("%s %.50s: %d %s", c.method, c.path, res.StatusCode, text)
			}
			if got := res.Header.Get("Got-Length"); res.StatusCode == 200 && got != strconv.Itoa(len(body)) {
				t.Errorf("%s %s: the service has %s bytes of %d", c.method, c.path, got, len(body))
			}
		}
		_, metrics := call(t, "GET", a.node.Admin+"/metrics", "")
		for _, want := range []string{
			`weir_decisions_total{edge="forwardauth",outcome="allowed",reason="within",rule="status"} 3`,
			`weir_decisions_total{edge="forwardauth",outcome="refused",reason="limited",rule="status"} 1`,
		} {
			if !strings.Contains(metrics, want) {
				t.Errorf("/metrics lacks %s", want)
			}
		}
	})
}

// letPass returns the change from a gateway's guide that lets requests pass while Weir is down, as pairs of old and new
// text.
func letPass(t *testing.T, g *gateways.Gateway, service string) []string {
	page := func(language string, n int) string {
		return fences(t, "../docs/guides/"+g.Name+".md", language)[n]
	}
	switch g {
	case gateways.Nginx:
		const inLocation, beforeLocation = "proxy_read_timeout      1s;\n", "    # What clients get that Weir refuses.\n"
		lines := strings.Split(page("nginx", 1), "\n")
		return []string{inLocation, inLocation + lines[0] + "\n", beforeLocation, lines[2] + "\n" + beforeLocation}
	case gateways.Caddy:
		return []string{"\troute {", strings.ReplaceAll(page("caddyfile", 1), "127.0.0.1:3000", service) + "\troute {"}
	case gateways.HAProxy:
		return []string{
			"    answer = { status = 503, body = \"The rate limiter is unavailable\\n\" }\n    found = { [\"retry-after\"] = { [0] = \"1\" } }\n", page("lua", 1),
			"    http-request deny deny_status 503 if { nbsrv(weir) lt 1 }\n    http-request lua.weir\n" +
				"    http-request deny deny_status 503 unless { var(txn.weir) -m found }\n", page("haproxy", 1),
		}
	}
	return nil // this gateway has no such setting
}

// If Weir is down, gateways respond with an error, or let requests pass if configured to, as their guides say.
func TestGatewaysThatAskWithoutWeir(t *testing.T) {
	t.Parallel()
	closed := map[*gateways.Gateway]int{gateways.Nginx: 500, gateways.Caddy: 502, gateways.HAProxy: 503, gateways.Traefik: 500}
	askAll(t, func(t *testing.T, a *asked) {
		open := letPass(t, a.gateway, a.service)
		for status, change := range map[int][]string{closed[a.gateway]: nil, 200: open} {
			if status == 200 && open == nil {
				continue
			}
			a.served.Store(0)
			a.start(t, "127.0.0.1:1", change...)
			for _, method := range []string{"GET", "POST"} {
				if res, text := call(t, method, a.url+"/window", ""); res.StatusCode != status || a.served.Load() > 0 != (status == 200) {
					t.Errorf("%s: %d %s, %d served", method, res.StatusCode, text, a.served.Load())
				}
			}
		}
	})
}

// HAProxy continues with a request if its script fails. The next line in the guide's configuration then refuses the
// request.
func TestHAProxysScriptFails(t *testing.T) {
	t.Parallel()
	a := startAsked(t, gateways.HAProxy, "  local headers = {}\n", "  error(\"broken\")\n  local headers = {}\n")
	if res, text := call(t, "GET", a.url+"/free", ""); res.StatusCode != 503 || a.served.Load() != 0 {
		t.Errorf("%d %s, %d served", res.StatusCode, text, a.served.Load())
	}
}

// Caddy's short form refuses the same requests as the long one.
func TestCaddysForwardAuth(t *testing.T) {
	t.Parallel()
	a := startAsked(t, gateways.CaddyShort)
	for i := range 5 {
		want := 200
		if i > 2 {
			want = 429
		}
		if res, text := call(t, "POST", a.url+"/status", "", "X-API-Key: k"); res.StatusCode != want {
			t.Errorf("%d: %d %s", i, res.StatusCode, text)
		}
	}
}

// The filter in the guide is valid for Envoy, and requests through it count for the path behind the prefix, in any
// spelling.
func TestEnvoysExtAuthz(t *testing.T) {
	t.Parallel()
	authz := extAuthz(t, 0)
	prefix := authz.GetHttpService().PathPrefix
	peer := authz.GetHttpService().AuthorizationRequest.HeadersToAdd[0].Key
	n := serve(t, "--rules", write(t, filepath.Join(t.TempDir(), "rules.yaml"), askedRules))
	for i, target := range []string{"/status", "//status", "/a/../status", "/%73tatus?a=b"} {
		conn := dial(t, n.HTTP)
		fmt.Fprintf(conn, "DELETE %s%s HTTP/1.1\r\nHost: shop.example\r\n%s: 203.0.113.7\r\nX-API-Key: k\r\n\r\n", prefix, target, peer)
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		if want := []int{200, 200, 200, 429}[i]; res.StatusCode != want || res.Header.Get("X-RateLimit-Limit") != "3" {
			t.Errorf("%s: %d %v", target, res.StatusCode, res.Header)
		}
	}
}
