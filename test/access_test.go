package test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/server/internal/edge/checkapi"
)

// send posts a body with only the given headers.
func send(t testing.TB, url, body string, headers ...string) (int, string) {
	t.Helper()
	res, text := call(t, http.MethodPost, url, body, headers...)
	return res.StatusCode, text
}

// Requests that browsers send for pages of other sites don't count against any quota. Requests of services and curl are
// served.
func TestWebPagesSpendNothing(t *testing.T) {
	t.Parallel()
	rules := write(t, filepath.Join(t.TempDir(), "rules.yaml"), "rules:\n  - {id: quota, limit: 1000/week}\n")
	n := serve(t, "--rules", rules)
	host := strings.TrimPrefix(n.HTTP, "http://")
	port := host[strings.LastIndexByte(host, ':'):]
	_, text := send(t, n.HTTP+"/v1/check", `{"key": "k", "receipt": true}`)
	var first checkapi.CheckResponse
	if err := json.Unmarshal([]byte(text), &first); err != nil || first.Receipt == "" {
		t.Fatalf("%v: %s", err, text)
	}
	left := func() int64 {
		_, text := send(t, n.HTTP+"/v1/check", `{"key": "k", "cost": 0}`)
		var d checkapi.CheckResponse
		if err := json.Unmarshal([]byte(text), &d); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		return d.Remaining
	}
	before := left()
	bodies := map[string]string{
		"/v1/check":  `{"key": "k"}`,
		"/v1/checks": `{"checks": [{"key": "k"}, {"key": "k"}]}`,
		"/v1/take":   `{"key": "k", "limit": "1/hour"}`,
		"/v1/refund": `{"receipt": "` + first.Receipt + `"}`,
	}
	const chrome = "User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/141.0.0.0 Safari/537.36"
	const firefox = "User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:143.0) Gecko/20100101 Firefox/143.0"
	const safari = "User-Agent: Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/16.3 Safari/605.1.15"
	for name, headers := range map[string][]string{
		"chrome, fetch of a blob, which has no type": {chrome, "Origin: https://evil.example", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors", "Sec-Fetch-Dest: empty"},
		"firefox, fetch of a text":                   {firefox, "Content-Type: text/plain;charset=UTF-8", "Origin: https://evil.example", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors"},
		"chrome, a form":                             {chrome, "Content-Type: application/x-www-form-urlencoded", "Origin: https://evil.example", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document"},
		"firefox, a form without a referrer":         {firefox, "Content-Type: text/plain", "Origin: null", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate"},
		"chrome, a beacon of another local port":     {chrome, "Origin: http://127.0.0.1:3000", "Sec-Fetch-Site: same-site", "Sec-Fetch-Mode: no-cors"},
		"chrome, JSON that somebody's proxy allowed": {chrome, "Content-Type: application/json", "Origin: https://evil.example", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: cors"},
		"an old safari, without Sec-Fetch":           {safari, "Origin: https://evil.example"},
		"an old safari, a sandboxed frame":           {safari, "Origin: null", "Content-Type: application/x-www-form-urlencoded"},
		"chrome, a name pointed here":                {chrome, "Host: evil.example" + port, "Origin: http://evil.example" + port, "Content-Type: application/json"},
		"chrome, a name pointed here, marked":        {chrome, "Host: evil.example" + port, "Origin: http://evil.example" + port, "Sec-Fetch-Site: same-origin"},
		"a name pointed here, without any mark":      {"Host: evil.example" + port},
		"a name that looks like an address":          {"Host: 127.0.0.1.evil.example" + port},
		"a name that looks like localhost":           {"Host: localhost.evil.example" + port},
	} {
		for path, body := range bodies {
			if status, text := send(t, n.HTTP+path, body, headers...); status != http.StatusForbidden || !strings.Contains(text, jsonerror.CrossSite) {
				t.Errorf("%s, %s: %d %s", name, path, status, text)
			}
		}
	}
	if after := left(); after != before {
		t.Errorf("%d left, and %d before the pages", after, before)
	}
	for name, headers := range map[string][]string{
		"a service":              {"Content-Type: application/json"},
		"curl -d":                {"User-Agent: curl/8.5.0", "Accept: */*", "Content-Type: application/x-www-form-urlencoded"},
		"no type":                {"User-Agent: Go-http-client/1.1"},
		"localhost":              {"Host: localhost" + port},
		"an address":             {"Host: [::1]" + port},
		"an address, no port":    {"Host: 127.0.0.1"},
		"a page of its own host": {chrome, "Origin: " + n.HTTP, "Sec-Fetch-Site: same-origin", "Content-Type: application/json"},
	} {
		if status, text := send(t, n.HTTP+"/v1/check", bodies["/v1/check"], headers...); status != http.StatusOK {
			t.Errorf("%s: %d %s", name, status, text)
		}
	}
}

// A node with a public address serves requests for any host name, except those of browsers. Unless it requires a token,
// it logs a warning that the check API is open to everybody.
func TestCheckAPIOnAPublicAddress(t *testing.T) {
	t.Parallel()
	const open = "anybody who reaches the check API can use it: give it --http-token or --http-client-ca, or an address that only your services reach"
	n := serve(t, "--http", "0.0.0.0:0")
	n.await(open, func(map[string]any) bool { return true })
	url := strings.Replace(n.HTTP, "[::]", "127.0.0.1", 1)
	url = strings.Replace(url, "0.0.0.0", "127.0.0.1", 1)
	if status, text := send(t, url+"/v1/check", `{"key": "k"}`, "Host: weir.default.svc:8080"); status != http.StatusOK {
		t.Errorf("%d %s", status, text)
	}
	if status, text := send(t, url+"/v1/check", `{"key": "k"}`, "Host: evil.example:8080", "Origin: http://evil.example:8080"); status != http.StatusForbidden {
		t.Errorf("%d %s", status, text)
	}
	if n = serve(t); n.said(open) {
		t.Error("a node on loopback warns")
	}
	if n = serve(t, "--http", "0.0.0.0:0", "--http-token", "correct-horse-battery-staple"); n.said(open) {
		t.Error("a node that asks for a token warns")
	}
}

// With --http-token, only requests with the token are served, and the token appears in no log.
func TestTokenOfTheCheckAPI(t *testing.T) {
	const token = "correct-horse-battery-staple"
	t.Setenv("WEIR_HTTP_TOKEN", token)
	n := serve(t, "--log-level", "debug")
	for path, body := range map[string]string{"/v1/check": `{"key": "k"}`, "/v1/checks": `{"checks": []}`, "/v1/take": `{"key": "k", "limit": "1/s"}`, "/v1/refund": `{"receipt": "r"}`} {
		for _, bad := range []string{"", "Basic " + token, "Bearer", "Bearer " + token + "x", "Bearer " + token[1:], token} {
			if status, text := send(t, n.HTTP+path, body, "Authorization: "+bad); status != http.StatusUnauthorized || !strings.Contains(text, jsonerror.Unauthorized) {
				t.Errorf("%s with %q: %d %s", path, bad, status, text)
			}
		}
	}
	// A page of another site can't know the token. So a request with the token is served, even with an Origin header.
	if status, text := send(t, n.HTTP+"/v1/check", `{"key": "k"}`, "Authorization: Bearer "+token, "Origin: https://shop.example", "Host: weir.internal"); status != http.StatusOK {
		t.Errorf("%d %s", status, text)
	}
	for i := range 20 { // failed attempts from an address don't lock out the right token
		send(t, n.HTTP+"/v1/check", `{"key": "k"}`, "Authorization: Bearer guess"+string(rune('a'+i)))
	}
	if status, text := send(t, n.HTTP+"/v1/check", `{"key": "k"}`, "Authorization: bearer "+token); status != http.StatusOK {
		t.Errorf("%d %s", status, text)
	}
	if res, err := http.Get(n.HTTP + "/readyz"); err != nil || res.StatusCode != http.StatusOK {
		t.Errorf("balancers have no token: %v %v", res, err)
	} else {
		res.Body.Close()
	}
	n.stop()
	<-n.exited
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range n.log {
		if text, _ := json.Marshal(l); strings.Contains(string(text), token) {
			t.Errorf("the token is in the log: %s", text)
		}
	}
}

// Without a token, /readyz reports that the store is lost, but not its address.
func TestReadyzHasNoAddresses(t *testing.T) {
	t.Parallel()
	r := redistest.New(t, redistest.Options{})
	bad := "rules:\n  - {id: quota, limit: 5/minute}\n"
	rules := write(t, filepath.Join(t.TempDir(), "secret-place.yaml"), bad)
	n := serve(t, "--rules", rules, "--store", "redis://"+r.Addr, "--http-token", "correct-horse-battery-staple", "--admin-token", "another-horse-battery")
	get := func(url, token string) string {
		t.Helper()
		res, text := call(t, http.MethodGet, url+"/readyz", "", bearer(token))
		if res.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s", res.Status, text)
		}
		return text
	}
	settled(t, n.HTTP+"/readyz")
	r.Kill()
	write(t, rules, "rules:\n  - {id: quota, limit: none}\n")
	until(t, func() error {
		// The node finds out that the store is lost when a check fails.
		send(t, n.HTTP+"/v1/check", `{"key": "k"}`, "Authorization: Bearer correct-horse-battery-staple")
		if text := get(n.HTTP, ""); !strings.Contains(text, "degraded") || !strings.Contains(text, "rules_rejected") {
			return errors.New(text)
		}
		return nil
	})
	_, redisPort, _ := strings.Cut(r.Addr, ":")
	for _, url := range []string{n.HTTP, n.Admin} {
		for _, token := range []string{"", "wrong"} {
			text := get(url, token)
			for _, secret := range []string{r.Addr, redisPort, "127.0.0.1", "redis://", "refused", "secret-place"} {
				if strings.Contains(text, secret) {
					t.Errorf("%s tells %q: %s", url, secret, text)
				}
			}
		}
	}
	for url, token := range map[string]string{n.HTTP: "correct-horse-battery-staple", n.Admin: "another-horse-battery"} {
		if text := get(url, token); !strings.Contains(text, r.Addr) || !strings.Contains(text, "secret-place.yaml") {
			t.Errorf("%s doesn't tell those who may know: %s", url, text)
		}
	}
}

// The audit log has every change of the rules and every refused one, at any log level.
func TestAuditIsAlwaysLogged(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"warn", "error"} {
		addr, err := freeAddress()
		if err != nil {
			t.Fatal(err)
		}
		n := start(t, "--log-level", level, "--admin", addr, "--admin-token", "correct-horse-battery")
		n.Admin = "http://" + addr
		until(t, func() error {
			res, err := http.Get(n.Admin + "/healthz")
			if err == nil {
				res.Body.Close()
			}
			return err
		})
		status, text := send(t, n.Admin+"/v1/rules/rollback", `{"version": 1}`)
		if status != http.StatusUnauthorized {
			t.Fatalf("%d %s", status, text)
		}
		n.await("admin: refused", func(l map[string]any) bool { return l["why"] == "UNAUTHORIZED" })
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, n.Admin+"/v1/denylist?force=true", strings.NewReader(`{"entries": ["sk_leaked"]}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer correct-horse-battery")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if l := n.await("audit", func(map[string]any) bool { return true }); l["who"] != "admin" || l["what"] != "put denylist" || l["after"] != 2.0 || l["level"] != "INFO" {
			t.Errorf("%s: %v", level, l)
		}
		if n.said("serving") || n.said("draining") {
			t.Errorf("--log-level %s: more than the audit is logged", level)
		}
	}
}

// Each listener accepts only client certificates of its own CA.
func TestClientCertificatesByListener(t *testing.T) {
	t.Parallel()
	dirs := []string{t.TempDir(), t.TempDir(), t.TempDir()}
	servers, services, operators := newAuthority(t, dirs[0]), newAuthority(t, dirs[1]), newAuthority(t, dirs[2])
	server := servers.issue(t, dirs[0], "server")
	clients := map[string]*http.Client{}
	roots := x509.NewCertPool()
	roots.AddCert(servers.cert)
	for name, i := range map[string]issued{"service": services.issue(t, dirs[1], "client"), "operator": operators.issue(t, dirs[2], "client"), "nobody": {}} {
		config := &tls.Config{RootCAs: roots}
		if i.cert != "" {
			pair, err := tls.LoadX509KeyPair(i.cert, i.key)
			if err != nil {
				t.Fatal(err)
			}
			config.Certificates = []tls.Certificate{pair}
		}
		transport := &http.Transport{TLSClientConfig: config}
		t.Cleanup(transport.CloseIdleConnections)
		clients[name] = &http.Client{Transport: transport, Timeout: 30 * time.Second}
	}
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer upstream.Close()
	served := func(n *node) map[string]string {
		got := map[string]string{}
		for _, name := range []string{"nobody", "operator", "service"} {
			for port, url := range map[string]string{"http": n.HTTP + "/healthz", "admin": n.Admin + "/healthz", "gateway": n.Gateway + "/"} {
				res, err := clients[name].Get(url)
				if err == nil {
					res.Body.Close()
					got[port] += name[:1]
				}
			}
		}
		return got
	}
	own := []string{"--tls-cert", server.cert, "--tls-key", server.key, "--gateway", "127.0.0.1:0", "--upstream", upstream.URL}
	for _, c := range []struct {
		args                 []string
		http, admin, gateway string
	}{
		{[]string{"--http-client-ca", services.file, "--admin-client-ca", operators.file}, "s", "o", "nos"},
		{[]string{"--tls-client-ca", services.file, "--admin-client-ca", operators.file}, "s", "o", "s"},
		{[]string{"--http-client-ca", services.file}, "s", "nos", "nos"},
	} {
		got := served(serve(t, append(c.args, own...)...))
		if got["http"] != c.http || got["admin"] != c.admin || got["gateway"] != c.gateway {
			t.Errorf("%v: served are %v", c.args, got)
		}
	}
}
