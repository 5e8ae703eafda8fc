package redisstore

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// maxReply is more than any reply that the store needs: a document of rules is far smaller.
const maxReply = 32 << 20

// perElement is about what the client keeps of an element of a list, beside its text.
const perElement = 64

// boundedConn is a connection that breaks when a reply is larger than any that the store needs. The client allocates what a
// server announces before any of it has arrived, so a server that announces 500 MB would take the node's memory, and one that
// announces a malformed length would crash it.
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

// scan follows the replies. It skips over texts.
func (c *boundedConn) scan(b []byte) error {
	for len(b) > 0 {
		if c.text > 0 {
			n := min(c.text, int64(len(b)))
			c.text -= n
			b = b[n:]
			continue
		}
		if c.kind == 0 {
			if c.due == 0 {
				c.due, c.size = 1, 0
			}
			c.kind, c.line = b[0], c.line[:0]
			b = b[1:]
			continue
		}
		part, rest, ended := bytes.Cut(b, []byte("\n"))
		if c.size += int64(len(part)); c.size > maxReply {
			return tooLarge(c.size)
		}
		if announces(c.kind) {
			if len(c.line)+len(part) > maxDigits {
				return errLength
			}
			c.line = append(c.line, part...)
		}
		if b = rest; ended {
			if err := c.endLine(); err != nil {
				return err
			}
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

// announces reports whether a line begins with the length of a text or of a list.
func announces(kind byte) bool { return strings.IndexByte("$!=*~>%|", kind) >= 0 }

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
		n *= 2
		fallthrough
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
func length(line []byte) (int64, error) {
	digits, whole := strings.CutSuffix(string(line), "\r")
	if whole && digits == "-1" {
		return -1, nil
	}
	n, err := strconv.ParseUint(digits, 10, 63)
	switch {
	case !whole || err != nil:
		return 0, errLength
	case n > maxReply:
		return 0, tooLarge(int64(n))
	}
	return int64(n), nil
}
