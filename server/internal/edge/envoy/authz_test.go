package envoy_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	auth "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/server/internal/edge/envoy"
	"github.com/weirhq/weir/server/internal/edge/forwardauth"
)

// authNode is a node that is asked through both protocols: ext_authz over gRPC and over HTTP.
type authNode struct {
	auth.AuthorizationClient
	health healthpb.HealthClient
	url    string

	mu   sync.Mutex
	seen []string // decisions, with their clients
	log  strings.Builder
}

func aYear(n int64) []weir.Limit {
	return []weir.Limit{{Count: n, Window: 366 * 24 * time.Hour}}
}

var authRules = weir.Rules{
	Deny: []string{"blocked*"},
	Rules: []weir.Rule{
		{ID: "all", Algorithm: weir.FixedWindow, Limits: aYear(1000)},
		{ID: "window", Match: weir.Match{Endpoint: "/window"}, Algorithm: weir.FixedWindow, Limits: aYear(100)},
		{ID: "login", Match: weir.Match{Endpoint: "POST /login"}, By: []string{"ip"}, Algorithm: weir.FixedWindow, Limits: aYear(3)},
		{ID: "tenant", Match: weir.Match{Endpoint: "/tenant/"}, By: []string{"header:X-Tenant", "header:Host"}, Algorithm: weir.FixedWindow, Limits: aYear(2)},
		{ID: "status", Match: weir.Match{Endpoint: "/status"}, Algorithm: weir.FixedWindow, Limits: aYear(2), Statuses: []int{401}},
	},
}

func newAuthNode(t *testing.T, rules weir.Rules, limit httplimit.Options, more envoy.ServerOptions) *authNode {
	t.Helper()
	set, err := weir.Compile(rules)
	if err != nil {
		t.Fatal(err)
	}
	b := new(authNode)
	l := weir.NewLimiter(memstore.New(memstore.Options{}), set, weir.Options{Observe: func(o *weir.Observation) {
		b.mu.Lock()
		defer b.mu.Unlock()
		r := o.Request
		b.seen = append(b.seen, fmt.Sprintf("%s %q %q %s %q %q %v %v %s %s", r.Edge, r.Method, r.Path, r.IP, r.APIKey, r.User, r.Preflight, r.KeyVerified, o.Decision.Reason, o.Decision.Rule))
	}})
	limit.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	gateways := forwardauth.New(l, forwardauth.Options{Limit: limit, Guard: more.Guard, Logger: slog.New(slog.NewTextHandler(&b.log, nil))})
	web := httptest.NewServer(gateways)
	t.Cleanup(web.Close)
	b.url = strings.TrimPrefix(web.URL, "http://")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	more.Gateways = gateways
	server := envoy.NewServer(envoy.New(l, envoy.Options{}), more)
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	conn := connect(t, listener)
	b.AuthorizationClient, b.health = auth.NewAuthorizationClient(conn), healthpb.NewHealthClient(conn)
	return b
}

// last returns the decisions since the previous call.
func (b *authNode) last() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	seen := strings.Join(b.seen, "\n")
	b.seen = nil
	return seen
}

// authQuestion is a client's request. A header that occurs twice has two entries.
type authQuestion struct {
	method, target, host, peer string
	headers                    [][2]string
}

func (a authQuestion) attributes() *auth.CheckRequest {
	return &auth.CheckRequest{Attributes: &auth.AttributeContext{
		Source:  &auth.AttributeContext_Peer{Address: socket(a.peer)},
		Request: &auth.AttributeContext_Request{Http: &auth.AttributeContext_HttpRequest{Method: a.method, Path: a.target, Host: a.host, Scheme: "http", Protocol: "HTTP/1.1"}},
	}}
}

func socket(ip string) *core.Address {
	return &core.Address{Address: &core.Address_SocketAddress{SocketAddress: &core.SocketAddress{Address: ip, PortSpecifier: &core.SocketAddress_PortValue{PortValue: 1234}}}}
}

// joined returns the request as Envoy sends it by default: header names in lower case, repeated headers joined,
// pseudo-headers included.
func (a authQuestion) joined() *auth.CheckRequest {
	req := a.attributes()
	h := map[string]string{":method": a.method, ":path": a.target, ":authority": a.host, ":scheme": "http"}
	for _, line := range a.headers {
		name := strings.ToLower(line[0])
		if old, twice := h[name]; twice {
			line[1] = old + "," + line[1]
		}
		h[name] = line[1]
	}
	req.Attributes.Request.Http.Headers = h
	return req
}

