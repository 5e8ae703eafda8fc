package test

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/server/test/gateways"
)

// forger generates requests with which a client may try to pass for another client.
type forger struct{ *rand.Rand }

func (f forger) pick(list ...string) string { return list[f.IntN(len(list))] }

// name returns a header's name in one of the spellings that some servers accept.
func (f forger) name(name string) string {
	switch f.IntN(6) {
	case 0:
		return strings.ReplaceAll(name, "-", "_")
	case 1:
		return strings.ReplaceAll(name, "-", ".")
	case 2:
		return strings.Replace(name, "-", "_", 1)
	case 3:
		return strings.Map(func(c rune) rune {
			if f.IntN(2) == 0 {
				return []rune(strings.ToUpper(string(c)))[0]
			}
			return []rune(strings.ToLower(string(c)))[0]
		}, name)
	}
	return name
}

// headers returns headers that gateways set or that a server might trust, with values that would help an attacker.
func (f forger) headers() (lines [][2]string) {
	for range 1 + f.IntN(4) {
		name := f.name(f.pick(
			"X-Forwarded-For", "X-Forwarded-Uri", "X-Forwarded-Method", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-Port", "X-Forwarded-Prefix",
			"X-Forwarded-Server", "Forwarded", "X-Original-URI", "X-Original-Method", "X-Original-URL", "X-Original-Host", "X-Rewrite-URL", "X-Real-IP",
			"X-Weir-Token", "X-Weir-Status", "X-Weir-Body", "X-Weir-Client", "X-HTTP-Method-Override", "X-RateLimit-Remaining", "RateLimit",
			"X-Envoy-External-Address", "True-Client-IP", "Client-IP", "Via",
		))
		for range 1 + f.IntN(2) {
			lines = append(lines, [2]string{name, f.pick(
				"192.0.2.7", "192.0.2.7, 127.0.0.1", "127.0.0.1", "::1", "/free", "/login", "http://other.example/free", "GET", "POST", "for=192.0.2.7",
				"OPTIONS", "200", "other.example", "https", "x", strings.Repeat("/x", 500), "",
			)})
		}
		switch f.IntN(8) {
		case 0:
			lines = append(lines, [2]string{"Connection", name})
		case 1: // headers that gateways set
			lines = append(lines, [2]string{"connection", f.pick("keep-alive", "te") + ", " + f.pick("X-Forwarded-Uri, X-Forwarded-Method, X-Forwarded-For",
				"x-original-uri, x-original-method, x-real-ip", "X-Real-IP", "X-Weir-Token, x-forwarded-host")})
		}
	}
	return lines
}

// Whatever headers a client sends, its requests are either counted for its own address and the real path, or refused
// without being counted.
func TestGatewaysThatAskAreNotDeceived(t *testing.T) {
	t.Parallel()
	askAll(t, func(t *testing.T, a *asked) {
		seed := rand.Uint64()
		f := forger{rand.New(rand.NewPCG(seed, 1))}
		left := -1
		for protocol, send := range map[string]func([][2]string) (*http.Response, error){"HTTP/1.1": a.http1(t, f), "HTTP/2": a.http2(t)} {
			if protocol == "HTTP/2" && !a.gateway.H2C {
				continue
			}
			const all = 300
			served := 0
			for range all {
				headers := f.headers()
				res, err := send(headers)
				if err != nil {
					t.Fatalf("seed %d, %s: %v\n%s", seed, protocol, err, headers)
				}
				text, err := io.ReadAll(res.Body)
				res.Body.Close()
				if err != nil {
					t.Fatal(err)
				}
				if res.StatusCode == 400 {
					continue
				}
				now, err := strconv.Atoi(res.Header.Get("X-RateLimit-Remaining"))
				if res.StatusCode != 200 || err != nil || left >= 0 && now != left-1 || !strings.HasPrefix(res.Header.Get("RateLimit"), `"login"`) || !strings.HasSuffix(string(text), "/login\n") {
					t.Fatalf("seed %d, %s: %d, %d left after %d\n%s\n%v %s", seed, protocol, res.StatusCode, now, left, headers, res.Header, text)
				}
				left = now
				served++
			}
			if served < all/2 {
				t.Errorf("%s: only %d of %d were served", protocol, served, all)
			}
		}
		// The counter is that of the address, which Weir's own gateway also uses.
		if res, _ := call(t, "POST", a.node.Gateway+"/login", ""); res.Header.Get("X-RateLimit-Remaining") != strconv.Itoa(left-1) {
			t.Errorf("Weir's gateway has %s left, %s had %d", res.Header.Get("X-RateLimit-Remaining"), a.gateway.Name, left)
		}
	})
}

