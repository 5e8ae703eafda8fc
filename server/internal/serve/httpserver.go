package serve

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir/server/internal/edge/gateway"
)

// httpServer is an HTTP server that shuts down without losing requests.
type httpServer struct {
	*http.Server
	draining atomic.Bool // the server closes each connection after its next response
	conns    sync.Map    // open connections, from net.Conn to *httpConn
}

var _ server = (*httpServer)(nil)

// httpConn is the state of an open connection.
type httpConn struct {
	mu    sync.Mutex     // guards the fields below
	state http.ConnState // the latest state that net/http reported
	until time.Time      // Shutdown closes the connection at this time if no request has arrived; zero before Shutdown
	cut   bool           // the read deadline is until, instead of net/http's
}

// bodyTimeout is how long a request may take to arrive, and its response to be read.
const bodyTimeout = 10 * time.Second

// newHTTP makes a server. Patience limits how long a request may take to arrive and its response to
// be read. If it is 0, the handler sets the deadlines.
func newHTTP(h http.Handler, patience time.Duration, log *slog.Logger) *httpServer {
	s := &httpServer{}
	s.Server = gateway.NewServer(s.closing(h))
	s.ConnState = s.follow
	s.ErrorLog = slog.NewLogLogger(log.Handler(), slog.LevelDebug)
	// Both timeouts count from the beginning of the request, so a client that sends too slowly still
	// gets a response.
	s.ReadTimeout, s.WriteTimeout = patience, 2*patience
	return s
}

// closing makes a draining node close each HTTP/1 connection with its next response, which tells the
// client to send no more. Closing an idle connection instead could lose a request that is on its way.
// HTTP/2 has a frame for this.
func (s *httpServer) closing(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor == 1 && s.draining.Load() {
			w.Header().Set("Connection", "close")
		}
		h.ServeHTTP(w, r)
	})
}

// follow records the state of each connection for net/http.
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
	c.until = time.Now().Add(lastRequest)   // the deadline if the connection becomes idle again
	if c.cut && state == http.StateActive { // the request came in time: give its body the time that net/http allows
		c.cut = false
		deadline := time.Time{}
		if s.ReadTimeout > 0 && !isHTTP2(nc) {
			deadline = time.Now().Add(s.ReadTimeout)
		}
		_ = nc.SetReadDeadline(deadline)
	}
}

// isHTTP2 reports whether a connection speaks HTTP/2. It waits for the TLS handshake.
func isHTTP2(nc net.Conn) bool {
	t, ok := nc.(*tls.Conn)
	return ok && t.ConnectionState().NegotiatedProtocol == "h2"
}

// Drain makes the server close each connection after its next response.
func (s *httpServer) Drain() { s.draining.Store(true) }

// Shutdown closes HTTP/1 connections on which no request arrives within lastRequest (250 ms), and
// lets net/http wait for the others. By itself, net/http closes idle connections at once, drops
// requests that it is still reading, and waits 5 seconds for connections that never had a request.
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

// unused reports whether there are HTTP/1 connections without a request. It sets their read
// deadlines, so that net/http closes them unless a request comes first. Shutdown calls it repeatedly,
// because net/http sets deadlines of its own.
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
