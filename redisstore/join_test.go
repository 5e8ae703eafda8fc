package redisstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/patient"
	"github.com/weirhq/weir/internal/redistest"
)

// held is a store whose joiner has as many calls under way as it may, until they are released.
type held struct {
	*Store
	t      *testing.T
	server *redistest.Server
	policy *counter.Policy
}

func hold(t *testing.T) *held {
	r := redistest.New(t, redistest.Options{})
	h := &held{Store: open(t, Options{URL: "redis://" + r.Addr}), t: t, server: r}
	h.policy = policy(t, "p", counter.TokenBucket, 1000, year)
	mustTake(t, h, charge1(h.policy, "warm"))
	h.joiners[0].mu.Lock()
	defer h.joiners[0].mu.Unlock()
	h.joiners[0].flying = maxFlying
	return h
}

// release ends the calls that keep the joiner busy.
func (h *held) release() {
	for range maxFlying {
		pass(&h.joiners[0])
	}
}

// pass ends one call of a joiner.
func pass(l *joiner) {
	l.mu.Lock()
	wake := l.next(nil)
	l.mu.Unlock()
	for _, w := range wake {
		w.wake <- struct{}{}
	}
}

// reaches waits until the joiner is in a state.
func (h *held) reaches(what string, get func(*joiner) int, want int) {
	h.t.Helper()
	until(h.t, func(context.Context) error {
		l := &h.joiners[0]
		l.mu.Lock()
		defer l.mu.Unlock()
		if got := get(l); got != want {
			return fmt.Errorf("%d %s, want %d", got, what, want)
		}
		return nil
	})
}

func waiting(l *joiner) int { return len(l.queue) }

// queue makes takes wait behind the calls under way, one after the other.
func (h *held) queue(ctx context.Context, n int, subject string) []chan error {
	h.t.Helper()
	var all []chan error
	for range n {
		h.joiners[0].mu.Lock()
		before := len(h.joiners[0].queue)
		h.joiners[0].mu.Unlock()
		done := make(chan error, 1)
		go func() { done <- take(ctx, h, charge1(h.policy, subject))[0].Err }()
		h.reaches("waiting", waiting, before+1)
		all = append(all, done)
	}
	return all
}

// TestWaitersJoin checks that all takes that wait at the same moment share one call.
func TestWaitersJoin(t *testing.T) {
	h := hold(t)
	waiters := h.queue(t.Context(), 10, "s")
	do(t, h.server, "CONFIG", "RESETSTAT")
	h.release()
	for _, w := range waiters {
		if err := <-w; err != nil {
			t.Error(err)
		}
	}
	// There is one call for all takes, and now and then a heartbeat.
	if n := calls(t, h.server, "evalsha"); n > 9 {
		t.Errorf("%d script calls: those who waited weren't joined", n)
	}
	if n := used(t, h, h.policy, "s"); n != 10 {
		t.Errorf("ten takes counted %d", n)
	}
	idle(t, h.Store)
}

// TestAWaiterThatLeavesTheQueueIsNotCounted also checks that the other waiters aren't affected, even if the newest one leaves.
func TestAWaiterThatLeavesTheQueueIsNotCounted(t *testing.T) {
	for _, deadline := range []bool{false, true} {
		t.Run(fmt.Sprint("deadline=", deadline), func(t *testing.T) {
			h := hold(t)
			stay := h.queue(t.Context(), 3, "stay")
			ctx, cancel := context.WithCancel(t.Context())
			want := context.Canceled
			if deadline {
				ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
				want = context.DeadlineExceeded
			}
			defer cancel()
			gone := make(chan error, 1)
			go func() { gone <- take(ctx, h, charge1(h.policy, "gone"))[0].Err }()
			if !deadline {
				h.reaches("waiting", waiting, 4)
				cancel()
			}
			if err := <-gone; !errors.Is(err, want) || !unavailable(err) {
				t.Errorf("got %v, want %v", err, want)
			}
			h.reaches("waiting", waiting, 3)
			h.release()
			for _, w := range stay {
				if err := <-w; err != nil {
					t.Errorf("one who stayed: %v", err)
				}
			}
			if s, g := used(t, h, h.policy, "stay"), used(t, h, h.policy, "gone"); s != 3 || g != 0 {
				t.Errorf("counted %d who stayed of 3, and %d who left", s, g)
			}
			idle(t, h.Store)
		})
	}
}

