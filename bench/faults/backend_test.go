package faults

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"
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
}

// alone starts a single server.
func alone(t *testing.T, config ...string) *backend {
	s := redistest.New(t, redistest.Options{Config: config})
	return &backend{url: "redis://" + s.Addr, victim: s}
}

// proxied starts a single server behind a faulty network.
func proxied(t *testing.T, config ...string) *backend {
	b := alone(t, config...)
	b.proxy = redistest.NewProxy(t, b.victim.Addr)
	b.url = "redis://" + b.proxy.Addr
	return b
}

func sentinel(t *testing.T, config ...string) *backend {
	s := redistest.NewSentinel(t, redistest.Options{Config: config})
	url := "redis-sentinel://" + strings.Join(s.Addrs(), ",") + "/" + redistest.MasterName
	return &backend{url: url, victim: s.Servers[0], other: s.Servers[1], sentinels: s}
}

func cluster(t *testing.T, config ...string) *backend {
	c := redistest.NewCluster(t, redistest.Options{Config: config})
	url := "redis-cluster://" + strings.Join(c.Addrs()[:3], ",")
	return &backend{url: url, victim: c.Nodes[0], cluster: true}
}

// close cleans up after a fault. The servers are closed when the test ends.
func (b *backend) close() error {
	b.release()
	if b.loading != nil {
		return <-b.loading
	}
	return nil
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

// keeps reports whether the victim stores a new key. touch must use the key.
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
		_, _ = io.WriteString(conn, "PING\r\n") // whether the connection works shows only in the answer
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
