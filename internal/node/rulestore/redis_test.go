package rulestore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/redisstore"
)

// If Redis' reply to a change is lost, the change still succeeded. It isn't a conflict.
func TestALostReplyIsNoConflict(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	addr, heal := losesAnAnswer(t, r.Addr, "the second")
	s, other := overRedis(t, "redis://"+addr), overRedis(t, "redis://"+r.Addr)
	write(t, s, "one")
	type result struct {
		Version
		error
	}
	done := make(chan result, 1)
	go func() {
		v, err := s.Append(context.Background(), 0, Version{Parent: 1, Text: []byte("the second")})
		done <- result{v, err}
	}()
	until(t, func(ctx context.Context) error {
		if head, err := other.Head(ctx); head.Number != 2 {
			return fmt.Errorf("the newest is %d, %w", head.Number, err)
		}
		return nil
	})
	write(t, other, "three") // this holds even if another change followed
	heal()
	if got := <-done; got.error != nil || got.Number != 2 {
		t.Errorf("got %d, %v", got.Number, got.error)
	}
	if head, err := other.Head(t.Context()); head.Number != 3 || err != nil {
		t.Errorf("the newest is %v, %v", head, err)
	}
}

// losesAnAnswer starts a proxy that forwards the first request that contains a certain text, and then closes the
// connection before the reply. Until it is healed, it accepts no other connections.
func losesAnAnswer(t *testing.T, server, text string) (addr string, heal func()) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var cut, healed atomic.Bool
	var conns sync.WaitGroup
	carry := func(from net.Conn) {
		defer from.Close()
		to, err := net.Dial("tcp", server)
		if err != nil || cut.Load() && !healed.Load() {
			return
		}
		defer to.Close()
		conns.Go(func() {
			_, _ = io.Copy(from, to)
			from.Close()
		})
		for buf := make([]byte, 1<<16); ; {
			n, err := from.Read(buf)
			found := bytes.Contains(buf[:n], []byte(text)) && cut.CompareAndSwap(false, true)
			if found {
				from.Close()
			}
			if _, wrote := to.Write(buf[:n]); err != nil || wrote != nil || found {
				return
			}
		}
	}
	conns.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns.Go(func() { carry(c) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		conns.Wait()
	})
	return l.Addr().String(), func() { healed.Store(true) }
}

// A large document can be written and read over a slow connection.
func TestALargeDocumentOnASlowLine(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	proxy := redistest.NewProxy(t, r.Addr)
	s := overRedis(t, "redis://"+proxy.Addr)
	if err := proxy.Throttle(700); err != nil { // takes more than a second, four times the client's timeout for a check
		t.Fatal(err)
	}
	text := strings.Repeat("# a long document\n", 50_000)
	v := write(t, s, text)
	if got, err := s.Get(t.Context(), v.Number); err != nil || string(got.Text) != text {
		t.Errorf("%d bytes of %d came back, %v", len(got.Text), len(text), err)
	}
}

func TestBeforeRedisIsReached(t *testing.T) {
	store, err := redisstore.New(redisstore.Options{URL: "unix:///nowhere/redis.sock"})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	s := OverRedis(store)
	if _, err := s.Head(t.Context()); !errors.Is(err, redisstore.ErrUnavailable) {
		t.Errorf("head: %v", err)
	}
	if _, err := s.Beat(t.Context(), Node{Name: "n"}); !errors.Is(err, redisstore.ErrUnavailable) {
		t.Errorf("beat: %v", err)
	}
}

// Versions never expire, but the keys about nodes do.
func TestKeysWithoutATTL(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	s := overRedis(t, "redis://"+r.Addr)
	write(t, s, "text")
	if _, err := s.Beat(t.Context(), Node{Name: "n"}); err != nil {
		t.Fatal(err)
	}
	until(t, says(s, 0))
	keys, err := redistest.Lasting(t.Context(), "", nil, r)
	slices.Sort(keys)
	if want := []string{"weir{nodes}secret", s.about, s.numbers, s.texts}; err != nil || !slices.Equal(keys, want) {
		t.Errorf("without a TTL: %v, %v", keys, err)
	}
	all := slices.DeleteFunc(do(t, r, "KEYS", "*").([]any), func(key any) bool { return strings.HasSuffix(key.(string), "}probe") })
	if len(all) != len(keys)+2 { // the two others are the list of nodes and their reports
		t.Errorf("keys: %v", all)
	}
}

// After a failover, nodes use the new primary: they publish, get messages and follow changes.
func TestAFailover(t *testing.T) {
	set := redistest.NewSentinel(t, redistest.Options{})
	s := overRedis(t, sentinelURL(set))
	n := newNode(s, "n", 100*time.Millisecond, Version{})
	n.run(t)
	for i := range int64(3) {
		until(t, n.has(i))
		if _, err := n.Publish(t.Context(), Version{Parent: i, Text: []byte("text")}); err != nil {
			t.Fatal(err)
		}
	}
	set.Servers[0].Kill()
	until(t, func(ctx context.Context) error {
		if now, err := set.Primary(ctx); err != nil || now == set.Servers[0] {
			return fmt.Errorf("no other primary yet: %w", err)
		}
		return nil
	})
	until(t, func(ctx context.Context) error {
		v, err := n.Publish(ctx, Version{Parent: 3, Text: []byte("after")})
		if err == nil && v.Number != 4 {
			t.Errorf("published %d", v.Number)
		}
		return err
	})
	until(t, s.watched)
	other := newNode(overRedis(t, sentinelURL(set)), "other", 100*time.Millisecond, Version{})
	other.run(t)
	until(t, other.has(4))
}

