package weir_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/private"
	"github.com/weirhq/weir/memstore"
)

func compile(t testing.TB, doc weir.Rules) *weir.RuleSet {
	t.Helper()
	rs, err := weir.Compile(doc)
	if err != nil {
		t.Fatal(err)
	}
	return rs
}

func limiter(t testing.TB, rules ...weir.Rule) *weir.Limiter {
	t.Helper()
	return weir.NewLimiter(memstore.New(memstore.Options{}), compile(t, weir.Rules{Rules: rules}), weir.Options{})
}

func check(t testing.TB, l *weir.Limiter, req weir.Request) weir.Decision {
	t.Helper()
	d, err := l.Check(t.Context(), &req)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func per(n int64, w time.Duration) []weir.Limit { return []weir.Limit{{Count: n, Window: w}} }

var (
	ip1 = netip.MustParseAddr("198.51.100.1")
	ip2 = netip.MustParseAddr("198.51.100.2")
)

func TestMostRestrictiveLimitSpeaks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t,
			weir.Rule{ID: "org", By: []string{"org"}, Limits: per(100, time.Hour)},
			weir.Rule{ID: "key", Limits: per(3, time.Minute)},
			weir.Rule{ID: "costly", Cost: 5, Limits: per(20, 24*time.Hour)},
		)
		req := weir.Request{APIKey: "k", Org: "acme"}
		d := check(t, l, req)
		if !d.Allowed || d.Rule != "key" || d.Remaining != 2 || len(d.Limits()) != 3 {
			t.Fatalf("%+v", d)
		}
		check(t, l, req)
		if d = check(t, l, req); d.Rule != "key" || d.Remaining != 0 {
			t.Fatalf("of 0 and 5/5 requests left, the former binds: %+v", d)
		}
		d = check(t, l, req)
		if d.Allowed || d.Reason != weir.ReasonLimited || d.Rule != "key" || d.RetryAfter != 20*time.Second {
			t.Fatalf("%+v", d)
		}
		if s := d.Limits()[0]; !s.Allowed || s.Remaining != 97 {
			t.Fatalf("a refused request was charged to another limit: %+v", s)
		}
		time.Sleep(20 * time.Second)
		check(t, l, req) // the fourth check uses up costly
		d = check(t, l, req)
		if d.Allowed || d.Rule != "costly" || d.RetryAfter < 5*time.Hour {
			t.Fatalf("of two refusals the longest wait binds: %+v", d)
		}
	})
}

func TestPeekTakesNothing(t *testing.T) {
	l := limiter(t, weir.Rule{ID: "a", Limits: per(2, time.Hour)})
	for range 5 {
		if d := check(t, l, weir.Request{APIKey: "k", Peek: true}); !d.Allowed || d.Remaining != 2 {
			t.Fatalf("%+v", d)
		}
	}
	check(t, l, weir.Request{APIKey: "k", Cost: 2})
	if d := check(t, l, weir.Request{APIKey: "k", Peek: true}); d.Allowed || d.Remaining != 0 {
		t.Fatalf("a peek at a spent counter: %+v", d)
	}
}

func TestCostThatNeverFits(t *testing.T) {
	l := limiter(t, weir.Rule{ID: "a", Limits: per(10, time.Hour)})
	if d := check(t, l, weir.Request{APIKey: "k", Cost: 11}); d.Allowed || d.RetryAfter != weir.Never {
		t.Fatalf("%+v", d)
	}
	if d := check(t, l, weir.Request{APIKey: "k", Cost: 1 << 62}); d.Allowed || d.RetryAfter != weir.Never {
		t.Fatalf("an absurd cost: %+v", d)
	}
	if d := check(t, l, weir.Request{APIKey: "k", Cost: 10}); !d.Allowed {
		t.Fatalf("%+v", d)
	}
}

