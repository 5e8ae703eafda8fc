package serve

import (
	"bufio"
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
)

// client is the client's end of a connection.
type client struct {
	t *testing.T
	net.Conn
	in *bufio.Reader
}

func (c *client) send(text string) {
	c.t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		c.t.Error(err)
	}
}

// answer reads a response, which must be 200, and reports whether the server closes the connection after it.
func (c *client) answer() (last bool) {
	c.t.Helper()
	res, err := http.ReadResponse(c.in, nil)
	if err != nil {
		c.t.Error("a request was lost:", err)
		return false
	}
	defer res.Body.Close()
	if text, err := io.ReadAll(res.Body); err != nil || res.StatusCode != 200 {
		c.t.Error(res.Status, string(text), err)
	}
	if res.Close {
		_, _ = io.Copy(io.Discard, c.in) // the server's TLS waits until its last alert is read
	}
	return res.Close
}

const plainRequest = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"

// Connections without a request don't delay a node's stop, and requests that arrive late are still answered.
func TestConnectionsWithoutARequestAtTheEnd(t *testing.T) {
	secure := httptest.NewTLSServer(nil)
	certificates := secure.TLS.Certificates
	secure.Close()
	for _, withTLS := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) { endWithoutRequests(t, withTLS, certificates) })
	}
}

func endWithoutRequests(t *testing.T, withTLS bool, certificates []tls.Certificate) {
	conns := make(pipes)
	l := net.Listener(conns)
	if withTLS {
		l = tls.NewListener(conns, &tls.Config{Certificates: certificates})
	}
	s := newHTTP(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n, err := io.Copy(io.Discard, r.Body); n != max(0, r.ContentLength) || err != nil {
			w.WriteHeader(400)
		}
		if r.URL.Path == "/slow" {
			time.Sleep(3 * time.Second)
		}
	}), bodyTimeout, slog.New(slog.DiscardHandler))
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = s.Serve(l)
	}()
	open := func() *client {
		here, there := net.Pipe()
		conns <- there
		t.Cleanup(func() { here.Close() })
		if !withTLS {
			return &client{t, here, bufio.NewReader(here)}
		}
		c := tls.Client(here, &tls.Config{InsecureSkipVerify: true})
		if err := c.HandshakeContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		return &client{t, c, bufio.NewReader(c)}
	}
	idle := func() *client {
		c := open()
		c.send(plainRequest)
		if c.answer() {
			t.Error("the node ended a connection before it drained")
		}
		return c
	}
	unused, kept, half := open(), idle(), open()
	half.send("GET / HTTP/1.1\r\nHost: loc")
	late := []*client{open(), idle()} // they send their requests after the port is closed
	slow := open()
	slow.send("GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n")
	body := open()
	body.send("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n")
	synctest.Wait()

	begun, ended := time.Now(), make(chan time.Duration, 1)
	close(conns)
	<-served
	go func() {
		if err := s.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		ended <- time.Since(begun)
	}()
	time.Sleep(lastRequest * 4 / 5)
	for _, c := range late {
		c.send("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n")
	}
	for _, c := range []*client{unused, kept, half} {
		if _, err := c.in.ReadByte(); err != io.EOF {
			t.Errorf("a connection without a request: %v", err)
		}
	}
	if took := time.Since(begun); took < lastRequest || took > 2*lastRequest {
		t.Errorf("connections without a request ended after %s", took)
	}
	time.Sleep(time.Second)
	for _, c := range append(late, body) {
		c.send("ok")
		if !c.answer() {
			t.Error("the last answer on a connection doesn't say so")
		}
	}
	slow.answer()
	if took := <-ended; took < 3*time.Second || took > 4*time.Second {
		t.Errorf("the end took %s, but the last request 3s", took)
	}
}

// A draining node still accepts connections, and closes each of them after its next response.
func TestADrainingNodeEndsConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conns := make(pipes)
		s := newHTTP(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), bodyTimeout, slog.New(slog.DiscardHandler))
		go s.Serve(conns)
		defer s.Close()
		defer close(conns)
		for _, draining := range []bool{false, true} {
			if draining {
				s.Drain()
			}
			here, there := net.Pipe()
			defer here.Close()
			conns <- there
			c := &client{t, here, bufio.NewReader(here)}
			c.send(plainRequest)
			if last := c.answer(); last != draining {
				t.Errorf("draining %v: the connection ends: %v", draining, last)
			}
		}
	})
}