// In a Cluster, nodes still find the rules after their slot moves, and after its owner dies.
func TestACluster(t *testing.T) {
	c := redistest.NewCluster(t, redistest.Options{})
	n := newNode(overRedis(t, clusterURL(c)), "n", 100*time.Millisecond, Version{})
	other := newNode(overRedis(t, clusterURL(c)), "other", 100*time.Millisecond, Version{})
	n.run(t)
	other.run(t)
	key := "weir{rules}numbers"
	publish := func() {
		t.Helper()
		var v Version
		until(t, func(ctx context.Context) (err error) {
			v, err = n.Publish(ctx, Version{Parent: n.Current().Number, Text: []byte("text")})
			return err
		})
		until(t, other.has(v.Number))
	}
	owner := func() (r *redistest.Server) {
		t.Helper()
		until(t, func(ctx context.Context) (err error) {
			r, err = c.Owner(ctx, key)
			return err
		})
		return r
	}
	publish()
	slot, err := c.Slot(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	all, err := c.Primaries(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	to := all[0]
	if to == owner() {
		to = all[1]
	}
	if err := c.MoveSlots(t.Context(), slot, slot, to); err != nil {
		t.Fatal(err)
	}
	publish()
	to.Kill()
	if now := owner(); now == to {
		t.Fatalf("%s is dead", now.Addr)
	}
	publish()
	if got := n.Current().Number; got != 3 {
		t.Errorf("version %d came after 2", got)
	}
}

// Data under our names that Weir didn't write causes an error that names it, and isn't listed.
func TestForeignDataIsNamed(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	s := overRedis(t, "redis://"+r.Addr)
	write(t, s, "text")
	do(t, r, "HSET", s.about, "1", "nonsense")
	if _, err := s.Get(t.Context(), 1); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "version 1 in redis isn't one that Weir wrote") {
		t.Errorf("got %v", err)
	}
	if all, err := s.List(t.Context(), 0, 1); len(all) != 0 || err != nil {
		t.Errorf("listed: %v, %v", all, err)
	}
	// The store isn't empty, so a node can't start over with a seed.
	if _, err := s.Head(t.Context()); !errors.Is(err, ErrDamaged) {
		t.Errorf("the head: %v", err)
	}
	if _, err := s.Append(t.Context(), 0, Version{Text: []byte("seed")}); !errors.Is(err, ErrDamaged) {
		t.Errorf("append: %v", err)
	}
}

// TestARedisThatIsFull checks that a full Redis prevents neither blocking a key nor starting a node.
func TestARedisThatIsFull(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	s := overRedis(t, "redis://"+r.Addr)
	old := newNode(s, "old", never, Version{})
	old.publish(t, "one")
	do(t, r, "CONFIG", "SET", "maxmemory", "1")
	old.publish(t, "two")
	fresh := newNode(s, "fresh", never, Version{})
	fresh.Look(t.Context())
	if got := string(fresh.Current().Text); got != "two" {
		t.Errorf("a new node decides by %q", got)
	}
	until(t, func(ctx context.Context) error { // a node's report is sent with its next heartbeat
		if all, err := s.nodes(ctx); err != nil || len(all) != 1 {
			return fmt.Errorf("nodes: %v, %w", all, err)
		}
		return nil
	})
	do(t, r, "DEL", "weir{rules}numbers", "weir{rules}about", "weir{rules}texts")
	old.Look(t.Context())
	wantHistory(t, s, "2-two", "1-one")
}

func do(t testing.TB, r *redistest.Server, args ...string) any {
	t.Helper()
	v, err := r.Do(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// While Redis is lost, calls fail before their callers' deadlines, and the error says why.
func TestCallsFailInTimeWithoutRedis(t *testing.T) {
	for name, lose := range map[string]func(*redistest.Server) error{
		"gone":   func(r *redistest.Server) error { r.Kill(); return nil },
		"silent": (*redistest.Server).Stop,
	} {
		t.Run(name, func(t *testing.T) {
			r := redistest.New(t, redistest.Options{})
			s := overRedis(t, "redis://"+r.Addr)
			write(t, s, "one")
			if err := lose(r); err != nil {
				t.Fatal(err)
			}
			wait := patience
			for range 3 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				_, err := s.Head(ctx)
				if !errors.Is(err, redisstore.ErrUnavailable) || ctx.Err() != nil {
					t.Errorf("%v", err)
				}
				if name == "silent" && !strings.Contains(err.Error(), wait.String()) {
					t.Errorf("%v, want that it took %s", err, wait)
				}
				cancel()
				wait = briefly
			}
			if name == "silent" {
				if err := r.Cont(); err != nil {
					t.Fatal(err)
				}
			} else if err := r.Restart(); err != nil {
				t.Fatal(err)
			}
			until(t, func(ctx context.Context) error { _, err := s.Head(ctx); return err })
		})
	}
}
