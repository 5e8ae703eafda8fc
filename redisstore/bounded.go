package redisstore

import (
	"bytes"
	"errors"
	"fmt"
	"net"
)

// maxReply is more than any reply that the store needs: a document of rules is far smaller.
const maxReply = 32 << 20

// perElement is about what the client keeps of an element of a list, beside its text.
const perElement = 64

// boundedConn is a connection that breaks when a reply is larger than any that the store needs. The client makes room for what a
// server announces before any of it has come: a server that announces 500 MB, by mistake or out of malice, would take the
// node's memory, and a length that is no length its life.
type boundedConn struct {
	net.Conn
	text int64  // bytes of a text that are still to come
	kind byte   // of the line that is being read; 0: between lines
	line []byte // as far as it has come, if it announces a length
	due  int64  // elements of this reply that are still to come, with the one that is being read
	size int64  // of this reply so far
	err  error  // why it is broken
}

func (c *boundedConn) Read(b []byte) (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	n, err := c.Conn.Read(b)
	if c.err = c.scan(b[:n]); c.err != nil {
		return 0, c.err
	}
	return n, err
}

// scan follows the replies. Of texts it looks at no byte.
func (c *boundedConn) scan(b []byte) error {
	for len(b) > 0 {
		switch {
		case c.text > 0:
			n := min(c.text, int64(len(b)))
			c.text -= n
			b = b[n:]
			continue
		case c.kind == 0:
			if c.due == 0 {
				c.due, c.size = 1, 0
			}
			c.kind, c.line = b[0], c.line[:0]
			b = b[1:]
			continue
		}
		end := bytes.IndexByte(b, '\n')
		part := b[:max(0, end)]
		if end < 0 {
			part = b
		}
		if c.size += int64(len(part)); c.size > maxReply {
			return tooLarge(c.size)
		}
		if announces(c.kind) {
			if len(c.line)+len(part) > maxDigits {
				return errLength
			}
			c.line = append(c.line, part...)
		}
		if end < 0 {
			return nil
		}
		b = b[end+1:]
		if err := c.endLine(); err != nil {
			return err
		}
	}
	return nil
}

// maxDigits is enough for every length, with its line's end.
const maxDigits = 20

var errLength = errors.New("redis announces a length that makes no sense")

func tooLarge(n int64) error {
	return fmt.Errorf("redis announces a reply of %d bytes or more, and none is larger than %d: is it a Redis?", n, maxReply)
}

// announces: the line begins with a length, of a text or of a list.
func announces(kind byte) bool {
	switch kind {
	case '$', '!', '=', '*', '~', '>', '%', '|':
		return true
	}
	return false
}

// endLine takes in what a line has announced.
func (c *boundedConn) endLine() error {
	kind := c.kind
	c.kind = 0
	if kind != '|' { // which describes the element that follows it, and is none
		c.due--
	}
	if !announces(kind) {
		return nil
	}
	n, err := length(c.line)
	if err != nil || n < 0 { // -1: there is none
		return err
	}
	switch kind {
	case '$', '!', '=':
		c.text = n + 2 // with the line's end
		c.size += n
	case '%', '|':
		c.due += 2 * n
		c.size += 2 * n * perElement
	default:
		c.due += n
		c.size += n * perElement
	}
	if c.size > maxReply {
		return tooLarge(c.size)
	}
	return nil
}

// length reads what stands behind the kind of a line: digits, or -1, and a carriage return. Redis sends nothing of an unknown
// length, though its protocol knows such things.
func length(line []byte) (n int64, err error) {
	digits, ok := bytes.CutSuffix(line, []byte("\r"))
	if ok && string(digits) == "-1" {
		return -1, nil
	}
	for _, d := range digits {
		if ok = ok && d >= '0' && d <= '9'; !ok {
			break
		}
		if n = 10*n + int64(d-'0'); n > maxReply {
			return 0, tooLarge(n)
		}
	}
	if !ok || len(digits) == 0 {
		return 0, errLength
	}
	return n, nil
}
