// Package serve runs a node. A node has the check API, the gateway and the admin port, which share one limiter. The
// package opens the ports, serves them, and shuts them down without losing requests.
package serve

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/weirhq/weir"
	"github.com/weirhq/weir/cooldown"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/internal/inflight"
	"github.com/weirhq/weir/internal/node/inforce"
	"github.com/weirhq/weir/internal/node/redislimit"
	"github.com/weirhq/weir/internal/node/region"
	"github.com/weirhq/weir/internal/node/rulestore"
	"github.com/weirhq/weir/internal/node/watch"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/metrics"
	"github.com/weirhq/weir/redisstore"
	"github.com/weirhq/weir/server/internal/edge/checkapi"
	"github.com/weirhq/weir/server/internal/edge/envoy"
	"github.com/weirhq/weir/server/internal/edge/forwardauth"
	"github.com/weirhq/weir/server/internal/edge/gateway"
	"github.com/weirhq/weir/server/internal/edge/guard"
	"github.com/weirhq/weir/server/internal/observe/budget"
	"github.com/weirhq/weir/server/internal/observe/decisionlog"
	"github.com/weirhq/weir/server/internal/observe/otlp"
	"github.com/weirhq/weir/server/internal/observe/tail"
	"github.com/weirhq/weir/server/internal/observe/top"
	"github.com/weirhq/weir/tracing"
	"golang.org/x/sync/errgroup"
)

type node struct {
	config   Config
	log      *slog.Logger
	limiter  *weir.Limiter
	guard    *cooldown.Guard
	counters *memstore.Store     // the in-process store. It has all counters or, with Redis, those that are used while Redis can't be reached
	redis    *redisstore.Store   // nil with the in-process store
	shared   *redislimit.Limiter // counts in Redis; nil without Redis
	rules    *inforce.Rules
	known    *knownKeys       // nil without a file of known keys
	gateway  *gateway.Gateway // nil without a gateway
	learned  gateway.Learned
	link     *region.Link // nil without other regions
	envoy    *envoy.Service
	metrics  *metrics.Metrics // the metrics about decisions, which are in registry
	registry *prometheus.Registry
	decided  *decisionlog.Log // nil if there is no decision log
	top      *top.Top
	tail     tail.Hub
	budget   *budget.Watcher
	tracer   *tracing.Tracer // nil without traces
	began    time.Time
	ready    atomic.Bool // whether the node has ever reached its store
	draining atomic.Bool // whether load balancers should stop sending requests here

	noAddress     atomic.Pointer[weir.RuleSet] // the rules that were in force at the last check without an address
	noAddressSaid sync.Once

	self       rulestore.Node // name and version of the node
	closeRules func() error
	cluster    *top.Cluster

	envoyConfig  envoyConfig // nil if there is no configuration for Envoy
	certificates watch.Bell  // rung when the certificates should be checked now
	tokens       watch.Bell  // rung when the file of tokens should be checked now
	rls          *envoy.Server
	regionTLS    *tls.Config // nil without other regions

	live live
	busy []busy // everything that counts requests in flight
}

// Listening has the addresses on which a node listens, and names for its store and its rules.
type Listening struct {
	HTTP, GRPC, Admin, Metrics, Gateway, Region net.Addr
	Store                                       string // URL of the store, without passwords
	Rules                                       string // for example "version 12"
}

