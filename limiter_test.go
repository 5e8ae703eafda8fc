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
		check(t, l, req) // the fourth: costly is used up
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

// Hostile values in several dimensions never make two subjects one.
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

func TestCountingByStatus(t *testing.T) {
	l := limiter(t, weir.Rule{ID: "login", By: []string{"user"}, Statuses: []int{401, 5}, Algorithm: weir.SlidingLog, Limits: per(2, time.Hour)})
	req := weir.Request{User: "u"}
	for _, status := range []int{200, 204, 403, 200} {
		d := check(t, l, req)
		if !d.Allowed {
			t.Fatalf("refused after answers that don't count: %+v", d)
		}
		if err := l.Finish(t.Context(), &d, weir.Outcome{Status: status}); err != nil {
			t.Fatal(err)
		}
		if err := l.Finish(t.Context(), &d, weir.Outcome{Status: status}); err != nil { // finishing twice gives back once
			t.Fatal(err)
		}
	}
	for _, status := range []int{401, 503} {
		d := check(t, l, req)
		if err := l.Finish(t.Context(), &d, weir.Outcome{Status: status}); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
	}
	if check(t, l, req).Allowed {
		t.Error("two failures were not counted")
	}
	// Guesses in parallel are all charged before the first is answered.
	first, second := check(t, l, weir.Request{User: "v"}), check(t, l, weir.Request{User: "v"})
	if !first.Allowed || !second.Allowed || check(t, l, weir.Request{User: "v"}).Allowed {
		t.Error("a third guess slipped through")
	}
}

// Receipts expire by the time that nodes share, not by a node's own.
func TestReceiptsExpireBySharedTime(t *testing.T) {
	now := time.Now().Add(-48 * time.Hour)
	l := weir.NewLimiter(memstore.New(memstore.Options{}), compile(t, weir.Rules{Rules: []weir.Rule{{ID: "a", Limits: per(10, time.Hour)}}}),
		weir.Options{Now: func() time.Time { return now }})
	if !l.Now().Equal(now) {
		t.Errorf("it is %v there, want %v", l.Now(), now)
	}
	d := check(t, l, weir.Request{APIKey: "k", Receipt: true})
	now = now.Add(3 * time.Hour)
	if err := refund(t, l, d.Receipt); err != weir.ErrReceiptExpired {
		t.Errorf("three hours later: %v", err)
	}
	now = now.Add(-3 * time.Hour)
	if err := refund(t, l, d.Receipt); err != nil {
		t.Errorf("in time: %v", err)
	}
}

func TestReceipts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rs := compile(t, weir.Rules{Rules: []weir.Rule{
			{ID: "a", Limits: per(10, time.Hour)},
			{ID: "b", Algorithm: weir.FixedWindow, By: []string{"user"}, Limits: per(10, time.Hour)},
		}})
		store := memstore.New(memstore.Options{})
		secret := []byte("the nodes' common secret")
		one := weir.NewLimiter(store, rs, weir.Options{Secret: secret})
		two := weir.NewLimiter(store, rs, weir.Options{Secret: secret})
		stranger := weir.NewLimiter(store, rs, weir.Options{})

		d := check(t, one, weir.Request{APIKey: "sk_secret_key", User: "u", Cost: 10, Receipt: true})
		if d.Receipt == "" || strings.Contains(d.Receipt, "sk_secret_key") {
			t.Fatalf("receipt %q", d.Receipt)
		}
		if check(t, one, weir.Request{APIKey: "sk_secret_key", User: "u"}).Allowed {
			t.Fatal("nothing was taken")
		}
		if err := refund(t, stranger, d.Receipt); err != weir.ErrReceiptInvalid {
			t.Errorf("another secret's receipt: %v", err)
		}
		for _, forged := range []string{"x", "!!", d.Receipt[1:], d.Receipt[:len(d.Receipt)-2], d.Receipt + "AA", strings.Repeat("A", 200), flip(d.Receipt)} {
			if err := refund(t, one, forged); err != weir.ErrReceiptInvalid {
				t.Errorf("forged receipt %.20q: %v", forged, err)
			}
		}
		if err := refund(t, two, d.Receipt); err != nil {
			t.Fatal(err)
		}
		for _, l := range []*weir.Limiter{one, two} {
			if err := refund(t, l, d.Receipt); err != weir.ErrUsed {
				t.Errorf("used receipt: %v", err)
			}
		}
		got := check(t, one, weir.Request{APIKey: "sk_secret_key", User: "u", Cost: 10, Receipt: true})
		if !got.Allowed || got.Remaining != 0 {
			t.Fatalf("after the refund: %+v", got)
		}
		time.Sleep(2 * time.Hour)
		if err := refund(t, one, got.Receipt); err != weir.ErrReceiptExpired {
			t.Errorf("expired receipt: %v", err)
		}
		if refused := check(t, one, weir.Request{APIKey: "k", Cost: 11, Receipt: true}); refused.Receipt != "" {
			t.Error("a refusal has a receipt")
		}
	})
}