// raw returns the request as Envoy sends it with encode_raw_headers.
func (a authQuestion) raw() *auth.CheckRequest {
	req := a.attributes()
	all := &core.HeaderMap{Headers: []*core.HeaderValue{{Key: ":path", RawValue: []byte(a.target)}, {Key: ":authority", RawValue: []byte(a.host)}}}
	for _, line := range a.headers {
		all.Headers = append(all.Headers, &core.HeaderValue{Key: strings.ToLower(line[0]), RawValue: []byte(line[1])})
	}
	req.Attributes.Request.Http.HeaderMap = all
	return req
}

// authAnswer is a response through either protocol.
type authAnswer struct {
	status  int
	headers map[string]string
	body    string
}

func (b *authNode) overGRPC(t *testing.T, req *auth.CheckRequest) authAnswer {
	t.Helper()
	res, err := b.Check(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if err := res.ValidateAll(); err != nil {
		t.Error(err)
	}
	return unpack(t, res)
}

func unpack(t *testing.T, res *auth.CheckResponse) authAnswer {
	t.Helper()
	a := authAnswer{200, map[string]string{}, ""}
	list := res.GetOkResponse().GetResponseHeadersToAdd()
	if denied := res.GetDeniedResponse(); denied != nil {
		a.status, a.body, list = int(denied.Status.Code), denied.Body, denied.Headers
	}
	if (res.Status.GetCode() == int32(codes.OK)) != (a.status == 200) || res.HttpResponse == nil {
		t.Errorf("the filter reads %v as another answer than %d", res.Status, a.status)
	}
	for _, h := range list {
		if h.AppendAction != core.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD {
			t.Errorf("%v would be appended to another filter's header", h)
		}
		a.headers[h.Header.Key] = h.Header.Value
	}
	return a
}

func (b *authNode) overHTTP(t *testing.T, a authQuestion) authAnswer {
	t.Helper()
	conn, err := net.Dial("tcp", b.url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "%s /check/envoy%s HTTP/1.1\r\nHost: %s\r\nX-Real-IP: %s\r\nConnection: close\r\n", a.method, a.target, a.host, a.peer)
	for _, line := range a.headers {
		fmt.Fprintf(conn, "%s: %s\r\n", line[0], line[1])
	}
	fmt.Fprint(conn, "\r\n")
	res, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: a.method})
	if err != nil {
		t.Fatalf("%v: %+v", err, a)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	out := authAnswer{res.StatusCode, map[string]string{}, string(body)}
	for name, values := range res.Header {
		if name != "Date" && name != "Content-Length" && name != "Connection" {
			out.headers[name] = strings.Join(values, ",")
		}
	}
	return out
}

// timeless returns the response without what depends on the time or on what is left.
func (a authAnswer) timeless() string {
	h := maps.Clone(a.headers)
	for _, name := range []string{"X-Ratelimit-Remaining", "X-Ratelimit-Reset", "Ratelimit", "Retry-After"} {
		if h[name] != "" {
			h[name] = "…"
		}
	}
	body := a.body
	var object map[string]any
	if json.Unmarshal([]byte(body), &object) == nil {
		of := object
		if e, ok := object["error"].(map[string]any); ok {
			of = e
		}
		if details, ok := of["details"].(map[string]any); ok {
			delete(details, "retry_after_seconds")
			delete(details, "reset_at")
		}
		text, _ := json.Marshal(object)
		body = string(text)
	}
	return fmt.Sprint(a.status, h, body)
}

