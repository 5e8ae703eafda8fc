// Package rawhttp sends load to HTTP servers over plain connections. It costs a fraction of what net/http's client
// does and has no goroutines, so where a server shares the machine with its clients, the server is what is measured.
package rawhttp

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"
)

// Conn is a connection to a server. It is opened by the first request, and again by the first one after an error.
type Conn struct {
	Addr string
	From net.IP // local address; nil means any

	conn   net.Conn
	buffer []byte
}

// Answer is one HTTP response. Its bytes are valid until the connection's next answer.
type Answer struct {
	Status       int
	Header, Body []byte
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
		c.conn = conn
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
	return c.receive()
}

var (
	headerEnd     = []byte("\r\n\r\n")
	contentLength = []byte("\r\nContent-Length: ")
)

func (c *Conn) receive() (Answer, error) {
	if c.buffer == nil {
		c.buffer = make([]byte, 1024)
	}
	for n := 0; ; {
		m, err := c.conn.Read(c.buffer[n:])
		if err != nil {
			return Answer{}, err
		}
		n += m
		total := n + 1 // unknown until the header is complete
		if end := bytes.Index(c.buffer[:n], headerEnd); end >= 0 {
			a, length, err := parse(c.buffer[:end+2])
			if err != nil {
				return a, err
			}
			from := end + len(headerEnd)
			if total = from + length; n == total {
				a.Body = c.buffer[from:total]
				return a, nil
			}
		}
		if n >= total || total > 1<<20 {
			return Answer{}, errors.New("an answer of unexpected length")
		}
		if len(c.buffer) < total {
			c.buffer = append(c.buffer, make([]byte, max(total-len(c.buffer), len(c.buffer)))...)
		}
	}
}

// parse reads a header, and how long the body is.
func parse(header []byte) (a Answer, length int, err error) {
	if len(header) < len("HTTP/1.1 200\r\n") {
		return a, 0, fmt.Errorf("an answer that begins with %q", header)
	}
	status, err1 := strconv.Atoi(string(header[9:12]))
	_, text, found := bytes.Cut(header, contentLength)
	text, _, _ = bytes.Cut(text, []byte("\r\n"))
	length, err2 := strconv.Atoi(string(text))
	if !found || err1 != nil || err2 != nil || length < 0 {
		return a, 0, fmt.Errorf("an answer without a status or a length: %q", header)
	}
	return Answer{Status: status, Header: header}, length, nil
}
