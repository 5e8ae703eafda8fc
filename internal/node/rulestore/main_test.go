package rulestore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/redisstore"
)

// If this variable is set, the test's program acts as another process that opens the folder in it.
const holder = "RULESTORE_HOLDER"

func TestMain(m *testing.M) {
	if path := os.Getenv(holder); path != "" {
		if _, err := OpenDir(path); err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("opened")
		return
	}
	goleak.VerifyTestMain(m,
		// A Cluster's client sleeps for seconds before it closes connections to a lost server.
		goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*clusterClient)._refresh.func2"),
		goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*clusterClient).redirectOrNew.func1"),
		// The client also sleeps for a second before it looks up the owners of hash slots again.
		goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*call).DelayDo.func1"))
}

// overRedis opens a rule store for a Redis URL.
func overRedis(t testing.TB, url string) *Redis {
	t.Helper()
	s, err := redisstore.New(redisstore.Options{URL: url, Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := s.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	return OverRedis(s)
}

func clusterURL(c *redistest.Cluster) string {
	return "redis-cluster://" + strings.Join(c.Addrs(), ",")
}

func sentinelURL(s *redistest.Sentinel) string {
	return "redis-sentinel://" + strings.Join(s.Addrs(), ",") + "/" + redistest.MasterName
}

func openDir(t testing.TB, path string) *Dir {
	t.Helper()
	d, err := OpenDir(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() }) // a test may already have closed it
	return d
}

// everyStore runs a test with every kind of store. open returns another view of the same versions.
func everyStore(t *testing.T, f func(t *testing.T, open func() Store)) {
	t.Run("Dir", func(t *testing.T) {
		d := openDir(t, t.TempDir())
		f(t, func() Store { return d })
	})
	t.Run("Server", func(t *testing.T) {
		r := redistest.New(t, redistest.Options{})
		f(t, func() Store { return overRedis(t, "redis://"+r.Addr) })
	})
	t.Run("Cluster", func(t *testing.T) {
		c := redistest.NewCluster(t, redistest.Options{})
		f(t, func() Store { return overRedis(t, clusterURL(c)) })
	})
	t.Run("Sentinel", func(t *testing.T) {
		s := redistest.NewSentinel(t, redistest.Options{})
		f(t, func() Store { return overRedis(t, sentinelURL(s)) })
	})
}

// until polls a check that should succeed within milliseconds, for up to a minute.
func until(t testing.TB, check func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := redistest.Until(ctx, check); err != nil {
		t.Fatal(err)
	}
}

// write appends a version after the head.
func write(t testing.TB, s Store, text string) (v Version) {
	t.Helper()
	until(t, func(ctx context.Context) error {
		head, err := s.Head(ctx)
		if err != nil {
			t.Fatal(err)
		}
		next := head.Next()
		next.Author, next.Message, next.Text = "ann", "why", []byte(text)
		v, err = s.Append(ctx, 0, next)
		if err != nil && !errors.Is(err, ErrAwaited) { // until a node's next heartbeat no longer reports a version that was given up
			t.Fatal(err)
		}
		return err
	})
	return v
}

// listening waits until nodes get messages about new versions.
func listening(t testing.TB, s Store, nodes ...*node) {
	t.Helper()
	for _, n := range nodes {
		until(t, func(context.Context) error { // versions from the first poll don't prove that messages arrive
			if !n.beaten.Load() {
				return fmt.Errorf("%s hasn't looked yet", n.o.Node.Name)
			}
			return nil
		})
	}
	for _, n := range nodes {
		until(t, func(context.Context) error {
			if n.Current().Number == 0 {
				write(t, s, "is anyone there?")
				return fmt.Errorf("%s hears nothing", n.o.Node.Name)
			}
			return nil
		})
	}
}

// node is a follower that records what it applies and logs.
type node struct {
	*Follower
	log    *journal
	beaten atomic.Bool

	mu      sync.Mutex
	applied []int64
}

// heard is a store that records whether a node has sent a heartbeat.
type heard struct {
	Store
	beaten *atomic.Bool
}

func (h heard) Beat(ctx context.Context, n Node, kept ...Version) (Pulse, error) {
	defer h.beaten.Store(true)
	return h.Store.Beat(ctx, n, kept...)
}

// journal collects log lines.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

func (j *journal) count(text string) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.Count(j.text.String(), text)
}

func (n *node) apply(v Version) error {
	if text := string(v.Text); strings.HasPrefix(text, "bad") {
		return fmt.Errorf("line 1: %s", text)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.applied = append(n.applied, v.Number)
	return nil
}

func (n *node) numbers() []int64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.applied
}

// newNode returns a node that isn't running yet.
func newNode(s Store, name string, poll time.Duration, first Version) *node {
	n := &node{log: &journal{}}
	n.Follower = Follow(Options{
		Store: heard{s, &n.beaten}, Node: Node{Name: name, Version: "test"}, Report: func(n *Node) { n.Store = "up" }, GivenUp: func(Version) {},
		First: first, Apply: n.apply, Poll: poll, Logger: slog.New(slog.NewTextHandler(n.log, nil)),
	})
	return n
}

// run runs a node until the test ends.
func (n *node) run(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func (n *node) has(number int64) func(context.Context) error {
	return func(context.Context) error {
		if got := n.Current().Number; got != number {
			return fmt.Errorf("%s has version %d, not %d", n.o.Node.Name, got, number)
		}
		return nil
	}
}

func (n *node) logged(times int, text string) func(context.Context) error {
	return func(context.Context) error {
		if got := n.log.count(text); got != times {
			return fmt.Errorf("%s has logged %q %d times, not %d", n.o.Node.Name, text, got, times)
		}
		return nil
	}
}
