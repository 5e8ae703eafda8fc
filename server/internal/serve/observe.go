package serve

import (
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/node/inforce"
	"github.com/weirhq/weir/internal/node/region"
	"github.com/weirhq/weir/internal/node/rulestore"
	"github.com/weirhq/weir/internal/private"
	"github.com/weirhq/weir/metrics"
	"github.com/weirhq/weir/server/internal/admin"
	"github.com/weirhq/weir/server/internal/edge/gateway"
	"github.com/weirhq/weir/server/internal/observe/budget"
	"github.com/weirhq/weir/server/internal/observe/top"
)

// observe passes every decision to all parts of the node that observe decisions. It is called in every check, so none
// of them may block. The calls are written out because a loop over a list of functions would cost as much as one of the
// calls.
func (n *node) observe(o *weir.Observation) {
	n.metrics.Observe(o)
	n.top.Observe(o)
	if o.Err != nil && n.live.failed.Load() == nil { // one error per second is enough to explain degraded decisions
		err := o.Err
		n.live.failed.Store(&err)
	}
	if n.budget != nil {
		n.budget.Observe(o)
	}
	if n.tail.Watched() {
		n.tail.Observe(o)
	}
	if n.decided != nil {
		n.decided.Observe(o)
	}
}

// closing is how long a node that ends waits until the last lines of the decision log are written.
const closing = 2 * time.Second

func (n *node) closeDecisionLog() {
	if err := n.decided.Close(closing); err != nil {
		n.log.Error(err.Error())
	}
}

func (n *node) newTop() *top.Top {
	return top.New(top.Options{
		Totals: n.metrics.Totals,
		Rules:  func() *weir.RuleSet { return n.limiter.Rules() },
		Secret: func() []byte {
			if n.redis == nil {
				return nil
			}
			return n.redis.Secret()
		},
		Now: func() time.Time { return private.Now(n.limiter) },
	})
}

// warnOfNoAddress is called for checks that have no address. The first time that a rule counts by address then, it logs
// a warning.
func (n *node) warnOfNoAddress() {
	rules := n.limiter.Rules()
	if n.noAddress.Load() == rules || n.noAddress.Swap(rules) == rules {
		return // almost every call returns here
	}
	for _, r := range rules.Rules().Rules {
		if slices.Contains(r.By, "ip") {
			n.noAddressSaid.Do(func() {
				n.log.Warn(`a check came without "ip", and a rule counts by it: all such checks share one counter; send the address of the client`, "rule", r.ID)
			})
		}
	}
}

// validateBudget checks the settings for budgets. Its errors don't quote the URL, because it may contain a secret.
func (c *Config) validateBudget() error {
	if c.BudgetWebhook == "" {
		return when(c.BudgetWebhookTokenFile != "", "--budget-webhook-token-file: needs --budget-webhook, which says where the token is sent")
	}
	return in("--budget-webhook", budget.CheckURL(c.BudgetWebhook))
}

func (c *Config) budgetToken() (string, error) {
	text, err := readSecret("--budget-webhook-token-file", c.BudgetWebhookTokenFile)
	if text == nil || err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(text))
	if token == "" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", fmt.Errorf("--budget-webhook-token-file: %s must hold one token and nothing else: letters, digits and signs, without spaces between them", c.BudgetWebhookTokenFile)
	}
	return token, nil
}

// openBudget starts to watch budgets. The store must already be open.
func (n *node) openBudget() error {
	o := budget.Options{Now: func() time.Time { return private.Now(n.limiter) }, Node: n.self.Name, Fingerprint: n.top.FingerprintOf, FullNames: n.config.BudgetFullNames, Logger: n.log, Store: n.counting()}
	if n.config.BudgetWebhook != "" {
		token, err := n.config.budgetToken()
		if err != nil {
			return err
		}
		o.Webhook = budget.NewWebhook(n.config.BudgetWebhook, token, n.log)
		n.counter("weir_budget_webhook_sent_total", "Events that the webhook has taken.", nil, func() uint64 { return o.Webhook.Stats().Sent })
		n.counter("weir_budget_webhook_failed_total", "Events that the webhook didn't take, or that it was too slow for.", nil,
			func() uint64 { s := o.Webhook.Stats(); return s.Failed + s.Dropped })
	}
	n.budget = budget.New(o)
	n.counter("weir_budget_events_total", "Events of budgets that this node has told.", nil, func() uint64 { return n.budget.Stats().Events })
	n.counter("weir_budget_events_dropped_total", "Decisions that crossed a threshold of a budget while too many events waited.", nil, func() uint64 { return n.budget.Stats().Dropped })
	return nil
}

// counting returns the store that all nodes share. Without Redis, it returns the in-process store.
func (n *node) counting() interface {
	counter.Store
	admin.Slots
} {
	if n.redis != nil {
		return n.redis
	}
	return n.counters
}

