package test

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	api "github.com/weirhq/weir/server/internal/admin"
)

const (
	adaToken = "token-of-ada-7b1e0c2f"
	bobToken = "token-of-bob-91d24aa0"
)

// tokenLine returns a line for a file of tokens.
func tokenLine(name, role, token string) string {
	return fmt.Sprintf("%s %s %x\n", name, role, sha256.Sum256([]byte(token)))
}

// guarded starts a node with two admin tokens: ada may operate, bob may only read.
func guarded(t *testing.T, args ...string) (n *node, file string) {
	t.Helper()
	file = write(t, filepath.Join(t.TempDir(), "tokens"), tokenLine("ada", "operate", adaToken)+tokenLine("bob", "read", bobToken))
	return serve(t, append([]string{"--admin-tokens", file, "--log-level", "debug"}, args...)...), file
}

// login starts a session and returns the headers that requests in it need, which are the cookie and the proof. It also
// returns the cookie as it was set.
func login(t *testing.T, n *node, token string, headers ...string) (session []string, set *http.Cookie) {
	t.Helper()
	res, text := call(t, http.MethodPost, n.Admin+"/v1/session", `{"token": "`+token+`"}`, headers...)
	var in struct{ Proof string }
	if err := json.Unmarshal([]byte(text), &in); err != nil || res.StatusCode != http.StatusOK || len(res.Cookies()) != 1 || len(in.Proof) < 43 {
		t.Fatalf("%s %v %s", res.Status, res.Cookies(), text)
	}
	set = res.Cookies()[0]
	return []string{"Cookie: " + set.Name + "=" + set.Value, "X-Weir-Session: " + in.Proof}, set
}

// also adds headers to a session's headers.
func also(session []string, headers ...string) []string { return slices.Concat(session, headers) }

// own is the header that browsers send with requests from the node's own pages.
const own = "Sec-Fetch-Site: same-origin"

