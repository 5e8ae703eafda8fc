package top_test

import (
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/metrics"
	"github.com/weirhq/weir/server/internal/observe/top"
)

// bed is a limiter whose decisions a Top observes.
type bed struct {
	t       testing.TB
	limiter *weir.Limiter
	top     *top.Top
}

// run runs a test with a bed, in virtual time.
func run(t *testing.T, o top.Options, test func(*bed), rules ...weir.Rule) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, o, rules...)
		ctx := t.Context()
		go func() { _ = b.top.Run(ctx) }()
		test(b)
	})
}

func newBed(t testing.TB, o top.Options, rules ...weir.Rule) *bed {
	if len(rules) == 0 {
		rules = []weir.Rule{{ID: "api", Limits: []weir.Limit{weir.PerSecond(1_000_000)}}}
	}
	rs, err := weir.Compile(weir.Rules{Rules: rules})
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{t: t, top: top.New(o)}
	b.limiter = weir.NewLimiter(memstore.New(memstore.Options{}), rs, weir.Options{Observe: b.top.Observe})
	return b
}

func (b *bed) check(r weir.Request) {
	b.t.Helper()
	if _, err := b.limiter.Check(b.t.Context(), &r); err != nil {
		b.t.Error(err)
	}
}

func (b *bed) answer(q top.Query) top.Answer {
	if q.K == 0 {
		q.K = 50
	}
	return top.NewCluster(b.top, "n1", nil, nil).Hot(b.t.Context(), q)
}

// TestRatesAreRecent checks that rates by client and rule show as long as they are recent.
func TestRatesAreRecent(t *testing.T) {
	run(t, top.Options{}, func(b *bed) {
		ip := netip.MustParseAddr("2001:db8::17")
		for range 10 { // seconds, the length of the window
			for range 30 {
				b.check(weir.Request{APIKey: "sk_prod_0123456789abcdef", KeyVerified: true, IP: ip})
			}
			for range 20 {
				b.check(weir.Request{User: "ada@example.com", Path: "/login"})
			}
			for range 10 {
				b.check(weir.Request{IP: ip})
			}
			time.Sleep(time.Second)
		}
		type row struct {
			kind, client, rule string
			requests, refused  float64
		}
		want := []row{{"api_key", "sk_pro…ef", "api", 30, 0}, {"user", "ad…m", "login", 20, 15}, {"ip", "2001:db8::/64", "api", 10, 0}}
		got := b.answer(top.Query{})
		for i, w := range want {
			if i >= len(got.Clients) {
				t.Fatalf("%d clients: %+v", len(got.Clients), got.Clients)
			}
			c := got.Clients[i]
			if g := (row{c.Kind, c.Client, c.Rule, c.Requests, c.Refused}); g != w {
				t.Errorf("got %v, want %v", g, w)
			}
			if c.PlusMinus != 0 || got.MissingBelow != 0 {
				t.Errorf("%s is said to be inexact: %+v", c.Client, c)
			}
			if n := c.History.Requests[top.Slots-1]; float64(n) != 2*w.requests {
				t.Errorf("%s: the last slot has %d", c.Client, n)
			}
		}
		if got := b.answer(top.Query{Refused: true}); len(got.Clients) != 1 || got.Clients[0].Kind != "user" {
			t.Errorf("by refusals: %+v", got.Clients)
		}
		if got := b.answer(top.Query{Rule: "login"}); len(got.Clients) != 1 || got.Clients[0].Rule != "login" {
			t.Errorf("for one rule: %+v", got.Clients)
		}
		if got := b.answer(top.Query{K: 2}); len(got.Clients) != 2 {
			t.Errorf("two of them: %+v", got.Clients)
		}
		if got := b.top.Hottest(); got != 30 {
			t.Errorf("the hottest has %v", got)
		}
		time.Sleep(15 * time.Second)
		if got := b.answer(top.Query{}); len(got.Clients) != 0 {
			t.Errorf("after a window without requests, these clients are shown: %+v", got.Clients)
		}
	}, weir.Rule{ID: "api", Limits: []weir.Limit{weir.PerMinute(100_000)}},
		weir.Rule{ID: "login", By: []string{"user"}, Match: weir.Match{Endpoint: "/login"}, Missing: weir.MissingSkip,
			Algorithm: weir.FixedWindow, Limits: []weir.Limit{weir.PerSecond(5)}})
}

