package decisionlog

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/private"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/metrics"
)

// bed is a limiter whose decisions are counted and logged.
type bed struct {
	t        testing.TB
	log      *Log
	limiter  *weir.Limiter
	registry *prometheus.Registry
}

func newBed(t testing.TB, l *Log, doc weir.Rules) *bed {
	t.Helper()
	rules, err := weir.Compile(doc)
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{t: t, log: l, registry: prometheus.NewRegistry()}
	m := metrics.New(b.registry)
	b.limiter = weir.NewLimiter(memstore.New(memstore.Options{}), rules, weir.Options{Observe: func(o *weir.Observation) {
		m.Observe(o)
		l.Observe(o)
	}})
	return b
}

func (b *bed) check(req weir.Request) weir.Decision {
	d, err := b.limiter.Check(b.t.Context(), &req)
	if err != nil {
		b.t.Fatal(err)
	}
	return d
}

// decisions returns the value of weir_decisions_total for an outcome.
func (b *bed) decisions(outcome string) (sum uint64) {
	b.t.Helper()
	families, err := b.registry.Gather()
	if err != nil {
		b.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.Metric {
			if f.GetName() == "weir_decisions_total" && m.Label[1].GetValue() == outcome {
				sum += uint64(m.Counter.GetValue())
			}
		}
	}
	return sum
}

// read parses a log, and returns its lines, and the number of decisions that it left out, by outcome.
func read(t testing.TB, text string) (lines []map[string]any, leftOut map[string]uint64) {
	t.Helper()
	leftOut = map[string]uint64{}
	for l := range strings.Lines(text) {
		var v map[string]any
		if err := json.Unmarshal([]byte(l), &v); err != nil {
			t.Fatalf("%q: %v", l, err)
		}
		if n, ok := v["left_out"].(float64); ok {
			leftOut[v["outcome"].(string)] += uint64(n)
			continue
		}
		lines = append(lines, v)
	}
	return lines, leftOut
}

func (b *bed) close() {
	b.t.Helper()
	if err := b.log.Close(time.Minute); err != nil {
		b.t.Fatal(err)
	}
}

var orders = weir.Rule{ID: "orders", Match: weir.Match{Endpoint: "GET /v1/orders/{id}"}, Limits: []weir.Limit{weir.PerMinute(1)}}

func daily(n int64) weir.Limit { return weir.Limit{Count: n, Window: 24 * time.Hour} }

func TestLines(t *testing.T) {
	var out bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, start(&out, "", Options{}), weir.Rules{
			Version: 42, Deny: []string{"sk_leaked_*"},
			Rules: []weir.Rule{orders, {ID: "users", By: []string{"user"}, Missing: weir.MissingRefuse, Match: weir.Match{Endpoint: "/me"}, Limits: orders.Limits}},
		})
		ip := netip.MustParseAddr("203.0.113.7")
		req := weir.Request{Edge: "gateway", APIKey: "sk_prod_secretsecret_c123", User: "ada@example.com", Method: "GET", Path: "/v1/orders/17", IP: ip}
		b.check(req) // admitted, so it gets no line
		b.check(req)
		req.Peek = true
		b.check(req)
		b.check(weir.Request{APIKey: "sk_leaked_abcdefgh", Path: "/", Method: "FORGED\n{}"})
		b.check(weir.Request{Edge: "http", Path: "/me", Rejected: "the token has expired"})
		b.check(weir.Request{Edge: "http", Path: "/free", Rejected: "the token has expired"})
		private.Tell(b.limiter, t.Context(), &weir.Request{Edge: "check"}, weir.Decision{Reason: weir.ReasonOverloaded})
		b.close()
	})
	const want = `{"time":"2000-01-01T00:00:00.000Z","outcome":"refused","reason":"limited","rule":"orders","rules_version":42,"policy":"1/minute","key":"sk_pro…23","user":"ad…m","ip":"203.0.113.7","method":"GET","path":"/v1/orders/{id}","retry_after_ms":60000,"edge":"gateway","degraded":false}
{"time":"2000-01-01T00:00:00.000Z","outcome":"refused","reason":"denied","rule":"","rules_version":42,"policy":"","entry":"sk_leaked_*","key":"sk_l…gh","ip":"","method":"other","path":"","retry_after_ms":-1,"edge":"library","degraded":false}
{"time":"2000-01-01T00:00:00.000Z","outcome":"refused","reason":"identity","rule":"users","rules_version":42,"policy":"","key":"","ip":"","method":"","path":"","retry_after_ms":-1,"edge":"http","degraded":false,"identity":"the token has expired"}
{"time":"2000-01-01T00:00:00.000Z","outcome":"allowed","reason":"unlimited","rule":"","rules_version":42,"policy":"","key":"","ip":"","method":"","path":"","retry_after_ms":0,"edge":"http","degraded":false,"identity":"the token has expired"}
{"time":"2000-01-01T00:00:00.000Z","outcome":"refused","reason":"overloaded","rule":"","rules_version":42,"policy":"","key":"","ip":"","method":"","path":"","retry_after_ms":0,"edge":"check","degraded":false}
`
	if got := out.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// A flood gets a bounded number of lines per second, and all others are counted as left out. Together, they add up to