// chosenAmong makes takes wait in a joiner that nothing else uses, and wakes them. The newest is chosen to send.
func chosenAmong(t *testing.T, s *Store, p *counter.Policy, subjects ...string) []*waiter {
	t.Helper()
	l := &s.joiners[0]
	var all []*waiter
	for _, subject := range subjects {
		key, _ := s.names.Load().subject(&counter.Counter{Policy: p, Subject: []byte(subject)})
		all = append(all, &waiter{act: takeAct(p, key), wake: make(chan struct{}, 1)})
	}
	l.mu.Lock()
	for _, w := range all {
		w.deadline = l.budget()
	}
	l.flying++
	l.queue = append(l.queue, all...)
	l.mu.Unlock()
	pass(l)
	if first, last := all[0].stage, all[len(all)-1].stage; first != flying || last != chosen {
		t.Fatalf("stages %d and %d", first, last)
	}
	return all
}

// TestNothingIsSentForWhoHasLeft checks that the other waiters' acts are sent, even if the waiter that was chosen to send them
// has left.
func TestNothingIsSentForWhoHasLeft(t *testing.T) {
	for _, newest := range []bool{false, true} {
		t.Run(fmt.Sprint("newest=", newest), func(t *testing.T) {
			r := redistest.New(t, redistest.Options{})
			s := open(t, Options{URL: "redis://" + r.Addr})
			p := policy(t, "p", counter.TokenBucket, 1000, year)
			ws := chosenAmong(t, s, p, "first", "last")
			gone, stay := ws[0], ws[1]
			if newest {
				gone, stay = stay, gone
			}
			if err := s.joiners[0].leave(gone, context.Canceled); !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
			if err := s.joiners[0].wait(t.Context(), stay, false); err != nil {
				t.Errorf("one who stayed: %v", err)
			}
			if first, last := used(t, s, p, "first"), used(t, s, p, "last"); newest && (first != 1 || last != 0) || !newest && (first != 0 || last != 1) {
				t.Errorf("counted %d and %d, with newest=%v gone", first, last, newest)
			}
			idle(t, s)
		})
	}
}

// TestNothingIsSentTooLate checks that a waiter that wakes after its deadline sends nothing. It and the waiters that it should
// send for get an error, and this doesn't count as a failure of Redis.
func TestNothingIsSentTooLate(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	s := open(t, Options{URL: "redis://" + r.Addr})
	p := policy(t, "p", counter.TokenBucket, 1000, year)
	answers(t, s)
	ws := chosenAmong(t, s, p, "first", "last")
	for range patient.Parts + 1 {
		s.joiners[0].tick()
	}
	for _, w := range []*waiter{ws[1], ws[0]} {
		if err := s.joiners[0].wait(t.Context(), w, false); !unavailable(err) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	}
	idle(t, s)
	if n := s.joiners[0].shard.Load().fails.Load(); n != 0 {
		t.Errorf("the shard is blamed for %d failures", n)
	}
	if first, last := used(t, s, p, "first"), used(t, s, p, "last"); first != 0 || last != 0 {
		t.Errorf("counted %d and %d of two who were told that it is too late", first, last)
	}
}

// TestAWaiterThatLeavesWhileUnderWayIsUnknown checks that a waiter that leaves during its call gets an error at once. Its act
// may still be counted, and the other waiters go on.
func TestAWaiterThatLeavesWhileUnderWayIsUnknown(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	s := open(t, Options{URL: "redis://" + r.Addr})
	p := policy(t, "p", counter.TokenBucket, 1000, year)
	mustTake(t, s, charge1(p, "warm"))
	do(t, r, "CLIENT", "PAUSE", "60000", "WRITE")
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	err := take(ctx, s, charge1(p, "s"))[0].Err // it is sent at once: nothing else is under way
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	do(t, r, "CLIENT", "UNPAUSE")
	idle(t, s)
	if n := used(t, s, p, "s"); n != 1 {
		t.Errorf("counted %d: it had been sent", n)
	}
	if sh := s.joiners[0].shard.Load(); sh.fails.Load() != 0 {
		t.Error("the shard is blamed for its caller's hurry")
	}
}