// Run runs a node until ctx is done, and then drains it. When all ports are open, it calls ready, unless that is nil.
func Run(ctx context.Context, c Config, version string, log *slog.Logger, ready func(Listening)) error {
	if err := c.Validate(); err != nil {
		return err
	}
	guards, err := c.guards()
	if err != nil {
		return err
	}
	seed, message, err := c.readRules()
	if err != nil {
		return err
	}
	if c.MaxInFlight == 0 {
		c.MaxInFlight = inflight.Default()
	}
	n := &node{config: c, log: log, began: time.Now(), self: rulestore.Node{Name: nodeName(), Version: version}, registry: prometheus.NewRegistry(),
		certificates: watch.NewBell(), tokens: watch.NewBell(), closeRules: func() error { return nil }}
	n.metrics = metrics.New(n.registry)
	n.top = n.newTop()
	n.tail.Clients = n.top
	if c.logsDecisions() {
		if n.decided, err = decisionlog.Open(c.DecisionLog, decisionlog.Options{Sample: c.DecisionLogSample, Fingerprint: n.top.Fingerprint, Logger: log}); err != nil {
			return fmt.Errorf("--decision-log: %w", err)
		}
		defer n.closeDecisionLog() // after the last request
	}
	sender, err := otlp.Start(ctx, c.OTLP, otlp.Node{Name: n.self.Name, Version: version}, n.registry, log)
	if err != nil {
		return err
	}
	defer sender.Close() // sends the last spans and metrics
	n.tracer = sender.Tracer
	if err := n.openLink(); err != nil {
		return err
	}
	if err := n.openStore(); err != nil {
		return err
	}
	defer n.closeStore() // after the last request
	n.cluster = top.NewCluster(n.top, n.self.Name, n.redis, guards.admin.Digest)
	if err := n.openBudget(); err != nil {
		return err
	}
	defer n.budget.Close(closing) // it uses the store, so it ends before the store
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // if open fails, this stops what open has started
	if n.shared != nil {
		n.shared.Await(patience)
		n.top.Learn() // before anybody can see a fingerprint, because this changes fingerprints
	}
	if err := n.openRules(ctx, seed, message); err != nil {
		return err
	}
	defer n.closeRules()
	soon, hurry := context.WithTimeout(ctx, patience)
	n.guard.CatchUp(soon)
	hurry()
	group, ctx := errgroup.WithContext(ctx)
	certificates, _ := c.readCertificates() // ignore the error, because open reports it
	ports, listening, err := n.open(ctx, guards)
	if err != nil {
		return err
	}
	n.watch()
	n.tick() // so that GET /v1/now has figures from the beginning
	// run starts a task that runs until the node ends. If the task isn't needed, it does nothing.
	run := func(needed bool, task func(context.Context) error) {
		if needed {
			group.Go(func() error { return task(ctx) })
		}
	}
	for _, p := range ports {
		run(true, func(ctx context.Context) error { return p.serve(ctx, n) })
	}
	if n.gateway != nil {
		defer n.gateway.Close()
	}
	run(true, n.rules.Run)
	run(true, n.reload)
	run(c.TLSCert != "" || c.GRPCTLSCert != "", func(ctx context.Context) error {
		return n.followCertificates(ctx, ports, certificates)
	})
	run(c.AdminTokens != "", func(ctx context.Context) error { return n.followTokens(ctx, guards.admin) })
	run(n.known != nil, n.known.follow)
	run(true, func(ctx context.Context) error { return n.rls.Follow(ctx, n.serving) })
	run(n.envoyConfig != nil, func(ctx context.Context) error { return n.envoyConfig.Follow(ctx) })
	run(true, func(ctx context.Context) error { return tendGarbage(ctx, n.counters) })
	run(true, n.top.Run)
	run(n.shared == nil, func(ctx context.Context) error { // with Redis, shared runs the guard
		n.guard.Run(ctx)
		return nil
	})
	run(true, n.followLive)
	run(n.redis != nil, n.cluster.Run)
	run(n.redis != nil && n.gateway != nil, n.hear)
	run(n.redis != nil && c.Rules != "", n.introduce)
	if n.link != nil { // the link is also needed by requests in flight, so it runs until the ports are closed
		life, end := context.WithCancel(context.WithoutCancel(ctx))
		var link sync.WaitGroup
		link.Go(func() { _ = n.link.Run(life) })
		defer link.Wait()
		defer end()
	}
	listening.Store, listening.Rules = n.storeStatus().URL, cmp.Or(given(n.rules.Waiting() != "", "none yet"), "version "+n.rules.InForce().Name())
	if ready != nil {
		ready(listening)
	}
	defer context.AfterFunc(ctx, func() { log.Info("draining") })()
	return group.Wait()
}

