package weir_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/private"
	"github.com/weirhq/weir/memstore"
	"pgregory.net/rapid"
)

// TestSubjectsAreUnambiguous: requests share a counter if, and only if, they have the same values in the same dimensions, lack
// the same dimensions, and have the same address if it counts. The number of dimensions doesn't matter.
func TestSubjectsAreUnambiguous(t *testing.T) {
	addresses := []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("2001:db8::1")}
	hostile := []string{"a", "b", "aa", "\x01a", "\x01", "\x00", "\x80", "\x04\x0a\x00\x00\x01", "\x0a\x00\x00\x01", "\x20\x01\x0d\xb8\x00\x00\x00\x00", "*"}
	type client struct {
		ip     netip.Addr
		values []string
	}
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 40).Draw(t, "dimensions")
		// There are few values, so that requests are often nearly the same. A missing value is replaced by the address, and
		// other values that look like an address must not be confused with it.
		values := append(rapid.SliceOfN(rapid.SampledFrom(hostile), 0, 3).Draw(t, "values"), "", "\x0a\x00\x00\x01")
		by := make([]string, n)
		for i := range by {
			by[i] = fmt.Sprint("attr:", i)
		}
		counted := -1 // the index of the address
		if rapid.Bool().Draw(t, "by ip") {
			counted = rapid.IntRange(0, n-1).Draw(t, "ip at")
			by[counted] = "ip"
		}
		rules, err := weir.Compile(weir.Rules{Rules: []weir.Rule{{ID: "a", By: by, Limits: per(1, time.Hour)}}})
		if err != nil {
			t.Fatal(err)
		}
		l := weir.NewLimiter(storeOf(), rules, weir.Options{})
		draw := func() client {
			c := client{ip: rapid.SampledFrom(addresses).Draw(t, "ip")}
			for range n {
				c.values = append(c.values, rapid.SampledFrom(values).Draw(t, "value"))
			}
			return c
		}
		check := func(c client) bool {
			d, err := l.Check(t.Context(), &weir.Request{IP: c.ip, Attr: func(name string) string {
				return c.values[slices.Index(by, name)]
			}})
			if err != nil {
				t.Fatal(err)
			}
			return d.Allowed
		}
		addressCounts := func(c client) bool {
			return counted >= 0 || slices.Contains(c.values, "")
		}
		a := draw()
		b := client{a.ip, slices.Clone(a.values)}
		if rapid.Bool().Draw(t, "another one") {
			b = draw()
		}
		for range rapid.IntRange(0, 3).Draw(t, "changes") {
			i, j := rapid.IntRange(0, n-1).Draw(t, "at"), rapid.IntRange(0, n-1).Draw(t, "and at")
			b.values[i], b.values[j] = b.values[j], b.values[i]
		}
		if counted >= 0 {
			a.values[counted], b.values[counted] = "x", "x" // a value that isn't counted
		}
		same := slices.Equal(a.values, b.values) && (a.ip == b.ip || !addressCounts(a))
		if !check(a) {
			t.Fatal("the first request was refused")
		}
		if got := check(b); got == same {
			t.Fatalf("by %v, %+v and then %+v: allowed %v", by, a, b, got)
		}
	})
}

// TestByMethod: clients can't evade a rule that counts by method with another spelling or an unknown method.
func TestByMethod(t *testing.T) {
	for _, c := range []struct {
		name    string
		counted [][]string // the methods of each counter
	}{
		{"case", [][]string{{"GET", "get", "gEt"}, {"POST", "post"}, {"HEAD", "head"}, {"PATCH", "patch"}}},
		{"unknown ones", [][]string{{"FOO", "foo", "GETT", "G", "*", "PROPFIND", "\u212aEY", "GET "}, {"GET", "get"}}},
		{"ones that rules name", [][]string{{"PURGE", "purge"}, {"FOO", "BAN"}}},
		{"Unicode", [][]string{{"POST", "PO\u017fT"}}},
	} {
		l := limiter(t, weir.Rule{ID: "a", By: []string{"method"}, Limits: per(1, time.Hour)},
			weir.Rule{ID: "purge", By: []string{"ip"}, Match: weir.Match{Endpoint: "PURGE /cache/"}, Limits: per(1000, time.Hour)})
		for _, methods := range c.counted {
			for i, m := range methods {
				if d := check(t, l, weir.Request{Method: m, Path: "/x"}); d.Allowed != (i == 0) {
					t.Errorf("%s: %q after %q: allowed %v", c.name, m, methods[:i], d.Allowed)
				}
			}
		}
	}
}

