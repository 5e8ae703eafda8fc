package rulefile_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/rulefile"
)

// bench is a limiter with the rules of a file, and a clock that only the test advances.
type bench struct {
	*testing.T
	file    *rulefile.File
	limiter *weir.Limiter
	now     time.Time
}

func load(t *testing.T, path string) *bench {
	t.Helper()
	f, err := rulefile.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{T: t, file: f, now: time.Date(2026, 1, 2, 3, 4, 0, 0, time.UTC)}
	store := memstore.New(memstore.Options{Now: func() time.Time { return b.now }})
	b.limiter = weir.NewLimiter(store, f.Set, weir.Options{})
	return b
}

func (b *bench) check(req weir.Request) weir.Decision {
	b.Helper()
	d, err := b.limiter.Check(b.Context(), &req)
	if err != nil {
		b.Fatal(err)
	}
	return d
}

// allows checks that n such requests are allowed, and that the rule refuses the next one.
func (b *bench) allows(n int, req weir.Request, rule string) weir.Decision {
	b.Helper()
	for i := range n {
		if d := b.check(req); !d.Allowed {
			b.Fatalf("request %d of %d refused by %q: %s", i+1, n, d.Rule, d.Reason)
		}
	}
	d := b.check(req)
	if d.Allowed || d.Reason != weir.ReasonLimited || d.Rule != rule {
		b.Fatalf("request %d: allowed %v, %s, rule %q; want it limited by %q", n+1, d.Allowed, d.Reason, d.Rule, rule)
	}
	return d
}

// status returns the state of a rule's limit after a request.
func (b *bench) status(req weir.Request, rule string) weir.LimitStatus {
	b.Helper()
	d := b.check(req)
	for _, s := range d.Limits() {
		if s.Policy.Rule == rule {
			return s
		}
	}
	b.Fatalf("rule %q doesn't apply", rule)
	return weir.LimitStatus{}
}

var (
	home = netip.MustParseAddr("192.0.2.1")
	free = weir.Request{APIKey: "sk_free_1", KeyVerified: true, IP: home, Method: "GET", Path: "/"}
	pro  = weir.Request{APIKey: "sk_prod_1", KeyVerified: true, IP: home, Method: "GET", Path: "/"}
	vip  = weir.Request{APIKey: "sk_prod_vip_001", KeyVerified: true, IP: home, Method: "GET", Path: "/"}
)

func at(req weir.Request, method, path string) weir.Request {
	req.Method, req.Path = method, path
	return req
}