// http1 returns a function that sends POST /login with the headers exactly as given, on one connection as long as it
// stays open.
func (a *asked) http1(t *testing.T, f forger) func([][2]string) (*http.Response, error) {
	var conn net.Conn
	var in *bufio.Reader
	return func(headers [][2]string) (*http.Response, error) {
		if conn == nil {
			conn = dial(t, a.url)
			in = bufio.NewReader(conn)
		}
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 0\r\n", f.pick("/login", "/login", "http://shop.example/login"))
		for _, h := range headers {
			fmt.Fprintf(conn, "%s:%s%s\r\n", h[0], f.pick(" ", "", "\t "), h[1])
		}
		io.WriteString(conn, "\r\n")
		res, err := http.ReadResponse(in, nil)
		if err == nil && res.Close {
			text, _ := io.ReadAll(res.Body)
			res.Body = io.NopCloser(strings.NewReader(string(text)))
			conn.Close()
			conn = nil
		}
		return res, err
	}
}

// http2 returns a function that does the same over HTTP/2, which has no Connection header.
func (a *asked) http2(t *testing.T) func([][2]string) (*http.Response, error) {
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(transport.CloseIdleConnections)
	return func(headers [][2]string) (*http.Response, error) {
		req, err := http.NewRequestWithContext(t.Context(), "POST", a.url+"/login", nil)
		if err != nil {
			return nil, err
		}
		for _, h := range headers {
			if !strings.EqualFold(h[0], "Connection") {
				req.Header[h[0]] = append(req.Header[h[0]], h[1])
			}
		}
		res, err := transport.RoundTrip(req)
		if err == nil && res.ProtoMajor != 2 {
			err = fmt.Errorf("the protocol is %s", res.Proto)
		}
		return res, err
	}
}

// The service gets the same key that was charged, however often and in whatever spelling a client sends the header.
func TestGatewaysThatAskChargeTheKeyThatTheyForward(t *testing.T) {
	t.Parallel()
	askAll(t, func(t *testing.T, a *asked) {
		seed := rand.Uint64()
		f := forger{rand.New(rand.NewPCG(seed, 2))}
		served := 0
		for i := range 150 {
			var head strings.Builder
			for n := range 1 + f.IntN(2)*f.IntN(3) {
				name := "X-API-Key"
				if f.IntN(3) == 0 {
					name = f.name(name)
				}
				fmt.Fprintf(&head, "%s:%s%s-%d-%d%s\r\n", name, f.pick(" ", "", "\t"), a.gateway.Name, i, f.IntN(n+1), f.pick("", "", " ", ",other", "\r\n other"))
				if f.IntN(3) == 0 {
					fmt.Fprintf(&head, "%s: %s%s\r\n", f.pick("Connection", "connection", "Trailer"), f.pick("", "keep-alive, "), f.pick(name, "X-API-Key", "x-api-key"))
				}
			}
			conn := dial(t, a.url)
			fmt.Fprintf(conn, "GET /window HTTP/1.1\r\nHost: shop.example\r\n%s\r\n", head.String())
			res, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatalf("seed %d: %v\n%s", seed, err, head.String())
			}
			conn.Close()
			if res.StatusCode != 200 {
				continue
			}
			served++
			keys := res.Header["Got-Key"]
			if len(keys) > 1 {
				t.Errorf("seed %d: the service has %q to choose from\n%s", seed, keys, head.String())
			}
			for _, key := range keys {
				if res, _ := call(t, "GET", a.node.Gateway+"/window", "", "X-API-Key: "+key); res.Header.Get("X-RateLimit-Remaining") != "98" {
					t.Errorf("seed %d: the service serves %s, of which %s are left at Weir\n%s", seed, key, res.Header.Get("X-RateLimit-Remaining"), head.String())
				}
			}
		}
		if served < 20 {
			t.Errorf("only %d were served", served)
		}
	})
}

