package faults

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"time"

	"github.com/weirhq/weir/internal/redistest"
)

// backend is the Redis of a scenario.
type backend struct {
	url       string
	victim    *redistest.Server   // the server that the fault hits
	other     *redistest.Server   // its replica; nil without Sentinels
	sentinels *redistest.Sentinel // nil if there are none
	proxy     *redistest.Proxy    // in front of the victim; nil if there is none
	cluster   bool
	idle      []net.Conn // connections that only take up room
	loading   chan error // result of a restart under way
	closers   []func() error
}

// alone is one server.
func alone(config ...string) (*backend, error) {
	s, err := redistest.Start(redistest.Options{Config: config})
	if err != nil {
		return nil, err
	}
	return &backend{url: "redis://" + s.Addr, victim: s, closers: []func() error{s.Close}}, nil
}

// proxied is one server behind a faulty network.
func proxied(config ...string) (*backend, error) {
	b, err := alone(config...)
	if err != nil {
		return nil, err
	}
	if b.proxy, err = redistest.StartProxy(b.victim.Addr); err != nil {
		return nil, errors.Join(err, b.close())
	}
	b.url = "redis://" + b.proxy.Addr
	b.closers = append(b.closers, b.proxy.Close)
	return b, nil
}

func sentinel(config ...string) (*backend, error) {
	s, err := redistest.StartSentinel(redistest.Options{Config: config})
	if err != nil {
		return nil, err
	}
	url := "redis-sentinel://" + strings.Join(s.Addrs(), ",") + "/" + redistest.MasterName
	return &backend{url: url, victim: s.Servers[0], other: s.Servers[1], sentinels: s, closers: []func() error{s.Close}}, nil
}

func cluster(config ...string) (*backend, error) {
	c, err := redistest.StartCluster(redistest.Options{Config: config})
	if err != nil {
		return nil, err
	}
	url := "redis-cluster://" + strings.Join(c.Addrs()[:3], ",")
	return &backend{url: url, victim: c.Nodes[0], cluster: true, closers: []func() error{c.Close}}, nil
}

// close closes everything, in reverse order.
func (b *backend) close() error {
	b.release()
	var errs []error
	if b.loading != nil {
		errs = append(errs, <-b.loading)
	}
	for i := range b.closers {
		errs = append(errs, b.closers[len(b.closers)-1-i]())
	}
	return errors.Join(errs...)
}

func (b *backend) do(args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := b.victim.Do(ctx, args...)
	return err
}

// caughtUp waits until the replica has everything that its primary has written.
func (b *backend) caughtUp() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return redistest.Until(ctx, func(ctx context.Context) error { return b.other.Follows(ctx, b.victim) })
}

// keeps reports whether the victim stores a key that is new. Touch must use the key.
func (b *backend) keeps(ctx context.Context, touch func() error) (bool, error) {
	if !b.cluster {
		return true, nil
	}
	before, err := b.victim.Do(ctx, "DBSIZE")
	if err != nil {
		return false, err
	}
	if err := touch(); err != nil {
		return false, err
	}
	after, err := b.victim.Do(ctx, "DBSIZE")
	return before != after, err
}

// exhaust opens every connection that the server allows.
func (b *backend) exhaust() error {
	for {
		conn, err := net.Dial("tcp", b.victim.Addr)
		if err != nil {
			return err
		}
		b.idle = append(b.idle, conn)
		reply := make([]byte, 4)
		_ = conn.SetDeadline(time.Now().Add(patience))
		_, _ = io.WriteString(conn, "PING\r\n") // only the answer tells
		if _, err := io.ReadFull(conn, reply); err != nil || string(reply) != "+PON" {
			return nil
		}
	}
}

// release undoes exhaust.
func (b *backend) release() {
	for _, conn := range b.idle {
		conn.Close()
	}
	b.idle = nil
}