// TestBothProtocolsDecideTheSame checks that a request over gRPC, in either form, and the same request over HTTP get the same
// client, the same counters and the same response.
func TestBothProtocolsDecideTheSame(t *testing.T) {
	b := newAuthNode(t, authRules, httplimit.Options{Identity: httplimit.Identity{
		APIKey: httplimit.Source{Header: "X-API-Key", Bearer: true, Query: "key"}, User: httplimit.Source{Header: "X-User"}, KnownKeys: knownKey("k2"),
	}}, envoy.ServerOptions{})
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 1))
	pick := func(list ...string) string { return list[rng.IntN(len(list))] }
	names := []string{"X-API-Key", "x-api-key", "X_API_Key", "Authorization", "X-User", "X-Forwarded-For", "X-Tenant", "Origin", "Access-Control-Request-Method", "Accept", "Cookie", "X-HTTP-Method-Override", "X-Real-Name", "Te"}
	values := []string{"k1", "k2", "blocked1", "blocked2", "blocked3", "Bearer k1", "bearer  k2", "Token token=k1", "Basic abc=", "k1,k2", "a b", "ü", "203.0.113.9", "198.51.100.1, 10.0.0.2", "https://a.example", "PUT", "application/problem+json", "x=y", "DELETE"}
	counts := map[int]int{}
	for range 700 {
		a := authQuestion{
			method: pick("GET", "POST", "OPTIONS", "HEAD", "post", "DELETE"),
			target: pick("/", "/login", "//login", "/LOGIN/", "/a/../login", "/%6cogin", "/login;x=y", "/tenant/1?key=k1", "/window?key=k1&key=k2", "/status", "/tenant/%2e%2e/login", "/a?b=/../c", "/"+strings.Repeat("a/", 2100)),
			host:   pick("shop.example", "SHOP.example:80", "other.example"),
			peer:   pick("203.0.113.7", "10.0.0.1", "::1", "2001:db8::7", "::ffff:10.0.0.1"),
		}
		used := map[string]bool{}
		for range rng.IntN(4) {
			name := pick(names...)
			if used[strings.ToLower(name)] {
				continue // Envoy joins repeated headers; TestHostileChecks has cases of these
			}
			used[strings.ToLower(name)] = true
			a.headers = append(a.headers, [2]string{name, pick(values...)})
		}
		b.last()
		want := b.overHTTP(t, a)
		decided := b.last()
		for form, req := range map[string]*auth.CheckRequest{"joined": a.joined(), "raw": a.raw()} {
			got := b.overGRPC(t, req)
			// The statuses may differ, because the previous request may have taken the last token of a limit.
			if seen := b.last(); got.timeless() != want.timeless() && got.status == want.status || seen != decided && got.status == want.status {
				t.Fatalf("seed %d, %s: %+v\nover gRPC %s\n          %s\nover HTTP %s\n          %s", seed, form, a, got.timeless(), seen, want.timeless(), decided)
			} else if got.status != want.status && got.status != 429 {
				t.Fatalf("seed %d, %s: %+v\nover gRPC %d, over HTTP %d", seed, form, a, got.status, want.status)
			} else if before, now := want.headers["X-Ratelimit-Remaining"], got.headers["X-Ratelimit-Remaining"]; got.status == 200 && before != "" {
				var x, y int
				fmt.Sscan(before, &x)
				fmt.Sscan(now, &y)
				if y != x-1 && !strings.Contains(a.target, "status") {
					t.Fatalf("seed %d, %s: %+v\n%s left over HTTP, then %s over gRPC", seed, form, a, before, now)
				}
			}
			want.headers["X-Ratelimit-Remaining"] = got.headers["X-Ratelimit-Remaining"]
			if want.headers["X-Ratelimit-Remaining"] == "" {
				delete(want.headers, "X-Ratelimit-Remaining")
			}
			counts[got.status]++
		}
	}
	for _, status := range []int{200, 400, 403, 429} {
		if counts[status] == 0 {
			t.Errorf("statuses: %v", counts)
		}
	}
}

// knownKey is a set with a single known key.
type knownKey string

func (k knownKey) Contains(key string) bool { return key == string(k) }

