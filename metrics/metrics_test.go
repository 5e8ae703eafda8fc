package metrics_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/private"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/metrics"
)

// bed is a limiter with metrics.
type bed struct {
	t       testing.TB
	metrics *metrics.Metrics
	limiter *weir.Limiter
	reg     *prometheus.Registry
}

func open(t testing.TB, store counter.Store, opts weir.Options, doc weir.Rules) *bed {
	t.Helper()
	b := &bed{t: t, reg: prometheus.NewPedanticRegistry()}
	b.metrics = metrics.New(b.reg)
	opts.Observe = b.metrics.Observe
	b.limiter = weir.NewLimiter(store, compile(t, doc), opts)
	return b
}

func inMemory(t testing.TB, rules ...weir.Rule) *bed {
	return open(t, memstore.New(memstore.Options{}), weir.Options{}, weir.Rules{Rules: rules})
}

func compile(t testing.TB, doc weir.Rules) *weir.RuleSet {
	t.Helper()
	rs, err := weir.Compile(doc)
	if err != nil {
		t.Fatal(err)
	}
	return rs
}

func (b *bed) check(req weir.Request) {
	b.t.Helper()
	if _, err := b.limiter.Check(b.t.Context(), &req); err != nil {
		b.t.Error(err)
	}
}

// series returns all series of a scrape, by name with labels: name{label="value",…}.
func (b *bed) series() map[string]*dto.Metric {
	b.t.Helper()
	families, err := b.reg.Gather()
	if err != nil {
		b.t.Fatal(err)
	}
	all := map[string]*dto.Metric{}
	for _, f := range families {
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			all[f.GetName()+"{"+strings.Join(labels, ",")+"}"] = m
		}
	}
	return all
}

// want compares all counters and gauges whose names begin with `begin` with the expected values.
func (b *bed) want(begin string, want map[string]float64) {
	b.t.Helper()
	got := b.series()
	for name, v := range want {
		if m := got[name]; m == nil {
			b.t.Errorf("%s is missing, want %v", name, v)
		} else if m.GetCounter().GetValue()+m.GetGauge().GetValue() != v {
			b.t.Errorf("%s is %v, want %v", name, m, v)
		}
	}
	for name, m := range got {
		if _, there := want[name]; strings.HasPrefix(name, begin) && !there {
			b.t.Errorf("%s shouldn't exist, but is %v", name, m)
		}
	}
}

func limit(n int64) []weir.Limit { return []weir.Limit{{Count: n, Window: time.Hour}} }

func TestEveryDecisionIsCounted(t *testing.T) {
	b := open(t, memstore.New(memstore.Options{}), weir.Options{}, weir.Rules{
		Rules: []weir.Rule{
			{ID: "orders", Match: weir.Match{Endpoint: "/orders"}, Limits: limit(2)},
			{ID: "login", Match: weir.Match{Endpoint: "/login"}, By: []string{"user"}, Missing: weir.MissingRefuse, Limits: limit(2)},
		},
		Allow: []string{"sk_internal_*"}, Deny: []string{"sk_leaked"},
	})
	for range 5 {
		b.check(weir.Request{Edge: "check", APIKey: "a", Path: "/orders"})
	}
	b.check(weir.Request{Edge: "gateway", APIKey: "b", Path: "/orders"})
	b.check(weir.Request{Edge: "check", APIKey: "a", Path: "/orders", Peek: true})
	b.check(weir.Request{APIKey: "sk_leaked", Path: "/orders"})
	b.check(weir.Request{APIKey: "sk_internal_1", KeyVerified: true, Path: "/orders"})
	b.check(weir.Request{Edge: "of our own", Path: "/free"})
	b.check(weir.Request{Path: "/login"})
	b.check(weir.Request{Path: "/" + strings.Repeat("a", private.MaxPath)})
	private.Tell(b.limiter, t.Context(), &weir.Request{Edge: "http"}, weir.Decision{Reason: weir.ReasonOverloaded})
	b.want("weir_decisions_total", map[string]float64{
		`weir_decisions_total{edge="check",outcome="allowed",reason="within",rule="orders"}`:      2,
		`weir_decisions_total{edge="check",outcome="refused",reason="limited",rule="orders"}`:     3,
		`weir_decisions_total{edge="gateway",outcome="allowed",reason="within",rule="orders"}`:    1,
		`weir_decisions_total{edge="gateway",outcome="refused",reason="limited",rule="orders"}`:   0,
		`weir_decisions_total{edge="library",outcome="refused",reason="denied",rule=""}`:          1,
		`weir_decisions_total{edge="library",outcome="allowed",reason="bypassed",rule=""}`:        1,
		`weir_decisions_total{edge="library",outcome="allowed",reason="unlimited",rule=""}`:       1,
		`weir_decisions_total{edge="library",outcome="refused",reason="identity",rule="login"}`:   1,
		`weir_decisions_total{edge="library",outcome="allowed",reason="within",rule="login"}`:     0,
		`weir_decisions_total{edge="library",outcome="refused",reason="limited",rule="login"}`:    0,
		`weir_decisions_total{edge="library",outcome="refused",reason="unreadable_path",rule=""}`: 1,
		`weir_decisions_total{edge="http",outcome="refused",reason="overloaded",rule=""}`:         1,
	})
}

