package redisstore

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// maxReply is larger than any reply that the store needs. A rule file is far smaller.
const maxReply = 32 << 20

// perElement is about how many bytes the client allocates for an element of a list, besides its text.
const perElement = 64

// boundedConn is a connection that breaks when a reply is too large. The client allocates what a server announces before the
// data arrives, so a server that announces 500 MB would use up the node's memory, and one that announces a malformed length
// would crash the node.
type boundedConn struct {
	net.Conn
	text int64  // how many bytes of a text are still to come
	kind byte   // the type of the line being read, which is its first byte; 0 between lines
	line []byte // what has arrived of that line, if it announces a length
	due  int64  // how many elements of this reply are still to come, including the one being read
	size int64  // bytes of this reply that have arrived or were announced
	err  error  // why the connection is broken
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

// scan parses as much of the replies as it needs to know their sizes. It skips texts.
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

// maxDigits is enough for every length, including the end of the line.
const maxDigits = 20

var errLength = errors.New("redis announces a length that makes no sense")

func tooLarge(n int64) error {
	return fmt.Errorf("redis announces a reply of %d bytes or more, and none is larger than %d: is it a Redis?", n, maxReply)
}

// announces reports whether a line begins with the length of a text or of a list.
func announces(kind byte) bool { return strings.IndexByte("$!=*~>%|", kind) >= 0 }

// endLine applies the length that a line has announced, if any.
func (c *boundedConn) endLine() error {
	kind := c.kind
	c.kind = 0
	if kind != '|' { // a '|' describes the element that follows it, and isn't an element
		c.due--
	}
	if !announces(kind) {
		return nil
	}
	n, err := length(c.line)
	if err != nil || n < 0 { // -1 means null
		return err
	}
	switch kind {
	case '$', '!', '=':
		c.text = n + 2 // including the end of the line
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

// length parses the rest of a line that announces a length: digits or -1, and a carriage return. The protocol also has
// replies of unknown length, but Redis doesn't send any.
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
