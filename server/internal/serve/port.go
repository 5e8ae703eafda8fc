package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/weirhq/weir/server/internal/edge/gateway"
)

type port struct {
	name   string // the port's name, as in its flag
	addr   string // the address to listen on; if "", the port stays closed
	server server
	tls    atomic.Pointer[tls.Config] // TLS configuration for new connections; nil without a certificate
	door   *gateway.Door              // nil if the port accepts all connections
	// secured, if not nil, is the TLS configuration, and the node's certificate isn't used.
	secured *tls.Config
	socket  net.Listener // the TCP listener that Listener wraps
	net.Listener
}

// server serves requests on a port.
type server interface {
	// Serve serves connections until the listener is closed or fails.
	Serve(net.Listener) error
	// Drain makes the server tell clients to send further requests elsewhere. The server continues to serve requests.
	Drain()
	// Shutdown waits for requests in flight, after the listener was closed. When ctx is done, it cancels them.
	Shutdown(ctx context.Context) error
}

// setting returns the name of the setting that has the port's address.
func (p *port) setting() string {
	if p.name == "region" {
		return "regions.listen"
	}
	return "--" + p.name
}

// open starts to listen, with TLS if the node has a certificate for the port.
func (p *port) open(ctx context.Context, c *Config) error {
	tlsConfig, err := p.secured, error(nil)
	if tlsConfig == nil {
		tlsConfig, err = c.tls(p.name)
	}
	if err != nil {
		return err
	}
	var plain net.ListenConfig
	plain.SetMultipathTCP(false) // refuseNew needs socket filters, which MPTCP sockets don't support
	p.Listener, err = plain.Listen(ctx, "tcp", p.addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		none := given(!c.OnlyEnvoy, `, or "" to open none`) // envoyproxy/ratelimit's variables have no value that closes a port
		return fmt.Errorf("%s: %s is in use, perhaps by another node: give another address%s", p.setting(), p.addr, none)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", p.setting(), err)
	}
	p.socket = p.Listener
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

func (p *port) where() net.Addr {
	if p.Listener == nil {
		return nil
	}
	return p.Addr()
}

// DefaultDrainNotice is the default time for which a draining node still accepts new connections, so that load
// balancers can notice that it isn't ready.
const DefaultDrainNotice = 250 * time.Millisecond

const (
	// handshakes is how long TCP handshakes may take that began before the port refused new connections.
	handshakes = 100 * time.Millisecond
	// lastRequest is how long an idle connection still stays open at the end, because a request may be on its way.
	lastRequest = 250 * time.Millisecond
)

// serve serves the port until ctx is done. Then it drains and closes the port, and waits for requests in flight.
func (p *port) serve(ctx context.Context, n *node) error {
	closed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(closed)
		p.drain(n)
	})
	err := p.server.Serve(p.Listener)
	if stop() { // the server failed
		return fmt.Errorf("%s: %w", p.name, err)
	}
	<-closed
	end, cancel := context.WithTimeout(context.Background(), lastRequest+n.config.DrainTimeout)
	defer cancel()
	err = p.server.Shutdown(end)
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%s: requests were still in flight after %s", p.name, n.config.DrainTimeout)
	}
	return err
}

// drain closes the port without losing connections. First, the node reports that it isn't ready, and waits until load
// balancers have noticed. Then the kernel refuses new connections, while the server accepts those that are in the
// kernel's queue. Closing the port would reset them.
func (p *port) drain(n *node) {
	n.draining.Store(true)
	p.server.Drain()
	time.Sleep(n.config.DrainNotice)
	if refuseNew(p.socket) {
		time.Sleep(handshakes)
		for end := time.Now().Add(n.config.DrainTimeout); queued(p.socket) > 0 && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
	}
	p.Close()
}

// httpServer is an HTTP server that can be shut down without losing requests.
type httpServer struct {
	*http.Server
	draining atomic.Bool // the server closes each connection after the next response on it
	conns    sync.Map    // open connections, from net.Conn to *httpConn
}