// A rejected identity is counted in addition to the decision, and the decision is counted once.
func TestRejectedIdentitiesAreCounted(t *testing.T) {
	b := inMemory(t, weir.Rule{ID: "login", By: []string{"user"}, Missing: weir.MissingRefuse, Limits: limit(2)})
	b.check(weir.Request{Edge: "gateway", Rejected: "the token has expired"})
	b.check(weir.Request{Edge: "gateway", User: "ada", Rejected: "the token has expired"})
	b.check(weir.Request{Edge: "gateway", User: "ada"})
	b.want("weir_identities", map[string]float64{`weir_identities_rejected_total{edge="gateway"}`: 2})
	b.want("weir_decisions", map[string]float64{
		`weir_decisions_total{edge="gateway",outcome="refused",reason="identity",rule="login"}`: 1,
		`weir_decisions_total{edge="gateway",outcome="refused",reason="limited",rule="login"}`:  0,
		`weir_decisions_total{edge="gateway",outcome="allowed",reason="within",rule="login"}`:   2,
	})
}

func TestDecisionsAreExact(t *testing.T) {
	const goroutines, each, rules = 8, 5000, 7
	var doc []weir.Rule
	for i := range rules {
		doc = append(doc, weir.Rule{ID: fmt.Sprint("r", i), Match: weir.Match{Endpoint: fmt.Sprint("/", i)}, Limits: limit(100)})
	}
	b := inMemory(t, doc...)
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for i := range each {
				b.check(weir.Request{APIKey: "a", Path: fmt.Sprint("/", i%rules)})
			}
		})
	}
	wg.Go(func() {
		for range 20 {
			b.series()
		}
	})
	wg.Wait()
	allowed, refused := 0., 0.
	for name, m := range b.series() {
		if strings.HasPrefix(name, "weir_decisions_total{") && strings.Contains(name, "allowed") {
			allowed += m.GetCounter().GetValue()
		} else if strings.HasPrefix(name, "weir_decisions_total{") {
			refused += m.GetCounter().GetValue()
		}
	}
	if allowed != rules*100 || refused != goroutines*each-rules*100 {
		t.Errorf("%v allowed and %v refused, want %v and %v", allowed, refused, rules*100, goroutines*each-rules*100)
	}
}

func TestShadowAndNearLimits(t *testing.T) {
	b := inMemory(t,
		weir.Rule{ID: "orders", Limits: []weir.Limit{{Count: 10, Window: time.Hour}, {Count: 10, Window: time.Minute}}, Candidate: limit(4)},
		weir.Rule{ID: "trial", Limits: limit(7), Shadow: true},
	)
	for range 12 {
		b.check(weir.Request{APIKey: "a", Path: "/orders"})
	}
	b.want("weir_shadow_refusals_total", map[string]float64{
		`weir_shadow_refusals_total{kind="candidate",rule="orders"}`: 8,
		`weir_shadow_refusals_total{kind="shadow",rule="trial"}`:     5,
	})
	// The 9th request left 1 of 10 and the 10th none, which is less than a fifth. The others were refused.
	b.want("weir_near_limit_total", map[string]float64{`weir_near_limit_total{rule="orders"}`: 2})
	b.metrics.Totals(func(rule string, got metrics.Total) {
		want := map[string]metrics.Total{"orders": {Decisions: 12, Refusals: 2, Events: got.Events}, "trial": {Shadow: 5, Events: got.Events}}[rule]
		if got != want {
			t.Errorf("%s: got %+v, want %+v", rule, got, want)
		}
	})
}