// rawRequests returns requests that servers interpret differently, so that a gateway and the server that it asks might
// disagree.
func rawRequests() map[string]string {
	const (
		host    = "Host: shop.example\r\n"
		last    = host + "Connection: close\r\n"
		hidden  = "GET /window HTTP/1.1\r\n" + last + "\r\n"
		chunked = "Transfer-Encoding: chunked\r\n"
	)
	length := fmt.Sprintf("Content-Length: %d\r\n", len(hidden))
	all := map[string]string{
		"pipelined":               "GET /window HTTP/1.1\r\n" + host + "\r\n" + hidden,
		"a body that is one":      "GET /window HTTP/1.1\r\n" + last + length + "\r\n" + hidden,
		"length and chunks":       "POST /window HTTP/1.1\r\n" + host + length + chunked + "\r\n0\r\n\r\n" + hidden,
		"chunks and length":       "POST /window HTTP/1.1\r\n" + host + chunked + "Content-Length: 4\r\n\r\n0\r\n\r\n" + hidden,
		"two lengths":             "POST /window HTTP/1.1\r\n" + host + "Content-Length: 0\r\n" + length + "\r\n" + hidden,
		"a list of lengths":       "POST /window HTTP/1.1\r\n" + host + "Content-Length: 0, 0\r\n\r\n" + hidden,
		"a signed length":         "POST /window HTTP/1.1\r\n" + host + "Content-Length: +0\r\n\r\n" + hidden,
		"chunks with a blank":     "POST /window HTTP/1.1\r\n" + host + "Content-Length: 0\r\nTransfer-Encoding : chunked\r\n\r\n" + hidden,
		"chunks in other words":   "POST /window HTTP/1.1\r\n" + host + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + hidden,
		"chunks twice":            "POST /window HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + hidden,
		"chunks folded":           "POST /window HTTP/1.1\r\n" + host + "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n" + hidden,
		"a chunk that isn't one":  "POST /window HTTP/1.1\r\n" + last + chunked + "\r\nzz\r\n" + hidden,
		"a chunk that is short":   "POST /window HTTP/1.1\r\n" + last + chunked + "\r\nff\r\nabc",
		"a body that is short":    "POST /window HTTP/1.1\r\n" + last + "Content-Length: 1000\r\n\r\nabc",
		"a trailer":               "POST /window HTTP/1.1\r\n" + last + chunked + "Trailer: X-Forwarded-Uri\r\n\r\n0\r\nX-Forwarded-Uri: /free\r\n\r\n",
		"bare line feeds":         "GET /window HTTP/1.1\n" + strings.ReplaceAll(last, "\r", "") + "\n",
		"a bare carriage return":  "GET /window HTTP/1.1\r\nX: a\rX-Forwarded-Uri: /free\r\n" + last + "\r\n",
		"a NUL":                   "GET /window HTTP/1.1\r\nX: a\x00b\r\n" + last + "\r\n",
		"an escaped line":         "GET /free%0d%0aX-Forwarded-Uri:%20/x HTTP/1.1\r\n" + last + "\r\n",
		"HTTP/1.0":                "GET /window HTTP/1.0\r\n\r\n",
		"HTTP/1.0 in chunks":      "POST /window HTTP/1.0\r\n" + host + chunked + "\r\n0\r\n\r\n" + hidden,
		"HTTP/0.9":                "GET /window\r\n\r\n",
		"HTTP/1.2":                "GET /window HTTP/1.2\r\n" + last + "\r\n",
		"HTTP/3.0":                "GET /window HTTP/3.0\r\n" + last + "\r\n",
		"no host":                 "GET /window HTTP/1.1\r\nConnection: close\r\n\r\n",
		"two hosts":               "GET /window HTTP/1.1\r\nHost: other.example\r\n" + last + "\r\n",
		"absolute":                "GET http://other.example/window HTTP/1.1\r\n" + last + "\r\n",
		"absolute, without path":  "GET http://other.example HTTP/1.1\r\n" + last + "\r\n",
		"absolute, with query":    "GET http://other.example?a=/window HTTP/1.1\r\n" + last + "\r\n",
		"absolute, with a user":   "GET http://a:b@other.example/window HTTP/1.1\r\n" + last + "\r\n",
		"absolute, other scheme":  "GET file:///window HTTP/1.1\r\n" + last + "\r\n",
		"a fragment":              "GET /window#/free HTTP/1.1\r\n" + last + "\r\n",
		"no path":                 "GET  HTTP/1.1\r\n" + last + "\r\n",
		"a query alone":           "GET ?a=b HTTP/1.1\r\n" + last + "\r\n",
		"a blank in the path":     "GET /free /window HTTP/1.1\r\n" + last + "\r\n",
		"TRACE":                   "TRACE /window HTTP/1.1\r\n" + last + "\r\n",
		"CONNECT":                 "CONNECT shop.example:80 HTTP/1.1\r\n" + last + "\r\n",
		"CONNECT to a path":       "CONNECT /window HTTP/1.1\r\n" + last + "\r\n",
		"lower case":              "get /window HTTP/1.1\r\n" + last + "\r\n",
		"an unknown method":       "FETCH /window HTTP/1.1\r\n" + last + "\r\n",
		"OPTIONS *":               "OPTIONS * HTTP/1.1\r\n" + last + "\r\n",
		"OPTIONS":                 "OPTIONS /window HTTP/1.1\r\n" + last + "\r\n",
		"a preflight":             "OPTIONS /window HTTP/1.1\r\n" + last + "Origin: https://a\r\nAccess-Control-Request-Method: POST\r\n\r\n",
		"a preflight with a body": "OPTIONS /window HTTP/1.1\r\n" + last + "Origin: https://a\r\nAccess-Control-Request-Method: POST\r\nContent-Length: 3\r\n\r\nabc",
		"Expect":                  "POST /window HTTP/1.1\r\n" + last + "Expect: 100-continue\r\nContent-Length: 3\r\n\r\nabc",
		"Expect, no body":         "GET /window HTTP/1.1\r\n" + last + "Expect: 100-continue\r\n\r\n",
		"Expect something":        "GET /window HTTP/1.1\r\n" + last + "Expect: a miracle\r\n\r\n",
		"a WebSocket":             "GET /window HTTP/1.1\r\n" + host + "Connection: Upgrade, close\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
		"h2c":                     "GET /window HTTP/1.1\r\n" + host + "Connection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n",
		"HTTP/2's preface":        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + hidden,
		"PROXY":                   "PROXY TCP4 192.0.2.7 127.0.0.1 1 80\r\n" + hidden,
	}
	for _, size := range []int{4, 7, 12, 15, 16, 31} {
		long := strings.Repeat("x", size<<10)
		all[fmt.Sprintf("a header of %d KiB", size)] = "GET /window HTTP/1.1\r\n" + last + "X-Long: " + long + "\r\n\r\n"
		all[fmt.Sprintf("headers of %d KiB", size)] = "GET /window HTTP/1.1\r\n" + last + strings.Repeat("X-Long: "+long[:1000]+"\r\n", size) + "\r\n"
		all[fmt.Sprintf("a path of %d KiB", size)] = "GET /" + long + " HTTP/1.1\r\n" + last + "\r\n"
		all[fmt.Sprintf("a query of %d KiB", size)] = "GET /window?" + long + " HTTP/1.1\r\n" + last + "\r\n"
		all[fmt.Sprintf("%d hundred headers", size)] = "GET /window HTTP/1.1\r\n" + last + strings.Repeat("X: y\r\n", 100*size) + "\r\n"
	}
	return all
}

