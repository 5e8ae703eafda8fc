package top_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/server/internal/observe/top"
)

// runHour runs a test with a bed whose Top knows the limiter's rules.
func runHour(t *testing.T, test func(*bed, *top.Cluster), rules ...weir.Rule) {
	t.Helper()
	var b atomic.Pointer[bed] // a pointer, because the options refer to the bed, which needs the options
	run(t, top.Options{Rules: func() *weir.RuleSet {
		if b.Load() == nil {
			return nil
		}
		return b.Load().limiter.Rules()
	}}, func(mine *bed) {
		b.Store(mine)
		test(mine, top.NewCluster(mine.top, "n1", nil, nil))
	}, rules...)
}

// count counts exactly what a test has sent, by rule, client and slot.
type count map[[3]string][2]uint64

func (c count) add(rule, client string, refused bool) {
	name := [3]string{rule, client, fmt.Sprint(time.Now().Unix() / 10)}
	n := c[name]
	n[0]++
	if refused {
		n[1]++
	}
	c[name] = n
}

// of returns the requests of a client that a rule counted, in the hour of a span.
func (c count) of(rule, client string, s top.Span) (past top.Past, requests, refused uint64) {
	past = top.Past{Requests: make([]uint64, s.Slots), Refused: make([]uint64, s.Slots)}
	for i := range past.Requests {
		n := c[[3]string{rule, client, fmt.Sprint(s.From.Unix()/10 + int64(i))}]
		past.Requests[i], past.Refused[i] = n[0], n[1]
		requests, refused = requests+n[0], refused+n[1]
	}
	return past, requests, refused
}

