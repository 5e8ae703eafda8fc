// Package rawhttp sends load to HTTP servers over plain connections. It has no goroutines and costs less than net/http's
// client, so where a server shares the machine with its clients, the server is what is measured.
package rawhttp

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"time"
)

// Conn is a connection to a server. It is opened by the first request, and again by the first one after an error.
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

// patience bounds the time of one exchange.
const patience = 30 * time.Second

// Open opens the connection unless it is open.
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

// Do sends a request and waits for its answer.
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