// Only requests that Weir has admitted reach the service, even if the gateway lets requests pass while Weir is down: a
// client can't cause that.
func TestGatewaysThatAskForwardNothingUncounted(t *testing.T) {
	t.Parallel()
	askAll(t, func(t *testing.T, a *asked) {
		for name, change := range map[string][]string{"closed": nil, "open": letPass(t, a.gateway, a.service)} {
			if name == "open" {
				if change == nil {
					continue
				}
				if a.gateway == gateways.HAProxy { // without this, HAProxy refuses requests that Weir should refuse
					change = append(change, "global\n", "global\n    tune.bufsize 65536\n")
				}
				a.start(t, strings.TrimPrefix(a.node.HTTP, "http://"), change...)
			}
			begun := a.served.Load()
			for what, text := range rawRequests() {
				conn := dial(t, a.url)
				if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil { // some gateways wait for more data
					t.Fatal(err)
				}
				sent := make(chan struct{})
				go func() {
					defer close(sent)
					_, _ = io.WriteString(conn, text) // the gateway may not read it all
					if strings.Contains(what, "short") {
						_ = conn.(*net.TCPConn).CloseWrite()
					}
				}()
				answer, _ := io.ReadAll(conn)
				conn.Close()
				<-sent
				served := a.served.Load()
				if counted := a.admitted(t); served > counted {
					t.Errorf("%s, %s: %d requests were served, and %d counted\n%.300s", name, what, served, counted, answer)
					a.served.Store(counted)
				}
			}
			if a.served.Load() < begun+20 {
				t.Errorf("%s: only %d were served", name, a.served.Load()-begun)
			}
		}
	})
}

