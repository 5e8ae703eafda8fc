package weir_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/memstore"
)

// TestNetworks: two addresses share a counter if and only if they are in the same network. The rule's prefix decides, or else
// the limiter's.
func TestNetworks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bit := func(a netip.Addr, n int) netip.Addr { // with another bit there
			b := a.AsSlice()
			b[n/8] ^= 0x80 >> (n % 8)
			c, _ := netip.AddrFromSlice(b)
			return c
		}
		a, usual := netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "IPv4"))), 32
		if rapid.Bool().Draw(t, "IPv6") {
			a, usual = netip.AddrFrom16([16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "IPv6"))), 64
			if a.Is4In6() {
				t.Skip()
			}
		}
		bits := func(of string) int { return rapid.IntRange(0, a.BitLen()).Draw(t, of) }
		server, rule := bits("server"), bits("rule")
		options, r := weir.Options{IPv4Prefix: 7, IPv6Prefix: 7}, weir.Rule{ID: "a", By: []string{"ip"}, IPv4Prefix: 9, IPv6Prefix: 9, Limits: per(1, time.Hour)}
		if rapid.Bool().Draw(t, "in place of a key") {
			r.By = nil
		}
		if a.Is4() {
			options.IPv4Prefix, r.IPv4Prefix = server, rule
		} else {
			options.IPv6Prefix, r.IPv6Prefix = server, rule
		}
		counts := usual
		for _, n := range []int{server, rule} {
			if n > 0 {
				counts = n
			}
		}
		differs := rapid.IntRange(0, a.BitLen()-1).Draw(t, "bit")
		b := bit(a, differs)
		if b.Is4In6() {
			t.Skip()
		}
		rs, err := weir.Compile(weir.Rules{Rules: []weir.Rule{r}})
		if err != nil {
			t.Fatal(err)
		}
		l := weir.NewLimiter(memstore.New(memstore.Options{}), rs, options)
		check := func(ip netip.Addr) bool {
			d, err := l.Check(t.Context(), &weir.Request{IP: ip})
			if err != nil {
				t.Fatal(err)
			}
			return d.Allowed
		}
		if !check(a) || check(a) {
			t.Fatal("a limit of 1 didn't hold")
		}
		if a.Is4() && check(netip.AddrFrom16(a.As16())) {
			t.Fatal("an IPv4 address within IPv6 is another client")
		}
		if got, want := check(b), differs < counts; got != want {
			t.Fatalf("%s and %s by /%d: two counters %v, want %v", a, b, counts, got, want)
		}
		x := l.Rules().Explain(&weir.Request{IP: a})
		p, _ := a.Prefix(counts)
		want := "ip"
		if counts < a.BitLen() {
			want += " " + p.String()
		}
		if r.By == nil {
			want += " (api_key is missing)"
		}
		if got := x.Rules[0].By[0]; got != want {
			t.Fatalf("explained as %q, want %q", got, want)
		}
	})
}

// TestNetworksSideBySide: a rule by address and a rule by network both count. A network has a counter of its own, different from
// that of its first address and from those of other prefixes.
func TestNetworksSideBySide(t *testing.T) {
	first, second := netip.MustParseAddr("203.0.113.0"), netip.MustParseAddr("203.0.113.1")
	rule := weir.Rule{ID: "a", By: []string{"ip"}, Limits: per(2, time.Hour)}
	store := memstore.New(memstore.Options{})
	allowed := func(r ...weir.Rule) string {
		t.Helper()
		l := weir.NewLimiter(store, compile(t, weir.Rules{Rules: r}), weir.Options{})
		got := ""
		for _, ip := range []netip.Addr{first, first, second, first} {
			if d := check(t, l, weir.Request{IP: ip}); d.Allowed {
				got += "+"
			} else {
				got += "-"
			}
		}
		return got
	}
	if got := allowed(rule); got != "+++-" {
		t.Errorf("by address: %s", got)
	}
	for _, bits := range []int{24, 31, 8} {
		if rule.IPv4Prefix = bits; allowed(rule) != "++--" {
			t.Errorf("by /%d after another prefix: not two admitted of two addresses", bits)
		}
	}
	network := weir.Rule{ID: "network", By: []string{"ip"}, IPv4Prefix: 24, Limits: per(3, time.Hour)}
	if got := allowed(weir.Rule{ID: "address", By: []string{"ip"}, Limits: per(2, time.Hour)}, network); got != "+++-" {
		t.Errorf("both: %s", got)
	}
	if got := allowed(network); got != "----" {
		t.Errorf("the network alone, after both: %s", got)
	}
}

// TestNetworksOfTheLimiter: limits that aren't in a rule count by the limiter's prefixes.
func TestNetworksOfTheLimiter(t *testing.T) {
	emergency, err := counter.NewPolicy("emergency", weir.PerHour(2))
	if err != nil {
		t.Fatal(err)
	}
	preflight, err := counter.NewPolicy("preflight", weir.PerHour(2))
	if err != nil {
		t.Fatal(err)
	}
	rs := compile(t, weir.Rules{Rules: []weir.Rule{{ID: "a", By: []string{"ip"}, IPv6Prefix: 128, Limits: per(100, time.Hour)}}})
	options := weir.Options{Local: memstore.New(memstore.Options{}), Emergency: emergency, Preflight: preflight, IPv6Prefix: 48}
	for name, l := range map[string]*weir.Limiter{"preflight": weir.NewLimiter(memstore.New(memstore.Options{}), rs, options), "emergency": weir.NewLimiter(&brokenStore{Store: memstore.New(memstore.Options{}), fails: []string{"a"}}, rs, options)} {
		got := ""
		for _, ip := range []string{"2001:db8::1", "2001:db8:0:1::1", "2001:db8:0:2::1", "2001:db8:1::1"} {
			d, _ := l.Check(t.Context(), &weir.Request{IP: netip.MustParseAddr(ip), Method: "OPTIONS", Preflight: name == "preflight"})
			if d.Allowed {
				got += "+"
			} else {
				got += "-"
			}
		}
		if got != "++-+" {
			t.Errorf("%s: %s, want the third of a /48 refused, and another /48 admitted", name, got)
		}
	}
}

func TestNetworksThatCannotBe(t *testing.T) {
	for _, r := range []weir.Rule{
		{IPv4Prefix: 33}, {IPv4Prefix: -1}, {IPv6Prefix: 129}, {IPv6Prefix: -1}, {IPv4Prefix: 288},
		{Descriptor: []string{"edge", "ip"}, IPv4Prefix: 24}, {Descriptor: []string{"edge", "ip"}, IPv6Prefix: 48},
	} {
		r.ID, r.Limits = "a", per(1, time.Hour)
		if _, err := weir.Compile(weir.Rules{Rules: []weir.Rule{r}}); err == nil || !strings.Contains(err.Error(), "_prefix: ") {
			t.Errorf("%+v: %v", r, err)
		}
	}
	for _, bits := range []int{-5, 0, 99, 1 << 20} { // NewLimiter returns no error
		l := weir.NewLimiter(memstore.New(memstore.Options{}), compile(t, weir.Rules{Rules: []weir.Rule{{ID: "a", By: []string{"ip"}, Limits: per(1, time.Hour)}}}), weir.Options{IPv4Prefix: bits})
		if !check(t, l, weir.Request{IP: ip1}).Allowed || !check(t, l, weir.Request{IP: ip1.Next()}).Allowed {
			t.Errorf("IPv4Prefix %d: two addresses share a counter", bits)
		}
	}
}
