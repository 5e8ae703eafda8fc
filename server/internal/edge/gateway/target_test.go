package gateway

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/memstore"
)

// disguises are spellings of /login that reach the upstream unchanged.
var disguises = []string{
	"/login",
	"//login",
	"///login",
	"/./login",
	"/%6cogin",
	"/%6C%6F%67%69%6E",
	"/%256cogin",
	"/a/../login",
	"/a/%2e%2e/login",
	"/a/%2E./login",
	"/a/.%2e/login",
	"/%2e/login",
	"/a/b/../../login",
	"/../login",
	"/login/",
	"/login//",
	"/login/.",
	"/login/x/..",
	"/LOGIN",
	"/LoGiN/",
	"/login;x=y",
	"/login;",
	"/;x/login",
	"/login/;/..",
	"/login//..",
	"/;x/../login;y",
	"/%253flogin/../login",
	"/login?",
	"/login?next=/home",
	"/login?a;b=%zz&&c#d",
}

// unsafe are spellings of /login that are refused, with the reason.
var unsafe = map[string]string{
	`/a%2f..%2flogin`: "encoded slash",
	`/a%2F..%2Flogin`: "encoded slash",
	`/%2flogin`:       "encoded slash",
	`/login%2f`:       "encoded slash",
	`/\login`:         "backslash",
	`/a\..\login`:     "backslash",
	`/%5clogin`:       "encoded backslash",
	`/a%5C..%5Clogin`: "encoded backslash",
	`/login%00`:       "encoded NUL",
	`/login%00.css`:   "encoded NUL",

	`/a;b/..;c/login`:     "dot segment with parameters",
	`/a/%2E.;/login`:      "dot segment with parameters",
	`/a/.;/../login`:      "dot segment with parameters",
	`/x%252fy/../login`:   "twice encoded slash (%252f)",
	`/x%25252fy/../login`: "twice encoded slash (%25252f)",
	`/login/%252E/..`:     "twice encoded dot (%252E)",
	`/a%255c..%255clogin`: "twice encoded backslash",
	`/login%2500`:         "twice encoded NUL",
	`/a/..%c0%af../login`: "overlong character (%c0%af)",
}

// No spelling of /login escapes its limit, and each reaches the upstream byte for byte.
func TestPathsInDisguise(t *testing.T) {
	up := startUpstream(t, nil)
	n := int64(len(disguises))
	d := start(t, setup{upstream: up.URL, limiter: limiterOf(t, weir.Options{}, few("login", "/login", n))})
	for _, path := range disguises {
		if a := d.rawPath(t, path); a.StatusCode != 200 || a.Header.Get("X-RateLimit-Limit") == "" {
			t.Errorf("%s: %s, limit %q", path, a.Status, a.Header.Get("X-RateLimit-Limit"))
		}
		if got := up.last(t).RequestURI; got != path {
			t.Errorf("%s reached the upstream as %s", path, got)
		}
	}
	for _, path := range disguises { // the limit is used up, whatever the spelling
		if a := d.rawPath(t, path); a.StatusCode != 429 {
			t.Errorf("%s escaped: %s", path, a.Status)
		}
	}
	if seen := len(up.requests()); seen != len(disguises) {
		t.Errorf("the upstream saw %d requests, want %d", seen, len(disguises))
	}
}

func TestUnsafePathsAreRefused(t *testing.T) {
	up := startUpstream(t, nil)
	d := start(t, setup{upstream: up.URL, limiter: limiterOf(t, weir.Options{}, few("login", "/login", 1000))})
	for path, why := range unsafe {
		a := d.rawPath(t, path)
		if a.StatusCode != 400 || a.Header.Get("Content-Type") != "application/json" || a.Header.Get("X-RateLimit-Limit") != "" ||
			!strings.Contains(a.body, `"code":"UNSAFE_PATH"`) || !strings.Contains(a.body, why) || !strings.Contains(a.body, "--allow-unsafe-paths") {
			t.Errorf("%s: %s %q", path, a.Status, a.body)
		}
	}
	if a := d.rawPath(t, "/search?q=a%2Fb%5C%00"); a.StatusCode != 200 { // these are allowed in a query
		t.Errorf("in the query: %s", a.Status)
	}
	if n := len(up.requests()); n != 1 {
		t.Errorf("the upstream saw %d requests", n)
	}
}

