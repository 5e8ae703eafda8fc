package redisstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// If a server announces a reply that is too large, or a negative length, the connection breaks before any data arrives.
func TestAnAnnouncementIsNotBelieved(t *testing.T) {
	for _, announced := range []string{
		"$524288000", "$9223372036854775807", "$9999999999999999999", "$99999999999999999999999", "$-2", "$?", "$", "$12x", "!524288000", "=524288000",
		"*10000000", "%10000000", "~10000000", ">10000000", "|10000000", "*-2", "*?",
		"*2\r\n*400000\r\n*400000", // together too many
		"*2\r\n$20000000\r\n" + strings.Repeat("x", 20000000) + "\r\n$20000000",       // likewise
		"*2\r\n$20000000\r\n" + strings.Repeat("x", 20000000) + "\r\n|0\r\n$20000000", // and what describes an element begins no new reply
	} {
		t.Run(announced[:min(len(announced), 30)], func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			go func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					go func() {
						defer c.Close()
						_, _ = io.WriteString(c, announced+"\r\n")
						_, _ = io.Copy(io.Discard, c)
					}()
				}
			}()
			s := openLate(t, Options{URL: "redis://" + l.Addr().String()})
			until(t, func(context.Context) error {
				if h := s.Health(); h.Up || !strings.Contains(h.Shards[0].Error, "redis announces ") {
					return fmt.Errorf("%+v", h)
				}
				return nil
			})
		})
	}
}

// piece is a connection that returns the given data in pieces.
type pieces struct {
	net.Conn
	left [][]byte
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.left) == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.left[0])
	p.left = p.left[1:]
	return n, nil
}

// Valid replies of every kind pass unchanged, wherever reads cut them. A reply that is too large never passes.
func TestRepliesPassWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var reply func(depth int) string
		reply = func(depth int) string {
			text := rapid.StringMatching(`[a-z$*\r\n%0-9]{0,12}`).Draw(t, "text")
			kinds := "$!=+-:,#_($"
			if depth < 3 {
				kinds += "*~>%|"
			}
			kind := kinds[rapid.IntRange(0, len(kinds)-1).Draw(t, "kind")]
			n := rapid.IntRange(0, 3).Draw(t, "elements")
			out := fmt.Sprintf("%c%d\r\n", kind, n)
			switch kind {
			case '$', '!', '=':
				if n == 3 {
					return fmt.Sprintf("%c-1\r\n", kind)
				}
				return fmt.Sprintf("%c%d\r\n%s\r\n", kind, len(text), text)
			case '+', '-', ':', ',', '#', '_', '(':
				return string(kind) + strings.NewReplacer("\r", "", "\n", "").Replace(text) + "\r\n"
			case '%', '|':
				n *= 2
			}
			for range n {
				out += reply(depth + 1)
			}
			if kind == '|' {
				out += reply(depth + 1)
			}
			return out
		}
		var all string
		for range rapid.IntRange(1, 5).Draw(t, "replies") {
			all += reply(0)
		}
		huge := rapid.Bool().Draw(t, "huge")
		sent := all
		if huge {
			sent += "$33554433\r\n"
		}
		var cut [][]byte
		for rest := []byte(sent); len(rest) > 0; {
			n := rapid.IntRange(1, min(len(rest), 40)).Draw(t, "piece")
			cut = append(cut, rest[:n])
			rest = rest[n:]
		}
		c := &boundedConn{Conn: &pieces{left: cut}}
		got, err := io.ReadAll(c)
		switch {
		case huge && (err == nil || !strings.Contains(err.Error(), "33554433")):
			t.Fatalf("a huge reply passes: %v", err)
		case !huge && (err != nil || string(got) != all):
			t.Fatalf("%q came as %q, %v", all, got, err)
		case !huge && (c.due != 0 || c.kind != 0 || c.text != 0):
			t.Fatalf("%q doesn't seem whole: %+v", all, c)
		}
	})
}

var errBroken = errors.New("broken")

// An error of the underlying connection is returned as it is.
func TestABrokenConnection(t *testing.T) {
	c := &boundedConn{Conn: brokenConn{}}
	if _, err := c.Read(make([]byte, 10)); !errors.Is(err, errBroken) {
		t.Error(err)
	}
}

type brokenConn struct{ net.Conn }

func (brokenConn) Read([]byte) (int, error) { return 0, errBroken }
