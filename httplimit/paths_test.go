package httplimit_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/internal/private"
)

// TestPathsInDisguise sends request lines that Go's client would tidy up, to a real server.
func TestPathsInDisguise(t *testing.T) {
	disguises := []string{
		"/login", "//login", "///login", "/./login", "/%6cogin", "/%6Cogin", "/a/../login", "/a/%2e%2e/login", "/%2e%2e/login",
		"/a/%2E%2E/login", "/a/.%2e/login", "/%2e/login", "/login/", "/login//", "/login/.", "/login/x/..", "/LOGIN", "/Login", "/login;x=y",
		"/login;", "/login;jsessionid=1/", "/;x/login", "/%2flogin", "/%2Flogin", "/a%2f..%2flogin", "/%5clogin", `/\login`, `\login`,
		`/a\..\login`, "/%256cogin", "/%25%36%63ogin", "/..%2flogin", "/%252e%252e/login", "/login?x=/other", "/login%3fx", "/login#x", "/login%00.css", "/login.", "/login%20",
		"/x%252fy/../login", "/login/;/..", "/login/%252e/..", "/login//..", "//example.com/login",
		"/..;/login", "/a/..;x/login", "/%4c%4f%47%49%4e", "http://example.com/login", "http://example.com//LOGIN;x", "http:login", "http:/login",
	}
	exempt := map[string]bool{`\login`: true} // no request to net/http
	for _, target := range disguises {
		l := limiter(t, rules(weir.Rule{ID: "login", Match: weir.Match{Endpoint: "/login"}, By: []string{"ip"}, Limits: per(1, time.Hour)}))
		srv, client := serve(t, wrap(l, httplimit.Options{}, ok))
		send := func(target string) *http.Response {
			conn, err := net.Dial("tcp", srv.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			resp, _ := raw(t, conn, fmt.Sprintf("POST %s HTTP/1.1\r\nHost: example.com\r\nContent-Length: 0\r\n\r\n", target))
			return resp
		}
		if got := get(t, client, srv.URL+"/login").StatusCode; got != 200 {
			t.Fatalf("/login itself: %d", got)
		}
		resp := send(target)
		switch {
		case exempt[target]:
			if resp.StatusCode == 429 {
				t.Errorf("%s is limited as /login", target)
			}
		case resp.StatusCode != 429 || resp.Header.Get("X-RateLimit-Rule") != "login":
			t.Errorf("%s escaped the limit of /login: %d", target, resp.StatusCode)
		}
		for _, other := range []string{"/logins", "/log/in", "/login/reset", "/other?/login"} {
			if got := send(other).StatusCode; got != 200 {
				t.Errorf("%s is limited as /login: %d", other, got)
			}
		}
	}
}

// Not every server treats an escaped slash as the end of a segment. This holds whatever else in the path Go would escape.
func TestEscapedSlashesBesideOtherCharacters(t *testing.T) {
	l := limiter(t, rules(weir.Rule{ID: "file", Match: weir.Match{Endpoint: "/files/{name}"}, By: []string{}, Limits: per(1, time.Hour)}))
	srv, client := serve(t, wrap(l, httplimit.Options{}, ok))
	if got := get(t, client, srv.URL+"/files/a").StatusCode; got != 200 {
		t.Fatalf("/files/a: %d", got)
	}
	addr := srv.Listener.Addr().String()
	for _, target := range []string{"/files/a%2Fb", "/files/a%2Fb#x", "/files/a%2Fb|", `/files/a%2F"b"`, "/files/%7Ba%2Fb}", "http://x/files/a%2Fb^"} {
		if got, _ := askRaw(t, addr, target, ""); got != 429 {
			t.Errorf("%s escaped the limit of /files/{name}: %d", target, got)
		}
	}
	for _, target := range []string{"/files/a/b", "/files/a/b#x", "/files/a/b|"} {
		if got, _ := askRaw(t, addr, target, ""); got != 200 {
			t.Errorf("%s is limited as /files/{name}: %d", target, got)
		}
	}
}

// A request target without a path is a request for the root.
func TestRootInDisguise(t *testing.T) {
	for _, line := range []string{
		"GET / HTTP/1.1", "GET http://example.com HTTP/1.1", "GET http://example.com?x HTTP/1.1", "GET http://example.com/ HTTP/1.1",
		"GET // HTTP/1.1", "GET /. HTTP/1.1", "GET /a/.. HTTP/1.1", "GET /? HTTP/1.1", "CONNECT example.com:443 HTTP/1.1", "GET /; HTTP/1.1",
	} {
		l := limiter(t, rules(weir.Rule{ID: "root", Match: weir.Match{Endpoint: "/{$}"}, By: []string{"ip"}, Limits: per(1, time.Hour)}))
		srv, client := serve(t, wrap(l, httplimit.Options{}, ok))
		get(t, client, srv.URL+"/")
		conn, err := net.Dial("tcp", srv.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if resp, _ := raw(t, conn, line+"\r\nHost: example.com\r\n\r\n"); resp.StatusCode != 429 {
			t.Errorf("%s escaped the limit of /: %d", line, resp.StatusCode)
		}
		conn.Close()
	}
}

// If a router in front has changed the path, the new path counts, and an outdated RawPath doesn't.
func TestPathAsRewritten(t *testing.T) {
	l := limiter(t, rules(weir.Rule{ID: "login", Match: weir.Match{Endpoint: "/login"}, By: []string{"ip"}, Limits: per(1, time.Hour)}))
	limited := wrap(l, httplimit.Options{}, ok)
	rewrite := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.URL.Path, r.URL.RawPath = "/login", "/something#else"
		limited.ServeHTTP(w, r)
	})
	srv, client := serve(t, http.StripPrefix("/v1", limited))
	if a, b := get(t, client, srv.URL+"/v1/login").StatusCode, get(t, client, srv.URL+"/v1/login").StatusCode; a != 200 || b != 429 {
		t.Errorf("behind StripPrefix: %d, %d", a, b)
	}
	srv, client = serve(t, rewrite)
	if got := get(t, client, srv.URL+"/x").StatusCode; got != 429 {
		t.Errorf("behind a rewrite: %d", got)
	}
}

// If it would be too expensive to decide whether a path leads to a limited endpoint, the path is refused.
func TestUnreadablePaths(t *testing.T) {
	l := limiter(t, rules(weir.Rule{ID: "login", Match: weir.Match{Endpoint: "/login"}, By: []string{"ip"}, Limits: per(1, time.Hour)}))
	srv, client := serve(t, wrap(l, httplimit.Options{}, ok))
	for _, path := range []string{"/" + strings.Repeat("a", private.MaxPath), "/%" + strings.Repeat("25", 100) + "2e"} {
		resp, err := client.Get(srv.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != 400 || !strings.Contains(string(body), `"code":"UNREADABLE_PATH"`) {
			t.Errorf("%.40s: %d %s", path, resp.StatusCode, body)
		}
	}
}