func TestSessionByCookie(t *testing.T) {
	t.Parallel()
	n, _ := guarded(t)
	host := strings.TrimPrefix(n.Admin, "http://")
	port := host[strings.LastIndexByte(host, ':')+1:]
	session, set := login(t, n, adaToken)
	if raw := set.Raw; set.Name != "weir_session_"+port || !set.HttpOnly || set.SameSite != http.SameSiteStrictMode || set.Path != "/" ||
		set.Domain != "" || set.Secure || set.MaxAge != 12*60*60 || len(set.Value) < 43 {
		t.Errorf("%s", raw)
	}
	if _, behindTLS := login(t, n, adaToken, "Host: weir.example", "Origin: https://weir.example"); !behindTLS.Secure || behindTLS.Name != "weir_session" {
		t.Errorf("behind a proxy with TLS: %s", behindTLS.Raw)
	}
	res, text := call(t, http.MethodGet, n.Admin+"/v1/session", "", session...)
	if res.StatusCode != http.StatusOK || !strings.HasPrefix(text, `{"name":"ada","role":"operate","session":true,"tokens":true,"expires":"`) || !strings.Contains(text, `"rules_in_file":""`) {
		t.Errorf("%s %s", res.Status, text)
	}
	if _, text := call(t, http.MethodGet, n.Admin+"/v1/session", "", bearer(bobToken)); !strings.HasPrefix(text, `{"name":"bob","role":"read","session":false,"tokens":true,"rules_in_file"`) {
		t.Error(text)
	}
	for _, headers := range [][]string{
		{}, {"Cookie: weir_session_" + port + "=x", session[1]}, {"Cookie: weir_session=" + set.Value, session[1]},
		session[:1], session[1:], {session[0], "X-Weir-Session: "}, {session[0], "X-Weir-Session: x"}, {session[0], "X-Weir-Session: " + set.Value},
	} {
		if res, text := call(t, http.MethodGet, n.Admin+"/v1/session", "", headers...); res.StatusCode != http.StatusUnauthorized {
			t.Errorf("%v: %s %s", headers, res.Status, text)
		}
	}
	// A change in a session is attributed to the session's user.
	if res, text := call(t, http.MethodPut, n.Admin+"/v1/denylist?force=true", `{"entries": ["sk_leaked_key"]}`, also(session, own)...); res.StatusCode != http.StatusOK {
		t.Fatalf("%s %s", res.Status, text)
	}
	if l := n.await("audit", func(l map[string]any) bool { return l["what"] == "put denylist" }); l["who"] != "ada" {
		t.Errorf("%v", l)
	}
	n.await("audit", func(l map[string]any) bool { return l["what"] == "log in" && l["who"] == "ada" })
	if _, text := call(t, http.MethodGet, n.Admin+"/v1/rules/versions", "", session...); !strings.Contains(text, `"author":"ada"`) {
		t.Error(text)
	}
	reader, _ := login(t, n, bobToken)
	if res, text := call(t, http.MethodPut, n.Admin+"/v1/denylist?force=true", `{"entries": []}`, also(reader, own)...); res.StatusCode != http.StatusForbidden || !strings.Contains(text, "the token of bob may only read") {
		t.Errorf("%s %s", res.Status, text)
	}
	// If a request has both a bearer token and a cookie, the token decides, because only programs send tokens.
	if _, text := call(t, http.MethodGet, n.Admin+"/v1/session", "", also(session, bearer(bobToken))...); !strings.Contains(text, `"name":"bob"`) {
		t.Error(text)
	}
	if res, _ := call(t, http.MethodGet, n.Admin+"/v1/session", "", also(session, bearer("bad"))...); res.StatusCode != http.StatusUnauthorized {
		t.Errorf("a bad token beside a good cookie: %s", res.Status)
	}

	res, text = call(t, http.MethodDelete, n.Admin+"/v1/session", "", also(session, own)...)
	if res.StatusCode != http.StatusNoContent || len(res.Cookies()) != 1 || res.Cookies()[0].MaxAge >= 0 || res.Cookies()[0].Name != set.Name {
		t.Errorf("%s %v %s", res.Status, res.Cookies(), text)
	}
	if res, text := call(t, http.MethodGet, n.Admin+"/v1/rules", "", session...); res.StatusCode != http.StatusUnauthorized || !strings.Contains(text, "log in again") {
		t.Errorf("after the logout: %s %s", res.Status, text)
	}
	if res, _ := call(t, http.MethodGet, n.Admin+"/v1/rules", "", reader...); res.StatusCode != http.StatusOK {
		t.Errorf("another's session: %s", res.Status)
	}
	second, _ := login(t, n, adaToken)
	third, _ := login(t, n, adaToken, second...)
	for want, s := range map[int][]string{http.StatusUnauthorized: second, http.StatusOK: third} {
		if res, _ := call(t, http.MethodGet, n.Admin+"/v1/rules", "", s...); res.StatusCode != want {
			t.Errorf("a login ends the session that the browser had: %s, want %d", res.Status, want)
		}
	}

	n.stop()
	<-n.exited
	n.mu.Lock()
	defer n.mu.Unlock()
	for what, secret := range map[string]string{"token": "token-of-", "cookie": set.Value, "proof": strings.TrimPrefix(session[1], "X-Weir-Session: "), "cookie's name": "weir_session", "key": "sk_leaked_key"} {
		if strings.Contains(n.text.String(), secret) {
			t.Errorf("the log has a %s:\n%s", what, n.text.String())
		}
	}
}

func TestCookieOverTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ca := newAuthority(t, dir)
	server := ca.issue(t, dir, "server")
	n, _ := guarded(t, "--tls-cert", server.cert, "--tls-key", server.key)
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	defer client.CloseIdleConnections()
	res, err := client.Post(n.Admin+"/v1/session", "application/json", strings.NewReader(`{"token": "`+adaToken+`"}`))
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if len(res.Cookies()) != 1 || !res.Cookies()[0].Secure || !res.Cookies()[0].HttpOnly {
		t.Errorf("%s %v", res.Status, res.Cookies())
	}
}

// When a token is removed from the file, its sessions end at once, and stay ended if the token is added again. A change
// of role also ends them.
func TestSessionsEndWithTheirToken(t *testing.T) {
	t.Parallel()
	n, file := guarded(t)
	ada, _ := login(t, n, adaToken)
	bob, _ := login(t, n, bobToken)
	status := func(session []string, want int) {
		t.Helper()
		until(t, func() error {
			res, text := call(t, http.MethodPost, n.Admin+"/v1/counters/reset", `{"key": "k"}`, also(session, own)...)
			if res.StatusCode != want {
				return fmt.Errorf("%s, want %d: %s", res.Status, want, text)
			}
			return nil
		})
	}
	status(ada, http.StatusOK)
	status(bob, http.StatusForbidden)
	write(t, file, tokenLine("bob", "operate", bobToken))
	status(bob, http.StatusOK)
	status(ada, http.StatusUnauthorized)
	if res, _ := call(t, http.MethodGet, n.Admin+"/v1/rules", "", bearer(adaToken)); res.StatusCode != http.StatusUnauthorized {
		t.Errorf("a token that is gone: %s", res.Status)
	}
	write(t, file, tokenLine("ada", "operate", adaToken)+tokenLine("bob", "read", bobToken))
	status(bob, http.StatusForbidden)
	status(ada, http.StatusUnauthorized)
	for text, why := range map[string]string{"": "holds no token", "ada boss 00": "the role must be read or operate"} {
		write(t, file, text) // the sessions in use stay
		n.await("admin-tokens rejected: the ones in use stay", func(l map[string]any) bool { return strings.Contains(fmt.Sprint(l["error"]), why) })
		status(bob, http.StatusForbidden)
	}
}