// TestTheHourIsAnExactCount checks that every rule that applies has exact counts for each of its clients, in each slot
// of the last hour, and that older slots are forgotten.
func TestTheHourIsAnExactCount(t *testing.T) {
	runHour(t, func(b *bed, hour *top.Cluster) {
		sent, random := count{}, rand.New(rand.NewPCG(1, 2))
		shownOf := map[string]string{}
		for range 75 * 60 {
			for range random.IntN(4) {
				r := weir.Request{APIKey: fmt.Sprintf("sk_prod_%016d", random.IntN(20)), KeyVerified: true, Org: fmt.Sprint("organisation-", random.IntN(3)),
					Method: []string{"GET", "PUT"}[random.IntN(2)], Path: "/v1/x", IP: netip.AddrFrom4([4]byte{10, 0, 0, byte(random.IntN(5))})}
				d, err := b.limiter.Check(t.Context(), &r)
				if err != nil {
					t.Fatal(err)
				}
				for i, l := range d.Limits() {
					if i > 0 && d.Limits()[i-1].Policy.Rule == l.Policy.Rule {
						continue // another limit of the same rule
					}
					client := map[string]string{"key": r.APIKey, "org": r.Org, "ip": r.IP.String(), "pair": r.APIKey + " " + r.Method, "all": "(everybody)"}[l.Policy.Rule]
					sent.add(l.Policy.Rule, client, !l.Allowed)
					sent.add(l.Policy.Rule, "", !l.Allowed)
				}
				shownOf[r.APIKey], shownOf[r.Org], shownOf[r.IP.String()] = mask(r.APIKey), mask(r.Org), r.IP.String()
				shownOf[r.APIKey+" "+r.Method], shownOf["(everybody)"] = mask(r.APIKey)+" "+r.Method, "(everybody)"
			}
			time.Sleep(time.Second)
		}
		kinds := map[string]string{"key": "api_key", "org": "org", "ip": "ip", "pair": "api_key+method", "all": "all"}
		for rule, kind := range kinds {
			got := must(hour.Rule(t.Context(), top.Query{Rule: rule, K: 1000}))
			want, requests, refused := sent.of(rule, "", got.Span)
			if got.Requests != requests || got.Refused != refused || got.Coverage != 1 || requests == 0 || rule == "key" && refused == 0 {
				t.Errorf("%s: %d requests, %d refused, coverage %v, want %d and %d", rule, got.Requests, got.Refused, got.Coverage, requests, refused)
			}
			if !slices.Equal(got.Series.Requests, want.Requests) || !slices.Equal(got.Series.Refused, want.Refused) {
				t.Errorf("%s: the series is\n%v, want\n%v", rule, got.Series, want)
			}
			clients := map[string]string{} // client names, as they are shown
			for name := range sent {
				if name[0] == rule && name[1] != "" {
					clients[name[1]] = shownOf[name[1]]
				}
			}
			if len(got.Clients) != len(clients) || got.Keys != len(clients) {
				t.Errorf("%s has %d clients and %d keys, want %d", rule, len(got.Clients), got.Keys, len(clients))
			}
			for client, masked := range clients {
				past, requests, refused := sent.of(rule, client, got.Span)
				if !slices.ContainsFunc(got.Clients, func(c top.HourClient) bool {
					return c.Client == masked && c.Kind == kind && c.Requests == requests && c.Refused == refused &&
						slices.Equal(c.History.Requests, past.Requests) && slices.Equal(c.History.Refused, past.Refused)
				}) {
					t.Errorf("%s: %s isn't there, with %d requests and %d refused", rule, client, requests, refused)
				}
			}
		}
		// A client's page lists the rules that count by that client.
		key := fmt.Sprintf("sk_prod_%016d", 7)
		page, _, err := hour.Client(t.Context(), top.Identity{Kind: "api_key", Value: key}, "")
		if err != nil || len(page.Rules) != 2 || page.Client != mask(key) {
			t.Fatalf("%v: %+v", err, page)
		}
		for _, in := range page.Rules {
			_, want, _ := sent.of("key", key, page.Span) // both rules count all requests of the client
			if in.Requests != want {
				t.Errorf("%s has %d requests of the client, want %d", in.Rule, in.Requests, want)
			}
		}
		if who, err := hour.Resolve(t.Context(), page.Fingerprint); err != nil || who.Value != key || who.Kind != "api_key" {
			t.Errorf("%v: the fingerprint leads to %q", err, who.Kind)
		}
		time.Sleep(61 * time.Minute)
		if got := must(hour.Rule(t.Context(), top.Query{Rule: "key", K: 10})); got.Requests != 0 || len(got.Clients) != 0 || got.LastHit == nil {
			t.Errorf("after an hour of silence: %+v", got.HourRule)
		}
	},
		weir.Rule{ID: "key", Limits: []weir.Limit{weir.PerMinute(4)}},
		weir.Rule{ID: "org", By: []string{"org"}, Limits: []weir.Limit{weir.PerSecond(1000), weir.PerHour(1_000_000)}},
		weir.Rule{ID: "ip", By: []string{"ip"}, Limits: []weir.Limit{weir.PerSecond(1000)}},
		weir.Rule{ID: "pair", By: []string{"api_key", "method"}, Limits: []weir.Limit{weir.PerSecond(1000)}},
		weir.Rule{ID: "all", By: []string{}, Limits: []weir.Limit{weir.PerSecond(1000)}})
}

func mask(s string) string { return top.Identity{Kind: "api_key", Value: s}.Shown() }

