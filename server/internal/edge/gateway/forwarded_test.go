package gateway

import (
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"github.com/weirhq/weir"
)

// The network of this test's clients, as IPv4 and as IPv4-mapped IPv6, and a network that they aren't in.
var (
	loopback4  = netip.MustParsePrefix("127.0.0.0/8")
	loopback46 = netip.MustParsePrefix("::ffff:127.0.0.0/104")
	elsewhere  = netip.MustParsePrefix("10.0.0.0/8")
)

// Forwarding headers from untrusted clients are replaced. Those from a trusted proxy are forwarded, with the proxy's
// address added.
func TestForwardedHeaders(t *testing.T) {
	forged := http.Header{
		"X-Forwarded-For":    {"203.0.113.7, 10.0.0.1", "10.0.0.2"},
		"X-Forwarded-Host":   {"shop.example"},
		"X-Forwarded-Proto":  {"https"},
		"X-Forwarded-Port":   {"8443"},
		"X-Forwarded-Prefix": {"/admin"},
		"X-Real-Ip":          {"203.0.113.7"},
		"Forwarded":          {"for=203.0.113.7;proto=https"},
		"X_Forwarded_For":    {"127.0.0.1"},
		"X.forwarded.for":    {"127.0.0.1"},
		"X-Forwarded_Host":   {"evil.example"},
		"X-Forward":          {"unrelated"},
		"Fetch-Mode":         {"unrelated"},
	}
	const self = "self" // the gateway's own address
	for _, c := range []struct {
		name    string
		trusted []netip.Prefix
		send    http.Header
		want    map[string]string
	}{
		{"nobody trusted, nothing sent", nil, nil, map[string]string{
			"X-Forwarded-For": "127.0.0.1", "X-Forwarded-Host": self, "X-Forwarded-Proto": "http", "Forwarded": "",
		}},
		{"nobody trusted, forged", nil, forged, map[string]string{
			"X-Forwarded-For": "127.0.0.1", "X-Forwarded-Host": self, "X-Forwarded-Proto": "http", "Forwarded": "",
			"X-Forwarded-Port": "", "X-Forwarded-Prefix": "", "X-Real-Ip": "", "X_forwarded_for": "", "X.forwarded.for": "", "X-Forwarded_host": "",
			"X-Forward": "unrelated", "Fetch-Mode": "unrelated",
		}},
		{"others trusted, forged", []netip.Prefix{elsewhere}, forged, map[string]string{
			"X-Forwarded-For": "127.0.0.1", "X-Forwarded-Host": self, "X-Forwarded-Proto": "http", "Forwarded": "", "X-Real-Ip": "",
		}},
		{"trusted", []netip.Prefix{elsewhere, loopback4}, forged, map[string]string{
			"X-Forwarded-For": "203.0.113.7, 10.0.0.1, 10.0.0.2, 127.0.0.1", "X-Forwarded-Host": "shop.example", "X-Forwarded-Proto": "https",
			"Forwarded": "for=203.0.113.7;proto=https", "X-Forwarded-Port": "8443", "X-Forwarded-Prefix": "/admin", "X-Real-Ip": "203.0.113.7",
			"X_forwarded_for": "", "X.forwarded.for": "", "X-Forwarded_host": "",
		}},
		{"trusted as IPv4 in IPv6", []netip.Prefix{loopback46}, forged, map[string]string{
			"X-Forwarded-For": "203.0.113.7, 10.0.0.1, 10.0.0.2, 127.0.0.1",
		}},
		{"trusted, nothing sent", []netip.Prefix{loopback4}, nil, map[string]string{
			"X-Forwarded-For": "127.0.0.1", "X-Forwarded-Host": self, "X-Forwarded-Proto": "http", "Forwarded": "",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			up := startUpstream(t, nil)
			d := start(t, setup{upstream: up.URL, opts: Options{TrustedProxies: c.trusted}})
			req := d.request(t, "GET", "/", nil)
			req.Header = c.send.Clone()
			if a := d.do(t, req); a.StatusCode != 200 {
				t.Fatal(a.Status)
			}
			got := up.last(t)
			for name, want := range c.want {
				if want == self {
					want = d.addr()
				}
				if have := strings.Join(got.Header[name], " | "); have != want {
					t.Errorf("%s is %q, want %q", name, have, want)
				}
			}
			if host := strings.TrimPrefix(up.URL, "http://"); got.Host != host {
				t.Errorf("Host is %q, want the upstream's, %q", got.Host, host)
			}
		})
	}
}

