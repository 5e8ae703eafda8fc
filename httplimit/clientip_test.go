package httplimit_test

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
)

func prefixes(ss ...string) []netip.Prefix {
	var ps []netip.Prefix
	for _, s := range ss {
		ps = append(ps, netip.MustParsePrefix(s))
	}
	return ps
}

func TestClientIP(t *testing.T) {
	trusted := prefixes("10.0.0.0/8", "2001:db8:ffff::/48", "fe80::/10", "::ffff:192.0.2.0/120")
	for _, c := range []struct {
		name, peer string
		forwarded  []string // header lines
		want       string
	}{
		{"no proxy", "203.0.113.7:1234", nil, "203.0.113.7"},
		{"a forged header", "203.0.113.7:1234", []string{"198.51.100.1"}, "203.0.113.7"},
		{"forged proxies", "203.0.113.7:1234", []string{"198.51.100.1, 10.0.0.1, 10.0.0.2"}, "203.0.113.7"},
		{"a proxy", "10.0.0.1:1", []string{"198.51.100.1"}, "198.51.100.1"},
		{"a proxy, and what the client claimed", "10.0.0.1:1", []string{"1.1.1.1, 2.2.2.2, 198.51.100.1"}, "198.51.100.1"},
		{"the client claims to be behind a proxy", "10.0.0.1:1", []string{"1.1.1.1, 10.0.0.9, 198.51.100.1"}, "198.51.100.1"},
		{"two proxies", "10.0.0.1:1", []string{"1.1.1.1, 198.51.100.1, 10.0.0.2"}, "198.51.100.1"},
		{"a line for each proxy", "10.0.0.1:1", []string{"1.1.1.1", "198.51.100.1", "10.0.0.2"}, "198.51.100.1"},
		{"the client's own line first", "10.0.0.1:1", []string{"1.1.1.1, 2.2.2.2", "198.51.100.1"}, "198.51.100.1"},
		{"proxies alone", "10.0.0.1:1", []string{"10.0.0.3, 10.0.0.2"}, "10.0.0.3"},
		{"no header", "10.0.0.1:1", nil, "10.0.0.1"},
		{"an empty header", "10.0.0.1:1", []string{""}, "10.0.0.1"},
		{"an empty last line", "10.0.0.1:1", []string{"1.1.1.1", ""}, "10.0.0.1"},
		{"an empty entry", "10.0.0.1:1", []string{"1.1.1.1, , 10.0.0.2"}, "10.0.0.2"},
		{"a comma at the end", "10.0.0.1:1", []string{"1.1.1.1,"}, "10.0.0.1"},
		{"a comma at the start", "10.0.0.1:1", []string{",198.51.100.1"}, "198.51.100.1"},
		{"spaces and tabs", "10.0.0.1:1", []string{" 1.1.1.1 ,\t198.51.100.1\t"}, "198.51.100.1"},
		{"garbage", "10.0.0.1:1", []string{"1.1.1.1, unknown"}, "10.0.0.1"},
		{"garbage from the client", "10.0.0.1:1", []string{"<script>, 198.51.100.1"}, "198.51.100.1"},
		{"garbage behind a second proxy", "10.0.0.1:1", []string{"1.1.1.1, _hidden, 10.0.0.2"}, "10.0.0.2"},
		{"octal", "10.0.0.1:1", []string{"010.0.0.1"}, "10.0.0.1"},
		{"a port", "10.0.0.1:1", []string{"198.51.100.1:443"}, "198.51.100.1"},
		{"IPv6", "10.0.0.1:1", []string{"2001:db8::1"}, "2001:db8::1"},
		{"IPv6 in brackets", "10.0.0.1:1", []string{"[2001:db8::1]"}, "2001:db8::1"},
		{"IPv6 with a port", "10.0.0.1:1", []string{"[2001:db8::1]:443"}, "2001:db8::1"},
		{"half a bracket", "10.0.0.1:1", []string{"[2001:db8::1"}, "10.0.0.1"},
		{"a zone", "10.0.0.1:1", []string{"2001:db8::1%eth0"}, "2001:db8::1"},
		{"a zone in brackets", "10.0.0.1:1", []string{"[2001:db8::1%eth0]:443"}, "2001:db8::1"},
		{"IPv4 in IPv6 clothes", "10.0.0.1:1", []string{"::ffff:198.51.100.1"}, "198.51.100.1"},
		{"the same in hex", "10.0.0.1:1", []string{"::ffff:c633:6401"}, "198.51.100.1"},
		{"the same in brackets", "10.0.0.1:1", []string{"[::ffff:198.51.100.1]:80"}, "198.51.100.1"},
		{"the same with a zone", "10.0.0.1:1", []string{"::ffff:198.51.100.1%eth0"}, "198.51.100.1"},
		{"a proxy in IPv6 clothes", "[::ffff:10.0.0.1]:1", []string{"198.51.100.1"}, "198.51.100.1"},
		{"a proxy in IPv6 clothes in the header", "10.0.0.1:1", []string{"198.51.100.1, ::ffff:10.0.0.2"}, "198.51.100.1"},
		{"a proxy trusted in IPv6 clothes", "192.0.2.9:1", []string{"198.51.100.1"}, "198.51.100.1"},
		{"a proxy on IPv6", "[2001:db8:ffff::1]:1", []string{"198.51.100.1"}, "198.51.100.1"},
		{"a proxy with a zone", "[fe80::1%eth0]:1", []string{"198.51.100.1"}, "198.51.100.1"},
		{"a neighbour of the proxies", "11.0.0.1:1", []string{"198.51.100.1"}, "11.0.0.1"},
		{"a peer without a port", "203.0.113.7", []string{"198.51.100.1"}, "203.0.113.7"},
		{"a proxy without a port", "10.0.0.1", []string{"198.51.100.1"}, "198.51.100.1"},
		{"a proxy on IPv6 without a port", "2001:db8:ffff::1", []string{"198.51.100.1"}, "198.51.100.1"},
		{"a unix socket", "@", []string{"198.51.100.1"}, "invalid IP"},
		{"no address", "", nil, "invalid IP"},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.RemoteAddr = c.peer
		for _, line := range c.forwarded {
			r.Header.Add("X-Forwarded-For", line)
		}
		// Similar headers of other products are ignored.
		for _, name := range []string{"X-Real-IP", "Forwarded", "True-Client-IP", "CF-Connecting-IP", "X-Client-IP"} {
			r.Header.Set(name, "6.6.6.6")
		}
		var req weir.Request
		httplimit.NewIdentifier(httplimit.Identity{}, trusted).Identify(r, &req)
		if got := req.IP.String(); got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
}

// A trusted prefix covers exactly the addresses in it, however it is written.
func TestTrustedPrefixes(t *testing.T) {
	for _, c := range []struct {
		prefix, peer string
		want         bool
	}{
		{"192.0.2.7/32", "192.0.2.7:1", true},
		{"192.0.2.7/32", "192.0.2.8:1", false},
		{"192.0.2.7/24", "192.0.2.8:1", true},
		{"::ffff:192.0.2.7/128", "192.0.2.7:1", true},
		{"::ffff:192.0.2.7/128", "192.0.2.8:1", false},
		{"::ffff:192.0.2.7/104", "192.3.2.1:1", true},
		{"::ffff:192.0.2.7/104", "193.0.2.7:1", false},
		{"::ffff:0:0/96", "192.0.2.7:1", true},
		{"::ffff:0:0/96", "[2001:db8::1]:1", false},
		{"2001:db8::1/128", "[2001:db8::1]:1", true},
		{"2001:db8::1/128", "[2001:db8::2]:1", false},
		{"2001:db8::1/96", "[2001:db8::ffff:1]:1", true},
		{"2001:db8::1/96", "[2001:db8:1::1]:1", false},
		{"2001:db8::1/64", "[2001:db8::1:0:0:1]:1", true},
		{"2001:db8::1/64", "[2001:db8:0:1::1]:1", false},
	} {
		r := request("/", "X-Forwarded-For", "198.51.100.1")
		r.RemoteAddr = c.peer
		var req weir.Request
		if err := httplimit.NewIdentifier(httplimit.Identity{}, prefixes(c.prefix)).Identify(r, &req); err != nil {
			t.Fatal(err)
		}
		if got := req.IP.String() == "198.51.100.1"; got != c.want {
			t.Errorf("%s is trusted by %s: %t, seen as %s", c.peer, c.prefix, got, req.IP)
		}
	}
}

// Reading a long chain of trusted hops takes time proportional to its length.
func TestClientIPOfALongChain(t *testing.T) {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.RemoteAddr = "10.0.0.1:1"
	r.Header.Set("X-Forwarded-For", "198.51.100.1"+strings.Repeat(",10.0.0.2", 100_000))
	if got := httplimit.ClientIP(r, prefixes("10.0.0.0/8")); got.String() != "198.51.100.1" {
		t.Errorf("got %s", got)
	}
}

// The middleware counts a client that forges a new address for each request as one client, and clients behind a trusted
// proxy as several.
func TestForgedAddressesAreOneClient(t *testing.T) {
	perIP := rules(weir.Rule{ID: "ip", By: []string{"ip"}, Limits: per(2, time.Hour)})
	srv, client := serve(t, wrap(limiter(t, perIP), httplimit.Options{}, ok))
	for i, want := range []int{200, 200, 429, 429} {
		if got := get(t, client, srv.URL, "X-Forwarded-For", "1.1.1."+string(rune('0'+i))).StatusCode; got != want {
			t.Errorf("request %d with a forged address: %d, want %d", i, got, want)
		}
	}
	proxied, client := serve(t, wrap(limiter(t, perIP), httplimit.Options{TrustedProxies: prefixes("127.0.0.0/8", "::1/128")}, ok))
	for _, c := range []struct {
		forwarded string
		want      int
	}{
		{"198.51.100.1", 200}, {"9.9.9.9, 198.51.100.1", 200}, {"8.8.8.8, ::ffff:198.51.100.1", 429},
		{"198.51.100.2", 200}, {"2001:db8::1", 200}, {"2001:db8::2:1", 200}, {"[2001:db8::3%eth0]:9", 429}, {"2001:db8:0:1::1", 200},
	} {
		if got := get(t, client, proxied.URL, "X-Forwarded-For", c.forwarded).StatusCode; got != c.want {
			t.Errorf("%s: %d, want %d", c.forwarded, got, c.want)
		}
	}
}