func TestUnverifiedIdentitiesGetNoPrivileges(t *testing.T) {
	rs := compile(t, weir.Rules{
		Tiers: []weir.Tier{{Name: "free", Limits: per(2, time.Hour)}, {Name: "pro", Limits: per(50, time.Hour)}},
		Keys:  []weir.KeyTier{{Pattern: "sk_prod_*", Tier: "pro"}},
		Rules: []weir.Rule{{ID: "quota"}},
		Allow: []string{"sk_internal_*", "10.0.0.0/8"},
		Deny:  []string{"sk_revoked_*", "203.0.113.0/24", "2001:db8:bad::/48", "sk_internal_leaked"},
	})
	l := weir.NewLimiter(memstore.New(memstore.Options{}), rs, weir.Options{})
	for _, c := range []struct {
		name   string
		req    weir.Request
		reason weir.Reason
		limit  int64
	}{
		{"a forged internal key", weir.Request{APIKey: "sk_internal_x"}, weir.ReasonWithin, 2},
		{"a verified internal key", weir.Request{APIKey: "sk_internal_x", KeyVerified: true}, weir.ReasonBypassed, 0},
		{"a forged pro key", weir.Request{APIKey: "sk_prod_1"}, weir.ReasonWithin, 2},
		{"a verified pro key", weir.Request{APIKey: "sk_prod_2", KeyVerified: true}, weir.ReasonWithin, 50},
		{"a forged tier", weir.Request{APIKey: "k1", Tier: "pro"}, weir.ReasonWithin, 2},
		{"a forged tier on a verified key", weir.Request{APIKey: "k2", Tier: "pro", KeyVerified: true}, weir.ReasonWithin, 2},
		{"a verified tier", weir.Request{APIKey: "k3", Tier: "pro", TierVerified: true}, weir.ReasonWithin, 50},
		{"a tier that doesn't exist", weir.Request{APIKey: "k4", Tier: "gold", TierVerified: true}, weir.ReasonWithin, 2},
		{"an unverified revoked key", weir.Request{APIKey: "sk_revoked_1"}, weir.ReasonDenied, 0},
		{"deny beats allow", weir.Request{APIKey: "sk_internal_leaked", KeyVerified: true}, weir.ReasonDenied, 0},
		{"a denied address", weir.Request{APIKey: "k5", IP: netip.MustParseAddr("203.0.113.9")}, weir.ReasonDenied, 0},
		{"the same in IPv6 clothes", weir.Request{APIKey: "k5", IP: netip.MustParseAddr("::ffff:203.0.113.9")}, weir.ReasonDenied, 0},
		{"a denied IPv6 range", weir.Request{APIKey: "k5", IP: netip.MustParseAddr("2001:db8:bad:1::7%eth0")}, weir.ReasonDenied, 0},
		{"an allowed address", weir.Request{APIKey: "k5", IP: netip.MustParseAddr("10.1.2.3")}, weir.ReasonBypassed, 0},
	} {
		d := check(t, l, c.req)
		if d.Reason != c.reason || c.limit > 0 && d.Policy.Limit.Count != c.limit {
			t.Errorf("%s: %s under %+v, want %s with limit %d", c.name, d.Reason, d.Policy, c.reason, c.limit)
		}
		if d.Reason == weir.ReasonDenied && (d.Allowed || d.RetryAfter != weir.Never) {
			t.Errorf("%s: %+v", c.name, d)
		}
	}
}

func TestMissingIdentity(t *testing.T) {
	l := limiter(t, weir.Rule{ID: "byip", Limits: per(2, time.Hour)})
	check(t, l, weir.Request{IP: ip1, Cost: 2})
	if check(t, l, weir.Request{IP: ip1}).Allowed {
		t.Error("a request without its key escaped")
	}
	if !check(t, l, weir.Request{IP: ip2}).Allowed || !check(t, l, weir.Request{IP: ip1, APIKey: "k"}).Allowed {
		t.Error("it was counted with others")
	}
	four := ip1.As4()
	if !check(t, l, weir.Request{APIKey: string(four[:])}).Allowed || !check(t, l, weir.Request{APIKey: "198.51.100.1"}).Allowed {
		t.Error("a key made of an address shares the address's counter")
	}
	a, b := netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::ffff:2")
	check(t, l, weir.Request{IP: a, Cost: 2})
	if check(t, l, weir.Request{IP: b}).Allowed {
		t.Error("two addresses of one /64 have two counters")
	}
	check(t, l, weir.Request{Cost: 2})
	if check(t, l, weir.Request{}).Allowed {
		t.Error("a request without anything escaped")
	}

	l = limiter(t, weir.Rule{ID: "skip", Missing: weir.MissingSkip, Limits: per(1, time.Hour)})
	for range 3 {
		if d := check(t, l, weir.Request{IP: ip1}); !d.Allowed || d.Reason != weir.ReasonUnlimited {
			t.Errorf("%+v", d)
		}
	}
	l = limiter(t,
		weir.Rule{ID: "other", By: []string{"ip"}, Limits: per(1, time.Hour)},
		weir.Rule{ID: "strict", By: []string{"user"}, Missing: weir.MissingRefuse, Limits: per(5, time.Hour)})
	d := check(t, l, weir.Request{IP: ip1})
	if d.Allowed || d.Reason != weir.ReasonIdentityRequired || d.Rule != "strict" || d.RetryAfter != weir.Never {
		t.Errorf("%+v", d)
	}
	if !check(t, l, weir.Request{IP: ip1, User: "u"}).Allowed {
		t.Error("the refused request was charged to another rule")
	}
}