// Each token can have a limited number of sessions. New sessions end the oldest ones of the same token.
func TestSessionsAreBounded(t *testing.T) {
	t.Parallel()
	n, _ := guarded(t)
	bob, _ := login(t, n, bobToken)
	var all [][]string
	for range 40 {
		session, _ := login(t, n, adaToken)
		all = append(all, session)
	}
	open := 0
	for i, session := range all {
		res, _ := call(t, http.MethodGet, n.Admin+"/v1/session", "", session...)
		if res.StatusCode == http.StatusOK {
			open++
		} else if i >= 8 {
			t.Errorf("session %d of 40: %s", i+1, res.Status)
		}
	}
	if open != 32 {
		t.Errorf("%d sessions of one token, want 32", open)
	}
	if res, _ := call(t, http.MethodGet, n.Admin+"/v1/session", "", bob...); res.StatusCode != http.StatusOK {
		t.Errorf("another's session: %s", res.Status)
	}
}

// Wrong tokens at the login count like wrong tokens at the API. Both are throttled together, but a valid token is
// always accepted.
func TestGuessesAtTheLoginAreThrottled(t *testing.T) {
	t.Parallel()
	n, _ := guarded(t)
	for i := range 5 {
		if status, text := send(t, n.Admin+"/v1/session", fmt.Sprintf(`{"token": "guess%d"}`, i)); status != http.StatusUnauthorized {
			t.Errorf("%d %s", status, text)
		}
		if res, text := call(t, http.MethodGet, n.Admin+"/v1/rules", "", bearer(fmt.Sprint("other", i))); res.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s %s", res.Status, text)
		}
	}
	if res, text := call(t, http.MethodPost, n.Admin+"/v1/session", `{"token": "guess"}`); res.StatusCode != http.StatusTooManyRequests || res.Header.Get("Retry-After") == "" || len(res.Cookies()) > 0 {
		t.Errorf("%s %v %s", res.Status, res.Header, text)
	}
	login(t, n, adaToken)
	n.await("admin: refused", func(l map[string]any) bool { return l["path"] == "/v1/session" && l["why"] == "UNAUTHORIZED" })
	for body, want := range map[string]int{
		``: 400, `{}`: 400, `{"token": ""}`: 400, `{"token": 7}`: 400, `{"token": "x", "more": 1}`: 400, `"token-of-ada"`: 400,
		`{"token": " "}`: 401, `{"token": "` + strings.Repeat("x", 5000) + `"}`: 413,
	} {
		if status, text := send(t, n.Admin+"/v1/session", body); status != want {
			t.Errorf("%.40s: %d %s", body, status, text)
		}
	}
}

// pathOf returns a route's path with its parameters filled in.
func pathOf(r api.Route) string {
	return strings.NewReplacer("{id}", "quota", "{tier}", "free", "{version}", "1", "{profile}", "heap").Replace(r.Path)
}