// TestTheBreaker checks that the breaker opens after failures, fails waiting and new checks at once, and closes by itself.
func TestTheBreaker(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	s := open(t, Options{URL: "redis://" + r.Addr, Timeout: 100 * time.Millisecond})
	p := policy(t, "p", counter.TokenBucket, 1000, year)
	answers(t, s)
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	sh := s.joiners[0].shard.Load()
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for !sh.open.Load() {
				if err := take(t.Context(), s, charge1(p, "s"))[0].Err; !unavailable(err) {
					t.Errorf("got %v while redis is stopped", err)
				}
			}
		})
	}
	wg.Wait()
	idle(t, s)
	// While the breaker is open, no check waits: thousands of them take less time than a single wait would.
	begun := time.Now()
	const many = 2000
	for range many {
		if err := take(t.Context(), s, charge1(p, "s"))[0].Err; !unavailable(err) {
			t.Fatalf("got %v with the breaker open", err)
		}
	}
	if took := time.Since(begun); took > many*s.timeout/10 {
		t.Errorf("%d checks took %v with the breaker open", many, took)
	}
	if err := r.Cont(); err != nil {
		t.Fatal(err)
	}
	answers(t, s)
	if sh.open.Load() {
		t.Error("it answers, but the breaker is open")
	}
	lasting(t, r)
}

// TestAQueueIsFailedWithTheBreaker checks that no check waits in the queue for a call that will never be made.
func TestAQueueIsFailedWithTheBreaker(t *testing.T) {
	h := hold(t)
	waiters := h.queue(t.Context(), 5, "s")
	h.joiners[0].shard.Load().trip(errors.New("for the test"))
	h.release()
	for _, w := range waiters {
		if err := <-w; !unavailable(err) {
			t.Errorf("got %v", err)
		}
	}
	h.joiners[0].shard.Load().close()
	if n := used(t, h, h.policy, "s"); n != 0 {
		t.Errorf("%d were counted, and all failed", n)
	}
	idle(t, h.Store)
}

// TestCloseWithoutRedis closes a store that has never reached Redis. Charges fail before and after.
func TestCloseWithoutRedis(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	r.Kill()
	for _, url := range []string{"redis://" + r.Addr, "redis-cluster://" + r.Addr, "redis-sentinel://" + r.Addr + "/primary"} {
		for _, secret := range [][]byte{nil, []byte("given")} {
			s := openLate(t, Options{URL: url, Secret: secret})
			p := policy(t, "p", counter.TokenBucket, 10, year)
			check := func() {
				t.Helper()
				if err := take(t.Context(), s, charge1(p, "s"))[0].Err; !unavailable(err) {
					t.Errorf("%s: got %v", url, err)
				}
				if err := s.GiveBack(t.Context(), counter.Once{1}, time.Minute, nil); !unavailable(err) {
					t.Errorf("%s: give back: got %v", url, err)
				}
			}
			check()
			s.Close()
			check()
		}
	}
}

// TestRedisComesLate checks that a store made before Redis was up starts to work by itself.
func TestRedisComesLate(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	r.Kill()
	s := openLate(t, Options{URL: "redis://" + r.Addr})
	if err := r.Restart(); err != nil {
		t.Fatal(err)
	}
	answers(t, s)
}

// TestCloseDuringLoad checks that every charge gets a result. TestMain checks that no goroutine is left.
func TestCloseDuringLoad(t *testing.T) {
	oneServerAndACluster(t, func(t *testing.T, url string) {
		for range 5 {
			s := open(t, Options{URL: url})
			p, q := policy(t, "p", counter.TokenBucket, 10, year), policy(t, "q", counter.TokenBucket, 1_000_000, year)
			var begun, wg sync.WaitGroup
			for i := range 32 {
				begun.Add(1)
				wg.Go(func() {
					first := true
					for n := 0; ; n++ {
						// The subjects lie in different hash slots of a Cluster, so that there is something to give back.
						rs := take(t.Context(), s, charge1(p, "everyone"), charge1(q, fmt.Sprint("s", i)))
						if first {
							begun.Done()
							first = false
						}
						if rs[0].Err != nil && rs[1].Err != nil {
							return
						}
					}
				})
			}
			begun.Wait()
			s.Close()
			wg.Wait()
		}
	})
}

func TestNoChargesAreNoTrouble(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	s := open(t, Options{URL: "redis://" + r.Addr})
	s.Take(t.Context(), nil, nil)
	if err := errors.Join(s.Reset(t.Context(), nil), s.GiveBack(t.Context(), counter.Once{}, 0, nil)); err != nil {
		t.Error(err)
	}
}