// Hostile values in several dimensions never give two clients one subject.
func TestSubjectsDoNotCollide(t *testing.T) {
	l := limiter(t, weir.Rule{ID: "a", By: []string{"org", "user", "header:X-Tenant"}, Limits: per(1, time.Hour)})
	values := []string{"", "a", "b", "ab", "a:b", ":", "\x00", "\x01", "\x01a", "a\x01", "\x04", string([]byte{198, 51, 100, 1})}
	seen := 0
	for _, org := range values {
		for _, user := range values {
			for _, tenant := range values {
				req := weir.Request{Org: org, User: user, IP: ip1, Attr: func(name string) string {
					if name != "header:X-Tenant" {
						t.Errorf("asked for %q", name)
					}
					return tenant
				}}
				if d := check(t, l, req); !d.Allowed {
					t.Fatalf("%q, %q, %q shares a counter", org, user, tenant)
				}
				seen++
			}
		}
	}
	if seen != len(values)*len(values)*len(values) {
		t.Fatal(seen)
	}
}

func TestShadowAndCandidate(t *testing.T) {
	l := limiter(t,
		weir.Rule{ID: "real", Limits: per(5, time.Hour), Candidate: per(2, time.Hour)},
		weir.Rule{ID: "ghost", Shadow: true, Limits: per(1, time.Hour)})
	for i := range 5 {
		d := check(t, l, weir.Request{APIKey: "k"})
		ls := d.Limits()
		if !d.Allowed || d.Rule != "real" || d.Remaining != int64(4-i) || len(ls) != 3 {
			t.Fatalf("request %d: %+v", i, d)
		}
		if !ls[1].Policy.Shadow || ls[1].Allowed != (i < 2) || ls[2].Allowed != (i < 1) {
			t.Fatalf("request %d: %+v", i, ls)
		}
	}
	if check(t, l, weir.Request{APIKey: "k"}).Allowed {
		t.Error("the real limit doesn't hold")
	}
}

func TestRulesAreASnapshot(t *testing.T) {
	doc := func(v int64) weir.Rules {
		return weir.Rules{Version: v, Rules: []weir.Rule{
			{ID: fmt.Sprint("a", v), Limits: per(1e9, time.Second)}, {ID: fmt.Sprint("b", v), Limits: per(1e9, time.Second)},
		}}
	}
	sets := []*weir.RuleSet{compile(t, doc(1)), compile(t, doc(2)), compile(t, doc(3))}
	l := weir.NewLimiter(memstore.New(memstore.Options{}), sets[0], weir.Options{})
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				d, _ := l.Check(context.Background(), &weir.Request{APIKey: "k"})
				v := fmt.Sprint(d.RulesVersion)
				for _, s := range d.Limits() {
					if !strings.HasSuffix(s.Policy.Rule, v) {
						t.Errorf("rule %s in version %s", s.Policy.Rule, v)
						return
					}
				}
			}
		})
	}
	for i := range 2000 {
		l.SetRules(sets[i%3])
	}
	close(stop)
	wg.Wait()
}

func TestRaisedLimitKeepsTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rules := func(n int64) weir.Rules {
			return weir.Rules{Rules: []weir.Rule{{ID: "a", Limits: per(n, time.Minute)}}}
		}
		l := weir.NewLimiter(memstore.New(memstore.Options{}), compile(t, rules(100)), weir.Options{})
		check(t, l, weir.Request{APIKey: "k", Cost: 100})
		l.SetRules(compile(t, rules(500)))
		if d := check(t, l, weir.Request{APIKey: "k"}); d.Allowed || d.RetryAfter != 120*time.Millisecond {
			t.Fatalf("the new rate doesn't apply to the next check: %+v", d)
		}
		time.Sleep(time.Minute)
		if d := check(t, l, weir.Request{APIKey: "k", Cost: 500}); !d.Allowed {
			t.Fatalf("the new capacity doesn't apply: %+v", d)
		}
	})
}

