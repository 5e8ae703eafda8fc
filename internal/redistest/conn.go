package redistest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// Error is what Redis answers when it refuses a command: "READONLY You can't …".
type Error string

func (e Error) Error() string { return string(e) }

// Do sends one command, on a connection of its own, and returns the reply: a string,
// an int64, a []any, or nil for none. A refusal is an error of type [Error].
// A server that is stopped never answers: bound ctx.
func (s *Server) Do(ctx context.Context, args ...string) (any, error) {
	replies, err := s.pipeline(ctx, args)
	if err != nil {
		return nil, fmt.Errorf("%s: %s: %w", s.Addr, strings.Join(args[:min(2, len(args))], " "), err)
	}
	if refusal, is := replies[0].(Error); is {
		return nil, refusal
	}
	return replies[0], nil
}

// text is Do for replies that are strings.
func (s *Server) text(ctx context.Context, args ...string) (string, error) {
	v, err := s.Do(ctx, args...)
	if err != nil {
		return "", err
	}
	text, is := v.(string)
	if !is {
		return "", fmt.Errorf("%s: %s: a string expected, got %v", s.Addr, args[0], v)
	}
	return text, nil
}

// list is Do for replies that are lists.
func (s *Server) list(ctx context.Context, args ...string) ([]any, error) {
	v, err := s.Do(ctx, args...)
	if err != nil {
		return nil, err
	}
	list, is := v.([]any)
	if !is {
		return nil, fmt.Errorf("%s: %s: a list expected, got %v", s.Addr, args[0], v)
	}
	return list, nil
}

// pipeline sends commands together and returns a reply for each, refusals among them.
func (s *Server) pipeline(ctx context.Context, commands ...[]string) ([]any, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", s.Socket)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	replies, err := exchange(conn, s.auth, commands)
	return replies, errors.Join(err, context.Cause(ctx))
}

func exchange(conn net.Conn, auth []string, commands [][]string) ([]any, error) {
	if auth != nil {
		commands = append([][]string{auth}, commands...)
	}
	w := bufio.NewWriter(conn)
	for _, args := range commands {
		fmt.Fprintf(w, "*%d\r\n", len(args))
		for _, arg := range args {
			fmt.Fprintf(w, "$%d\r\n%s\r\n", len(arg), arg)
		}
	}
	if err := w.Flush(); err != nil {
		return nil, err
	}
	r := bufio.NewReader(conn)
	var replies []any
	for range commands {
		reply, err := read(r)
		if err != nil {
			return nil, err
		}
		replies = append(replies, reply)
	}
	if auth != nil {
		if refusal, is := replies[0].(Error); is {
			return nil, refusal
		}
		replies = replies[1:]
	}
	return replies, nil
}

// read reads one reply of the protocol's second version.
func read(r *bufio.Reader) (any, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return nil, err
	}
	line = strings.TrimSuffix(line, "\r\n")
	if line == "" {
		return nil, errors.New("an empty reply")
	}
	kind, rest := line[0], line[1:]
	switch kind {
	case '+':
		return rest, nil
	case '-':
		return Error(rest), nil
	}
	n, err := strconv.ParseInt(rest, 10, 64)
	switch {
	case err != nil:
		return nil, fmt.Errorf("a strange reply: %q", line)
	case kind == ':':
		return n, nil
	case n < 0:
		return nil, nil
	case kind == '$':
		data := make([]byte, n+2)
		_, err := io.ReadFull(r, data)
		return string(data[:n]), err
	case kind == '*':
		list := make([]any, n)
		for i := range list {
			if list[i], err = read(r); err != nil {
				return nil, err
			}
		}
		return list, nil
	}
	return nil, fmt.Errorf("a strange reply: %q", line)
}