func (n *node) open(ctx context.Context, guards guards) ([]*port, Listening, error) {
	c := &n.config
	answers, err := httplimit.NewAnswerer(c.Answers)
	if err != nil {
		return nil, Listening{}, err
	}
	identity, known, err := c.Identity.load(ctx, n.log)
	if err != nil {
		return nil, Listening{}, err
	}
	n.known = known
	if err := n.openEnvoy(answers); err != nil {
		return nil, Listening{}, err
	}
	asked := forwardauth.New(n.limiter, forwardauth.Options{Limit: n.limitOptions(identity), Guard: guards.http, Logger: n.log})
	n.busy = append(n.busy, asked, n.envoy)
	check := &port{name: "http", addr: c.HTTP, server: newHTTP(n.api(answers, asked, guards.http), bodyTimeout, n.log)}
	operate := &port{name: "admin", addr: c.Admin, server: newHTTP(n.admin(ctx, guards.admin), bodyTimeout, n.log)}
	scrape := &port{name: "metrics", addr: c.Metrics, server: newHTTP(n.onlyMetrics(), bodyTimeout, n.log)}
	rls, through := n.grpc(guards.http, asked), &port{name: "gateway", addr: c.Gateway}
	if c.Gateway != "" {
		if n.gateway, err = n.newGateway(identity); err != nil {
			return nil, Listening{}, err
		}
		through.server = newHTTP(n.traced(n.gateway), 0, n.log) // no deadlines, because bodies may stream for hours
		through.door = &gateway.Door{Trusted: c.TrustedProxies, PerIP: c.ConnectionsPerIP, Unwelcome: n.guard.Dropped}
		n.watchDoor(through.door)
	}
	others := &port{name: "region", addr: c.Region.Listen, secured: n.regionTLS}
	if n.link != nil {
		others.server = newHTTP(n.link, bodyTimeout, n.log)
	}
	ports, err := openAll(ctx, c, []*port{check, rls, operate, scrape, through, others})
	if err != nil {
		return nil, Listening{}, err
	}
	n.warnOfStrangers(check.where(), rls.where())
	return ports, Listening{HTTP: check.where(), GRPC: rls.where(), Admin: operate.where(), Metrics: scrape.where(), Gateway: through.where(), Region: others.where()}, nil
}

func (n *node) newGateway(identity httplimit.Identity) (*gateway.Gateway, error) {
	c, limit := &n.config, n.limitOptions(identity)
	limit.Edge = "gateway"
	middleware := httplimit.New(n.limiter, limit)
	n.busy = append(n.busy, middleware)
	return gateway.New(gateway.Options{
		Upstream: c.Upstream, TrustedProxies: c.TrustedProxies, AllowUnsafePaths: c.AllowUnsafePaths, UsageHeader: c.UsageHeader,
		Learned: &n.learned, Logger: n.log, Limit: middleware,
	})
}

func (n *node) limitOptions(identity httplimit.Identity) httplimit.Options {
	c := &n.config
	return httplimit.Options{
		Identity: identity, TrustedProxies: c.TrustedProxies, Answers: c.Answers,
		MaxInFlight: c.MaxInFlight, MaxWaiting: c.MaxWaiting, OnError: n.storeFailed,
	}
}

func (n *node) api(answers *httplimit.Answerer, asked *forwardauth.Handler, g *guard.Guard) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", n.healthz)
	mux.HandleFunc("GET /readyz", n.readyz(func(r *http.Request) bool {
		_, refused := g.Admit(r)
		return g.Asks() && refused == nil
	}))
	n.addEnvoy(mux, g)
	if n.config.OnlyEnvoy {
		mux.HandleFunc("/", nothing("try POST /json, or GET /healthcheck"))
		return mux
	}
	o := checkapi.Options{Guard: g, MaxInFlight: n.config.MaxInFlight, OnError: n.storeFailed, OnNoAddress: n.warnOfNoAddress, Parallel: n.redis != nil}
	h := checkapi.New(n.limiter, answers, o)
	n.busy = append(n.busy, h.(busy))
	check := n.traced(h)
	for _, path := range checkapi.Paths {
		mux.Handle(path, check) // a path of its own, because spans are named after the route
	}
	mux.Handle("/v1/", check)
	gateways := n.traced(asked)
	for _, path := range forwardauth.Paths() {
		mux.Handle(path, gateways)
	}
	mux.HandleFunc("/", nothing("try POST /v1/check, /v1/checks, /v1/take, /v1/settle, /v1/release, /v1/renew, /v1/refund or /json, "+strings.Join(forwardauth.Paths(), ", ")+" from a gateway, or GET /healthz or /readyz"))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if forwardauth.Behind(r) {
			gateways.ServeHTTP(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// traced returns a handler that starts a span for each request. If no traces are sent, it returns h.
func (n *node) traced(h http.Handler) http.Handler {
	if n.tracer == nil {
		return h
	}
	return n.tracer.Handler(h)
}
