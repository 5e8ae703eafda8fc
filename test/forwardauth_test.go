package test

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// asking is a gateway that asks Weir about every request, as its page in the docs has it.
type asking struct {
	name string
	// start starts it, with the page's configuration and further replacements in it. It listens at the first address, and knows
	// the service and Weir by the others.
	start func(t *testing.T, listen, service, weir string, more ...string)
}

var askingGateways = []asking{
	{"nginx", startNginx},
	{"caddy", startCaddy},
	{"haproxy", startHAProxy},
}

// The rules of the node behind every gateway.
const askedRules = `
blacklist: ["blocked_*"]
rules:
  - {id: window, match: {endpoint: "/window"}, algorithm: fixed_window, limit: 100/day}
  - {id: bucket, match: {endpoint: "/bucket"}, limit: 100/minute}
  - {id: login, match: {endpoint: "POST /login"}, by: [ip], algorithm: fixed_window, limit: 100000/day}
  - {id: status, match: {endpoint: "/status"}, algorithm: fixed_window, limit: 3/day, count: {status: [401]}}
  - {id: queue, match: {endpoint: "/queue"}, algorithm: leaky_bucket, mode: queue, limit: 20/second, burst: 100}
`

// asked is a gateway with Weir and a service.
type asked struct {
	node    *node
	url     string
	served  atomic.Int64 // requests that reached the service
	gateway asking
}

func askAll(t *testing.T, test func(t *testing.T, a *asked)) {
	for _, g := range askingGateways {
		t.Run(g.name, func(t *testing.T) { test(t, startAsked(t, g)) })
	}
}

func startAsked(t *testing.T, g asking) *asked {
	a := &asked{gateway: g}
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.served.Add(1)
		io.Copy(io.Discard, r.Body)
		fmt.Fprintln(w, r.Method, r.RequestURI)
	}))
	t.Cleanup(service.Close)
	rules := write(t, filepath.Join(t.TempDir(), "rules.yaml"), askedRules)
	a.node = serve(t, "--rules", rules, "--gateway", "127.0.0.1:0", "--upstream", service.URL)
	for range 3 { // some other process may take the port first
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		addr := l.Addr().String()
		l.Close()
		g.start(t, addr, strings.TrimPrefix(service.URL, "http://"), strings.TrimPrefix(a.node.HTTP, "http://"))
		for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
			if conn, err := net.Dial("tcp", addr); err == nil {
				conn.Close()
				a.url = "http://" + addr
				return a
			}
		}
	}
	t.Fatal("it doesn't listen")
	return nil
}

// daemon starts a server that ends with this test, or, however that ends, with this process.
func daemon(t *testing.T, dir, command string, args ...string) {
	t.Helper()
	cmd := exec.Command("sh", append([]string{"-c", `PATH=$PATH:/usr/sbin; "$@" </dev/null & read -r _; kill $!; wait`, "sh", command}, args...)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, os.Stderr, os.Stderr
	cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		cmd.Wait()
	})
}

// pageConfig is the first block of a page, with other addresses than it shows.
func pageConfig(t *testing.T, page, language string, old ...string) string {
	t.Helper()
	conf := fences(t, "../docs/integrations/"+page, language)[0]
	for i := 0; i < len(old); i += 2 {
		if !strings.Contains(conf, old[i]) {
			t.Fatalf("%s shows no %q", page, old[i])
		}
	}
	return strings.NewReplacer(old...).Replace(conf)
}

func startNginx(t *testing.T, listen, service, weir string, more ...string) {
	dir := t.TempDir()
	addresses := []string{"listen 80;", "listen " + listen + ";", "127.0.0.1:3000", service, "127.0.0.1:8080", weir}
	write(t, filepath.Join(dir, "nginx.conf"), `
daemon off; worker_processes 1; pid nginx.pid; error_log /dev/null crit;
events { worker_connections 256; }
http {
	access_log off; underscores_in_headers on; client_body_buffer_size 1m;
	client_body_temp_path t1; proxy_temp_path t2; fastcgi_temp_path t3; uwsgi_temp_path t4; scgi_temp_path t5;
`+pageConfig(t, "nginx.md", "nginx", append(addresses, more...)...)+"}\n")
	daemon(t, dir, "nginx", "-p", dir, "-c", "nginx.conf", "-e", "/dev/null")
}