// A rule that counts by path has a counter for each prefix of a path. Another spelling of the prefix has the same counter.
func TestCountedByPath(t *testing.T) {
	for _, c := range []struct {
		by, first string
		same      []string
		others    []string
	}{
		{"path", "/v1/orders/17", []string{"/v1/orders", "/v1/orders/", "/V1/ORDERS/18/items", "/v1/%6frders", "/v1//orders", "/v1/./orders", "/v1/users/../orders",
			"/v1/orders;a=1/2", "/v1%2forders", "/v1/orders%3fx", "/v1/%256frders", "\\v1\\orders", "/v1/orders?x", "//v1/orders", "http://host/v1/orders"},
			[]string{"/v1/users", "/v1", "/", "/v1/order", "/v2/orders"}},
		{"path:1", "/v1/orders/17", []string{"/v1", "/V1/users/"}, []string{"/", "/v2/orders", "/v"}},
		{"path:3", "/v1/orders/17", []string{"/v1/orders/17/items/3"}, []string{"/v1/orders/18", "/v1/orders"}},
		{"path:8", "/1/2/3/4/5/6/7/8", []string{"/1/2/3/4/5/6/7/8/9", "/1/2/3/4/5/6/7/8/10/11"}, []string{"/1/2/3/4/5/6/7/9"}},
		// Paths that are too long share a counter.
		{"path:1", "/" + strings.Repeat("a", 128), []string{"/" + strings.Repeat("b", 128), "/" + strings.Repeat("a", 129) + "/x"}, []string{"/" + strings.Repeat("a", 127), "/a"}},
		{"path:2", "/", []string{"//", "/."}, []string{"/a"}},
	} {
		each := weir.Rule{ID: "each", By: []string{c.by}, Limits: per(1, time.Hour)}
		for _, path := range c.same {
			l := limiter(t, each)
			if !check(t, l, weir.Request{Path: c.first}).Allowed || check(t, l, weir.Request{Path: path}).Allowed {
				t.Errorf("%s: %.40s isn't counted as %.40s", c.by, path, c.first)
			}
			l = limiter(t, each)
			if !check(t, l, weir.Request{Path: path}).Allowed || check(t, l, weir.Request{Path: c.first}).Allowed {
				t.Errorf("%s: %.40s isn't counted as %.40s", c.by, c.first, path)
			}
		}
		l := limiter(t, each)
		for _, path := range append([]string{c.first}, c.others...) {
			if !check(t, l, weir.Request{Path: path}).Allowed {
				t.Errorf("%s: %.40s has no counter of its own", c.by, path)
			}
		}
	}

	l := limiter(t, weir.Rule{ID: "each", By: []string{"path", "user"}, Limits: per(1, time.Hour)})
	for _, user := range []string{"a", "b"} {
		if !check(t, l, weir.Request{Path: "/x", User: user}).Allowed || check(t, l, weir.Request{Path: "/x", User: user}).Allowed {
			t.Errorf("user %s", user)
		}
	}
	odd := weir.Request{Path: "/%" + strings.Repeat("25", 100) + "2e", User: "c"}
	if d := check(t, l, odd); d.Reason != weir.ReasonUnreadablePath {
		t.Errorf("a path that can't be read: %v", d.Reason)
	}
	l = limiter(t, weir.Rule{ID: "each", By: []string{"path"}, Missing: weir.MissingRefuse, Limits: per(1, time.Hour)})
	if d := check(t, l, weir.Request{}); d.Reason != weir.ReasonIdentityRequired {
		t.Errorf("no path: %v", d.Reason)
	}
}

