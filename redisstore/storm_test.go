package redisstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/rediscall"
	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/storetest"
)

// underLoad runs requests until a disturbance has ended, and then checks that none failed and all were counted.
func underLoad(t *testing.T, s *Store, subjects []string, disturb func()) {
	t.Helper()
	var policies []*counter.Policy
	for _, a := range storetest.Algorithms {
		policies = append(policies, policy(t, fmt.Sprint("load", a), a, 1_000_000, year))
	}
	admitted := make([][]atomic.Int64, len(subjects))
	for i := range admitted {
		admitted[i] = make([]atomic.Int64, len(policies))
	}
	var over atomic.Bool
	var wg sync.WaitGroup
	for w := range 16 {
		wg.Go(func() {
			for i := w; !over.Load(); i++ {
				who, p := i%len(subjects), i/len(subjects)%len(policies)
				q := (p + 1) % len(policies)
				if mustTake(t, s, charge1(policies[p], subjects[who]), charge1(policies[q], subjects[who])) {
					admitted[who][p].Add(1)
					admitted[who][q].Add(1)
				}
			}
		})
	}
	disturb()
	over.Store(true)
	wg.Wait()
	total := int64(0)
	for who, subject := range subjects {
		for p := range policies {
			n := admitted[who][p].Load()
			total += n
			if counted := used(t, s, policies[p], subject); counted != n {
				t.Errorf("%s, %s: %d admitted, %d counted", subject, policies[p].Name, n, counted)
			}
		}
	}
	t.Logf("%d charges admitted", total)
	if total == 0 {
		t.Error("no load: the test shows nothing")
	}
}

// TestScriptsFlushedUnderLoad checks that no request fails and the count is exact while Redis' script cache is flushed.
func TestScriptsFlushedUnderLoad(t *testing.T) {
	t.Parallel()
	oneServerAndACluster(t, func(t *testing.T, url string) {
		s := open(t, Options{URL: url})
		underLoad(t, s, []string{"a", "b", "c", "d"}, func() {
			for range 200 {
				for _, node := range (*s.client.Load()).Nodes() {
					if err := node.Do(t.Context(), node.B().ScriptFlush().Build()).Error(); err != nil {
						t.Error(err)
					}
				}
				rediscall.Sleep(t.Context(), 3*time.Millisecond) // how often they are flushed
			}
		})
	})
}

// TestSlotsMoveUnderLoad checks that no request fails and the count is exact while hash slots move.
func TestSlotsMoveUnderLoad(t *testing.T) {
	t.Parallel()
	c := redistest.NewCluster(t, redistest.Options{})
	s := open(t, Options{URL: clusterURL(c)})
	var subjects []string
	for tag := range 4 {
		for i := range 3 {
			subjects = append(subjects, tagged(s, tag, fmt.Sprint("s", i)))
		}
	}
	underLoad(t, s, subjects, func() {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for round := range 3 {
			to := primaries(t, c)[(round+1)%3]
			if err := c.MoveSlots(ctx, 0, 4*slots/tags-1, to); err != nil {
				t.Error(err)
			}
		}
	})
	lasting(t, primaries(t, c)...)
}

// TestManyCallersInAHurry checks that, whatever deadlines and cancellations some callers have, callers that can wait are
// served, the breaker stays closed, and nothing is counted twice.
func TestManyCallersInAHurry(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	s := open(t, Options{URL: "redis://" + r.Addr})
	p, q := policy(t, "patient", counter.TokenBucket, 1_000_000, year), policy(t, "hurried", counter.TokenBucket, 1_000_000, year)
	var patient, hurried, left atomic.Int64
	total := 6000 / slowness
	storm(64, total, func(i int) bool {
		switch i % 3 {
		case 0:
			if mustTake(t, s, charge1(p, "s")) {
				patient.Add(1)
			}
			return true
		case 1:
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%97)*10*time.Microsecond)
			defer cancel()
			count(t, take(ctx, s, charge1(q, "s"))[0], &hurried, &left)
		case 2:
			ctx, cancel := context.WithCancel(t.Context())
			stop := time.AfterFunc(time.Duration(i%89)*10*time.Microsecond, cancel)
			count(t, take(ctx, s, charge1(q, "s"))[0], &hurried, &left)
			stop.Stop()
			cancel()
		}
		return true
	})
	if n := used(t, s, p, "s"); n != patient.Load() || int(n) != total/3 {
		t.Errorf("%d of %d patient callers admitted, %d counted", patient.Load(), total/3, n)
	}
	if n := used(t, s, q, "s"); n < hurried.Load() || n > hurried.Load()+left.Load() {
		t.Errorf("%d hurried callers admitted and %d left, %d counted", hurried.Load(), left.Load(), n)
	}
	if left.Load() == 0 {
		t.Error("nobody left: the test shows nothing")
	}
	if s.joiners[0].shard.Load().open.Load() || s.joiners[0].shard.Load().fails.Load() != 0 {
		t.Error("the shard is blamed for its callers' hurry")
	}
	idle(t, s)
}

func count(t *testing.T, r counter.Result, admitted, left *atomic.Int64) {
	switch {
	case r.Err == nil && r.Allowed:
		admitted.Add(1)
	case unavailable(r.Err) && (errors.Is(r.Err, context.DeadlineExceeded) || errors.Is(r.Err, context.Canceled)):
		left.Add(1)
	default:
		t.Errorf("%+v", r)
	}
}

// idle waits until no call is under way, and fails if a waiter is left.
func idle(t *testing.T, s *Store) {
	t.Helper()
	until(t, func(context.Context) error {
		for i := range s.joiners {
			l := &s.joiners[i]
			l.mu.Lock()
			flying, queue := l.flying, len(l.queue)
			l.mu.Unlock()
			if flying != 0 || queue != 0 {
				return fmt.Errorf("joiner %d: %d calls under way, %d acts waiting", i, flying, queue)
			}
		}
		return nil
	})
}
