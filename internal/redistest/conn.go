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

// Error is an error reply of Redis, such as "READONLY You can't …".
type Error string

func (e Error) Error() string { return string(e) }

// Do sends a command over a new connection, and returns the reply: a string, an int64, a []any, or nil. If Redis
// replies with an error, Do returns an [Error]. A stopped server never answers, so ctx should have a deadline.
func (s *Server) Do(ctx context.Context, args ...string) (any, error) {
	reply, err := s.exchange(ctx, args)
	if _, refused := err.(Error); err != nil && !refused {
		err = fmt.Errorf("%s: %s: %w", s.Addr, strings.Join(args[:min(2, len(args))], " "), errors.Join(err, context.Cause(ctx)))
	}
	return reply, err
}

// ask is Do for a reply of type T.
func ask[T any](ctx context.Context, s *Server, args ...string) (T, error) {
	v, err := s.Do(ctx, args...)
	reply, is := v.(T)
	if err == nil && !is {
		err = fmt.Errorf("%s: %s: an unexpected reply: %v", s.Addr, args[0], v)
	}
	return reply, err
}

func (s *Server) exchange(ctx context.Context, args []string) (reply any, err error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", s.Socket)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	r := bufio.NewReader(conn)
	for _, command := range [][]string{s.auth, args} {
		if command == nil {
			continue
		}
		text := fmt.Appendf(nil, "*%d\r\n", len(command))
		for _, arg := range command {
			text = fmt.Appendf(text, "$%d\r\n%s\r\n", len(arg), arg)
		}
		if _, err := conn.Write(text); err != nil {
			return nil, err
		}
		if reply, err = read(r); err != nil {
			return nil, err
		}
	}
	return reply, nil
}

// read reads a reply in version 2 of the protocol. For an error reply, it returns an error.
func read(r *bufio.Reader) (any, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return nil, err
	}
	kind, rest := line[0], strings.TrimSpace(line[1:])
	switch kind {
	case '+':
		return rest, nil
	case '-':
		return nil, Error(rest)
	}
	n, err := strconv.ParseInt(rest, 10, 64)
	switch {
	case err != nil:
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