// Cookies are shared between ports, so any server on the same host can read and set them. A stolen cookie is useless
// without its proof. A cookie that another server sets beside the browser's own neither replaces the session nor ends
// it. If it overwrote the browser's cookie, a new login helps.
func TestOtherPortsCookies(t *testing.T) {
	t.Parallel()
	n, _ := guarded(t)
	ada, set := login(t, n, adaToken)
	evil, _ := login(t, n, bobToken) // an attacker might want others to work in the attacker's session
	own, its := strings.TrimPrefix(ada[0], "Cookie: "), strings.TrimPrefix(evil[0], "Cookie: ")
	who := func(want string, headers ...string) {
		t.Helper()
		if res, text := call(t, http.MethodGet, n.Admin+"/v1/session", "", headers...); want == "" && res.StatusCode != http.StatusUnauthorized ||
			want != "" && !strings.Contains(text, `"name":"`+want+`"`) {
			t.Errorf("%s %s, want %q", res.Status, text, want)
		}
	}
	for _, cookies := range []string{own + "; " + its, its + "; " + own, set.Name + "=x; " + own, set.Name + "=; " + own} {
		who("ada", "Cookie: "+cookies, ada[1])
		who("", "Cookie: "+cookies)
	}
	who("", "Cookie: "+its, ada[1])
	who("", "Cookie: "+own, evil[1])
	// A browser without a session can't be made to use a planted one.
	who("", "Cookie: "+its)
	again, _ := login(t, n, adaToken, "Cookie: "+its)
	who("ada", "Cookie: "+its+"; "+strings.TrimPrefix(again[0], "Cookie: "), again[1])
	who("bob", evil...)
	// A stolen cookie can't end the session either.
	if res, text := call(t, http.MethodDelete, n.Admin+"/v1/session", "", ada[0], "Sec-Fetch-Site: same-origin"); res.StatusCode != http.StatusNoContent {
		t.Errorf("%s %s", res.Status, text)
	}
	who("ada", ada...)
	// A stolen cookie gives access to nothing.
	for _, path := range []string{"/v1/events", "/metrics", "/v1/rules"} {
		if res, _ := call(t, http.MethodGet, n.Admin+path, "", ada[0]); res.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s: %s", path, res.Status)
		}
	}
}

// Requests that other origins make a browser send are refused. That is so with a session's cookie, which browsers also
// send to other ports of the host, without the cookie, and on a node without tokens.
func TestOtherPagesNeitherReadNorWrite(t *testing.T) {
	t.Parallel()
	asks, _ := guarded(t, "--pprof")
	open := serve(t, "--pprof")
	session, _ := login(t, asks, adaToken)
	for name, c := range map[string]struct {
		*node
		headers []string
	}{"with a session": {asks, session}, "without tokens": {open, nil}} {
		host := strings.TrimPrefix(c.Admin, "http://")
		port := host[strings.LastIndexByte(host, ':'):]
		evil := map[string][]string{
			"fetch of another site":         {"Sec-Fetch-Site: cross-site", "Origin: https://evil.example", "Sec-Fetch-Mode: cors"},
			"fetch without CORS":            {"Sec-Fetch-Site: cross-site", "Origin: https://evil.example", "Sec-Fetch-Mode: no-cors", "Content-Type: text/plain;charset=UTF-8"},
			"another port of this host":     {"Sec-Fetch-Site: same-site", "Origin: http://127.0.0.1:3000"},
			"script":                        {"Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors", "Sec-Fetch-Dest: script"},
			"img of another port":           {"Sec-Fetch-Site: same-site", "Sec-Fetch-Mode: no-cors", "Sec-Fetch-Dest: image"},
			"iframe":                        {"Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: iframe"},
			"form":                          {"Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Origin: null", "Content-Type: application/x-www-form-urlencoded"},
			"an old browser":                {"Origin: https://evil.example"},
			"an old browser, sandboxed":     {"Origin: null"},
			"an old browser, another port":  {"Origin: http://127.0.0.1:3000"},
			"a name pointed here":           {"Host: evil.example" + port, "Origin: http://evil.example" + port, "Sec-Fetch-Site: same-origin"},
			"a name pointed here, unmarked": {"Host: evil.example" + port},
			"a name like localhost":         {"Host: localhost.evil.example" + port, own},
			"a name like an address":        {"Host: 127.0.0.1.evil.example" + port},
		}
		for kind, headers := range evil {
			for _, r := range api.Routes {
				if r.Path == "/v1/session" && r.Method != http.MethodGet {
					continue // tested below
				}
				res, text := call(t, r.Method, c.Admin+pathOf(r)+"?force=true", `{"entries": [], "version": 1, "limit": 1, "key": "k", "rule": "quota"}`,
					slices.Concat(c.headers, headers, []string{"If-Match: *"})...)
				if res.StatusCode != http.StatusForbidden && res.StatusCode != http.StatusUnauthorized {
					t.Errorf("%s, %s: %s %s: %s %.100s", name, kind, r.Method, r.Path, res.Status, text)
				}
				if res.Header.Get("Access-Control-Allow-Origin") != "" || res.Header.Get("Access-Control-Allow-Credentials") != "" {
					t.Errorf("%s %s: %v", r.Method, r.Path, res.Header)
				}
			}
			if strings.HasPrefix(kind, "a name") {
				continue // for another host name, browsers don't send our cookie
			}
			for _, method := range []string{http.MethodPost, http.MethodDelete} {
				if res, text := call(t, method, c.Admin+"/v1/session", `{"token": "`+adaToken+`"}`, slices.Concat(c.headers, headers)...); res.StatusCode != http.StatusForbidden || len(res.Cookies()) > 0 {
					t.Errorf("%s, %s: %s /v1/session: %s %s", name, kind, method, res.Status, text)
				}
			}
		}
		if res, text := call(t, http.MethodOptions, c.Admin+"/v1/rules", "", slices.Concat(c.headers, []string{"Origin: https://evil.example", "Access-Control-Request-Method: PUT"})...); res.Header.Get("Access-Control-Allow-Origin") != "" || res.StatusCode < 400 {
			t.Errorf("a preflight: %s %v %s", res.Status, res.Header, text)
		}
		_, text := call(t, http.MethodGet, c.Admin+"/v1/rules/versions", "", c.headers...)
		if !strings.Contains(text, `"version":1`) || strings.Contains(text, `"version":2`) {
			t.Errorf("%s: the rules were changed: %s", name, text)
		}
		// The node's own pages may read and write. A browser without Sec-Fetch-Site, on an origin without TLS, may
		// read, because it sends the cookie only from this site.
		for _, headers := range [][]string{{own}, {own, "Origin: " + c.Admin}, {"Sec-Fetch-Site: none"}, {}} {
			if res, text := call(t, http.MethodGet, c.Admin+"/v1/rules", "", slices.Concat(c.headers, headers)...); res.StatusCode != http.StatusOK {
				t.Errorf("%s, %v: %s %s", name, headers, res.Status, text)
			}
		}
		for _, headers := range [][]string{{own, "Origin: " + c.Admin}, {"Origin: " + c.Admin}} {
			if status, text := send(t, c.Admin+"/v1/counters/reset", `{"key": "k"}`, slices.Concat(c.headers, headers)...); status != http.StatusOK {
				t.Errorf("%s, %v: %d %s", name, headers, status, text)
			}
		}
	}
	// A write with a cookie must come from a page, because only browsers have cookies.
	if status, text := send(t, asks.Admin+"/v1/counters/reset", `{"key": "k"}`, session...); status != http.StatusForbidden {
		t.Errorf("%d %s", status, text)
	}
	if status, text := send(t, open.Admin+"/v1/counters/reset", `{"key": "k"}`); status != http.StatusOK {
		t.Errorf("curl: %d %s", status, text)
	}
}