// With AllowUnsafePaths, the gateway forwards unsafe paths unchanged, and still limits those that it can read.
func TestUnsafePathsCanBeAllowed(t *testing.T) {
	up := startUpstream(t, nil)
	d := start(t, setup{
		upstream: up.URL, opts: Options{AllowUnsafePaths: true},
		limiter: limiterOf(t, weir.Options{}, few("login", "/login", 1000)),
	})
	for path := range unsafe {
		a := d.rawPath(t, path)
		if a.StatusCode != 200 {
			t.Errorf("%s: %s", path, a.Status)
			continue
		}
		if got := up.last(t).RequestURI; got != path {
			t.Errorf("%s reached the upstream as %s", path, got)
		}
		if limited := a.Header.Get("X-RateLimit-Limit") != ""; limited == strings.Contains(path, "%c0") {
			t.Errorf("%s: limited: %t", path, limited)
		}
	}
}

// If the upstream's URL has a path, a request's .. could leave that path and enter it again, so such requests are
// refused.
func TestUpstreamPathIsAFence(t *testing.T) {
	up := startUpstream(t, nil)
	d := start(t, setup{upstream: up.URL + "/base", limiter: limiterOf(t, weir.Options{}, few("login", "/login", 1000))})
	for _, path := range []string{"/../base/login", "/a/../../base/login", "/%2e%2E/base/login", "/.%2e/base/login", "/a/.."} {
		if a := d.rawPath(t, path); a.StatusCode != 400 || !strings.Contains(a.body, "UNSAFE_PATH") {
			t.Errorf("%s: %s %q", path, a.Status, a.body)
		}
	}
	for _, path := range []string{"/login", "/./login", "/%2e/login", "/.../login", "/..a"} {
		if a := d.rawPath(t, path); a.StatusCode != 200 || up.last(t).RequestURI != "/base"+path {
			t.Errorf("%s: %s", path, a.Status)
		}
	}
}

// The gateway removes headers through which a client could make a framework route to another path.
func TestPathsInHeaders(t *testing.T) {
	up := startUpstream(t, nil)
	d := start(t, setup{upstream: up.URL})
	for _, name := range []string{"X-Original-URL", "X-Original-URI", "X-Rewrite-URL", "x_rewrite_url"} {
		if a := d.raw(t, "GET /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"+name+": /login\r\n\r\n"); a.StatusCode != 200 {
			t.Fatal(a.Status)
		}
		if got := up.last(t).Header; got.Get(name) != "" {
			t.Errorf("the upstream got %v", got)
		}
	}
}

// Ordinary escapes are forwarded unchanged.
func TestOrdinaryEscapesAreForwarded(t *testing.T) {
	up := startUpstream(t, nil)
	d := start(t, setup{upstream: up.URL})
	for _, path := range []string{
		"/a%20b", "/caf%C3%A9", "/100%25", "/50%25-off", "/%257e", "/v1;v=1/x", "/a;", "/%2e/x", "/x.y..z", "/a%3bb", "/%C0", "/%c1x", "/%25%32", "/...;x",
	} {
		if a := d.rawPath(t, path); a.StatusCode != 200 || up.last(t).RequestURI != path {
			t.Errorf("%s: %s, %s", path, a.Status, a.body)
		}
	}
}