// TestDesign checks that the example with which the language was designed does what its comments say.
func TestDesign(t *testing.T) {
	const path = "testdata/design.yaml"

	t.Run("a request gets its tier's numbers", func(t *testing.T) {
		b := load(t, path)
		b.allows(100, free, "quota")
		d := b.allows(200, pro, "quota") // the burst
		if d.Policy.Limit.Count != 1000 {
			t.Errorf("clients of the tier pro see the limit %d", d.Policy.Limit.Count)
		}
	})
	t.Run("a key that isn't verified is in the default tier", func(t *testing.T) {
		unproven := pro
		unproven.KeyVerified = false
		load(t, path).allows(100, unproven, "quota")
	})
	t.Run("a request may carry its tier, if it is proven", func(t *testing.T) {
		b := load(t, path)
		carrying := weir.Request{APIKey: "other", IP: home, Tier: "pro", TierVerified: true}
		b.allows(200, carrying, "quota")
		carrying.APIKey, carrying.TierVerified = "another", false
		b.allows(100, carrying, "quota")
	})
	t.Run("login counts failures of a user", func(t *testing.T) {
		b := load(t, path)
		login := at(pro, "POST", "/login")
		login.User = "alice"
		for _, status := range []int{200, 401, 200, 403, 500, 401, 302, 403, 401} {
			d := b.check(login)
			if !d.Allowed {
				t.Fatalf("refused by %s", d.Rule)
			}
			if err := b.limiter.Finish(t.Context(), &d, weir.Outcome{Status: status}); err != nil {
				t.Fatal(err)
			}
		}
		d := b.check(login)
		if d.Allowed || d.Rule != "login" || d.RetryAfter != 15*time.Minute {
			t.Errorf("after five failures: allowed %v, rule %q, retry after %v", d.Allowed, d.Rule, d.RetryAfter)
		}
		if !d.Policy.Strict || d.Policy.Limit.Algorithm != weir.SlidingLog {
			t.Errorf("the limit is %+v", d.Policy)
		}
		login.User = "bob"
		b.allows(5, login, "login") // parallel guesses: none of them has a response yet
		b.now = b.now.Add(15 * time.Minute)
		b.allows(5, login, "login")
		if r := b.file.Rules.Rules[1]; r.OnStoreFailure != weir.FailRefuse {
			t.Errorf("on_store_failure is %d", r.OnStoreFailure)
		}
	})
	t.Run("search: default < tier < key", func(t *testing.T) {
		b := load(t, path)
		b.allows(30, at(free, "GET", "/v1/search"), "search")
		s := b.status(at(pro, "GET", "/v1/search"), "search")
		if s.Policy.Limit.Count != 300 || s.Remaining != 299 {
			t.Errorf("tier: %d of %d left", s.Remaining, s.Policy.Limit.Count)
		}
		s = b.status(at(vip, "GET", "/v1/search"), "search")
		if s.Policy.Limit.Count != 3000 || s.Remaining != 499 {
			t.Errorf("key: %d of %d left", s.Remaining, s.Policy.Limit.Count)
		}
		unproven := vip
		unproven.KeyVerified = false // an exact override applies even to an unverified key
		if s = b.status(at(unproven, "GET", "/v1/search"), "search"); s.Policy.Limit.Count != 3000 {
			t.Errorf("override of an unverified key: %d", s.Policy.Limit.Count)
		}
	})
	t.Run("orders: the long form", func(t *testing.T) { checkOrders(t, load(t, path), "orders") })
	t.Run("anonymous clients are limited by address", func(t *testing.T) {
		b := load(t, path)
		nobody := weir.Request{IP: home, Method: "GET", Path: "/"}
		d := b.allows(20, nobody, "anonymous")
		if d.Policy.Name != "anonymous-1s" || d.Policy.Limit.Window != time.Second {
			t.Errorf("the binding limit is %s", d.Policy.Name)
		}
		var names []string
		for _, s := range d.Limits() {
			names = append(names, s.Policy.Name)
		}
		if got := fmt.Sprint(names); got != "[quota anonymous-1s anonymous-1h]" {
			t.Errorf("limits %s", got)
		}
		nobody.IP = netip.MustParseAddr("192.0.2.2")
		b.allows(20, nobody, "anonymous")
		for _, s := range func() []weir.LimitStatus { d := b.check(pro); return d.Limits() }() {
			if s.Policy.Rule == "anonymous" {
				t.Error("the rule applies to a request with a key")
			}
		}
	})
	t.Run("graphql costs five", func(t *testing.T) {
		b := load(t, path)
		query := at(pro, "POST", "/graphql")
		if s := b.status(query, "graphql"); s.Remaining != 995 {
			t.Errorf("%d left", s.Remaining)
		}
		query.Cost = 3
		if s := b.status(query, "graphql"); s.Remaining != 980 {
			t.Errorf("%d left", s.Remaining)
		}
	})
	t.Run("whitelist and blacklist", func(t *testing.T) {
		b := load(t, path)
		checkLists(t, b)
		for ip, reason := range map[string]weir.Reason{
			"203.0.113.0": weir.ReasonDenied, "203.0.113.255": weir.ReasonDenied, "203.0.114.1": weir.ReasonWithin,
		} {
			req := pro
			req.IP = netip.MustParseAddr(ip)
			if d := b.check(req); d.Reason != reason {
				t.Errorf("%s: %s", ip, d.Reason)
			}
		}
	})
}