// All responses of the admin port tell browsers not to let other sites' pages use them.
func TestAdminAnswersAreForTheirOwnPages(t *testing.T) {
	t.Parallel()
	n := serve(t)
	paths := []string{"/", "/console/", "/console/why", "/console/assets/none.js", "/play", "/play/none", "/healthz", "/readyz", "/nothing", "/rules"}
	for _, r := range api.Routes {
		if r.Method == http.MethodGet && !strings.HasSuffix(r.Path, "/events") {
			paths = append(paths, pathOf(r))
		}
	}
	for _, path := range paths {
		res, _ := call(t, http.MethodGet, n.Admin+path, "")
		for name, want := range map[string]string{
			"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cross-Origin-Resource-Policy": "same-origin",
			"Cross-Origin-Opener-Policy": "same-origin", "Content-Security-Policy": "frame-ancestors 'none'",
		} {
			if got := res.Header.Get(name); !strings.Contains(got, want) {
				t.Errorf("%s: %s: %q, want %q", path, name, got, want)
			}
		}
		if policy := res.Header.Get("Content-Security-Policy"); strings.Contains(policy, "unsafe-inline") || strings.Contains(policy, "'unsafe-eval'") ||
			strings.Contains(policy, "wasm-unsafe-eval") && path != "/play" || strings.Contains(policy, "*") {
			t.Errorf("%s: %s", path, policy)
		}
		if kept := res.Header.Get("Cache-Control"); kept != "no-store" && !strings.HasPrefix(path, "/console") && !strings.HasPrefix(path, "/play") {
			t.Errorf("%s: Cache-Control: %s", path, kept)
		}
	}
	if res, text := call(t, http.MethodGet, n.Admin+"/", ""); res.StatusCode != http.StatusOK || !strings.Contains(text, "/console/") {
		t.Errorf("for curl: %s %s", res.Status, text)
	}
}