// TestAKeyPerRequest checks that a flood of made-up keys shows as its address, that slower keys still show, and that
// the answer says below which rate clients may be missing. A verified key isn't shown as its address.
func TestAKeyPerRequest(t *testing.T) {
	run(t, top.Options{}, func(b *bed) {
		flood, home := netip.MustParseAddr("203.0.113.7"), netip.MustParseAddr("198.51.100.1")
		for i := range 10_000 {
			b.check(weir.Request{APIKey: fmt.Sprint("sk_made_up_", i), IP: flood})
			if i%20 == 0 {
				b.check(weir.Request{APIKey: "sk_verified", KeyVerified: true, IP: home})
			}
			time.Sleep(time.Millisecond)
		}
		got := b.answer(top.Query{})
		if len(got.Clients) < 2 || got.Clients[0].Client != "203.0.113.7" || got.Clients[0].Kind != "ip" || math.Abs(got.Clients[0].Requests-1000) > 20 {
			t.Fatalf("the flood isn't the first: %.300v", got.Clients)
		}
		if c := got.Clients[1]; c.Kind != "api_key" || c.Requests > 55 || c.Requests+got.MissingBelow < 45 {
			t.Errorf("a key that sends 50 requests a second is %+v", c)
		}
		for _, c := range got.Clients {
			if c.Client == home.String() {
				t.Errorf("a verified key's address: %+v", c)
			}
		}
		if got.MissingBelow < 1 || got.MissingBelow > 20 {
			t.Errorf("made-up keys send 0.1 a second, and clients below %v are said to be missing", got.MissingBelow)
		}
		if rate := b.top.Hottest(); math.Abs(rate-1000) > 20 {
			t.Errorf("the hottest sends %v", rate)
		}
	})
}

// TestKeysThatLookTheSame checks that keys that look the same when masked stay apart, and that no output contains one
// of them.
func TestKeysThatLookTheSame(t *testing.T) {
	keys := []string{"sk_prod_AAAA_SECRET_1_zzzz", "sk_prod_AAAA_SECRET_2_zzzz", "sk_*_SECRET", "10.1.2.3_SECRET", strings.Repeat("x", 20) + strings.Repeat("SECRET", 3000) + strings.Repeat("x", 20), "\x1b[31mSECRET\xff\n"}
	run(t, top.Options{}, func(b *bed) {
		for range 3 {
			for _, k := range keys {
				b.check(weir.Request{APIKey: k})
				b.check(weir.Request{User: k})
			}
		}
		time.Sleep(2 * top.Slot)
		text, err := json.Marshal(b.answer(top.Query{}))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "SECRET") || strings.ContainsAny(string(text), "\x1b\n") {
			t.Errorf("a key comes out: %s", text)
		}
		seen := map[string]bool{}
		for _, c := range b.answer(top.Query{}).Clients {
			seen[c.Kind+c.Client+c.Fingerprint] = true
		}
		if len(seen) != 2*len(keys) {
			t.Errorf("%d keys and as many users are %d clients: %v", len(keys), len(keys), seen)
		}
	})
}

// TestFingerprints checks that nodes with the same secret have the same fingerprints, and other nodes don't.
func TestFingerprints(t *testing.T) {
	of := func(secret string) (fingerprint string) {
		run(t, top.Options{Secret: func() []byte { return []byte(secret) }}, func(b *bed) {
			time.Sleep(time.Second + time.Millisecond) // by now the node has read the secret
			b.check(weir.Request{APIKey: "sk_1"})
			time.Sleep(2 * top.Slot)
			if c := b.answer(top.Query{}).Clients; len(c) == 1 {
				fingerprint = c[0].Fingerprint
			}
		})
		return fingerprint
	}
	a, same, other := of("one"), of("one"), of("two")
	if a == "" || a != same || a == other {
		t.Errorf("fingerprints under one secret are %q and %q, under another %q", a, same, other)
	}
}

// TestLastUse checks that a rule's last hit and last refusal are known, including for a rule that applies but doesn't
// decide.
func TestLastUse(t *testing.T) {
	run(t, top.Options{}, func(b *bed) {
		time.Sleep(time.Minute)
		for range 2 {
			b.check(weir.Request{APIKey: "sk_1"})
		}
		used := time.Now().UTC().Truncate(time.Second)
		time.Sleep(time.Minute)
		rules := map[string]top.RuleUse{}
		for _, r := range b.answer(top.Query{}).Rules {
			rules[r.Rule] = r
		}
		for _, id := range []string{"tight", "loose", "shadow"} {
			if hit := rules[id].LastHit; hit == nil || hit.Sub(used).Abs() > time.Second {
				t.Errorf("%s was last hit at %v, want %v", id, hit, used)
			}
		}
		if at := rules["tight"].LastRefusal; at == nil || at.Sub(used).Abs() > time.Second {
			t.Errorf("the last refusal was at %v, want %v", at, used)
		}
		if rules["loose"].LastRefusal != nil {
			t.Errorf("%+v has refused nothing", rules["loose"])
		}
	}, weir.Rule{ID: "tight", Limits: []weir.Limit{weir.PerMinute(1)}}, weir.Rule{ID: "loose", Limits: []weir.Limit{weir.PerMinute(1000)}},
		weir.Rule{ID: "shadow", Shadow: true, Limits: []weir.Limit{weir.PerMinute(1)}})
}

