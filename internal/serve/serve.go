// Package serve runs a node: the check API, the gateway and the admin port over
// one limiter, from listening to the last answer.
package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/internal/checkapi"
	"github.com/weirhq/weir/internal/gateway"
	"github.com/weirhq/weir/internal/guard"
	"github.com/weirhq/weir/internal/inflight"
	"github.com/weirhq/weir/internal/inforce"
	"github.com/weirhq/weir/internal/rulestore"
	"github.com/weirhq/weir/lease"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/redisstore"
	"golang.org/x/sync/errgroup"
)

// node is a running Weir.
type node struct {
	config   Config
	log      *slog.Logger
	limiter  *weir.Limiter
	counters *memstore.Store   // in this process: all of them, or what is counted while Redis is lost
	redis    *redisstore.Store // nil with the in-process store
	leases   *lease.Store      // in front of it
	rules    *inforce.Rules
	gateway  *gateway.Gateway // nil without one
	draining atomic.Bool      // balancers should send nobody

	self       rulestore.Node // its name and version
	closeRules func() error   // nil with nothing to close
}

// Listening tells where a node listens, once it does, and where it counts.
type Listening struct {
	HTTP, Admin, Gateway net.Addr
	Store                string // without passwords
	Rules                string // which ones are in force
}

// Run serves until ctx is done, then lets requests in flight finish. Ready, if not nil, is called when all ports are open.
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
	n := &node{config: c, log: log, self: rulestore.Node{Name: nodeName(), Version: version}}
	if err := n.openStore(); err != nil {
		return err
	}
	defer n.closeStore() // after the last request
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends what open began, should it fail
	if err := n.openRules(ctx, seed, message); err != nil {
		return err
	}
	if n.closeRules != nil {
		defer n.closeRules()
	}
	group, ctx := errgroup.WithContext(ctx)
	servers, listening, err := n.open(ctx, guards)
	if err != nil {
		return err
	}
	for _, s := range servers {
		group.Go(func() error { return s.serve(ctx, n) })
	}
	if n.gateway != nil {
		defer n.gateway.Close()
	}
	group.Go(func() error { return n.rules.Run(ctx) })
	group.Go(func() error { return tendGarbage(ctx, n.counters) })
	listening.Store, listening.Rules = n.storeStatus().URL, "version "+n.rules.InForce().Name()
	if n.rules.Waiting() != "" {
		listening.Rules = "none yet"
	}
	if ready != nil {
		ready(listening)
	}
	defer context.AfterFunc(ctx, func() { log.Info("draining") })()
	return group.Wait()
}

// bodyTimeout is how long a request to the check API or the admin port may take
// to arrive, and its answer to be taken.
const bodyTimeout = 10 * time.Second

// server is one listener with what answers on it.
type server struct {
	name string
	http *http.Server
	net.Listener
	closed atomic.Bool // connections end after their next answer
}