// refund gives back what the check with a receipt took.
func refund(t *testing.T, l *weir.Limiter, receipt string) error {
	return l.Finish(t.Context(), &weir.Decision{Receipt: receipt}, weir.Outcome{Abandoned: true})
}

// flip changes one character in the middle.
func flip(s string) string {
	b := []byte(s)
	if b[len(b)/2] ^= 1; b[len(b)/2] < '0' {
		b[len(b)/2] = 'x'
	}
	return string(b)
}

func TestQueueDelaysAndCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, weir.Rule{ID: "q", Algorithm: weir.LeakyQueue, Limits: []weir.Limit{{Count: 60, Window: time.Minute, Burst: 3}}})
		var ds []weir.Decision
		for i := range 3 {
			d := check(t, l, weir.Request{APIKey: "k"})
			if !d.Allowed || d.Delay != time.Duration(i)*time.Second {
				t.Fatalf("request %d: %+v", i, d)
			}
			ds = append(ds, d)
		}
		if d := check(t, l, weir.Request{APIKey: "k"}); d.Allowed || d.RetryAfter != time.Second {
			t.Fatalf("%+v", d)
		}
		if err := l.Finish(t.Context(), &ds[2], weir.Outcome{Abandoned: true}); err != nil {
			t.Fatal(err)
		}
		if d := check(t, l, weir.Request{APIKey: "k"}); !d.Allowed || d.Delay != 2*time.Second {
			t.Fatalf("the cancelled place isn't free: %+v", d)
		}
		if err := l.Finish(t.Context(), &ds[2], weir.Outcome{Abandoned: true}); err != nil { // a second cancel is nothing
			t.Fatal(err)
		}
		if check(t, l, weir.Request{APIKey: "k"}).Allowed {
			t.Fatal("cancelling twice freed two places")
		}
	})
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

// brokenStore fails for some rules, as a store does when a shard is gone.
type brokenStore struct {
	*memstore.Store
	fails []string
}

var errGone = errors.New("shard gone")

func (s *brokenStore) Take(ctx context.Context, charges []weir.Charge, results []weir.Result) {
	var healthy []weir.Charge
	var at []int
	for i, c := range charges {
		if slices.Contains(s.fails, c.Policy.Rule) {
			results[i] = weir.Result{Err: errGone}
			continue
		}
		healthy, at = append(healthy, c), append(at, i)
	}
	out := make([]weir.Result, len(healthy))
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
	// What a healthy limit refuses takes nothing of the local counter.
	for range 5 {
		try("d", "local") // open admits one
	}
	if d, _ = try("d", "open", "local"); !d.Allowed || d.Remaining != 0 || d.Rule != "local" {
		t.Errorf("refused requests were charged locally: %+v", d)
	}
}

