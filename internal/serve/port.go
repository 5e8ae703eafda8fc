package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/weirhq/weir/internal/gateway"
)

// port is an address of a node with what answers there, in whatever protocol.
type port struct {
	name   string // of its flag
	addr   string // to listen on; "" opens none
	server server
	tls    atomic.Pointer[tls.Config] // for new connections; nil without a certificate
	door   *gateway.Door              // nil if all connections are let in
	// secured is what the port has in place of the node's certificate. Nil means that.
	secured *tls.Config
	net.Listener
}

// server answers on a port.
type server interface {
	// Serve answers until the listener is closed, or fails.
	Serve(net.Listener) error
	// Shutdown lets requests in flight finish, once the listener is closed. When ctx is done it
	// ends the rest, and returns ctx's error.
	Shutdown(ctx context.Context) error
}

// setting is what a user writes to change its address.
func (p *port) setting() string {
	if p.name == "region" {
		return "regions.listen"
	}
	return "--" + p.name
}

// open begins to listen, with TLS if the node has a certificate.
func (p *port) open(ctx context.Context, c *Config) error {
	tlsConfig, err := p.secured, error(nil)
	if tlsConfig == nil {
		tlsConfig, err = c.tls(p.name)
	}
	if err != nil {
		return err
	}
	p.Listener, err = new(net.ListenConfig).Listen(ctx, "tcp", p.addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		text := fmt.Sprintf("%s: %s is in use, perhaps by another node: give another address", p.setting(), p.addr)
		if !c.OnlyEnvoy { // envoyproxy/ratelimit's variables, which name the port then, can't close it
			text += `, or "" to open none`
		}
		return errors.New(text)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", p.setting(), err)
	}
	if p.door != nil {
		p.door.Listener = p.Listener
		p.Listener = p.door
	}
	if tlsConfig != nil {
		p.tls.Store(tlsConfig)
		p.Listener = tls.NewListener(p.Listener, &tls.Config{
			GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return p.tls.Load(), nil },
		})
	}
	return nil
}

// openAll opens every port before any is served: a node starts with all of them or not at all. It
// returns those that have an address.
func openAll(ctx context.Context, c *Config, ports []*port) (opened []*port, err error) {
	for _, p := range ports {
		if p.addr == "" {
			continue
		}
		if err := p.open(ctx, c); err != nil {
			for _, p := range opened {
				p.Close()
			}
			return nil, err
		}
		opened = append(opened, p)
	}
	return opened, nil
}

// where is the address that the port listens on, or nil if it doesn't.
func (p *port) where() net.Addr {
	if p.Listener == nil {
		return nil
	}
	return p.Addr()
}

// DefaultDrainNotice is how long a draining node goes on accepting, if nobody said otherwise.
const DefaultDrainNotice = 250 * time.Millisecond

// lastAnswer is how long HTTP connections have, once their port is closed, to be told of their end by an answer.
const lastAnswer = 250 * time.Millisecond

// serve answers until ctx is done, then drains.
func (p *port) serve(ctx context.Context, n *node) error {
	drained := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() { drained <- p.drain(n) })
	err := p.server.Serve(p.Listener)
	if stop() { // it ended by itself
		return fmt.Errorf("%s: %w", p.name, err)
	}
	return <-drained
}

// drain ends a node without losing a request: first it isn't ready, and balancers have time to hear of it, then it
// takes no new connections, then requests in flight finish.
func (p *port) drain(n *node) error {
	n.draining.Store(true)
	time.Sleep(n.config.DrainNotice)
	p.Close()
	ctx, cancel := context.WithTimeout(context.Background(), lastAnswer+n.config.DrainTimeout)
	defer cancel()
	err := p.server.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%s: requests were still in flight after %s", p.name, n.config.DrainTimeout)
	}
	return err
}

// httpServer is the server of a port that speaks HTTP.
type httpServer struct {
	*http.Server
	closed atomic.Bool // connections end after their next answer
}

var _ server = (*httpServer)(nil)

// bodyTimeout is how long a request to the check API or the admin port may take
// to arrive, and its answer to be taken.
const bodyTimeout = 10 * time.Second

// newHTTP makes a server. A request and its answer may take as long as patience says; 0 means that the handler looks after that itself.
func newHTTP(h http.Handler, patience time.Duration, log *slog.Logger) *httpServer {
	s := &httpServer{}
	s.Server = gateway.NewServer(s.closing(h))
	s.ErrorLog = slog.NewLogLogger(log.Handler(), slog.LevelDebug)
	// Both run from the request's beginning: a client that sent too slowly is still told so.
	s.ReadTimeout, s.WriteTimeout = patience, 2*patience
	return s
}

// closing tells clients, once this port is closed, not to send more on a connection:
// one that is closed while idle can lose a request that was already on its way. Not before, or
// they would open others, and those that the kernel has and we haven't accepted are lost with the port.
func (s *httpServer) closing(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.closed.Load() && r.ProtoMajor == 1 {
			w.Header().Set("Connection", "close")
		}
		h.ServeHTTP(w, r)
	})
}

// Shutdown gives each connection a last answer first.
func (s *httpServer) Shutdown(ctx context.Context) error {
	s.closed.Store(true)
	time.Sleep(lastAnswer)
	err := s.Server.Shutdown(ctx)
	if err != nil {
		s.Close()
	}
	return err
}