// Characters that aren't allowed in a URL are forwarded anyway.
func TestOddCharactersAreForwarded(t *testing.T) {
	for _, c := range []struct{ prefix, path, want string }{
		{"", `/a|b`, `/a|b`},
		{"", `/{id}^"<>` + "`", `/{id}^"<>` + "`"},
		{"", "/caf\xe9/%7c", "/caf\xe9/%7c"},
		{"", "/a%7Cb|c", "/a%7Cb|c"},
		{"", "/[1]!$&'()*+,=:@", "/[1]!$&'()*+,=:@"},
		{"", "//a|b%2e", "//a%7Cb%2e"}, // the one spelling that the standard library can't send unchanged
		{"/base", "//a|b%2e", "/base//a|b%2e"},
		{"/base/", "/x", "/base/x"},
		{"/base/", "//x", "/base//x"},
		{"/b%20c", "/%2e", "/b%20c/%2e"},
		{"/base", "/", "/base/"},
		{"/base", "/?q=%zz;&=", "/base/?q=%zz;&="},
		{"", "/?", "/?"},
		{"", "/??", "/??"},
	} {
		up := startUpstream(t, nil)
		d := start(t, setup{upstream: up.URL + c.prefix})
		if a := d.rawPath(t, c.path); a.StatusCode != 200 {
			t.Errorf("%q: %s", c.path, a.Status)
		} else if got := up.last(t).RequestURI; got != c.want {
			t.Errorf("%q behind %q reached the upstream as %q, want %q", c.path, c.prefix, got, c.want)
		}
	}
}

// HTTP/2 can carry methods that can't be forwarded over HTTP/1. They get 400, not an error that blames the upstream.
func TestBadMethods(t *testing.T) {
	up := startUpstream(t, nil)
	d := start(t, setup{upstream: up.URL, limiter: limiterOf(t, weir.Options{}, few("all", "/", 1000))})
	for method, want := range map[string]int{"PO ST": 400, "GET\r\nX": 400, "G\xc3\x89T": 400, "{": 400, "A,B": 400, "]": 400, "\\": 400, "M-SEARCH": 200, "a!#$%&'*+-.^_`|~9Z": 200} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Method = method
		w := httptest.NewRecorder()
		d.gateway.ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("%q: %d, want %d: %s", method, w.Code, want, w.Body)
		}
	}
}

// Announced trailers that can't be forwarded get 400, not an error that blames the upstream.
func TestBadTrailers(t *testing.T) {
	up := startUpstream(t, nil)
	d := start(t, setup{upstream: up.URL, limiter: limiterOf(t, weir.Options{}, few("all", "/", 1000))})
	for trailer, want := range map[string]int{"a b": 400, "X-Sum, {": 400, "X-Sum": 200, "X-Sum, x_other": 200} {
		a := d.raw(t, "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\nTrailer: "+trailer+"\r\n\r\n0\r\nX-Sum: 1\r\n\r\n")
		if a.StatusCode != want {
			t.Errorf("%q: %s, want %d: %s", trailer, a.Status, want, a.body)
		}
	}
}

