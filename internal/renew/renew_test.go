package renew

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/memstore"
)

// diary is a store that records renewals and releases with their times.
type diary struct {
	*memstore.Store
	fail func(context.Context) error // error of each renewal; nil means that none fails

	mu       sync.Mutex
	begun    bool // the slot was taken, and later calls are renewals; mu guards this and the fields below
	renewed  []time.Time
	released []time.Time
}

func (s *diary) Take(ctx context.Context, charges []counter.Charge, results []counter.Result) {
	s.mu.Lock()
	renewal := s.begun && !charges[0].Peek
	s.begun = true
	s.mu.Unlock()
	if renewal {
		if s.fail != nil {
			if err := s.fail(ctx); err != nil {
				for i := range results {
					results[i] = counter.Result{Err: err}
				}
				return
			}
		}
		s.mu.Lock()
		s.renewed = append(s.renewed, time.Now())
		s.mu.Unlock()
	}
	s.Store.Take(ctx, charges, results)
}

func (s *diary) GiveBack(ctx context.Context, once counter.Once, keep time.Duration, returns []counter.Return) error {
	s.mu.Lock()
	s.released = append(s.released, time.Now())
	s.mu.Unlock()
	return s.Store.GiveBack(ctx, once, keep, returns)
}

func (s *diary) renewals() []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.renewed)
}

var client = netip.MustParseAddr("192.0.2.1")