func startCaddy(t *testing.T, listen, service, weir string, more ...string) {
	runCaddy(t, listen, pageConfig(t, "caddy.md", "caddyfile", append([]string{"127.0.0.1:3000", service, "127.0.0.1:8080", weir}, more...)...))
}

func runCaddy(t *testing.T, listen, conf string) {
	dir := t.TempDir()
	host, port, _ := net.SplitHostPort(listen)
	conf = strings.Replace(conf, ":80 {", ":"+port+" {\n\tbind "+host, 1)
	write(t, filepath.Join(dir, "Caddyfile"), "{\n\tadmin off\n\tauto_https off\n\tlog {\n\t\tlevel ERROR\n\t}\n}\n"+conf)
	daemon(t, dir, "caddy", "run", "--config", "Caddyfile")
}

func startHAProxy(t *testing.T, listen, service, weir string, more ...string) {
	dir := t.TempDir()
	change := strings.NewReplacer(more...).Replace
	write(t, filepath.Join(dir, "weir.lua"), change(pageConfig(t, "haproxy.md", "lua", "127.0.0.1:8080", weir)))
	write(t, filepath.Join(dir, "haproxy.cfg"), change(pageConfig(t, "haproxy.md", "haproxy", "bind :80", "bind "+listen, "127.0.0.1:3000", service,
		"127.0.0.1:8080", weir, "/etc/haproxy/weir.lua", "weir.lua")))
	daemon(t, dir, "haproxy", "-db", "-f", "haproxy.cfg")
}