// watch registers the metrics about the stores, the rules and the process. The metrics about decisions are already
// registered.
func (n *node) watch() {
	sources := metrics.Sources{Limiter: n.limiter, Memory: n.counters, Redis: n.redis, Guard: n.guard}
	if n.shared != nil {
		sources.Leases = n.shared.Leases
	}
	n.metrics.Watch(sources)
	n.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), rulesInfo{n.rules})
	n.gauge("weir_build_info", "1, with this node's release, and its name as weir nodes shows it.",
		prometheus.Labels{"version": n.self.Version, "go": runtime.Version(), "node": n.self.Name, "region": n.self.Region}, func() float64 { return 1 })
	n.gauge("weir_hot_key_rate", "Requests a second of the client that sends the most to this node, over the last ten seconds.", nil, n.top.Hottest)
	n.gauge("weir_rules_age_seconds", "Time since the rules in force were put in force here; -1 while there are none.", nil, func() float64 { return age(n.rules.InForce().Since) })
	n.counter("weir_rules_rejected_total", "Newer rules that were invalid, so that those in force stayed.", nil, func() uint64 { return uint64(n.rules.Status().Rejections) })
	n.counter("weir_envoy_config_rejected_total", "Newer configurations of --envoy-config, or of the xDS server, that were invalid, so that the one in force stayed.", nil,
		func() uint64 { return uint64(n.envoy.Source().Rejections) })
	if n.rules.File() == "" { // rules in a file have no store that could be lost, and a 0 would look like a healthy store
		n.gauge("weir_rules_refresh_failures_in_a_row", "How often in a row the rule store couldn't be reached. It is asked every two seconds.", nil,
			func() float64 { return float64(n.rules.Status().Failures) })
	}
	if n.config.Envoy.XDS != nil {
		n.gauge("weir_envoy_xds_connected", "1 while there is a stream from the xDS server, else 0: the configuration in force stays.", nil,
			func() float64 { return oneIf(n.envoy.Source().Connected) })
		n.gauge("weir_envoy_config_age_seconds", "Time since the xDS server's configuration was put in force; -1 while there is none.", nil,
			func() float64 { return age(n.envoy.Source().Since) })
	}
	if n.link != nil {
		n.watchLink()
	}
	if n.decided != nil {
		n.counter("weir_decision_log_lines_total", "Lines of the decision log.", nil, func() uint64 { return n.decided.Stats().Written })
		n.counter("weir_decision_log_left_out_total", "Decisions that have no line in the decision log: too many came at once, or it couldn't be written.", nil,
			func() uint64 { return n.decided.Stats().LeftOut })
		n.counter("weir_decision_log_failures_total", "Writes to the decision log that failed.", nil, func() uint64 { return n.decided.Stats().Failures })
	}
}

func (n *node) gauge(name, help string, labels prometheus.Labels, value func() float64) {
	n.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}, value))
}

func (n *node) counter(name, help string, labels prometheus.Labels, value func() uint64) {
	n.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels}, func() float64 { return float64(value()) }))
}

func oneIf(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// watchDoor registers counters of connections that the gateway closes without reading from them.
func (n *node) watchDoor(d *gateway.Door) {
	for why, count := range map[string]*atomic.Uint64{"dropped": &d.TurnedAway, "per_ip": &d.TooMany} {
		n.counter("weir_gateway_connections_closed_total", "Connections that were closed before anything was read: of addresses that rules drop, or that have too many open.",
			prometheus.Labels{"why": why}, count.Load)
	}
}

func (n *node) watchLink() {
	n.gauge("weir_region_grace", "1 while this region has become a home so lately that it owns no more than its floor, else 0.", nil, func() float64 { return oneIf(n.link.Here().Grace) })
	for name := range n.config.Region.Peers {
		peer := prometheus.Labels{"peer": name}
		status := func() region.Status {
			all := n.link.Peers()
			return all[slices.IndexFunc(all, func(s region.Status) bool { return s.Region == name })]
		}
		n.gauge("weir_region_up", "1 while this node hears of a region, else 0: what on_partition says decides its limits.", peer, func() float64 { return oneIf(status().Up) })
		n.counter("weir_region_asks_total", "How often this node asked a region for tokens of limits that regions share.", peer, func() uint64 { return uint64(status().Asks) })
		n.counter("weir_region_short_total", "How often a region that was asked had less than half of what requests waited for.", peer, func() uint64 { return uint64(status().Short) })
		n.gauge("weir_region_rtt_seconds", "How long the last heartbeat to a region took, and its answer.", peer, func() float64 { return status().RTTMS / 1000 })
	}
}

// age returns how many seconds ago a time was. For the zero time, it returns -1.
func age(since time.Time) float64 {
	if since.IsZero() {
		return -1
	}
	return time.Since(since).Seconds()
}

// rulesInfo is a metric with a hash of the rules in force. The version isn't enough, because each node numbers the
// versions of a rule file by itself.
type rulesInfo struct{ rules *inforce.Rules }

var rulesInfoDesc = prometheus.NewDesc("weir_rules_info", "1, with the beginning of the SHA-256 of the rules' text.", []string{"hash"}, nil)

func (rulesInfo) Describe(ch chan<- *prometheus.Desc) { ch <- rulesInfoDesc }

func (r rulesInfo) Collect(ch chan<- prometheus.Metric) {
	if doc := r.rules.InForce(); !doc.Since.IsZero() {
		ch <- prometheus.MustNewConstMetric(rulesInfoDesc, prometheus.GaugeValue, 1, rulestore.TextHash(doc.Text))
	}
}

// scrapes is how many scrapes are served at a time. Each of them walks over all counters that have leases.
const scrapes = 4

func (n *node) scrape() http.Handler {
	return promhttp.HandlerFor(n.registry, promhttp.HandlerOpts{MaxRequestsInFlight: scrapes, EnableOpenMetrics: true})
}

func (n *node) onlyMetrics() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", n.scrape())
	mux.HandleFunc("/", nothing("this port has metrics: try GET /metrics"))
	return mux
}
