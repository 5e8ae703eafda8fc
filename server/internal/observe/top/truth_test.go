package top_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/redisstore"
	"github.com/weirhq/weir/server/internal/observe/top"
)

// TestRequestsRefusedByOtherRules checks that a request that another rule refused takes no token of this rule, so it isn't
// one that a lower limit of this rule would have refused. A candidate gives the same number.
func TestRequestsRefusedByOtherRules(t *testing.T) {
	candidate := []weir.Limit{weir.PerMinute(20)}
	runHour(t, func(b *bed, hour *top.Cluster) {
		for range 100 {
			b.check(weir.Request{APIKey: "sk_1", Path: "/x"})
		}
		time.Sleep(time.Minute)
		b.check(weir.Request{APIKey: "sk_1", Path: "/x", Cost: 5})
		time.Sleep(time.Second)
		usage := must(hour.Rule(t.Context(), top.Query{Rule: "api", K: 10}))
		got := must(hour.Arrivals(t.Context(), "api")).Under(t.Context(), policy(t, candidate[0]))
		if got.WouldRefuse != usage.WouldRefuse || got.WouldRefuse != 0 || got.Elsewhere != 90 || got.Requests != 101 || got.LeftOut != 0 {
			t.Errorf("of %d requests, of which others refused %d, %d would have been refused; the candidate says %d", got.Requests, got.Elsewhere, got.WouldRefuse, usage.WouldRefuse)
		}
		// Of the 10 requests, 6 fit into a bucket of 6. The one with 5 tokens, a minute later, doesn't fit.
		if got := must(hour.Arrivals(t.Context(), "api")).Under(t.Context(), policy(t, weir.PerHour(6))); got.WouldRefuse != 5 {
			t.Errorf("at 6 an hour %d would have been refused", got.WouldRefuse)
		}
	},
		weir.Rule{ID: "gate", Limits: []weir.Limit{weir.PerMinute(10)}},
		weir.Rule{ID: "api", Match: weir.Match{Endpoint: "/x"}, Limits: []weir.Limit{weir.PerMinute(1000)}, Candidate: candidate})
}

// TestManyLimits checks that if a request has more rules than are recorded, each rule is recorded in its turn, however
// many limits it has.
func TestManyLimits(t *testing.T) {
	rules := []weir.Rule{{ID: "many", Limits: []weir.Limit{weir.PerSecond(1e6), weir.PerMinute(1e8), weir.PerHour(1e9)}}}
	for i := range 10 {
		rules = append(rules, weir.Rule{ID: fmt.Sprint("r", i), Limits: []weir.Limit{weir.PerSecond(1e6)}})
	}
	runHour(t, func(b *bed, hour *top.Cluster) {
		const sent = 10_000
		for i := range sent {
			b.check(weir.Request{APIKey: "sk_1"})
			if i%100 == 0 {
				time.Sleep(time.Second / 10)
			}
		}
		time.Sleep(time.Second)
		for _, u := range must(hour.Rules(t.Context())).Rules {
			if off := float64(u.Requests)/sent - 1; off > 0.02 || off < -0.02 {
				t.Errorf("%s has %d of %d requests", u.Rule, u.Requests, sent)
			}
		}
	}, rules...)
}

// TestABucketRefills checks that the used part of a bucket shrinks without requests, and that of a window doesn't.
func TestABucketRefills(t *testing.T) {
	runHour(t, func(b *bed, hour *top.Cluster) {
		// Start between two counts: all checks happen at one instant, and a count in the middle would see only some of
		// them.
		time.Sleep(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute + 50*time.Millisecond)))
		for range 60 {
			b.check(weir.Request{APIKey: "sk_1"})
		}
		time.Sleep(24 * time.Second)
		for rule, want := range map[string]float64{"bucket": 0.6, "window": 1} {
			got := must(hour.Rule(t.Context(), top.Query{Rule: rule, K: 1}))
			if used := got.Clients[0].Used; used < want-0.02 || used > want+0.02 {
				t.Errorf("%s: %v is used, want %v", rule, used, want)
			}
			if got.Above50 != 1 || got.Above80 != int(want) || got.Above100 != int(want) {
				t.Errorf("%s: %+v", rule, got.HourRule)
			}
		}
	},
		weir.Rule{ID: "bucket", Limits: []weir.Limit{weir.PerMinute(60)}},
		weir.Rule{ID: "window", Algorithm: weir.FixedWindow, Limits: []weir.Limit{weir.PerMinute(60)}})
}

