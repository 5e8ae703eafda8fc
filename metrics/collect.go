package metrics

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/observer"
)

// descs has the descriptions of all metrics of this package.
var descs []*prometheus.Desc

// desc describes a metric, and adds the description to descs.
func desc(name, help string, labels ...string) *prometheus.Desc {
	d := prometheus.NewDesc("weir_"+name, help, labels, nil)
	descs = append(descs, d)
	return d
}

var (
	decisionsTotal = desc("decisions_total", "Decisions, each of them.", "rule", "outcome", "reason", "edge")
	shadowTotal    = desc("shadow_refusals_total", "Decisions that a limit in shadow would have refused.", "rule", "kind")
	nearTotal      = desc("near_limit_total", "Decisions that admitted a request and left less than a fifth of a limit.", "rule")
	degradedTotal  = desc("degraded_total", "Decisions made without the store.", "rule", "mode")
	withoutTotal   = desc("degraded_decisions_total", "Decisions in which some limit was decided without the store, or that were made without rules.")
	rejectedTotal  = desc("identities_rejected_total", "Decisions about requests whose token doesn't verify, or whose identity is ambiguous.", "edge")
	ruleInfo       = desc("rule_info", "1 for each rule in force, with how it counts and the endpoint that it names.", "rule", "algorithm", "endpoint")
	checkDuration  = desc("check_duration_seconds", "Time to decide, of one decision in 64.", "edge")

	// eventMetrics says which metric counts each event, and the values of its labels after the rule.
	eventMetrics = map[int]struct {
		desc  *prometheus.Desc
		label []string
	}{
		shadowRefusal:    {shadowTotal, []string{"shadow"}},
		candidateRefusal: {shadowTotal, []string{"candidate"}},
		nearLimit:        {nearTotal, nil},
		failedOpen:       {degradedTotal, []string{"allow"}},
		failedClosed:     {degradedTotal, []string{"refuse"}},
		countedLocally:   {degradedTotal, []string{"local"}},
	}
)

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range descs {
		ch <- d
	}
}

// Collect implements prometheus.Collector. It runs at every scrape.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	m.mu.Lock()
	m.dropRemovedLocked(time.Now())
	sources := m.sources
	m.mu.Unlock()
	rows := m.table.Load().byRule
	for _, r := range rows {
		r.collect(ch)
	}
	sources.collectUndegraded(ch, rows)
	sources.collectRules(ch)
	m.holds.collect(ch, rows)
	m.uncounted.collect(ch, time.Now(), sources.Redis != nil)
	if n := m.Sum().Degraded; n > 0 || sources.Redis != nil {
		total(ch, withoutTotal, n)
	}
	for i, edge := range edges {
		m.times[i].collect(ch, edge)
		if n := m.rejected[i].Load(); n > 0 {
			total(ch, rejectedTotal, n, edge)
		}
	}
	sources.collect(ch)
}

func total(ch chan<- prometheus.Metric, d *prometheus.Desc, n uint64, labels ...string) {
	ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
}

func gauge(ch chan<- prometheus.Metric, d *prometheus.Desc, n float64, labels ...string) {
	ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, n, labels...)
}

func (r *row) collect(ch chan<- prometheus.Metric) {
	sum := r.sum()
	for e, edge := range edges {
		some := slices.Max(sum[countOf(e, 0):countOf(e+1, 0)]) > 0
		for reason := range weir.Reason(reasons) {
			// Show a 0 before a rule's first refusal: rate() doesn't see the first increase of a series that begins at 1.
			zero := some && r.rule != "" && (reason == weir.ReasonWithin || reason == weir.ReasonLimited)
			if n := sum[countOf(e, reason)]; n > 0 || zero {
				total(ch, decisionsTotal, n, r.rule, observer.Outcome(allowed(reason)), observer.Reason(reason), edge)
			}
		}
	}
	for e, m := range eventMetrics {
		if n := sum[e]; n > 0 {
			total(ch, m.desc, n, append([]string{r.rule}, m.label...)...)
		}
	}
}

// collectUndegraded shows a 0 for rules that were never decided without Redis, so that rate() sees the first such decision.
func (s *Sources) collectUndegraded(ch chan<- prometheus.Metric, rows map[string]*row) {
	if s.Redis == nil || s.Limiter == nil {
		return
	}
	for _, rule := range s.Limiter.Rules().Rules().Rules {
		e := [...]int{weir.FailAllow: failedOpen, weir.FailRefuse: failedClosed, weir.FailLocal: countedLocally}[rule.OnStoreFailure]
		if r := rows[rule.ID]; r != nil && !rule.Shadow && r.sum()[e] == 0 {
			total(ch, degradedTotal, 0, append([]string{rule.ID}, eventMetrics[e].label...)...)
		}
	}
}

// collectRules shows weir_rule_info for each rule in force, for queries to join with metrics that have a rule label.
func (s *Sources) collectRules(ch chan<- prometheus.Metric) {
	if s.Limiter == nil {
		return
	}
	rules := s.Limiter.Rules().Rules().Rules
	for i := range rules[:min(len(rules), maxRules)] {
		r := &rules[i]
		endpoint := strings.ToValidUTF8(cmp.Or(r.Match.Endpoint, r.Match.EndpointRegex, strings.Join(r.Descriptor, " ")), "\ufffd")
		gauge(ch, ruleInfo, 1, r.ID, r.Algorithm.String(), endpoint)
	}
}

// Total says how often a rule was used so far.
type Total struct {
	Decisions uint64 // decisions that were reported with this rule
	Refusals  uint64 // how many of those were refusals
	Shadow    uint64 // requests that the rule, in shadow, would have refused
	Events    uint64 // other signs of use: the rule was near its limit, or was decided without the store
}

// Totals calls tell for every rule that was used.
func (m *Metrics) Totals(tell func(rule string, t Total)) {
	for _, r := range m.table.Load().byRule {
		sum := r.sum()
		t := Total{Shadow: sum[shadowRefusal]}
		sum.decisions(func(_ string, reason weir.Reason, n uint64) {
			t.Decisions += n
			if !allowed(reason) {
				t.Refusals += n
			}
		})
		for e := range eventMetrics {
			t.Events += sum[e]
		}
		if t != (Total{}) {
			tell(r.rule, t)
		}
	}
}