// the counts in the metrics.
func TestFlood(t *testing.T) {
	const seconds, perCore = 3, 25_000
	var out bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, start(&out, "", Options{}), weir.Rules{Rules: []weir.Rule{
			{ID: "api", Limits: []weir.Limit{daily(1)}},
			{ID: "quiet", Match: weir.Match{Endpoint: "/quiet"}, By: []string{"user"}, Missing: weir.MissingSkip, Limits: []weir.Limit{daily(1)}},
		}})
		for s := range seconds {
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() {
					for range perCore {
						b.check(weir.Request{APIKey: "flood"})
					}
				})
			}
			wg.Wait()
			if s == 1 { // the flood doesn't hide another rule's refusals
				b.check(weir.Request{APIKey: "x", User: "u", Path: "/quiet"})
				b.check(weir.Request{APIKey: "y", User: "u", Path: "/quiet"})
			}
			synctest.Wait()
			if n := b.log.Stats().Written; n > uint64(s+1)*(perReason+2) {
				t.Errorf("%d lines after %d s", n, s+1)
			}
			time.Sleep(time.Second)
			synctest.Wait()
		}
		b.close()
		lines, leftOut := read(t, out.String())
		if refused := b.decisions("refused"); refused != 4*seconds*perCore || uint64(len(lines))+leftOut["refused"] != refused {
			t.Errorf("%d lines and %d left out are not the %d refusals", len(lines), leftOut["refused"], refused)
		}
		if quiet := strings.Count(out.String(), `"rule":"quiet"`); quiet != 1 || len(lines) != seconds*perReason+quiet {
			t.Errorf("%d lines, %d of them of the quiet rule", len(lines), quiet)
		}
		if s := b.log.Stats(); s.LeftOut != leftOut["refused"] || s.Written != uint64(strings.Count(out.String(), "\n")) || s.Failures != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// The lines of all rules together are bounded, too, and admitted requests leave half of them to refusals.
func TestBoundOfAllRules(t *testing.T) {
	var out bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		doc := weir.Rules{}
		for i := range 40 {
			doc.Rules = append(doc.Rules, weir.Rule{ID: fmt.Sprint("r", i), Match: weir.Match{Endpoint: fmt.Sprint("/", i)}, Limits: []weir.Limit{daily(100)}})
		}
		b := newBed(t, start(&out, "", Options{Sample: 1}), doc)
		for range 200 {
			for i := range 40 {
				b.check(weir.Request{APIKey: "k", Path: fmt.Sprint("/", i)})
			}
		}
		b.close()
		lines, leftOut := read(t, out.String())
		count := map[any]uint64{}
		for _, l := range lines {
			count[l["outcome"]]++
		}
		for _, outcome := range []string{"allowed", "refused"} {
			if n := count[outcome]; n != perSecond/2 || n+leftOut[outcome] != b.decisions(outcome) || b.decisions(outcome) != 4000 {
				t.Errorf("%s: %d lines, %d left out", outcome, n, leftOut[outcome])
			}
		}
	})
}

// If there are more rules than tallies, the rest share one tally, and their decisions are still counted.
func TestManyRules(t *testing.T) {
	var out bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, start(&out, "", Options{}), weir.Rules{})
		for i := range maxTallies + 500 {
			for range 3 {
				private.Tell(b.limiter, t.Context(), &weir.Request{}, weir.Decision{Reason: weir.ReasonOverloaded, Rule: fmt.Sprint("r", i)})
			}
		}
		b.log.mu.RLock() // decisions that share a tally only need the read lock
		private.Tell(b.limiter, t.Context(), &weir.Request{}, weir.Decision{Reason: weir.ReasonOverloaded, Rule: "yet another"})
		tallies := len(b.log.tallies)
		b.log.mu.RUnlock()
		b.close()
		lines, leftOut := read(t, out.String())
		if n := uint64(len(lines)) + leftOut["refused"]; n != 3*(maxTallies+500)+1 || tallies > maxTallies+1 {
			t.Errorf("%d of %d, %d tallies", n, 3*(maxTallies+500), tallies)
		}
	})
}

// A rule without decisions, such as a removed one, makes room for others. Its left-out decisions are still reported.
func TestIdleRulesLeave(t *testing.T) {
	var out bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, start(&out, "", Options{}), weir.Rules{})
		refuse := func(rule string) {
			private.Tell(b.limiter, t.Context(), &weir.Request{}, weir.Decision{Reason: weir.ReasonOverloaded, Rule: rule})
		}
		for range perReason + 7 {
			refuse("removed")
		}
		for range 3 {
			time.Sleep(time.Second)
			synctest.Wait()
			refuse("in use")
		}
		if rest := b.log.tallies; len(rest) != 1 || b.log.Stats().LeftOut != 7 {
			t.Errorf("%d tallies, %+v", len(rest), b.log.Stats())
		}
		refuse("removed")
		b.close()
		lines, leftOut := read(t, out.String())
		if uint64(len(lines))+leftOut["refused"] != b.decisions("refused") {
			t.Errorf("%d lines, %v left out, %d refused", len(lines), leftOut, b.decisions("refused"))
		}
	})
}

// A decision is sampled by its Spread, so that all observers sample the same decisions.
func TestSample(t *testing.T) {
	for _, c := range []struct {
		sample float64
		spread uint64
		want   bool
	}{
		{0, 0, false}, {0.25, 0, true}, {0.25, 1 << 62, true}, {0.25, 1<<62 + 1, false}, {0.25, math.MaxUint64, false}, {1, math.MaxUint64, true},
	} {
		l := start(&bytes.Buffer{}, "", Options{Sample: c.sample})
		if got := l.sampled(c.spread); got != c.want {
			t.Errorf("%v of %#x: %v", c.sample, c.spread, got)
		}
		if err := l.Close(time.Minute); err != nil {
			t.Error(err)
		}
	}
	var out bytes.Buffer
	b := newBed(t, start(&out, "", Options{Sample: 0.01}), weir.Rules{})
	for range 10_000 {
		b.check(weir.Request{})
	}
	b.close()
	lines, leftOut := read(t, out.String())
	if n := uint64(len(lines)) + leftOut["allowed"]; n < 50 || n > 200 { // more than 5 standard deviations
		t.Errorf("%d of 10,000 with a rate of 0.01", n)
	}
}