func TestEmergencyLimit(t *testing.T) {
	rs := compile(t, weir.Rules{Rules: []weir.Rule{
		{ID: "open", Limits: per(100, time.Hour)},
		{ID: "healthy", Limits: per(6, time.Hour)},
	}})
	emergency, err := weir.NewPolicy("emergency", weir.Limit{Count: 2, Window: time.Hour})
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

func TestObserverSeesEveryDecision(t *testing.T) {
	var seen []weir.Reason
	var asked []string
	rs := compile(t, weir.Rules{Rules: []weir.Rule{{ID: "a", Match: weir.Match{Endpoint: "/a"}, Limits: per(1, time.Hour)}}, Deny: []string{"bad"}})
	l := weir.NewLimiter(memstore.New(memstore.Options{}), rs, weir.Options{Observe: func(o *weir.Observation) {
		seen, asked = append(seen, o.Decision.Reason), append(asked, o.Request.Path+o.Request.APIKey)
		if o.Err != nil {
			t.Error(o.Err)
		}
	}})
	for _, req := range []weir.Request{{Path: "/a"}, {Path: "/a"}, {Path: "/b"}, {APIKey: "bad"}} {
		check(t, l, req)
	}
	want := []weir.Reason{weir.ReasonWithin, weir.ReasonLimited, weir.ReasonUnlimited, weir.ReasonDenied}
	if !slices.Equal(seen, want) {
		t.Errorf("saw %v, want %v", seen, want)
	}
	if want := []string{"/a", "/a", "/b", "bad"}; !slices.Equal(asked, want) {
		t.Errorf("saw requests %v, want %v", asked, want)
	}
}

// slowStore takes its time.
type slowStore struct {
	weir.Store
	time.Duration
}

func (s slowStore) Take(ctx context.Context, charges []weir.Charge, results []weir.Result) {
	time.Sleep(s.Duration)
	s.Store.Take(ctx, charges, results)
}

func TestObserverIsToldOfTimeAndFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := &brokenStore{Store: memstore.New(memstore.Options{})}
		var seen weir.Observation
		rs := compile(t, weir.Rules{Rules: []weir.Rule{{ID: "a", Limits: per(1, time.Hour)}}})
		l := weir.NewLimiter(slowStore{broken, 7 * time.Millisecond}, rs, weir.Options{Observe: func(o *weir.Observation) { seen = *o }})
		check(t, l, weir.Request{})
		if seen.Err != nil {
			t.Error(seen.Err)
		}
		broken.fails = []string{"a"}
		own := []weir.Charge{charge(ownPolicy(t, "a", 1, weir.FailAllow), "s", 1)}
		const n = 4000
		timed := 0
		for i := range n {
			if i%2 == 0 {
				_, _ = l.Check(t.Context(), &weir.Request{})
			} else {
				_, _ = l.Take(t.Context(), &weir.Request{}, own)
			}
			switch {
			case !errors.Is(seen.Err, errGone):
				t.Fatalf("observation %d: %v", i, seen.Err)
			case seen.Took == 7*time.Millisecond:
				timed++
			case seen.Took != 0:
				t.Fatalf("observation %d took %v", i, seen.Took)
			}
		}
		// One in 64 is timed, by chance.
		if timed < n/64/3 || timed > n/64*3 {
			t.Errorf("%d of %d observations were timed", timed, n)
		}
		_, _ = l.Take(t.Context(), &weir.Request{}, nil)
		if seen.Err != nil || seen.Took != 0 {
			t.Errorf("a take of nothing: %+v", seen)
		}
	})
}

// TestObserverIsToldByEdges: what an edge decides by itself, and who asks.
func TestObserverIsToldByEdges(t *testing.T) {
	var seen []string
	l := weir.NewLimiter(memstore.New(memstore.Options{}), compile(t, weir.Rules{}), weir.Options{Observe: func(o *weir.Observation) {
		seen = append(seen, fmt.Sprint(o.Request.Edge, " ", o.Decision.Reason, " ", o.Decision.Rule))
	}})
	l.Tell(&weir.Request{Edge: "http"}, weir.Decision{Reason: weir.ReasonOverloaded, Rule: "queue"})
	check(t, l, weir.Request{})
	if want := []string{"http overloaded queue", " unlimited "}; !slices.Equal(seen, want) {
		t.Errorf("saw %q, want %q", seen, want)
	}
	weir.NewLimiter(memstore.New(memstore.Options{}), nil, weir.Options{}).Tell(&weir.Request{}, weir.Decision{}) // nobody listens
}

