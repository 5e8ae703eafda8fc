package redisstore

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/storetest"
)

// seed makes a random test repeatable.
var seed = flag.Uint64("seed", 0, "of what is random; 0 means another each time")

func TestMain(m *testing.M) {
	// Most of these tests wait for Redis, so run more of them at a time than there are cores. The flag -parallel takes
	// precedence.
	if err := flag.Set("test.parallel", strconv.Itoa(3*runtime.GOMAXPROCS(0))); err != nil {
		panic(err)
	}
	flag.Parse()
	if *seed == 0 {
		*seed = rand.Uint64()
	}
	fmt.Fprintf(os.Stderr, "random, again with -seed=%d\n", *seed)
	goleak.VerifyTestMain(m,
		// The client of a Cluster sleeps for seconds before it closes connections to a lost server.
		goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*clusterClient)._refresh.func2"),
		goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*clusterClient).redirectOrNew.func1"),
		// It also sleeps for a second before it asks again who owns which hash slot.
		goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*call).DelayDo.func1"))
}

// patience bounds what should take milliseconds. It ends tests that hang, but tolerates a busy machine.
const patience = 20 * time.Second

// year is a window so long that no tokens come back while a test runs.
const year = 366 * 24 * time.Hour

// open makes a store, and waits until it has reached Redis. By default, its checks may wait long for replies.
func open(t testing.TB, o Options) *Store {
	t.Helper()
	s := openLate(t, o)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := s.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	return s
}

// openLate is like open for a Redis that isn't up yet.
func openLate(t testing.TB, o Options) *Store {
	t.Helper()
	if o.Timeout == 0 {
		o.Timeout = patience
	}
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func policy(t testing.TB, name string, a counter.Algorithm, count int64, window time.Duration) *counter.Policy {
	t.Helper()
	return storetest.Policy(t, name, counter.Limit{Algorithm: a, Count: count, Window: window})
}

func charge1(p *counter.Policy, subject string) counter.Charge {
	return counter.Charge{Counter: counter.Counter{Policy: p, Subject: []byte(subject)}, N: 1}
}

func peek1(p *counter.Policy, subject string) counter.Charge {
	c := charge1(p, subject)
	c.Peek = true
	return c
}

func take(ctx context.Context, s counter.Store, charges ...counter.Charge) []counter.Result {
	results := make([]counter.Result, len(charges))
	s.Take(ctx, charges, results)
	return results
}

// mustTake fails the test on errors, and reports whether all charges fit.
func mustTake(t testing.TB, s counter.Store, charges ...counter.Charge) bool {
	t.Helper()
	all := true
	for _, r := range take(t.Context(), s, charges...) {
		if r.Err != nil {
			t.Errorf("take: %v", r.Err)
		}
		all = all && r.Allowed
	}
	return all
}

// used returns how many tokens of a counter are taken, according to a store that can reach it.
func used(t testing.TB, s counter.Store, p *counter.Policy, subject string) int64 {
	t.Helper()
	r := take(t.Context(), s, peek1(p, subject))[0]
	if r.Err != nil {
		t.Fatalf("peek: %v", r.Err)
	}
	return p.Limit.Count - r.Remaining
}

// storm calls f from many goroutines, total times, and returns how often f was true.
func storm(workers, total int, f func(i int) bool) int {
	var wg sync.WaitGroup
	var next, yes atomic.Int64
	for range workers {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= total {
					return
				}
				if f(i) {
					yes.Add(1)
				}
			}
		})
	}
	wg.Wait()
	return int(yes.Load())
}

// until calls check repeatedly until it succeeds, for as long as patience.
func until(t testing.TB, check func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := redistest.Until(ctx, check); err != nil {
		t.Fatal(err)
	}
}

// answers waits until a store decides checks again.
func answers(t testing.TB, s counter.Store) {
	t.Helper()
	p := policy(t, "answers", counter.TokenBucket, 1000, time.Second)
	until(t, func(ctx context.Context) error { return take(ctx, s, peek1(p, "anyone"))[0].Err })
}

// do sends a command to a server, or fails the test.
func do(t testing.TB, r *redistest.Server, args ...string) any {
	t.Helper()
	v, err := r.Do(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// calls returns how often a server has run a command, including in scripts.
func calls(t testing.TB, r *redistest.Server, command string) (n int64) {
	t.Helper()
	info, err := r.Info(t.Context(), "commandstats")
	if err != nil {
		t.Fatal(err)
	}
	_, _ = fmt.Sscanf(info["cmdstat_"+command], "calls=%d", &n) // none: no line
	return n
}

// refused returns nil once a server has answered any command with this kind of error.
func refused(ctx context.Context, r *redistest.Server, kind string) error {
	info, err := r.Info(ctx, "errorstats")
	if err != nil {
		return err
	}
	if info["errorstat_"+kind] == "" {
		return fmt.Errorf("%s has refused nothing with %s yet", r.Addr, kind)
	}
	return nil
}

// oneServerAndACluster runs a test on both, and checks that no key is left without a TTL.
func oneServerAndACluster(t *testing.T, f func(t *testing.T, url string)) {
	t.Run("Server", func(t *testing.T) {
		r := redistest.New(t, redistest.Options{})
		f(t, "redis://"+r.Addr)
		lasting(t, r)
	})
	t.Run("Cluster", func(t *testing.T) {
		c := redistest.NewCluster(t, redistest.Options{})
		f(t, clusterURL(c))
		lasting(t, primaries(t, c)...)
	})
}

func clusterURL(c *redistest.Cluster) string {
	return "redis-cluster://" + strings.Join(c.Addrs(), ",")
}

func primaries(t testing.TB, c *redistest.Cluster) []*redistest.Server {
	t.Helper()
	servers, err := c.Primaries(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return servers
}

// tagged finds a subject whose keys have the given tag.
func tagged(s *Store, tag int, from string) string {
	for i := 0; ; i++ {
		subject := fmt.Sprint(from, i)
		if _, at := s.names.Load().subject(&counter.Counter{Policy: &counter.Policy{}, Subject: []byte(subject)}); at == tag {
			return subject
		}
	}
}

func unavailable(err error) bool { return errors.Is(err, ErrUnavailable) }

// lost returns nil if a charge failed because the server can't be reached, without a call.
func lost(s *Store) func(context.Context) error {
	p, err := counter.NewPolicy("lost", counter.PerHour(10))
	return func(ctx context.Context) error {
		if err != nil {
			return err
		}
		if take(ctx, s, charge1(p, "s")); s.Health().Up {
			return errors.New("not lost yet")
		}
		return nil
	}
}