// Any client can make up paths, even a verified one, so a store that is short of memory needn't create counters for them.
func TestPathsAreMadeUp(t *testing.T) {
	store := &guests{Store: storeOf()}
	l := weir.NewLimiter(store, compile(t, weir.Rules{Rules: []weir.Rule{
		{ID: "each", By: []string{"api_key", "path"}, Limits: per(1, time.Hour)},
		{ID: "key", Limits: per(1, time.Hour)},
	}}), weir.Options{})
	for _, verified := range []bool{false, true} {
		check(t, l, weir.Request{APIKey: "k", KeyVerified: verified, Path: "/x"})
		if want := []bool{true, !verified}; !slices.Equal(store.last, want) {
			t.Errorf("verified %v: %v, want %v", verified, store.last, want)
		}
	}
}

// guests is a store that records which charges are marked as a guest's.
type guests struct {
	counter.Store
	last []bool
}

func (g *guests) Take(ctx context.Context, charges []counter.Charge, results []counter.Result) {
	g.last = nil
	for _, c := range charges {
		g.last = append(g.last, c.Guest)
	}
	g.Store.Take(ctx, charges, results)
}

// TestSubjectsCanBeRead: an observer can read from a decision's charges what each rule counted by, whatever clients send.
func TestSubjectsCanBeRead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 20).Draw(t, "dimensions")
		by, values := make([]string, n), make([]string, n)
		ip := netip.MustParseAddr(rapid.SampledFrom([]string{"10.0.0.1", "2001:db8:1:2:3::1"}).Draw(t, "ip"))
		counted := string(ip.AsSlice()[:min(8, len(ip.AsSlice()))])
		prefix := [2]int{rapid.SampledFrom([]int{0, 32, 24, 31, 1}).Draw(t, "IPv4 prefix"), rapid.SampledFrom([]int{0, 64, 48, 128, 1}).Draw(t, "IPv6 prefix")}
		if bits := prefix[ip.BitLen()/128]; bits != 0 && bits != 32 && bits != 64 {
			p, _ := netip.PrefixFrom(ip, bits).Masked().MarshalBinary()
			counted = string(p)
		}
		var want [][2]string
		for i := range by {
			by[i] = fmt.Sprint("attr:", i)
			values[i] = rapid.SampledFrom([]string{"", "a", "\x00", "\x01a", "\x80", strings.Repeat("long", 99)}).Draw(t, "value")
			if rapid.IntRange(0, 9).Draw(t, "by ip") == 0 && !slices.Contains(by, "ip") {
				by[i], values[i] = "ip", ""
			}
			if values[i] != "" {
				want = append(want, [2]string{by[i], values[i]})
			} else {
				want = append(want, [2]string{"ip", counted})
			}
		}
		rule := weir.Rule{ID: "a", By: by, IPv4Prefix: prefix[0], IPv6Prefix: prefix[1], Limits: []weir.Limit{weir.PerHour(1), weir.PerMinute(1)}}
		rs, err := weir.Compile(weir.Rules{Rules: []weir.Rule{rule}})
		if err != nil {
			t.Fatal(err)
		}
		told := 0
		l := weir.NewLimiter(memstore.New(memstore.Options{}), rs, weir.Options{Observe: func(o *weir.Observation) {
			for i, limit := range o.Decision.Limits() {
				if o.Charges[i].Policy != limit.Policy {
					t.Fatalf("limit %d is of %s, its charge of %s", i, limit.Policy.Name, o.Charges[i].Policy.Name)
				}
				if got := private.ReadSubject(&rule, o.Charges[i].Subject); !slices.Equal(got, want) {
					t.Fatalf("by %v: read %q, want %q", by, got, want)
				}
				if private.ReadSubject(&rule, o.Charges[i].Subject[:rapid.IntRange(0, n/8).Draw(t, "too short")]) != nil {
					t.Fatal("half a subject was read")
				}
				told++
			}
		}})
		_, err = l.Check(context.Background(), &weir.Request{IP: ip, Attr: func(name string) string {
			if i := slices.Index(by, name); i >= 0 {
				return values[i]
			}
			return ""
		}})
		if err != nil || told != 2 {
			t.Fatalf("%v: %d limits were told", err, told)
		}
	})
}