// The limiter counts the same client address that the upstream is told.
func TestClientBehindTrustedProxyIsCounted(t *testing.T) {
	up := startUpstream(t, nil)
	for _, c := range []struct {
		trusted []netip.Prefix
		want    int // how many of three requests pass: each names another client, and the limit is one per client
	}{{[]netip.Prefix{loopback4}, 3}, {nil, 1}} {
		d := start(t, setup{upstream: up.URL, opts: Options{TrustedProxies: c.trusted}, limiter: limiterOf(t, weir.Options{}, few("one", "/", 1))})
		admitted := 0
		for i := range 3 {
			req := d.request(t, "GET", "/", nil)
			req.Header.Set("X-Forwarded-For", fmt.Sprintf("203.0.113.%d", i))
			if d.do(t, req).StatusCode == 200 {
				admitted++
			}
		}
		if admitted != c.want {
			t.Errorf("trusting %v: %d admitted, want %d", c.trusted, admitted, c.want)
		}
	}
}

func TestForwardedProtoOverTLS(t *testing.T) {
	up := startUpstream(t, nil)
	d := start(t, setup{upstream: up.URL, tls: true})
	req := d.request(t, "GET", "/", nil)
	req.Header.Set("X-Forwarded-Proto", "http")
	d.do(t, req)
	if got := up.last(t).Header.Get("X-Forwarded-Proto"); got != "https" {
		t.Errorf("X-Forwarded-Proto is %q", got)
	}
}

// The gateway forwards no hop-by-hop headers, and a client can't make it drop its own headers by listing them in
// Connection.
func TestHopByHopHeaders(t *testing.T) {
	up := startUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "X-Private, X-RateLimit-Limit")
		w.Header().Set("X-Private", "1")
		w.Header().Set("Keep-Alive", "timeout=5")
		w.Header().Set("Proxy-Authenticate", "Basic")
	})
	d := start(t, setup{upstream: up.URL})
	a := d.raw(t, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close, X-Secret, X-Forwarded-For, X-Forwarded-Host\r\n"+
		"X-Secret: 1\r\nKeep-Alive: 5\r\nProxy-Authorization: Basic eA==\r\nProxy-Connection: keep-alive\r\nTE: trailers, deflate\r\n\r\n")
	if a.StatusCode != 200 || a.Header.Get("X-RateLimit-Limit") == "" {
		t.Fatal(a.Status, a.Header)
	}
	got := up.last(t).Header
	for _, name := range []string{"X-Secret", "Keep-Alive", "Proxy-Authorization", "Proxy-Connection", "Connection", "User-Agent"} {
		if v, ok := got[name]; ok {
			t.Errorf("%s: %q reached the upstream", name, v)
		}
	}
	if got.Get("X-Forwarded-For") != "127.0.0.1" || got.Get("X-Forwarded-Host") != "x" || got.Get("Te") != "trailers" {
		t.Errorf("upstream got %v", got)
	}
	for _, name := range []string{"X-Private", "Keep-Alive", "Proxy-Authenticate"} {
		if v, ok := a.Header[name]; ok {
			t.Errorf("%s: %q reached the client", name, v)
		}
	}
}

func TestOptions(t *testing.T) {
	limit := start(t, setup{upstream: "http://127.0.0.1:1"}).gateway.opts.Limit
	for _, c := range []struct {
		upstream string
		nolimit  bool
		want     string
	}{
		{"http://127.0.0.1:9000", false, ""},
		{"https://up.example/base", false, ""},
		{"", false, "upstream: must be given"},
		{"http://127.0.0.1:9000", true, "limit: must be given"},
		{"127.0.0.1/x", false, "upstream: must be a URL"},
		{"ftp://up.example", false, "upstream: must be a URL"},
		{"http:///path", false, "upstream: must be a URL"},
		{"http://user:hunter2@up.example", false, "upstream: must not hold a user"},
		{"ftp://user:hunter2@up.example", false, "upstream: must be a URL"},
		{"http://up.example/?q=1", false, "neither query nor fragment"},
		{"http://up.example/#f", false, "neither query nor fragment"},
	} {
		o := Options{Limit: limit}
		if c.nolimit {
			o.Limit = nil
		}
		if c.upstream != "" {
			u, err := url.Parse(c.upstream)
			if err != nil {
				t.Fatal(err)
			}
			o.Upstream = u
		}
		g, err := New(o)
		if c.want == "" {
			if err != nil {
				t.Errorf("%q: %v", c.upstream, err)
			} else {
				g.Close()
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: %v, want %q", c.upstream, err, c.want)
		}
	}
}