// taken returns a limiter with one slot of length ttl, and the decision that took the slot.
func taken(t *testing.T, s *diary, ttl time.Duration) (*weir.Limiter, weir.Decision) {
	t.Helper()
	s.Store = memstore.New(memstore.Options{})
	set, err := weir.Compile(weir.Rules{Rules: []weir.Rule{{
		ID: "slots", By: []string{"ip"}, Algorithm: weir.Concurrency, SlotTTL: ttl, Limits: []weir.Limit{{Count: 1}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	l := weir.NewLimiter(s, set, weir.Options{})
	d, err := l.Check(t.Context(), &weir.Request{IP: client})
	if err != nil || !d.Allowed || d.Slots() != ttl {
		t.Fatalf("%+v, %v", d, err)
	}
	return l, d
}

func free(t *testing.T, l *weir.Limiter) bool {
	t.Helper()
	d, err := l.Check(t.Context(), &weir.Request{IP: client, Peek: true})
	if err != nil {
		t.Fatal(err)
	}
	return d.Allowed
}

func never(t *testing.T) func(error) {
	return func(err error) { t.Errorf("a renewal failed: %v", err) }
}

// Keep renews a slot after every third of its TTL, at whole seconds if possible, and never releases it.
func TestKeep(t *testing.T) {
	for _, ttl := range []time.Duration{time.Second, 2 * time.Second, 5 * time.Second, 30 * time.Second, time.Hour} {
		for _, odd := range []time.Duration{0, time.Millisecond, 345_678_901, time.Second - 1} {
			synctest.Test(t, func(t *testing.T) {
				time.Sleep(odd)
				s := &diary{}
				l, d := taken(t, s, ttl)
				begun := time.Now()
				stop := Keep(t.Context(), l, &d, never(t))
				for range 100 {
					time.Sleep(ttl / 10)
					if free(t, l) {
						t.Fatalf("a slot of %s is free after %s", ttl, time.Since(begun))
					}
				}
				stop()
				all := s.renewals()
				if n := len(all); n < 27 || n > 46 { // after each third of the TTL, or up to a third sooner
					t.Errorf("%d renewals in ten times %s", n, ttl)
				}
				last := begun
				for _, at := range all {
					if gap := at.Sub(last); gap > ttl/3 || gap < ttl/3*2/3 {
						t.Errorf("%s: a renewal comes %s after the last", ttl, gap)
					}
					if ttl >= 9*grid && !at.Equal(at.Truncate(grid)) { // there is a whole second in the last third of the wait
						t.Errorf("%s: a renewal at %s, beside the grid", ttl, at)
					}
					last = at
				}
				if len(s.released) != 0 {
					t.Errorf("released at %v", s.released)
				}
			})
		}
	}
}

// Once stop has returned, the slot isn't renewed anymore, so a released slot stays free.
func TestNoRenewalAfterStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &diary{}
		l, d := taken(t, s, 30*time.Second)
		stop := Keep(t.Context(), l, &d, never(t))
		time.Sleep(25 * time.Second)
		stop()
		stop() // a second call is allowed
		if err := l.Finish(t.Context(), &d, weir.Outcome{}); err != nil {
			t.Fatal(err)
		}
		before := len(s.renewals())
		time.Sleep(time.Hour)
		if n := len(s.renewals()); n != before || before != 2 {
			t.Errorf("%d renewals, %d of them after the release", n, n-before)
		}
		if !free(t, l) {
			t.Error("the slot is taken again")
		}
	})
}

// That also holds if a renewal was due exactly when stop was called.
func TestStopWhenARenewalIsDue(t *testing.T) {
	for range 200 {
		synctest.Test(t, func(t *testing.T) {
			l, d := taken(t, &diary{}, 30*time.Second)
			stop := Keep(t.Context(), l, &d, never(t))
			time.Sleep(10 * time.Second)
			stop()
			if err := l.Finish(t.Context(), &d, weir.Outcome{}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if !free(t, l) {
				t.Fatal("the slot is taken again")
			}
		})
	}
}

// If a renewal is in flight when the request ends, stop waits for it, so that the release comes after it.
func TestStopWaitsForARenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &diary{fail: func(context.Context) error {
			time.Sleep(3 * time.Second)
			return nil
		}}
		l, d := taken(t, s, 30*time.Second)
		begun := time.Now()
		stop := Keep(t.Context(), l, &d, never(t))
		time.Sleep(11 * time.Second) // the renewal began at 10 s
		stop()
		if took := time.Since(begun); took != 13*time.Second {
			t.Errorf("stop returned after %s", took)
		}
		if err := l.Finish(t.Context(), &d, weir.Outcome{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if n := len(s.renewals()); n != 1 || !free(t, l) {
			t.Errorf("%d renewals; the slot is free: %t", n, free(t, l))
		}
	})
}

// If the store fails, the error is reported and the renewal is retried in time to keep the slot.
func TestFailuresAreReportedAndRetried(t *testing.T) {
	gone := errors.New("gone")
	for name, c := range map[string]struct {
		took func(context.Context) error
		want error
	}{
		"at once": {func(context.Context) error { return gone }, gone},
		"silently": {func(ctx context.Context) error { // without a response
			<-ctx.Done()
			return ctx.Err()
		}, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				failing := true
				var mu sync.Mutex
				s := &diary{fail: func(ctx context.Context) error {
					mu.Lock()
					defer mu.Unlock()
					if failing {
						failing = false
						return c.took(ctx)
					}
					return nil
				}}
				l, d := taken(t, s, 30*time.Second)
				told := make(chan error, 10)
				stop := Keep(t.Context(), l, &d, func(err error) { told <- err })
				time.Sleep(5 * time.Minute)
				if free(t, l) {
					t.Error("the slot was lost for one failure")
				}
				stop()
				synctest.Wait()
				if len(told) != 1 || !errors.Is(<-told, c.want) {
					t.Errorf("told %d times", len(told)+1)
				}
			})
		})
	}
}

// stop doesn't wait for a callback that is still handling an error.
func TestStopDoesNotWaitForTheCallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &diary{fail: func(context.Context) error { return errors.New("gone") }}
		l, d := taken(t, s, 30*time.Second)
		told, goOn := make(chan struct{}), make(chan struct{})
		stop := Keep(t.Context(), l, &d, func(error) {
			close(told)
			<-goOn
		})
		<-told
		stop()
		close(goOn)
	})
}

// Renewals continue after the request's context has ended, until stop is called. They don't use the caller's copy of
// the decision.
func TestContextOfTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &diary{}
		l, d := taken(t, s, 30*time.Second)
		ctx, leave := context.WithCancel(t.Context())
		defer Keep(ctx, l, &d, never(t))()
		leave()
		d = weir.Decision{}
		time.Sleep(5 * time.Minute)
		if free(t, l) {
			t.Error("the slot isn't kept")
		}
	})
}

// Keep does nothing for a request without slots.
func TestNothingToKeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stop := Keep(t.Context(), nil, &weir.Decision{}, never(t))
		time.Sleep(time.Hour)
		stop()
	})
}