// With a fixed window of 100 a day, 500 requests give exactly 100 times 200, and 400 refusals as clients of Weir know them.
func TestGatewaysThatAskAreExact(t *testing.T) {
	askAll(t, func(t *testing.T, a *asked) {
		for day := -1; day != time.Now().UTC().Day(); { // a window may end in between
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
			// It is the same counter as that of Weir's own gateway.
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

// flood sends 500 requests, some at a time, looks at the answers, and returns how many were refused.
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

// Other answers than those of limits reach clients, too.
func TestGatewaysThatAskPassOnRefusals(t *testing.T) {
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
			{"POST", "/status", 429, "RATE_LIMIT_EXCEEDED", []string{"X-API-Key: s"}}, // whose answers nobody tells of
			{"GET", "/queue", 200, "GET /queue", nil},
			{"GET", "/queue", 200, "GET /queue", nil}, // after a while
		} {
			body := ""
			if c.method == "POST" {
				body = strings.Repeat("a body that Weir never sees ", 10_000)
			}
			res, text := call(t, c.method, a.url+c.path, body, c.headers...)
			if res.StatusCode != c.status || !strings.Contains(text, c.code) {
				t.Errorf("%s %.50s: %d %s", c.method, c.path, res.StatusCode, text)
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

// Whatever a client makes up, it is counted as who it is, for what it asks: or the request is refused, and nobody is counted.
func TestGatewaysThatAskAreNotDeceived(t *testing.T) {
	names := []string{
		"X-Forwarded-For", "X-Forwarded-Uri", "X-Forwarded-Method", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-Prefix", "Forwarded",
		"X-Original-URI", "X-Original-Method", "X-Original-URL", "X-Real-IP", "X-Weir-Token", "X-Weir-Status", "X-Weir-Body", "X-Weir-Client",
		"X-HTTP-Method-Override", "X-RateLimit-Remaining", "X-Envoy-External-Address", "True-Client-IP", "Via",
	}
	values := []string{"192.0.2.7", "192.0.2.7, 127.0.0.1", "127.0.0.1", "::1", "/free", "/login", "GET", "POST", "for=192.0.2.7", "OPTIONS", "200", "x", ""}
	askAll(t, func(t *testing.T, a *asked) {
		seed := rand.Uint64()
		rng := rand.New(rand.NewPCG(seed, 1))
		pick := func(list []string) string { return list[rng.IntN(len(list))] }
		var conn net.Conn
		var in *bufio.Reader
		left, served := -1, 0
		for range 400 {
			var head strings.Builder
			for range 1 + rng.IntN(4) {
				name := pick(names)
				switch rng.IntN(6) {
				case 0:
					name = strings.ReplaceAll(name, "-", "_")
				case 1:
					name = strings.ReplaceAll(name, "-", ".")
				case 2:
					name = strings.ToLower(name)
				}
				for range 1 + rng.IntN(2) {
					fmt.Fprintf(&head, "%s: %s\r\n", name, pick(values))
				}
				if rng.IntN(8) == 0 {
					fmt.Fprintf(&head, "Connection: %s\r\n", name)
				}
			}
			if conn == nil {
				conn = dial(t, a.url)
				in = bufio.NewReader(conn)
			}
			fmt.Fprintf(conn, "POST /login HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 0\r\n%s\r\n", head.String())
			res, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatalf("seed %d: %v\n%s", seed, err, head.String())
			}
			text, err := io.ReadAll(res.Body)
			if err != nil {
				t.Fatal(err)
			}
			if res.Close {
				conn.Close()
				conn = nil
			}
			if res.StatusCode == 400 {
				continue
			}
			now, err := strconv.Atoi(res.Header.Get("X-RateLimit-Remaining"))
			if res.StatusCode != 200 || err != nil || left >= 0 && now != left-1 || !strings.HasPrefix(res.Header.Get("RateLimit"), `"login"`) {
				t.Fatalf("seed %d: %d, %d left after %d\n%s\n%v %s", seed, res.StatusCode, now, left, head.String(), res.Header, text)
			}
			left = now
			served++
		}
		if served < 200 {
			t.Errorf("only %d of 400 were served", served)
		}
		// The counter is that of the address: the same through Weir's own gateway.
		if res, _ := call(t, "POST", a.node.Gateway+"/login", ""); res.Header.Get("X-RateLimit-Remaining") != strconv.Itoa(left-1) {
			t.Errorf("Weir's gateway has %s left, %s had %d", res.Header.Get("X-RateLimit-Remaining"), a.gateway.name, left)
		}
	})
}

// Without Weir, gateways answer with an error, or let requests pass where they are told to, as their pages say.
func TestGatewaysThatAskWithoutWeir(t *testing.T) {
	nginx := strings.Split(fences(t, "../docs/integrations/nginx.md", "nginx")[1], "\n")
	const inLocation, beforeLocation = "proxy_read_timeout      1s;\n", "    # What clients get that Weir refuses.\n"
	caddy := fences(t, "../docs/integrations/caddy.md", "caddyfile")[1]
	for _, g := range []struct {
		asking
		closed int
		open   []string // replacements in the configuration
	}{
		{askingGateways[0], 500, []string{inLocation, inLocation + nginx[0] + "\n", beforeLocation, nginx[2] + "\n" + beforeLocation}},
		{askingGateways[1], 502, []string{"\troute {", strings.ReplaceAll(caddy, "127.0.0.1:3000", "SERVICE") + "\troute {"}},
		{askingGateways[2], 503, []string{
			"    answer = { status = 503, body = \"The rate limiter is unavailable\\n\" }\n    found = { [\"retry-after\"] = { [0] = \"1\" } }\n",
			fences(t, "../docs/integrations/haproxy.md", "lua")[1],
			"    http-request deny deny_status 503 if { nbsrv(weir) lt 1 }\n    http-request lua.weir\n", fences(t, "../docs/integrations/haproxy.md", "haproxy")[1],
		}},
	} {
		t.Run(g.name, func(t *testing.T) {
			for status, more := range map[int][]string{g.closed: nil, 200: g.open} {
				a := startAsked(t, asking{start: func(t *testing.T, listen, service, _ string, _ ...string) {
					for i := range more {
						more[i] = strings.ReplaceAll(more[i], "SERVICE", service)
					}
					g.start(t, listen, service, "127.0.0.1:1", more...)
				}})
				for _, method := range []string{"GET", "POST"} {
					if res, text := call(t, method, a.url+"/window", ""); res.StatusCode != status || a.served.Load() > 0 != (status == 200) {
						t.Errorf("%s: %d %s, %d served", method, res.StatusCode, text, a.served.Load())
					}
				}
			}
		})
	}
}

// Caddy's short form refuses what the long one does.
func TestCaddysForwardAuth(t *testing.T) {
	a := startAsked(t, asking{"caddy", func(t *testing.T, listen, service, weir string, _ ...string) {
		runCaddy(t, listen, ":80 {\n\tforward_auth "+weir+" {\n\t\turi /check/caddy\n\t}\n\treverse_proxy "+service+"\n}\n")
	}})
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

// Envoy's filter, as its page has it, is one that Envoy knows, and its requests count for what is behind the path, however that
// is spelled.
func TestEnvoysExtAuthz(t *testing.T) {
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