// A target that isn't a path, or that a server might read as a shorter path, is refused.
func TestBadTargets(t *testing.T) {
	up := startUpstream(t, nil)
	d := start(t, setup{upstream: up.URL, limiter: limiterOf(t, weir.Options{}, few("all", "/", 1000))})
	for _, line := range []string{"GET /login#x", "GET http:login", "CONNECT up.example:443", "CONNECT /login", "OPTIONS *", "GET *"} {
		a := d.raw(t, line+" HTTP/1.1\r\nHost: up.example:443\r\nConnection: close\r\n\r\n")
		if a.StatusCode != 400 || !strings.Contains(a.body, "BAD_TARGET") {
			t.Errorf("%s: %s %q", line, a.Status, a.body)
		}
	}
	if a := d.raw(t, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close, Upgrade\r\nUpgrade: w\xe9b\r\n\r\n"); a.StatusCode != 400 {
		t.Errorf("an Upgrade that isn't ASCII: %s", a.Status)
	}
	if n := len(up.requests()); n != 0 {
		t.Errorf("the upstream saw %d requests", n)
	}
	// A target with a host is forwarded as its path, and a target without a path is limited as /.
	for _, c := range []struct{ target, want string }{
		{"http://other.example/a//b%2e?q=1", "/a//b%2e?q=1"},
		{"http://other.example", "/"},
		{"http://other.example?q=1", "/?q=1"},
	} {
		a := d.raw(t, "GET "+c.target+" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
		if a.StatusCode != 200 || a.Header.Get("X-RateLimit-Limit") == "" || up.last(t).RequestURI != c.want {
			t.Errorf("%s: %s, limit %q, forwarded as %s", c.target, a.Status, a.Header.Get("X-RateLimit-Limit"), up.last(t).RequestURI)
		}
	}
}

// HTTP/2 allows a space in a path, but in the upstream's HTTP/1 a space would end the path.
func TestSpacesOverHTTP2(t *testing.T) {
	up := startUpstream(t, nil)
	d := start(t, setup{upstream: up.URL, tls: true})
	for _, u := range []url.URL{{Opaque: "/login HTTP/1.1"}, {Opaque: "/login", RawQuery: "a b"}} {
		u.Scheme, u.Host = "https", d.addr()
		req := d.request(t, "GET", "/", nil)
		req.URL = &u
		a := d.do(t, req)
		if a.ProtoMajor != 2 || a.StatusCode != 400 || !strings.Contains(a.body, "BAD_TARGET") {
			t.Errorf("%v: HTTP/%d %s %q", u, a.ProtoMajor, a.Status, a.body)
		}
	}
	if n := len(up.requests()); n != 0 {
		t.Errorf("the upstream saw %d requests", n)
	}
}

// FuzzTarget checks that the upstream and the limiter always see the same path.
func FuzzTarget(f *testing.F) {
	for _, path := range disguises {
		f.Add(path, "")
	}
	for path := range unsafe {
		f.Add(path, "/base")
	}
	for _, path := range []string{"//a|b", "/%2e\"", "/%", "/a b", "/\x80", "/a#b", "*", "http:login", "http://h", "http://h/a|b?c", "/a?b c"} {
		f.Add(path, "/")
	}
	gateways := map[string]*Gateway{}
	for _, prefix := range []string{"", "/", "/base"} {
		gateways[prefix] = &Gateway{prefix: prefix, opts: Options{AllowUnsafePaths: true, Upstream: &url.URL{Scheme: "http", Host: "up"}}}
	}
	rules, err := weir.Compile(weir.Rules{Rules: []weir.Rule{plenty}})
	if err != nil {
		f.Fatal(err)
	}
	limit := httplimit.New(weir.NewLimiter(memstore.New(memstore.Options{}), rules, weir.Options{}), httplimit.Options{})
	f.Fuzz(func(t *testing.T, target, prefix string) {
		g := gateways[prefix]
		u, err := url.ParseRequestURI(target)
		if err != nil || g == nil {
			return
		}
		r, bad := g.checkTarget(&http.Request{Method: "GET", URL: u, RequestURI: target, Header: http.Header{}})
		if bad != nil {
			return
		}
		if r.URL.Opaque != "" {
			t.Fatalf("%q hides its path", target)
		}
		sent := g.target(r).RequestURI()
		if strings.ContainsAny(sent, " \t\r\n") {
			t.Fatalf("%q is sent as %q", target, sent)
		}
		path, _, _ := strings.Cut(strings.TrimPrefix(sent, strings.TrimSuffix(prefix, "/")), "?")
		v := limit.Ask(t.Context(), r, nil)
		limited, reached := rules.Explain(&v.Request).Paths, rules.Explain(&weir.Request{Path: path}).Paths
		v.Release()
		for _, p := range reached {
			if !slices.Contains(limited, p) {
				t.Errorf("%q is limited as %q, and sent as %q, which is %q", target, limited, path, p)
			}
		}
		if strings.HasPrefix(target, "/") && sent != strings.TrimSuffix(prefix, "/")+target && (prefix == "/base" || !strings.HasPrefix(target, "//")) {
			t.Errorf("%q behind %q is sent as %q", target, prefix, sent)
		}
	})
}