// TestKeysThatWereForgotten checks that a key's count is too low by no more than the rule's requests that aren't remembered
// with their keys.
func TestKeysThatWereForgotten(t *testing.T) {
	runHour(t, func(b *bed, hour *top.Cluster) {
		sent := map[string]uint64{}
		send := func(keys int) {
			for i := range 20_000 {
				key := fmt.Sprintf("k%04d_%020d", i*7919%keys, 0)
				if i%10 == 0 {
					key = fmt.Sprintf("k%04d_%020d", 1, 0)
				}
				b.check(weir.Request{APIKey: key})
				sent[key[:5]]++
				if i%100 == 0 {
					time.Sleep(time.Second)
				}
			}
		}
		look := func() (short int) {
			got := must(hour.Rule(t.Context(), top.Query{Rule: "api", K: 1000}))
			arrivals := must(hour.Arrivals(t.Context(), "api")).Under(t.Context(), policy(t, weir.PerHour(1)))
			for _, c := range got.Clients {
				name := c.Client[:5]
				if c.Requests > sent[name] || c.Requests+arrivals.LeftOut < sent[name] {
					t.Errorf("%s has sent %d, and is said to have sent %d, or up to %d more", name, sent[name], c.Requests, arrivals.LeftOut)
				}
				if c.Requests < sent[name] {
					short++
				}
			}
			if arrivals.LeftOut != got.Requests-arrivals.Requests || short > 0 && arrivals.LeftOut == 0 {
				t.Errorf("%d of %d requests are left out of what would have been refused", arrivals.LeftOut, got.Requests)
			}
			return short
		}
		send(900)
		if short := look(); short != 0 {
			t.Errorf("of 900 keys %d are too low", short)
		}
		send(3000)
		if short := look(); short == 0 || short > 999 { // k0001 was never forgotten
			t.Errorf("of 3,000 keys %d are too low", short)
		}
		page, _, err := hour.Client(t.Context(), top.Identity{Kind: "api_key", Value: fmt.Sprintf("k%04d_%020d", 1, 0)}, "")
		if err != nil || len(page.Rules) != 1 || page.Rules[0].Requests != sent["k0001"] {
			t.Errorf("%v: %+v", err, page.Rules)
		}
	})
}