// open opens every port before any is served: a node starts whole or not at all.
func (n *node) open(ctx context.Context, guards guards) (servers []*server, l Listening, err error) {
	defer func() {
		if err != nil {
			for _, s := range servers {
				s.Close()
			}
		}
	}()
	answers, err := httplimit.NewAnswerer(n.config.Answers)
	if err != nil {
		return nil, l, err
	}
	identity, err := n.config.Identity.load(ctx, n.log)
	if err != nil {
		return nil, l, err
	}
	add := func(name, addr string, h http.Handler) (net.Addr, error) {
		if addr == "" {
			return nil, nil
		}
		tlsConfig, err := n.config.tls(name)
		if err != nil {
			return nil, err
		}
		lis, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
		if errors.Is(err, syscall.EADDRINUSE) {
			return nil, fmt.Errorf("--%s: %s is in use, perhaps by another node: give another address", name, addr)
		}
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", name, err)
		}
		s := &server{name: name, Listener: lis}
		s.http = gateway.NewServer(s.closing(h))
		s.http.ErrorLog = slog.NewLogLogger(n.log.Handler(), slog.LevelDebug)
		s.http.TLSConfig = tlsConfig
		servers = append(servers, s)
		return lis.Addr(), nil
	}
	if l.HTTP, err = add("http", n.config.HTTP, n.api(answers, guards.http)); err != nil {
		return servers, l, err
	}
	if l.Admin, err = add("admin", n.config.Admin, n.admin(guards.admin)); err != nil {
		return servers, l, err
	}
	n.warnOfStrangers(l.HTTP)
	for _, s := range servers { // the gateway, whose bodies may stream for hours, looks after them itself
		// Both run from the request's beginning: who sent too slowly is still to be told so.
		s.http.ReadTimeout, s.http.WriteTimeout = bodyTimeout, 2*bodyTimeout
	}
	if n.config.Gateway != "" {
		n.gateway, err = gateway.New(gateway.Options{
			Upstream:         n.config.Upstream,
			TrustedProxies:   n.config.TrustedProxies,
			AllowUnsafePaths: n.config.AllowUnsafePaths,
			Logger:           n.log,
			Limit: httplimit.New(n.limiter, httplimit.Options{
				Identity: identity, TrustedProxies: n.config.TrustedProxies, Answers: n.config.Answers,
				MaxInFlight: n.config.MaxInFlight, MaxWaiting: n.config.MaxWaiting, OnError: n.storeFailed,
			}),
		})
		if err != nil {
			return servers, l, err
		}
		if l.Gateway, err = add("gateway", n.config.Gateway, n.gateway); err != nil {
			return servers, l, err
		}
	}
	return servers, l, nil
}

// batchParallel is how many checks of a batch are decided at the same time where each may need Redis: so many that they
// travel in few calls.
const batchParallel = 256

// api is the check API with health beside it.
func (n *node) api(answers *httplimit.Answerer, g *guard.Guard) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", n.healthz)
	mux.HandleFunc("GET /readyz", n.readyz(func(r *http.Request) bool {
		_, refused := g.Admit(r)
		return g.Asks() && refused == nil
	}))
	o := checkapi.Options{Guard: g, MaxInFlight: n.config.MaxInFlight, OnError: n.storeFailed}
	if n.redis != nil {
		o.Parallel = batchParallel
	}
	mux.Handle("/v1/", checkapi.New(n.limiter, answers, o))
	mux.HandleFunc("/", nothing("try POST /v1/check, /v1/checks, /v1/take or /v1/refund, or GET /healthz or /readyz"))
	return mux
}

// closing tells clients, once this port is closed, not to send more on a connection:
// one that is closed while idle can lose a request that was already on its way. Not before, or
// they would open others, and those that the kernel has and we haven't accepted are lost with the port.
func (s *server) closing(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.closed.Load() && r.ProtoMajor == 1 {
			w.Header().Set("Connection", "close")
		}
		h.ServeHTTP(w, r)
	})
}

// drainNotice is how long a draining node goes on accepting, so that balancers
// hear of it, and then how long connections have to be told of their end by an answer.
const drainNotice = 250 * time.Millisecond

// serve answers until ctx is done, then drains.
func (s *server) serve(ctx context.Context, n *node) error {
	drained := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() { drained <- s.drain(n) })
	var err error
	if s.http.TLSConfig != nil {
		err = s.http.ServeTLS(s.Listener, "", "")
	} else {
		err = s.http.Serve(s.Listener)
	}
	if stop() { // it ended by itself
		return fmt.Errorf("%s: %w", s.name, err)
	}
	return <-drained
}

// drain ends in an order in which nothing is lost: not ready, no new connections, a last answer on each, the end.
func (s *server) drain(n *node) error {
	n.draining.Store(true)
	time.Sleep(drainNotice)
	s.Close()
	s.closed.Store(true)
	time.Sleep(drainNotice)
	ctx, cancel := context.WithTimeout(context.Background(), n.config.DrainTimeout)
	defer cancel()
	err := s.http.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		s.http.Close()
		return fmt.Errorf("%s: requests were still in flight after %s", s.name, n.config.DrainTimeout)
	}
	return err
}