// TestManyRules checks that a rule that was dropped to make room, and is tracked again, doesn't count its earlier
// requests again.
func TestManyRules(t *testing.T) {
	var busy uint64
	totals := func(tell func(string, metrics.Total)) {
		busy += 10
		tell("busy", metrics.Total{Decisions: 100_000 + busy})
		for i := range 15_000 {
			tell(fmt.Sprint("idle-", i), metrics.Total{Decisions: 100_000, Refusals: 50_000})
		}
	}
	run(t, top.Options{Totals: totals}, func(b *bed) {
		time.Sleep(2 * time.Minute)           // by now, totals from before the node started don't show any longer
		b.check(weir.Request{APIKey: "sk_1"}) // of another rule, for which others are dropped
		time.Sleep(3 * time.Second)           // by now, some of the dropped rules are tracked again
		rules := b.answer(top.Query{}).Rules
		for _, r := range rules {
			want := 0.
			if r.Rule == "busy" {
				want = 10
			}
			if r.Requests != want || r.Refused != 0 {
				t.Fatalf("%s has %v requests a second, %v of them refused, want %v", r.Rule, r.Requests, r.Refused, want)
			}
		}
		if len(rules) < 9000 || len(rules) > 10_000 || !slices.ContainsFunc(rules, func(r top.RuleUse) bool { return r.Rule == "busy" }) {
			t.Errorf("%d rules are known", len(rules))
		}
	})
}

// TestAClientIsOneRow checks that a client is one row, whichever rules decide its requests. In the answer for a single
// rule, the row counts only the requests that the rule decided.
func TestAClientIsOneRow(t *testing.T) {
	run(t, top.Options{}, func(b *bed) {
		for range 10 { // seconds
			for range 20 {
				b.check(weir.Request{APIKey: "hot_key", Path: "/a"})
				b.check(weir.Request{APIKey: "one_key", Path: "/a"})
			}
			for range 10 {
				b.check(weir.Request{APIKey: "hot_key", Path: "/b"})
			}
			time.Sleep(time.Second)
		}
		for q, want := range map[top.Query][]string{
			{}:              {"h… a +1 30 8 60", "o… a +0 20 0 40"},
			{Rule: "b"}:     {"h… b +0 10 8 20"},
			{Refused: true}: {"h… b +0 30 8 60"},
		} {
			var got []string
			for _, c := range b.answer(q).Clients {
				got = append(got, fmt.Sprintf("%s %s +%d %v %v %d", c.Client, c.Rule, c.MoreRules, c.Requests, c.Refused, c.History.Requests[top.Slots-1]))
			}
			if !slices.Equal(got, want) {
				t.Errorf("%+v: got %q, want %q", q, got, want)
			}
		}
		if got := b.top.Hottest(); got != 30 {
			t.Errorf("the hottest has %v", got)
		}
	}, weir.Rule{ID: "a", Match: weir.Match{Endpoint: "/a"}, Limits: []weir.Limit{weir.PerMinute(100_000)}},
		weir.Rule{ID: "b", Match: weir.Match{Endpoint: "/b"}, Algorithm: weir.FixedWindow, Limits: []weir.Limit{weir.PerSecond(2)}})
}

// TestARuleInShadow checks that a rule in shadow mode has no refusals.
func TestARuleInShadow(t *testing.T) {
	var all metrics.Total
	totals := func(tell func(string, metrics.Total)) {
		all.Shadow += 3
		all.Events += 3
		tell("trial", all)
	}
	run(t, top.Options{Totals: totals}, func(b *bed) {
		time.Sleep(20 * time.Second)
		rules := b.answer(top.Query{}).Rules
		if len(rules) != 1 || rules[0].Refused != 0 || rules[0].Shadow != 3 || rules[0].LastHit == nil || rules[0].LastRefusal == nil {
			t.Errorf("%+v", rules)
		}
	})
}

// TestFingerprintsStay checks that once a node can learn the shared secret, its answers have only fingerprints that
// other nodes have, too.
func TestFingerprintsStay(t *testing.T) {
	var secret atomic.Pointer[[]byte]
	options := top.Options{Secret: func() []byte {
		if s := secret.Load(); s != nil {
			return *s
		}
		return nil
	}}
	r := weir.Request{APIKey: "sk_prod_1"}
	early, late := top.New(options), top.New(options)
	alone := early.Fingerprint(&r) // the store hasn't been reached yet
	secret.Store(&[]byte{15: 1})
	page, _, err := top.NewCluster(early, "a", nil, nil).Client(t.Context(), top.Identity{Kind: "api_key", Value: r.APIKey}, "")
	late.Learn()
	if err != nil || page.Fingerprint == alone || page.Fingerprint != early.Fingerprint(&r) || page.Fingerprint != late.Fingerprint(&r) || page.Fingerprint != late.See(&r).Fingerprint {
		t.Errorf("%v: %s, then %s, %s and %s", err, alone, page.Fingerprint, early.Fingerprint(&r), late.Fingerprint(&r))
	}
}