// TestNodesThatEnded checks that a node that has ended or has just begun leaves a gap, and that the answer says since
// when it is complete.
func TestNodesThatEnded(t *testing.T) {
	t.Parallel() // the test mostly waits
	r := redistest.New(t, redistest.Options{})
	rs := compile(t, weir.Rule{ID: "api", Limits: []weir.Limit{weir.PerHour(30)}})
	a := joinHour(t, r, "a", rs)
	second := time.Now().Truncate(time.Second)
	joinHour(t, r, "b", rs)
	asked := 0
	ask := func() top.Span { // each question is a new one, so that none is answered from the cache
		asked++
		return must(a.hour.Rule(t.Context(), top.Query{Rule: fmt.Sprint("r", asked), K: 1})).Span
	}
	s := ask()
	for len(s.Nodes) < 2 {
		s = ask()
	}
	if s.WholeSince == nil || s.WholeSince.Before(second) || len(s.NodesGone) > 0 || s.Nodes[1].Since.Before(second) || !s.Nodes[0].Since.Before(s.Nodes[1].Since.Add(time.Second)) {
		t.Fatalf("it is whole since %v, of %+v, without %v", s.WholeSince, s.Nodes, s.NodesGone)
	}
	c, err := redisstore.New(redisstore.Options{URL: "redis://" + r.Addr, Name: "c"})
	if err != nil {
		t.Fatal(err)
	}
	for !slices.Contains(s.NodesMissing, "c") { // c is alive, but doesn't answer
		s = ask()
	}
	if s.WholeSince != nil {
		t.Errorf("it is whole since %v without %v", s.WholeSince, s.NodesMissing)
	}
	lived := time.Now().Add(-10 * time.Second).Truncate(time.Second)
	c.Close()
	for len(s.NodesGone) == 0 {
		s = ask()
	}
	if g := s.NodesGone[0]; g.Name != "c" || g.Seen.Before(lived) || len(s.NodesMissing) > 0 || s.WholeSince == nil || s.WholeSince.Before(g.Seen) {
		t.Errorf("whole since %v, without %+v", s.WholeSince, s.NodesGone)
	}
}

// TestWhyNodesAreMissing checks that an answer gives Redis' reason for missing nodes, if there is one.
func TestWhyNodesAreMissing(t *testing.T) {
	t.Parallel() // the test mostly waits
	r := redistest.New(t, redistest.Options{})
	rs := compile(t, weir.Rule{ID: "api", Limits: []weir.Limit{weir.PerHour(30)}})
	a := joinHour(t, r, "a", rs)
	joinHour(t, r, "b", rs)
	set := func(maxmemory string) {
		t.Helper()
		if _, err := r.Do(t.Context(), "CONFIG", "SET", "maxmemory", maxmemory); err != nil {
			t.Fatal(err)
		}
	}
	set("1")
	for _, partial := range []func() string{
		func() string { return must(a.hour.Rules(t.Context())).Partial },
		func() string { return a.hour.Hot(t.Context(), top.Query{K: 1}).Partial },
	} {
		if got := partial(); !strings.HasPrefix(got, `Redis answers "OOM `) {
			t.Errorf("with a full Redis: %s", got)
		}
	}
	set("0")
	if got := must(a.hour.Rules(t.Context())); strings.Contains(got.Partial, "OOM") {
		t.Errorf("once Redis has room again: %s", got.Partial)
	}
	r.Kill()
	for {
		if got := must(a.hour.Rules(t.Context())).Partial; got == "Redis can't be reached, so this is what this node knows alone" {
			break
		}
		_, _ = a.limiter.Check(t.Context(), &weir.Request{APIKey: "x"})
	}
}

// TestManyQuestions checks that later questions of others don't keep a node from answering earlier ones.
func TestManyQuestions(t *testing.T) {
	t.Parallel() // the test mostly waits
	r := redistest.New(t, redistest.Options{})
	rs := compile(t, weir.Rule{ID: "api", Limits: []weir.Limit{weir.PerHour(30)}})
	a := joinHour(t, r, "a", rs)
	joinHour(t, r, "b", rs)
	for i := range 20 {
		if _, err := r.Do(t.Context(), "ZADD", "weir{top}questions", fmt.Sprint(time.Now().Add(time.Hour).UnixMilli()+int64(i)), fmt.Sprint("rule:r", i)); err != nil {
			t.Fatal(err)
		}
	}
	for try := 0; ; try++ { // a node may be late
		got := must(a.hour.Rule(t.Context(), top.Query{Rule: fmt.Sprint("mine", try), K: 1}))
		if len(got.Nodes) == 2 && got.Partial == "" {
			break
		}
		if try > 5 {
			t.Fatalf("%v are missing: %s", got.NodesMissing, got.Partial)
		}
		if !strings.HasPrefix(got.Partial, "b didn't answer in time") {
			t.Errorf("%v are missing: %s", got.NodesMissing, got.Partial)
		}
	}
}
