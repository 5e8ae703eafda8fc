// Package rawhttp sends load to HTTP servers over plain connections. It uses no goroutines and less CPU time than the
// client of net/http. This matters if the server shares its cores with the clients.
package rawhttp

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/weirhq/weir/server/internal/load"
)

// Conn is a connection to a server. The first request opens it, and so does the first request after an error.
type Conn struct {
	Addr string
	From net.IP // local address; nil means any

	conn   net.Conn
	reader *bufio.Reader // of conn
}

// Answer is one HTTP response.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// patience limits the time for a request and its response.
const patience = 30 * time.Second

// Open opens the connection if it isn't open.
func (c *Conn) Open() (err error) {
	if c.conn != nil {
		return nil
	}
	dialer := net.Dialer{Timeout: patience}
	if c.From != nil {
		dialer.LocalAddr = &net.TCPAddr{IP: c.From}
	}
	conn, err := dialer.Dial("tcp", c.Addr)
	if err == nil {
		c.conn, c.reader = conn, bufio.NewReader(conn)
	}
	return err
}

// Close closes the connection, if it is open.
func (c *Conn) Close() {
	if c.conn != nil {
		c.conn.Close()
		c.conn = nil
	}
}

// Do sends a request, and waits for the response.
func (c *Conn) Do(request []byte) (a Answer, err error) {
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	if err := c.Open(); err != nil {
		return a, err
	}
	if err := c.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return a, err
	}
	if _, err := c.conn.Write(request); err != nil {
		return a, err
	}
	res, err := http.ReadResponse(c.reader, nil)
	if err != nil {
		return a, err
	}
	a = Answer{Status: res.StatusCode, Header: res.Header}
	a.Body, err = io.ReadAll(res.Body)
	return a, err
}

// Target is a server under load. Each worker has its own connection, which is opened before the load begins.
type Target struct {
	Addr  string
	From  net.IP // local address of the connections; nil means any
	Fresh bool   // open a new connection for each request
	// Request returns the request of client n. Many goroutines call it.
	Request func(n uint32) []byte
	// Outcome classifies a response, or the error if there is none. Many goroutines call it. Nil means [Decision].
	Outcome func(n uint32, a Answer, err error) load.Answer

	conns []*Conn
}

var _ load.Target = (*Target)(nil)

func (t *Target) String() string { return t.Addr }

// Sender returns a sender with its connection.
func (t *Target) Sender() load.Sender {
	c := &Conn{Addr: t.Addr, From: t.From}
	if !t.Fresh {
		_ = c.Open() // on failure, the first request tries again
	}
	t.conns = append(t.conns, c)
	return &sender{t, c}
}

// Close closes all connections. The load must have ended.
func (t *Target) Close() {
	for _, c := range t.conns {
		c.Close()
	}
	t.conns = nil
}

type sender struct {
	*Target
	conn *Conn
}

func (s *sender) Send(_ context.Context, n uint32) load.Answer {
	a, err := s.conn.Do(s.Request(n))
	if s.Fresh {
		s.conn.Close()
	}
	if s.Outcome != nil {
		return s.Outcome(n, a, err)
	}
	return Decision(a, err)
}

// Decision classifies the response of a limiter: 200 is allowed, 429 is refused.
func Decision(a Answer, err error) load.Answer {
	if err != nil {
		return load.Answer{Outcome: load.Failed, Err: err}
	}
	d := load.Answer{Outcome: load.Other, Status: uint16(a.Status), Degraded: a.Degraded()}
	switch a.Status {
	case http.StatusOK:
		d.Outcome = load.Allowed
	case http.StatusTooManyRequests:
		d.Outcome = load.Refused
	}
	return d
}

// Degraded reports whether a response of the check API was decided without the store.
func (a Answer) Degraded() bool { return bytes.Contains(a.Body, []byte(`"degraded":true`)) }

// Post returns a request with a JSON body.
func Post(path, body string) []byte {
	return fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body)
}