// TestExactlyAHundred sends 500 requests at a limit of 100, and checks that exactly 100 are allowed, with the right
// headers.
func TestExactlyAHundred(t *testing.T) {
	b := newAuthNode(t, authRules, httplimit.Options{MaxInFlight: 8}, envoy.ServerOptions{})
	var allowed, refused atomic.Int64
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			for range 50 {
				a := b.overGRPC(t, authQuestion{"GET", "/window?a=b", "shop.example", "203.0.113.7", [][2]string{{"X-API-Key", "k"}}}.joined())
				switch h := a.headers; {
				case h["X-Ratelimit-Limit"] != "100" || h["X-Ratelimit-Reset"] == "" || !strings.HasPrefix(h["Ratelimit-Policy"], `"window";q=100`) || h["Ratelimit"] == "":
					t.Errorf("%+v", a)
				case a.status == 200 && a.body == "" && h["Retry-After"] == "":
					allowed.Add(1)
				case a.status == 429 && h["Retry-After"] != "" && h["X-Ratelimit-Rule"] == "window" && h["Content-Type"] == "application/json" &&
					h["Cache-Control"] == "no-store" && h["Content-Length"] == "" && strings.HasPrefix(a.body, `{"error":{"code":"RATE_LIMIT_EXCEEDED"`):
					refused.Add(1)
				default:
					t.Errorf("%+v", a)
				}
			}
		})
	}
	all.Wait()
	if allowed.Load() != 100 || refused.Load() != 400 {
		t.Errorf("%d were allowed, %d refused", allowed.Load(), refused.Load())
	}
}