var admittedLine = regexp.MustCompile(`(?m)^weir_decisions_total\{edge="forwardauth",outcome="allowed",.*\} (\d+)$`)

// admitted returns how many of the gateway's requests Weir has admitted.
func (a *asked) admitted(t *testing.T) (n int64) {
	t.Helper()
	_, metrics := call(t, "GET", a.node.Admin+"/metrics", "")
	for _, m := range admittedLine.FindAllStringSubmatch(metrics, -1) {
		count, err := strconv.ParseInt(m[1], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		n += count
	}
	return n
}

// The gateway passes on upgrades to WebSocket only. HTTP/2 requests on an upgraded connection would pass uncounted.
func TestGatewaysThatAskOfferWebSocketAlone(t *testing.T) {
	t.Parallel()
	askAll(t, func(t *testing.T, a *asked) {
		for _, protocol := range []string{"websocket", "WebSocket", "h2c", "H2C", "h2c, websocket", "websocket, h2c", "TLS/1.3", "websocket\r\nUpgrade: h2c", "h2c\r\nUpgrade: websocket"} {
			conn := dial(t, a.url)
			fmt.Fprintf(conn, "GET /free HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\nUpgrade: %s\r\n"+
				"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n", protocol)
			res, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			conn.Close()
			got := strings.Join(res.Header["Got-Upgrade"], ", ")
			if got != "" && !strings.EqualFold(got, "websocket") {
				t.Errorf("%q: %s, and the service is offered %q", protocol, res.Status, got)
			}
			if strings.EqualFold(protocol, "websocket") && got == "" && a.gateway != gateways.Nginx { // nginx's guide doesn't configure WebSocket
				t.Errorf("%s: %s, and the service isn't offered it", protocol, res.Status)
			}
		}
	})
}

// With --http-token, gateways configured as in the docs send the token to Weir instead of any token from the client,
// and never to the service.
func TestGatewaysThatAskSendTheToken(t *testing.T) {
	t.Parallel()
	const secret = "secret-of-the-port"
	sends := map[*gateways.Gateway][]string{
		gateways.Nginx:   {"proxy_pass_request_body off;", "proxy_pass_request_body off;\n        proxy_set_header X-Weir-Token \"" + secret + "\";"},
		gateways.Caddy:   {"\t\theader_up X-Forwarded-Uri {uri}\n", "\t\theader_up X-Forwarded-Uri {uri}\n\t\theader_up X-Weir-Token " + secret + "\n"},
		gateways.HAProxy: {"  headers[\"x-real-ip\"]", "  headers[\"x-weir-token\"] = { \"" + secret + "\" }\n  headers[\"x-real-ip\"]"},
		gateways.Traefik: {
			"      middlewares: [weir]\n", "      middlewares: [weir-token, weir]\n",
			"  middlewares:\n", "  middlewares:\n    weir-token: {headers: {customRequestHeaders: {X-Weir-Token: " + secret + "}}}\n",
			"        authResponseHeaders:\n", "        authResponseHeaders:\n          - X-Weir-Token\n",
		},
	}
	for _, g := range gateways.All() {
		t.Run(g.Name, func(t *testing.T) {
			t.Parallel()
			a := startBehind(t, g, "--http-token", secret)
			weir := strings.TrimPrefix(a.node.HTTP, "http://")
			a.start(t, weir)
			for _, token := range []string{"X: y", "X-Weir-Token: guess"} {
				if res, text := call(t, "GET", a.url+"/window", "", token); res.StatusCode == 200 || a.served.Load() > 0 || strings.Contains(text, secret) {
					t.Errorf("without the token: %d %s", res.StatusCode, text)
				}
			}
			a.start(t, weir, sends[g]...)
			for _, token := range []string{"X: y", "X-Weir-Token: guess"} {
				if res, text := call(t, "GET", a.url+"/window", "", token); res.StatusCode != 200 || res.Header.Get("Got-Token") == secret {
					t.Errorf("%d %s, and the service has %q", res.StatusCode, text, res.Header.Get("Got-Token"))
				}
			}
		})
	}
}