var _ server = (*httpServer)(nil)

// httpConn is the state of an open connection.
type httpConn struct {
	mu    sync.Mutex     // guards the fields below
	state http.ConnState // the last state that net/http reported
	until time.Time      // when Shutdown closes the connection if no request has arrived; zero before Shutdown
	cut   bool           // the read deadline is until, and not the one that net/http has set
}

// bodyTimeout is how long a request may take to arrive, and how long a client may take to read the response.
const bodyTimeout = 10 * time.Second

// newHTTP makes a server. Requests must arrive within the duration patience. If patience is 0, there is no limit, and
// the handler sets deadlines.
func newHTTP(h http.Handler, patience time.Duration, log *slog.Logger) *httpServer {
	s := &httpServer{}
	s.Server = gateway.NewServer(s.closing(h))
	s.ConnState = s.follow
	s.ErrorLog = slog.NewLogLogger(log.Handler(), slog.LevelDebug)
	// Both timeouts begin with the request, so a client that sends too slowly still gets a response.
	s.ReadTimeout, s.WriteTimeout = patience, 2*patience
	return s
}

// closing makes a draining node close each HTTP/1 connection with the next response on it, which tells the client to
// send no more requests there. If it closed idle connections instead, it could lose a request that is on its way.
// HTTP/2 has a frame for this purpose.
func (s *httpServer) closing(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor == 1 && s.draining.Load() {
			w.Header().Set("Connection", "close")
		}
		h.ServeHTTP(w, r)
	})
}

func (s *httpServer) follow(nc net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		s.conns.Store(nc, &httpConn{})
		return
	case http.StateHijacked, http.StateClosed:
		s.conns.Delete(nc)
		return
	}
	v, ok := s.conns.Load(nc)
	if !ok {
		return
	}
	c := v.(*httpConn)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state = state
	if c.until.IsZero() {
		return
	}
	c.until = time.Now().Add(lastRequest)   // applies if the connection becomes idle again
	if c.cut && state == http.StateActive { // a request has arrived in time, so its body gets the time that net/http allows
		c.cut = false
		deadline := time.Time{}
		if s.ReadTimeout > 0 && !isHTTP2(nc) {
			deadline = time.Now().Add(s.ReadTimeout)
		}
		_ = nc.SetReadDeadline(deadline)
	}
}

// isHTTP2 reports whether a connection uses HTTP/2. It waits for the TLS handshake.
func isHTTP2(nc net.Conn) bool {
	t, ok := nc.(*tls.Conn)
	return ok && t.ConnectionState().NegotiatedProtocol == "h2"
}

func (s *httpServer) Drain() { s.draining.Store(true) }

// Shutdown closes HTTP/1 connections on which no request arrives within lastRequest (250 ms), and lets net/http wait
// for the other connections. By itself, net/http would close idle connections immediately, drop requests that it is
// still reading, and wait 5 seconds for connections that never had a request.
func (s *httpServer) Shutdown(ctx context.Context) error {
	s.Drain()
	until := time.Now().Add(lastRequest)
	for s.unused(until) && ctx.Err() == nil {
		time.Sleep(5 * time.Millisecond)
	}
	err := s.Server.Shutdown(ctx)
	if err != nil {
		s.Close()
	}
	return err
}

// unused reports whether there are HTTP/1 connections without a request. It sets their read deadlines, so that net/http
// closes them unless a request arrives first. Shutdown calls it repeatedly, because net/http also sets deadlines.
func (s *httpServer) unused(until time.Time) (found bool) {
	s.conns.Range(func(k, v any) bool {
		nc, c := k.(net.Conn), v.(*httpConn)
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.until.IsZero() {
			c.until = until
		}
		if c.state == http.StateActive || c.state == http.StateIdle && isHTTP2(nc) {
			return true
		}
		found, c.cut = true, true
		_ = nc.SetReadDeadline(c.until)
		return true
	})
	return found
}