// TestHostileChecks checks that a crafted request is counted for its real client, or refused without being counted.
func TestHostileChecks(t *testing.T) {
	b := newAuthNode(t, authRules, httplimit.Options{}, envoy.ServerOptions{})
	base := authQuestion{"POST", "/login", "shop.example", "203.0.113.7", nil}
	with := func(headers ...[2]string) authQuestion {
		a := base
		a.headers = headers
		return a
	}
	change := func(req *auth.CheckRequest, how func(*auth.AttributeContext)) *auth.CheckRequest {
		how(req.Attributes)
		return req
	}
	http := func(a *auth.AttributeContext) *auth.AttributeContext_HttpRequest { return a.Request.Http }
	const login = `extauthz "POST" "/login" 203.0.113.7`
	for name, c := range map[string]struct {
		req    *auth.CheckRequest
		status int
		seen   string // "" if nobody is counted
		says   string
	}{
		"plain":                      {base.joined(), 200, login, ""},
		"a forged chain":             {with([2]string{"X-Forwarded-For", "192.0.2.1"}, [2]string{"X-Real-IP", "192.0.2.2"}, [2]string{"Forwarded", "for=192.0.2.3"}).joined(), 200, login, ""},
		"a chain of a trusted proxy": {change(with([2]string{"X-Forwarded-For", "192.0.2.1, 203.0.113.7"}).joined(), func(a *auth.AttributeContext) { a.Source.Address = socket("10.1.1.1") }), 200, login, ""},
		"another path as a header":   {change(base.joined(), func(a *auth.AttributeContext) { http(a).Headers[":path"] = "/free" }), 200, login, ""},
		"paths twice": {change(base.raw(), func(a *auth.AttributeContext) {
			http(a).HeaderMap.Headers = append(http(a).HeaderMap.Headers, &core.HeaderValue{Key: ":path", Value: "/free"})
		}), 200, login, ""},
		"a key twice":               {with([2]string{"X-API-Key", "a"}, [2]string{"X-API-Key", "b"}).raw(), 400, "identity_required", "AMBIGUOUS_IDENTITY"},
		"a key twice, joined":       {with([2]string{"X-API-Key", "a"}, [2]string{"X-API-Key", "b"}).joined(), 400, "identity_required", "AMBIGUOUS_IDENTITY"},
		"a key in both forms":       {change(with([2]string{"X-API-Key", "a"}).raw(), func(a *auth.AttributeContext) { http(a).Headers = map[string]string{"X-Api-Key": "b"} }), 400, "identity_required", "AMBIGUOUS_IDENTITY"},
		"a key in two cases":        {change(with([2]string{"x-api-key", "a"}).joined(), func(a *auth.AttributeContext) { http(a).Headers["X-API-KEY"] = "b" }), 400, "identity_required", "AMBIGUOUS_IDENTITY"},
		"bytes that aren't text":    {with([2]string{"X-API-Key", "k\xff"}).raw(), 400, "identity_required", "AMBIGUOUS_IDENTITY"},
		"a NUL":                     {with([2]string{"X-API-Key", "k\x00"}).raw(), 400, "identity_required", "AMBIGUOUS_IDENTITY"},
		"an alias that isn't text":  {with([2]string{"X-API\xffKey", "k"}).raw(), 200, login, ""},
		"a blocked key":             {with([2]string{"X-API-Key", "blocked1"}).joined(), 403, `"blocked1"`, "KEY_BLOCKED"},
		"a method in small letters": {change(base.joined(), func(a *auth.AttributeContext) { http(a).Method = "post" }), 200, `extauthz "post" "/login" 203.0.113.7 "" "" false false within login`, ""},
		"an OPTIONS with a body":    {change(with([2]string{"Origin", "https://a"}, [2]string{"Access-Control-Request-Method", "PUT"}, [2]string{"Content-Length", "5"}).joined(), func(a *auth.AttributeContext) { http(a).Method = "OPTIONS" }), 200, `"" "" false false within all`, ""},
		"an OPTIONS of chunks":      {change(with([2]string{"Origin", "https://a"}, [2]string{"Access-Control-Request-Method", "PUT"}, [2]string{"Transfer-Encoding", "chunked"}).joined(), func(a *auth.AttributeContext) { http(a).Method = "OPTIONS" }), 200, `"" "" false false within all`, ""},
		"an OPTIONS that has bytes": {change(with([2]string{"Origin", "https://a"}, [2]string{"Access-Control-Request-Method", "PUT"}).joined(), func(a *auth.AttributeContext) { http(a).Method, http(a).Size = "OPTIONS", 5 }), 200, `"" "" false false within all`, ""},
		"a preflight":               {change(with([2]string{"Origin", "https://a"}, [2]string{"Access-Control-Request-Method", "PUT"}, [2]string{"Content-Length", "0"}).joined(), func(a *auth.AttributeContext) { http(a).Method = "OPTIONS" }), 200, `"" "" true false within preflight`, ""},
		"a path that can't be read": {change(base.joined(), func(a *auth.AttributeContext) { http(a).Path = "/%zz" }), 400, "", "BAD_TARGET"},
		"no path":                   {change(base.joined(), func(a *auth.AttributeContext) { http(a).Path = "" }), 400, "", "BAD_TARGET"},
		"a path that is too long":   {change(base.joined(), func(a *auth.AttributeContext) { http(a).Path = "/" + strings.Repeat("a", 60<<10) }), 400, "unreadable_path", "UNREADABLE_PATH"},
		"nothing":                   {&auth.CheckRequest{}, 400, "", "attributes.source.address"},
		"no address":                {change(base.joined(), func(a *auth.AttributeContext) { a.Source = nil }), 400, "", "attributes.source.address"},
		"a pipe": {change(base.joined(), func(a *auth.AttributeContext) {
			a.Source.Address = &core.Address{Address: &core.Address_Pipe{Pipe: &core.Pipe{Path: "/a"}}}
		}), 400, "", "attributes.source.address"},
		"no request":               {change(base.joined(), func(a *auth.AttributeContext) { a.Request = nil }), 400, "", "BAD_TARGET"},
		"all the headers that fit": {with([2]string{"X-Junk", strings.Repeat("x", 200<<10)}, [2]string{"X-API-Key", "k"}).joined(), 200, login + ` "k"`, ""},
	} {
		b := newAuthNode(t, authRules, httplimit.Options{}, envoy.ServerOptions{})
		got := b.overGRPC(t, c.req)
		if seen := b.last(); got.status != c.status || (c.seen == "") != (seen == "") || !strings.Contains(seen, c.seen) || !strings.Contains(got.body, c.says) {
			t.Errorf("%s: %d %q\n%s", name, got.status, got.body, seen)
		}
	}
	// A message that can't be decoded, or that is larger than all headers that Envoy accepts from a client, gets an
	// error. What Envoy then does is up to its configuration.
	for name, req := range map[string]*auth.CheckRequest{"a huge message": with([2]string{"X-Junk", strings.Repeat("x", 1<<20)}).raw()} {
		if _, err := b.Check(t.Context(), req); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := b.overGRPC(t, base.joined()); got.status != 200 {
		t.Errorf("after the hostile checks: %+v", got)
	}
	// The host comes from Envoy, not from a header.
	for i, host := range []string{"a.example", "b.example", "c.example"} {
		a := with([2]string{"X-Tenant", "t"}, [2]string{"Host", host})
		a.target = "/tenant/1"
		if got := b.overGRPC(t, a.raw()); got.status == 200 != (i < 2) {
			t.Errorf("%s: %+v", host, got)
		}
	}
}