// TestEveryReasonHasALabel checks that every reason has an entry in the table of labels.
func TestEveryReasonHasALabel(t *testing.T) {
	b := inMemory(t)
	known := func(r weir.Reason) (yes bool) {
		defer func() { recover() }()
		return r.String() != ""
	}
	n := 0
	for r := weir.Reason(0); known(r); r++ {
		private.Tell(b.limiter, t.Context(), &weir.Request{}, weir.Decision{Reason: r})
		n++
	}
	if got := len(b.series()); n < 9 || got != n {
		t.Errorf("%d series for %d reasons", got, n)
	}
}

// TestTimesAreSampled checks that about one decision in 64 is measured, in both kinds of histograms.
func TestTimesAreSampled(t *testing.T) {
	b := inMemory(t)
	const n = 256_000
	for range n {
		b.check(weir.Request{Edge: "http", Path: "/"})
	}
	h := b.series()[`weir_check_duration_seconds{edge="http"}`].GetHistogram()
	// About 4,000. With the race detector, limiters often lose their place in the sampling.
	if got := h.GetSampleCount(); got < 1500 || got > 6000 {
		t.Errorf("%d of %d decisions were measured", got, n)
	}
	if len(h.GetBucket()) == 0 || len(h.GetPositiveSpan()) == 0 {
		t.Errorf("a histogram must be classic and native: %v", h)
	}
	if b.series()[`weir_check_duration_seconds{edge="grpc"}`] != nil {
		t.Error("an unused edge has a series")
	}
}

// TestLabelsAreBounded checks that a program can't fill Prometheus with series, even if it names its policies after its
// clients.
func TestLabelsAreBounded(t *testing.T) {
	b := inMemory(t)
	for i := range 5_000 {
		p, err := counter.NewPolicy(fmt.Sprint("of ", i), weir.PerMinute(10))
		if err != nil {
			t.Fatal(err)
		}
		charge := counter.Charge{Counter: counter.Counter{Policy: p, Subject: []byte("s")}, N: 1}
		if _, err := private.Take(b.limiter, t.Context(), &weir.Request{}, []counter.Charge{charge}, nil); err != nil {
			t.Error(err)
		}
	}
	private.Tell(b.limiter, t.Context(), &weir.Request{}, weir.Decision{Rule: "\xff"})
	all := b.series()
	others := all[`weir_decisions_total{edge="library",outcome="allowed",reason="within",rule="other"}`]
	if n := len(all); n > 2_010 || others.GetCounter().GetValue() < 4_000 {
		t.Errorf("%d series, others: %v", n, others)
	}
}

// TestRemovedRulesLeave checks that the series of a removed rule disappear after ten minutes, which gives scrapers time
// to read its last decisions.
func TestRemovedRulesLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		both := []weir.Rule{{ID: "old", Limits: limit(100)}, {ID: "kept", Limits: limit(1000)}}
		b := inMemory(t, both...)
		b.metrics.Watch(metrics.Sources{Limiter: b.limiter})
		const old = `weir_decisions_total{edge="library",outcome="allowed",reason="within",rule="old"}`
		shown := func(when string, want float64) {
			t.Helper()
			if got := b.series()[old].GetCounter().GetValue(); got != want {
				t.Errorf("%s, %v decisions of the rule are shown, want %v", when, got, want)
			}
		}
		check := func() { b.check(weir.Request{APIKey: "a"}) }
		check()
		shown("in force", 1)

		b.limiter.SetRules(compile(t, weir.Rules{Rules: both[1:]}))
		shown("just removed", 1)
		time.Sleep(9 * time.Minute)
		shown("removed for nine minutes", 1)
		b.limiter.SetRules(compile(t, weir.Rules{Rules: both}))
		check()
		shown("back", 2)

		b.limiter.SetRules(compile(t, weir.Rules{Rules: both[1:]}))
		shown("removed again", 2)
		time.Sleep(9 * time.Minute)
		shown("removed again for nine minutes", 2)
		time.Sleep(time.Minute)
		if b.series()[old] != nil {
			t.Error("a rule that was removed ten minutes ago is still shown")
		}
		all := uint64(0)
		sum := b.metrics.Sum()
		sum.Decisions(func(_ string, _ weir.Reason, _ bool, n uint64) { all += n })
		if all != 2 {
			t.Errorf("%d decisions in all, want 2: totals must never fall", all)
		}
		b.limiter.SetRules(compile(t, weir.Rules{Rules: both}))
		check()
		shown("begun anew", 1)
		b.want("weir_rules_version", map[string]float64{"weir_rules_version{}": 0})
	})
}