// brokenStore fails for some rules, like a store that has lost a shard.
type brokenStore struct {
	*memstore.Store
	fails []string
}

var errGone = errors.New("shard gone")

func (s *brokenStore) Take(ctx context.Context, charges []counter.Charge, results []counter.Result) {
	var healthy []counter.Charge
	var at []int
	for i, c := range charges {
		if slices.Contains(s.fails, c.Policy.Rule) {
			results[i] = counter.Result{Err: errGone}
			continue
		}
		healthy, at = append(healthy, c), append(at, i)
	}
	out := make([]counter.Result, len(healthy))
	s.Store.Take(ctx, healthy, out)
	for j, i := range at {
		results[i] = out[j]
	}
}

func TestStoreFailure(t *testing.T) {
	rs := compile(t, weir.Rules{Rules: []weir.Rule{
		{ID: "open", Limits: per(1, time.Hour)},
		{ID: "closed", OnStoreFailure: weir.FailRefuse, Limits: per(3, time.Hour)},
		{ID: "local", OnStoreFailure: weir.FailLocal, Limits: per(2, time.Hour)},
	}})
	store := &brokenStore{Store: memstore.New(memstore.Options{})}
	l := weir.NewLimiter(store, rs, weir.Options{Local: memstore.New(memstore.Options{})})
	try := func(key string, fails ...string) (weir.Decision, error) {
		store.fails = fails
		return l.Check(t.Context(), &weir.Request{APIKey: key})
	}

	d, err := try("a", "open")
	if !d.Allowed || !d.Degraded || !errors.Is(err, errGone) || d.Rule != "local" {
		t.Errorf("a failed limit that allows: %+v, %v", d, err)
	}
	if d, err = try("b", "closed"); d.Allowed || d.Reason != weir.ReasonUnavailable || d.Rule != "closed" || err == nil {
		t.Errorf("a failed limit that refuses: %+v, %v", d, err)
	}
	if d, err = try("b"); !d.Allowed || d.Remaining != 0 || err != nil {
		t.Errorf("what the refused request took of healthy limits didn't go back: %+v, %v", d, err)
	}
	if d, _ = try("b", "closed"); d.Allowed || d.Reason != weir.ReasonLimited || d.Rule != "open" || !d.Degraded {
		t.Errorf("of a refusal that is known and one that isn't, the former speaks: %+v", d)
	}
	if d, _ = try("b"); d.Allowed || d.Rule != "open" || d.Reason != weir.ReasonLimited {
		t.Errorf("a refusal by a healthy limit, beside a failed one, gave back what was never taken: %+v", d)
	}
	for i := range 3 {
		d, err = try("c", "open", "local")
		if d.Allowed != (i < 2) || !d.Degraded || err == nil {
			t.Errorf("local request %d: %+v, %v", i, d, err)
		}
	}
	if d.Reason != weir.ReasonLimited || d.Rule != "local" || d.RetryAfter <= 0 {
		t.Errorf("a refusal by the local counter is a refusal like any other: %+v", d)
	}
	// A request that a healthy limit refuses takes nothing from the local counter.
	for range 5 {
		try("d", "local") // open admits one
	}
	if d, _ = try("d", "open", "local"); !d.Allowed || d.Remaining != 0 || d.Rule != "local" {
		t.Errorf("refused requests were charged locally: %+v", d)
	}
}

// A window that counts refusals also counts its own refusals while it is counted locally. It doesn't count requests that
// another limit refuses, and it counts requests that don't fit even if other limits refuse them, too.
func TestCountRefusedInAnOutage(t *testing.T) {
	rs := compile(t, weir.Rules{Rules: []weir.Rule{
		{ID: "open", Limits: per(1, time.Hour)},
		{ID: "local", OnStoreFailure: weir.FailLocal, Algorithm: weir.FixedWindow, CountRefused: true, Limits: per(2, 24*time.Hour)},
	}})
	for _, tt := range []struct {
		cost    int64
		allowed bool
	}{{1, true}, {3, false}} {
		store := &brokenStore{Store: memstore.New(memstore.Options{})}
		l := weir.NewLimiter(store, rs, weir.Options{Local: memstore.New(memstore.Options{})})
		try := func(cost int64, fails ...string) weir.Decision {
			store.fails = fails
			d, _ := l.Check(t.Context(), &weir.Request{APIKey: "a", Cost: cost})
			return d
		}
		try(1) // all that open admits
		for range 3 {
			if d := try(tt.cost, "local"); d.Allowed {
				t.Fatalf("open admits two: %+v", d)
			}
		}
		if d := try(1, "open", "local"); d.Allowed != tt.allowed {
			t.Errorf("after refusals that cost %d: %+v", tt.cost, d)
		}
	}
}