// TestHowMuchIsUsed checks the used part of a limit, for every algorithm: it comes from what decisions said was left,
// until the counter is full again.
func TestHowMuchIsUsed(t *testing.T) {
	var rules []weir.Rule
	for a := weir.TokenBucket; a <= weir.SlidingCounter; a++ {
		rules = append(rules, weir.Rule{ID: strings.ReplaceAll(a.String(), "_", "-"), Algorithm: a, Limits: []weir.Limit{weir.PerHour(10)}, Match: weir.Match{Endpoint: "/" + a.String()}})
		if a == weir.LeakyQueue {
			rules[a].MaxDelay = 2 * time.Hour
		}
	}
	runHour(t, func(b *bed, hour *top.Cluster) {
		for _, r := range rules {
			for key, n := range map[string]int{"sk_a": 4, "sk_b": 5, "sk_c": 8, "sk_d": 10, "sk_e": 12} {
				for range n {
					b.check(weir.Request{APIKey: key, Path: r.Match.Endpoint})
				}
			}
		}
		time.Sleep(time.Second)
		for _, u := range must(hour.Rules(t.Context())).Rules {
			if u.Keys != 5 || u.Above50 != 4 || u.Above80 != 3 || u.Above100 != 2 || u.Refused != 2 {
				t.Errorf("%+v", u)
			}
		}
		time.Sleep(2 * time.Hour)
		for _, u := range must(hour.Rules(t.Context())).Rules {
			if u.Above50 != 0 {
				t.Errorf("all are full again: %+v", u)
			}
		}
	}, rules...)
}

// TestARuleThatChangesWhatItCountsBy checks that a rule whose by changes forgets its clients, because their names could
// no longer be read.
func TestARuleThatChangesWhatItCountsBy(t *testing.T) {
	runHour(t, func(b *bed, hour *top.Cluster) {
		b.check(weir.Request{APIKey: "sk_1", User: "ada"})
		time.Sleep(time.Second)
		if got := must(hour.Rule(t.Context(), top.Query{Rule: "api", K: 10})); len(got.Clients) != 1 || got.Clients[0].Kind != "api_key" {
			t.Fatalf("%+v", got.Clients)
		}
		rs, err := weir.Compile(weir.Rules{Rules: []weir.Rule{{ID: "api", By: []string{"user"}, Limits: []weir.Limit{weir.PerSecond(5)}}}})
		if err != nil {
			t.Fatal(err)
		}
		b.limiter.SetRules(rs)
		time.Sleep(time.Second)
		b.check(weir.Request{APIKey: "sk_1", User: "ada"})
		time.Sleep(time.Second)
		got := must(hour.Rule(t.Context(), top.Query{Rule: "api", K: 10}))
		if len(got.Clients) != 1 || got.Clients[0].Kind != "user" || got.Requests != 2 || got.Coverage != 0.5 {
			t.Errorf("%+v", got)
		}
	}, weir.Rule{ID: "api", Limits: []weir.Limit{weir.PerSecond(5)}})
}

// TestLongKeys checks that a long key is shown only by its fingerprint, so that an operator has to paste the key.
func TestLongKeys(t *testing.T) {
	runHour(t, func(b *bed, hour *top.Cluster) {
		long, fits := strings.Repeat("k", 300), strings.Repeat("k", 191)
		b.check(weir.Request{APIKey: long})
		b.check(weir.Request{APIKey: fits})
		time.Sleep(time.Second)
		for key, want := range map[string]error{long: top.ErrLongClient, fits: nil} {
			page, _, err := hour.Client(t.Context(), top.Identity{Kind: "api_key", Value: key}, "")
			if err != nil || len(page.Rules) != 1 || page.Rules[0].Requests != 1 {
				t.Errorf("%d bytes: %v: %+v", len(key), err, page.Rules)
			}
			if got := b.top.Fingerprint(&weir.Request{APIKey: key}); got != page.Fingerprint {
				t.Errorf("the fingerprint is %s here, and %s on the page", got, page.Fingerprint)
			}
			if _, err := hour.Resolve(t.Context(), page.Fingerprint); err != want {
				t.Errorf("%d bytes: %v", len(key), err)
			}
		}
		if _, err := hour.Resolve(t.Context(), "00000000"); err != top.ErrUnknownClient {
			t.Error(err)
		}
		for _, bad := range []string{"", "xyz", "+1234567", "123456789"} {
			if _, err := hour.Resolve(t.Context(), bad); err != top.ErrFingerprint {
				t.Errorf("%q: %v", bad, err)
			}
		}
	})
}
