package rawhttp

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"

	"github.com/weirhq/weir/server/internal/load"
)

// Target is a server under load. Each worker has a connection of its own, which is open before the load begins.
type Target struct {
	Addr  string
	From  net.IP // local address of the connections; nil means any
	Fresh bool   // every request has a new connection
	// Request is what client n sends. It is called by many goroutines.
	Request func(n uint32) []byte
	// Outcome judges an answer, or the error that came instead. It is called by many goroutines. Nil means [Decision].
	Outcome func(n uint32, a Answer, err error) load.Answer

	conns []*Conn
}

var _ load.Target = (*Target)(nil)

func (t *Target) String() string { return t.Addr }

// Sender returns a sender with its connection.
func (t *Target) Sender() load.Sender {
	c := &Conn{Addr: t.Addr, From: t.From}
	if !t.Fresh {
		_ = c.Open() // the first request tries again
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

// Decision reads an answer as that of a limiter: 200 is allowed, 429 refused.
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

// Degraded reports whether an answer of the check API was decided without the store.
func (a Answer) Degraded() bool { return bytes.Contains(a.Body, []byte(`"degraded":true`)) }

// Post is a request with a JSON body.
func Post(path, body string) []byte {
	return fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body)
}
