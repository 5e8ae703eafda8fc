package faults

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/weirhq/weir/internal/redistest"
)

// bed is the Redis of a scenario.
type bed struct {
	url       string
	struck    *redistest.Server   // which the fault hits
	other     *redistest.Server   // its replica, on a bed with Sentinels
	sentinels *redistest.Sentinel // on such a bed
	proxy     *redistest.Proxy    // before it, on a bed that has one
	cluster   bool
	hogs      []net.Conn
	loading   chan error // of a restart under way
	closers   []func() error
}

// alone is one server.
func alone(config ...string) (*bed, error) {
	s, err := redistest.Start(redistest.Options{Config: config})
	if err != nil {
		return nil, err
	}
	return &bed{url: "redis://" + s.Addr, struck: s, closers: []func() error{s.Close}}, nil
}

// proxied is one server behind a faulty network.
func proxied(config ...string) (*bed, error) {
	b, err := alone(config...)
	if err != nil {
		return nil, err
	}
	if b.proxy, err = redistest.StartProxy(b.struck.Addr); err != nil {
		return nil, errors.Join(err, b.close())
	}
	b.url = "redis://" + b.proxy.Addr
	b.closers = append(b.closers, b.proxy.Close)
	return b, nil
}

func sentinel(config ...string) (*bed, error) {
	s, err := redistest.StartSentinel(redistest.Options{Config: config})
	if err != nil {
		return nil, err
	}
	url := "redis-sentinel://" + strings.Join(s.Addrs(), ",") + "/" + redistest.MasterName
	return &bed{url: url, struck: s.Servers[0], other: s.Servers[1], sentinels: s, closers: []func() error{s.Close}}, nil
}

func cluster(config ...string) (*bed, error) {
	c, err := redistest.StartCluster(redistest.Options{Config: config})
	if err != nil {
		return nil, err
	}
	url := "redis-cluster://" + strings.Join(c.Addrs()[:3], ",")
	return &bed{url: url, struck: c.Nodes[0], cluster: true, closers: []func() error{c.Close}}, nil
}

// close closes what was opened last first.
func (b *bed) close() error {
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

func (b *bed) do(args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := b.struck.Do(ctx, args...)
	return err
}

// caughtUp waits until the replica has all that its primary has written.
func (b *bed) caughtUp() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return redistest.Until(ctx, func(ctx context.Context) error {
		primary, err := b.struck.Info(ctx, "replication")
		if err != nil {
			return err
		}
		replica, err := b.other.Info(ctx, "replication")
		if err != nil {
			return err
		}
		if written, has := primary["master_repl_offset"], replica["slave_repl_offset"]; written != has {
			return fmt.Errorf("the primary is at %s, the replica at %s", written, has)
		}
		return nil
	})
}

// keeps reports whether the struck server keeps a key that nobody has used yet. Touch is to use it.
func (b *bed) keeps(ctx context.Context, touch func() error) (bool, error) {
	if !b.cluster {
		return true, nil
	}
	before, err := b.struck.Do(ctx, "DBSIZE")
	if err != nil {
		return false, err
	}
	if err := touch(); err != nil {
		return false, err
	}
	after, err := b.struck.Do(ctx, "DBSIZE")
	return before != after, err
}

// hog takes every connection that the server allows.
func (b *bed) hog() error {
	for {
		conn, err := net.Dial("tcp", b.struck.Addr)
		if err != nil {
			return err
		}
		b.hogs = append(b.hogs, conn)
		reply := make([]byte, 4)
		_ = conn.SetDeadline(time.Now().Add(patience))
		_, _ = io.WriteString(conn, "PING\r\n") // what counts is the answer
		if _, err := io.ReadFull(conn, reply); err != nil || string(reply) != "+PON" {
			return nil
		}
	}
}

// release ends hog.
func (b *bed) release() {
	for _, conn := range b.hogs {
		conn.Close()
	}
	b.hogs = nil
}
