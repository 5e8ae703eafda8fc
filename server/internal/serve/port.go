package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/weirhq/weir/server/internal/edge/gateway"
)

// port is an address that a node listens on, with the server that answers there.
type port struct {
	name   string // the name in the port's flag
	addr   string // the address to listen on; "" leaves the port closed
	server server
	tls    atomic.Pointer[tls.Config] // the configuration for new connections; nil without a certificate
	door   *gateway.Door              // nil if all connections are accepted
	// secured is used instead of the node's certificate if it isn't nil.
	secured *tls.Config
	socket  net.Listener // the TCP listener inside Listener
	net.Listener
}

// server serves requests on a port.
type server interface {
	// Serve serves connections until the listener is closed or fails.
	Serve(net.Listener) error
	// Drain tells clients to send their next request elsewhere, but continues to serve.
	Drain()
	// Shutdown waits for requests in flight after the listener is closed. When ctx is done, it
	// cancels the remaining ones, and returns ctx's error.
	Shutdown(ctx context.Context) error
}

// setting returns the name of the setting for the port's address.
func (p *port) setting() string {
	if p.name == "region" {
		return "regions.listen"
	}
	return "--" + p.name
}

// open starts listening, with TLS if the node has a certificate.
func (p *port) open(ctx context.Context, c *Config) error {
	tlsConfig, err := p.secured, error(nil)
	if tlsConfig == nil {
		tlsConfig, err = c.tls(p.name)
	}
	if err != nil {
		return err
	}
	var plain net.ListenConfig
	plain.SetMultipathTCP(false) // MPTCP sockets don't support the socket filters that refuseNew needs
	p.Listener, err = plain.Listen(ctx, "tcp", p.addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		text := fmt.Sprintf("%s: %s is in use, perhaps by another node: give another address", p.setting(), p.addr)
		if !c.OnlyEnvoy { // envoyproxy/ratelimit's variables have no value that closes a port
			text += `, or "" to open none`
		}
		return errors.New(text)
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

// openAll opens every port that has an address. If one fails, it closes the others.
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

// where returns the address that the port listens on, or nil.
func (p *port) where() net.Addr {
	if p.Listener == nil {
		return nil
	}
	return p.Addr()
}

// DefaultDrainNotice is how long a draining node accepts new connections by default, so that
// balancers can notice.
const DefaultDrainNotice = 250 * time.Millisecond

const (
	// handshakes is the time for TCP handshakes to finish that began before the port refused new
	// ones.
	handshakes = 100 * time.Millisecond
	// lastRequest is how long an idle connection stays open during shutdown, because the client may
	// already have sent a request.
	lastRequest = 250 * time.Millisecond
)

// serve serves the port until ctx is done. Then it closes the port, and waits for requests in
// flight.
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

// drain closes the port without losing connections. First the node reports that it isn't ready, and
// waits for balancers to notice. Then the kernel refuses new connections while the server accepts
// those in the kernel's queue, which closing the port would reset.
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