func TestEmergencyLimit(t *testing.T) {
	rs := compile(t, weir.Rules{Rules: []weir.Rule{
		{ID: "open", Limits: per(100, time.Hour)},
		{ID: "healthy", Limits: per(6, time.Hour)},
	}})
	emergency, err := counter.NewPolicy("emergency", weir.Limit{Count: 2, Window: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	store := &brokenStore{Store: memstore.New(memstore.Options{})}
	l := weir.NewLimiter(store, rs, weir.Options{Local: memstore.New(memstore.Options{}), Emergency: emergency})
	try := func(ip netip.Addr, fails ...string) weir.Decision {
		store.fails = fails
		d, _ := l.Check(t.Context(), &weir.Request{APIKey: "k", IP: ip})
		return d
	}
	for range 3 {
		if d := try(ip1); !d.Allowed || d.Rule == "emergency" {
			t.Fatalf("the emergency limit holds while nothing is wrong: %+v", d)
		}
	}
	for i := range 3 {
		d := try(ip1, "open")
		if d.Allowed != (i < 2) || !d.Degraded {
			t.Errorf("request %d of one address: %+v", i, d)
		}
		if i == 2 && (d.Rule != "emergency" || d.Reason != weir.ReasonLimited || d.RetryAfter <= 0) {
			t.Errorf("the refusal: %+v", d)
		}
	}
	store.fails = nil
	if d, _ := l.Check(t.Context(), &weir.Request{APIKey: "k", IP: ip1, Peek: true}); d.Remaining != 1 || d.Rule != "healthy" {
		t.Errorf("five were admitted, and one that the emergency limit refused was given back: %+v", d)
	}
	try(ip1)
	if d := try(ip2, "open"); d.Allowed || d.Rule != "healthy" {
		t.Errorf("a limit that can be reached decides as ever: %+v", d)
	}
	for range 2 {
		if d := try(ip2, "open", "healthy"); !d.Allowed {
			t.Errorf("another address has its own, and refusals took nothing of it: %+v", d)
		}
	}
	if try(ip2, "open", "healthy").Allowed {
		t.Error("the third of the other address was allowed")
	}
}

func TestResetByRequest(t *testing.T) {
	l := limiter(t, weir.Rule{ID: "a", Limits: per(1, time.Hour)}, weir.Rule{ID: "b", By: []string{"ip"}, Limits: per(1, time.Hour)})
	req := weir.Request{APIKey: "k", IP: ip1}
	check(t, l, req)
	if n, err := l.Reset(t.Context(), &req); err != nil || n != 2 {
		t.Fatal(n, err)
	}
	if !check(t, l, req).Allowed {
		t.Error("the counters weren't reset")
	}
}

// Without rules, no request passes, and calls that need no rules work.
func TestNoRulesYet(t *testing.T) {
	l := weir.NewLimiter(memstore.New(memstore.Options{}), nil, weir.Options{})
	req := &weir.Request{APIKey: "k", Path: "/", Cost: 1}
	d, err := l.Check(t.Context(), req)
	if d.Allowed || d.Reason != weir.ReasonUnavailable || !d.Degraded || d.RetryAfter <= 0 || err != nil {
		t.Errorf("without rules: %+v, %v", d, err)
	}
	if n, err := l.Reset(t.Context(), req); n != 0 || err == nil {
		t.Errorf("reset: %d, %v", n, err)
	}
	p, err := counter.NewPolicy("p", weir.Limit{Count: 5, Window: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if d, err := private.Take(l, t.Context(), req, []counter.Charge{{Counter: counter.Counter{Policy: p, Subject: []byte("k")}, N: 1}}, nil); !d.Allowed || err != nil {
		t.Errorf("a policy of its own: %+v, %v", d, err)
	}
	rs, err := weir.Compile(weir.Rules{Rules: []weir.Rule{{ID: "a", Limits: []weir.Limit{{Count: 5, Window: time.Minute}}}}})
	if err != nil {
		t.Fatal(err)
	}
	l.SetRules(rs)
	if d, err := l.Check(t.Context(), req); !d.Allowed || err != nil {
		t.Errorf("with rules: %+v, %v", d, err)
	}
}