// checkOrders checks that a rule has {capacity: 100, refill_rate: 1.67, window: 60}, and that its override has ten
// times that.
func checkOrders(t *testing.T, b *bench, rule string) {
	t.Helper()
	s := b.status(at(pro, "GET", "/v1/orders/1"), rule)
	want := weir.Limit{Count: 100, Window: time.Minute, Burst: 100, Refill: 1.67}
	if s.Policy.Limit != want {
		t.Errorf("limit %+v", s.Policy.Limit)
	}
	b.allows(99, at(pro, "GET", "/v1/orders/2"), rule) // the rule has one counter, not one per path
	b.now = b.now.Add(3 * time.Second)                 // 5.01 tokens
	b.allows(5, at(pro, "POST", "/v1/orders"), rule)
	s = b.status(at(vip, "GET", "/v1/orders/1"), rule)
	want = weir.Limit{Count: 1000, Window: time.Minute, Burst: 1000, Refill: 16.67}
	if s.Policy.Limit != want || s.Remaining != 999 {
		t.Errorf("override %+v, %d left", s.Policy.Limit, s.Remaining)
	}
	d := b.check(at(free, "GET", "/v1/orders/1"))
	for _, s := range d.Limits() {
		if s.Policy.Rule == rule {
			t.Error("the rule applies to a key that doesn't match its pattern")
		}
	}
}

// checkLists checks what both examples say about lists: allowed keys are allowed only if they are verified, and denied
// keys are always denied.
func checkLists(t *testing.T, b *bench) {
	t.Helper()
	for _, key := range []string{"sk_internal_1", "sk_monitoring_1"} {
		req := weir.Request{APIKey: key, KeyVerified: true, IP: home, Path: "/"}
		if d := b.check(req); !d.Allowed || d.Reason != weir.ReasonBypassed {
			t.Errorf("%s: %s", key, d.Reason)
		}
		req.KeyVerified = false
		if d := b.check(req); d.Reason == weir.ReasonBypassed {
			t.Errorf("%s bypasses the limits without proof", key)
		}
	}
	for _, verified := range []bool{true, false} {
		req := weir.Request{APIKey: "sk_revoked_1", KeyVerified: verified, IP: home, Path: "/"}
		if d := b.check(req); d.Allowed || d.Reason != weir.ReasonDenied {
			t.Errorf("a revoked key, verified %v: %s", verified, d.Reason)
		}
	}
}

// TestLongForm loads the long form of the language, as operators who come from other limiters write it.
func TestLongForm(t *testing.T) {
	const path = "testdata/long-form.yaml"
	b := load(t, path)
	if r := b.file.Rules.Rules[0]; r.Version != 42 || r.Tier != "pro" {
		t.Errorf("version %d, tier %q", r.Version, r.Tier)
	}
	checkOrders(t, b, "rule_001")

	// "free" is only a label beside the key pattern: clients don't have to be in a tier of that name.
	other := at(free, "GET", "/anything")
	other.APIKey = "sk_free_2"
	d := b.allows(100, other, "rule_002")
	if d.Policy.Limit != (weir.Limit{Algorithm: weir.SlidingCounter, Count: 100, Window: time.Minute}) {
		t.Errorf("limit %+v", d.Policy.Limit)
	}
	checkLists(t, b)
	if d := b.check(weir.Request{APIKey: "sk_abuse_flagged_7", IP: home}); d.Reason != weir.ReasonDenied {
		t.Errorf("a flagged key: %s", d.Reason)
	}
	if d := b.check(weir.Request{APIKey: "sk_other", IP: home, Path: "/v1/orders"}); d.Reason != weir.ReasonUnlimited {
		t.Errorf("a key of neither pattern: %s", d.Reason)
	}
}
