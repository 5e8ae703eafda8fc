package redisstore

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/patient"
	"github.com/weirhq/weir/internal/redistest"
)

// late slows this process down: before any goroutine runs, hundreds of others keep the only core busy. One round of them takes
// twice the budget of a check.
func late(t *testing.T) (end func()) {
	t.Helper()
	const others, turn = 100, time.Millisecond
	cores := runtime.GOMAXPROCS(1)
	var over atomic.Bool
	var hogs sync.WaitGroup
	for range others {
		hogs.Go(func() {
			for !over.Load() {
				for begun := time.Now(); time.Since(begun) < turn; {
				}
				runtime.Gosched()
			}
		})
	}
	return func() {
		over.Store(true)
		hogs.Wait()
		runtime.GOMAXPROCS(cores)
	}
}

// TestALateNodeKeepsItsStore checks that a node that is itself late, by far more than the budget of a check, still decides
// every check with its store, and that the breaker stays closed.
func TestALateNodeKeepsItsStore(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	s := open(t, Options{URL: "redis://" + r.Addr, Timeout: DefaultTimeout})
	p := policy(t, "p", counter.TokenBucket, 10, year)
	answers(t, s)
	sh := s.joiners[0].shard.Load()
	defer late(t)()
	if n := storm(40, 80, func(int) bool { return mustTake(t, s, charge1(p, "s")) }); n != 10 {
		t.Errorf("%d of 80 were admitted by a limit of 10", n)
	}
	if sh.open.Load() || sh.fails.Load() != 0 {
		t.Errorf("the store is blamed for its node: %d failures, open %v", sh.fails.Load(), sh.open.Load())
	}
	if r := take(t.Context(), s, peek1(p, "s"))[0]; r.Err != nil {
		t.Errorf("after all that: %v", r.Err)
	}
}

// TestTicksAreTheBudget checks that a call has its whole budget of ticks, however late they come, and no more.
func TestTicksAreTheBudget(t *testing.T) {
	l := &joiner{store: &Store{timeout: time.Hour}}
	l.mu.Lock()
	f := &flight{joiner: l, deadline: l.budget()}
	l.flights = append(l.flights, f)
	l.mu.Unlock()
	for i := range patient.Parts {
		if f.Err() != nil {
			t.Fatalf("over after %d ticks of %d", i, patient.Parts)
		}
		l.tick()
	}
	if !errors.Is(f.Err(), context.DeadlineExceeded) {
		t.Errorf("got %v after %d ticks", f.Err(), patient.Parts)
	}
}

// TestALateNodeNoticesALostStore also checks that the node notices when the store is back.
func TestALateNodeNoticesALostStore(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	s := open(t, Options{URL: "redis://" + r.Addr, Timeout: DefaultTimeout})
	p := policy(t, "p", counter.TokenBucket, 1000, year)
	answers(t, s)
	sh := s.joiners[0].shard.Load()
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	end := late(t)
	storm(2*maxFlying, 4*maxFlying, func(int) bool {
		if err := take(t.Context(), s, charge1(p, "s"))[0].Err; !unavailable(err) {
			t.Errorf("got %v from a store that is stopped", err)
		}
		return true
	})
	end()
	if !sh.open.Load() {
		t.Error("the breaker is closed before a store that is stopped")
	}
	if err := r.Cont(); err != nil {
		t.Fatal(err)
	}
	until(t, func(ctx context.Context) error { return take(ctx, s, peek1(p, "s"))[0].Err })
}

// TestALongBudgetIsHeeded checks that a caller that can wait for longer than the client would by itself gets its result, both
// with a connection and if one has to be opened.
func TestALongBudgetIsHeeded(t *testing.T) {
	for _, connected := range []bool{true, false} {
		t.Run(fmt.Sprintf("connected=%v", connected), func(t *testing.T) {
			r := redistest.New(t, redistest.Options{})
			s := open(t, Options{URL: "redis://" + r.Addr, Timeout: patience})
			answers(t, s)
			if !connected { // a client of so many connections that it nearly always has to make one
				o := s.address.option
				o.PipelineMultiplex = rueidis.MaxPipelineMultiplex
				c, err := rueidis.NewClient(o)
				if err != nil {
					t.Fatal(err)
				}
				(*s.client.Swap(&c)).Close()
			}
			do(t, r, "CLIENT", "PAUSE", "700", "ALL")
			if err := take(t.Context(), s, charge1(policy(t, "p", counter.TokenBucket, 10, year), "s"))[0].Err; err != nil {
				t.Errorf("with %v to wait, after 0.7 s: %v", patience, err)
			}
		})
	}
}

// TestABusyServerTellsItsCPU checks that CPU waits for a busy server that answers late.
func TestABusyServerTellsItsCPU(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	s := open(t, Options{URL: "redis://" + r.Addr, Timeout: DefaultTimeout})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	do(t, r, "CLIENT", "PAUSE", "700", "ALL")
	if cpu, err := s.CPU(ctx); err != nil || cpu <= 0 {
		t.Errorf("with %v to wait, after 0.7 s: %v, %v", patience, cpu, err)
	}
}
