package serve

import (
	"net/http"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/weirhq/weir/internal/node/inforce"
	"github.com/weirhq/weir/internal/node/rulestore"
	"github.com/weirhq/weir/metrics"
	"github.com/weirhq/weir/server/internal/edge/gateway"
	"github.com/weirhq/weir/server/internal/observe/decisionlog"
)

// watch adds what is known of the stores, the rules and the process to the metrics of decisions.
func (n *node) watch() {
	sources := metrics.Sources{Limiter: n.limiter, Memory: n.counters, Redis: n.redis, Guard: n.guard}
	if n.shared != nil {
		sources.Leases = n.shared.Leases
	}
	n.metrics.Watch(sources)
	gauge := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value)
	}
	n.registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "weir_build_info", Help: "1, of this release and node, by the name that weir nodes shows.",
			ConstLabels: prometheus.Labels{"version": n.self.Version, "go": runtime.Version(), "node": n.self.Name, "region": n.self.Region},
		}, func() float64 { return 1 }),
		gauge("weir_hot_key_rate", "Requests a second of the client that sends the most to this node, over the last ten seconds.", n.top.Hottest),
		gauge("weir_rules_age_seconds", "Time since the rules in force were put in force here; -1 while there are none.", n.rulesAge),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "weir_rules_rejected_total", Help: "Newer rules that were invalid, so that those in force stayed."},
			func() float64 { return float64(n.rules.Rejections()) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "weir_envoy_config_rejected_total", Help: "Newer configurations of --envoy-config, or of the xDS server, that were invalid, so that the one in force stayed."},
			func() float64 { return float64(n.envoy.Source().Rejections) }),
		rulesInfo{n.rules},
	)
	if n.rules.File() == "" { // a file has no store that could be lost, and a 0 would say that all is well
		n.registry.MustRegister(gauge("weir_rules_refresh_failures_in_a_row", "How often in a row the rule store couldn't be reached. It is asked every two seconds.",
			func() float64 { return float64(n.rules.Failures()) }))
	}
	if n.config.EnvoyXDS != nil {
		n.registry.MustRegister(
			gauge("weir_envoy_xds_connected", "1 while there is a stream from the xDS server, else 0: the configuration in force stays.", func() float64 {
				if n.envoy.Source().Connected {
					return 1
				}
				return 0
			}),
			gauge("weir_envoy_config_age_seconds", "Time since the xDS server's configuration was put in force; -1 while there is none.",
				func() float64 { return age(n.envoy.Source().Since) }))
	}
	n.watchLink()
	if n.decided == nil {
		return
	}
	for name, c := range map[string]struct {
		help  string
		count func(decisionlog.Stats) uint64
	}{
		"weir_decision_log_lines_total":    {"Lines of the decision log.", func(s decisionlog.Stats) uint64 { return s.Written }},
		"weir_decision_log_left_out_total": {"Decisions that have no line in the decision log: too many came at once, or it couldn't be written.", func(s decisionlog.Stats) uint64 { return s.LeftOut }},
		"weir_decision_log_failures_total": {"Writes to the decision log that failed.", func(s decisionlog.Stats) uint64 { return s.Failures }},
	} {
		n.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: c.help},
			func() float64 { return float64(c.count(n.decided.Stats())) }))
	}
}

// watchDoor counts connections that the gateway closes before it has read from them.
func (n *node) watchDoor(d *gateway.Door) {
	for why, count := range map[string]*atomic.Uint64{"dropped": &d.TurnedAway, "per_ip": &d.TooMany} {
		n.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "weir_gateway_connections_closed_total", ConstLabels: prometheus.Labels{"why": why},
			Help: "Connections that were closed before anything was read: of addresses that rules drop, or that have too many open.",
		}, func() float64 { return float64(count.Load()) }))
	}
}

func (n *node) rulesAge() float64 { return age(n.rules.InForce().Since) }

// age is the time since, in seconds, or -1 if that never was.
func age(since time.Time) float64 {
	if since.IsZero() {
		return -1
	}
	return time.Since(since).Seconds()
}

// rulesInfo shows a hash of the rules in force. It depends on their text alone: a file's versions are numbered by each node
// for itself, so their numbers don't tell whether two nodes have the same rules.
type rulesInfo struct{ rules *inforce.Rules }

var rulesInfoDesc = prometheus.NewDesc("weir_rules_info", "1, with the beginning of the SHA-256 of the rules' text.", []string{"hash"}, nil)

func (rulesInfo) Describe(ch chan<- *prometheus.Desc) { ch <- rulesInfoDesc }

func (r rulesInfo) Collect(ch chan<- prometheus.Metric) {
	if doc := r.rules.InForce(); !doc.Since.IsZero() {
		ch <- prometheus.MustNewConstMetric(rulesInfoDesc, prometheus.GaugeValue, 1, rulestore.TextHash(doc.Text))
	}
}

// scrapes is how many scrapes are answered at a time. One looks at every counter that leases know.
const scrapes = 4

// scrape answers GET /metrics.
func (n *node) scrape() http.Handler {
	return promhttp.HandlerFor(n.registry, promhttp.HandlerOpts{MaxRequestsInFlight: scrapes, EnableOpenMetrics: true})
}

// onlyMetrics serves metrics and nothing else, to whoever reaches it.
func (n *node) onlyMetrics() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", n.scrape())
	mux.HandleFunc("/", nothing("this port has metrics: try GET /metrics"))
	return mux
}