func TestSecretThatComesLater(t *testing.T) {
	rs := compile(t, weir.Rules{Rules: []weir.Rule{{ID: "a", Limits: per(1, time.Hour)}}})
	store := memstore.New(memstore.Options{})
	one, two := weir.NewLimiter(store, rs, weir.Options{}), weir.NewLimiter(store, rs, weir.Options{})
	d, _ := one.Check(t.Context(), &weir.Request{APIKey: "k", Receipt: true})
	if err := refund(t, two, d.Receipt); !errors.Is(err, weir.ErrReceiptInvalid) {
		t.Errorf("a receipt of another secret: %v", err)
	}
	one.SetSecret([]byte("common"))
	two.SetSecret([]byte("common"))
	d, _ = one.Check(t.Context(), &weir.Request{APIKey: "l", Receipt: true})
	if err := refund(t, two, d.Receipt); err != nil {
		t.Errorf("a receipt of the common secret: %v", err)
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

// Without rules nothing is let through, and what needs no rules works.
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
	p, err := weir.NewPolicy("p", weir.Limit{Count: 5, Window: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if d, err := l.Take(t.Context(), req, []weir.Charge{{Counter: weir.Counter{Policy: p, Subject: []byte("k")}, N: 1}}); !d.Allowed || err != nil {
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

// A receipt is finished once, whatever the outcome was, and with its decision's own knowledge of which answers count.
func TestReceiptsOfRulesThatCountByStatus(t *testing.T) {
	finish := func(l *weir.Limiter, receipt string, o weir.Outcome) error {
		return l.Finish(t.Context(), &weir.Decision{Receipt: receipt}, o)
	}
	for _, test := range []struct {
		outcome weir.Outcome
		left    [2]int64 // of login, of all
	}{
		{weir.Outcome{Status: 401}, [2]int64{7, 7}},
		{weir.Outcome{Status: 503}, [2]int64{7, 7}},
		{weir.Outcome{Status: 200}, [2]int64{10, 7}},
		{weir.Outcome{}, [2]int64{7, 7}},
		{weir.Outcome{Abandoned: true}, [2]int64{10, 10}},
		{weir.Outcome{Status: 401, Abandoned: true}, [2]int64{10, 10}},
	} {
		l := limiter(t,
			weir.Rule{ID: "login", Statuses: []int{401, 5}, Limits: per(10, time.Hour)},
			weir.Rule{ID: "all", By: []string{"ip"}, Limits: per(10, time.Hour)})
		d := check(t, l, weir.Request{APIKey: "k", IP: ip1, Cost: 3, Receipt: true})
		if !d.Unfinished() {
			t.Error("a rule counts by status, and nothing is due")
		}
		if err := finish(l, d.Receipt, test.outcome); err != nil {
			t.Fatal(err)
		}
		for _, again := range []weir.Outcome{{}, {Status: 200}, {Abandoned: true}} {
			if err := finish(l, d.Receipt, again); err != weir.ErrUsed {
				t.Errorf("%+v after %+v: %v", again, test.outcome, err)
			}
			if err := l.Finish(t.Context(), &d, again); err != weir.ErrUsed {
				t.Errorf("the decision itself, %+v after %+v: %v", again, test.outcome, err)
			}
		}
		peek := check(t, l, weir.Request{APIKey: "k", IP: ip1, Peek: true})
		if ls := peek.Limits(); ls[0].Remaining != test.left[0] || ls[1].Remaining != test.left[1] {
			t.Errorf("%+v: %d and %d left, want %v", test.outcome, ls[0].Remaining, ls[1].Remaining, test.left)
		}
	}
}

// Without a receipt, too, an abandoned request gives back what all of its limits took.
func TestAbandonedGivesBackEverything(t *testing.T) {
	l := limiter(t,
		weir.Rule{ID: "login", Statuses: []int{401}, Limits: per(10, time.Hour)},
		weir.Rule{ID: "all", By: []string{"ip"}, Limits: per(10, time.Hour)})
	d := check(t, l, weir.Request{APIKey: "k", IP: ip1, Cost: 3})
	for range 2 {
		if err := l.Finish(t.Context(), &d, weir.Outcome{Abandoned: true}); err != nil {
			t.Fatal(err)
		}
	}
	peek := check(t, l, weir.Request{APIKey: "k", IP: ip1, Peek: true})
	if ls := peek.Limits(); ls[0].Remaining != 10 || ls[1].Remaining != 10 {
		t.Errorf("%d and %d left", ls[0].Remaining, ls[1].Remaining)
	}
	if d := check(t, limiter(t, weir.Rule{ID: "a", Limits: per(10, time.Hour)}), weir.Request{APIKey: "k"}); d.Unfinished() {
		t.Error("nothing counts by status, and something is due")
	}
}
