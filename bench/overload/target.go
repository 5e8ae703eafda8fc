package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir/server/internal/load"
)

// target is a node's check API, asked at as little cost as may be: load that costs more than a check can't be
// too much for a node.
type target struct {
	addr     string
	requests [keys][]byte
	senders  []*sender
}

var stages atomic.Int64

func newTarget(addr string) *target {
	t := &target{addr: addr}
	stage := stages.Add(1)
	for n := range t.requests {
		body := fmt.Sprintf(`{"key":"s%d-k%d","path":"/"}`, stage, n)
		t.requests[n] = fmt.Appendf(nil, "POST /v1/check HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	}
	return t
}

var _ load.Target = (*target)(nil)

func (t *target) String() string { return t.addr }

// Sender returns a sender with a connection of its own, which is open before any load is made.
func (t *target) Sender() load.Sender {
	s := &sender{target: t}
	_ = s.dial() // it is tried again
	t.senders = append(t.senders, s)
	return s
}

func (t *target) close() {
	for _, s := range t.senders {
		s.hangUp()
	}
}

type sender struct {
	*target
	conn net.Conn
	in   *bufio.Reader
	body []byte
}

// patience ends what hangs.
const patience = 30 * time.Second

func (s *sender) dial() (err error) {
	if s.conn, err = net.DialTimeout("tcp", s.addr, patience); err == nil {
		s.in = bufio.NewReaderSize(s.conn, 1024)
	}
	return err
}

func (s *sender) hangUp() {
	if s.conn != nil {
		s.conn.Close()
		s.conn = nil
	}
}

func (s *sender) Send(ctx context.Context, n uint32) load.Answer {
	status, err := s.exchange(s.requests[n])
	if err != nil {
		s.hangUp()
		return load.Answer{Outcome: load.Failed, Err: err}
	}
	a := load.Answer{Outcome: load.Other, Status: uint16(status), Degraded: bytes.Contains(s.body, []byte(`"degraded":true`))}
	switch status {
	case 200:
		a.Outcome = load.Allowed
	case 429:
		a.Outcome = load.Refused
	}
	return a
}

func (s *sender) exchange(request []byte) (status int, err error) {
	if s.conn == nil {
		if err := s.dial(); err != nil {
			return 0, err
		}
	}
	if _, err := s.conn.Write(request); err != nil {
		return 0, err
	}
	line, err := s.in.ReadSlice('\n')
	if err != nil || len(line) < 12 {
		return 0, errors.Join(err, fmt.Errorf("answer begins with %q", line))
	}
	status, _ = strconv.Atoi(string(line[9:12]))
	length := -1
	for {
		if line, err = s.in.ReadSlice('\n'); err != nil {
			return 0, err
		}
		if line = bytes.TrimSpace(line); len(line) == 0 {
			break
		}
		if value, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
			length, _ = strconv.Atoi(string(value))
		}
	}
	if length < 0 {
		return 0, errors.New("an answer without a length")
	}
	s.body = append(s.body[:0], make([]byte, length)...)
	_, err = io.ReadFull(s.in, s.body)
	return status, err
}
