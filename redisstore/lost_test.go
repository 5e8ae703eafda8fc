package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/patient"
	"github.com/weirhq/weir/internal/rediscall"
	"github.com/weirhq/weir/internal/redistest"
)

// TestALostReplyCountsOnce checks that under every network fault, an answered charge is counted once, and an unanswered one at
// most once, because nothing is sent twice.
func TestALostReplyCountsOnce(t *testing.T) {
	t.Parallel()
	faults := []struct {
		name  string
		begin func(*redistest.Proxy) error
		runs  bool // Redis gets the command
	}{
		{"replies dropped", (*redistest.Proxy).DropReplies, true},
		{"reset at the reply", (*redistest.Proxy).ResetReplies, true},
		{"commands dropped", (*redistest.Proxy).DropCommands, false},
		{"reset at the command", (*redistest.Proxy).ResetCommands, false},
	}
	for _, a := range []counter.Algorithm{counter.TokenBucket, counter.SlidingLog} {
		for _, f := range faults {
			t.Run(fmt.Sprint(a, "/", f.name), func(t *testing.T) {
				t.Parallel()
				r := redistest.New(t, redistest.Options{})
				proxy := redistest.NewProxy(t, r.Addr)
				s := open(t, Options{URL: "redis://" + proxy.Addr, Timeout: 2 * time.Second}) // a busy machine answers within that
				direct := open(t, Options{URL: "redis://" + r.Addr})
				p := policy(t, "p", a, 1000, year)
				answers(t, s)
				var admitted, lost atomic.Int64
				for range 3 {
					one := func(int) bool {
						res := take(t.Context(), s, charge1(p, "s"))[0]
						switch {
						case res.Err != nil:
							lost.Add(1)
						case res.Allowed:
							admitted.Add(1)
						}
						return true
					}
					storm(8, 40, one)
					if err := f.begin(proxy); err != nil {
						t.Fatal(err)
					}
					storm(8, 40, one)
					proxy.Heal()
					answers(t, s)
				}
				counted := used(t, direct, p, "s")
				if counted < admitted.Load() || counted > admitted.Load()+lost.Load() {
					t.Errorf("%d admitted and %d unknown, but %d counted", admitted.Load(), lost.Load(), counted)
				}
				if lost.Load() == 0 {
					t.Error("nothing was lost: the test shows nothing")
				}
				if f.runs && counted == admitted.Load() {
					t.Error("no script ran whose reply was lost: the test shows nothing")
				}
				if !f.runs && counted != admitted.Load() {
					t.Errorf("%d admitted, %d counted, though no command arrived whose caller got an error", admitted.Load(), counted)
				}
				lasting(t, r)
			})
		}
	}
}

// TestOneLostReply checks that a single take whose reply is lost ran once and was sent once.
func TestOneLostReply(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	proxy := redistest.NewProxy(t, r.Addr)
	s := open(t, Options{URL: "redis://" + proxy.Addr, Timeout: 300 * time.Millisecond})
	direct := open(t, Options{URL: "redis://" + r.Addr})
	p := policy(t, "p", counter.TokenBucket, 100, year)
	mustTake(t, s, charge1(p, "warm"))
	if err := proxy.DropReplies(); err != nil {
		t.Fatal(err)
	}
	if err := take(t.Context(), s, charge1(p, "s"))[0].Err; !unavailable(err) {
		t.Errorf("got %v, want an error", err)
	}
	proxy.Heal()
	answers(t, s)
	if n := used(t, direct, p, "s"); n != 1 {
		t.Errorf("one take counted %d", n)
	}
}

// decided runs one take in the background, which must succeed after the fault has ended.
func decided(t *testing.T, s *Store, charges ...counter.Charge) (wait func()) {
	t.Helper()
	done := make(chan []counter.Result, 1)
	go func() { done <- take(context.Background(), s, charges...) }()
	return func() {
		t.Helper()
		for _, r := range <-done {
			if r.Err != nil || !r.Allowed {
				t.Errorf("%+v", r)
			}
		}
	}
}

// TestSentAgain checks that after errors which say that the script didn't run, it is sent again and counted once.
func TestSentAgain(t *testing.T) {
	t.Parallel()
	p := policy(t, "p", counter.TokenBucket, 100, year)
	once := func(t *testing.T, s counter.Store, subject string) {
		t.Helper()
		if n := used(t, s, p, subject); n != 1 {
			t.Errorf("one take counted %d", n)
		}
	}
	t.Run("NOSCRIPT", func(t *testing.T) {
		r := redistest.New(t, redistest.Options{})
		s := open(t, Options{URL: "redis://" + r.Addr})
		mustTake(t, s, charge1(p, "warm"))
		do(t, r, "SCRIPT", "FLUSH")
		mustTake(t, s, charge1(p, "s"))
		once(t, s, "s")
		until(t, func(ctx context.Context) error { return refused(ctx, r, "NOSCRIPT") })
	})
	t.Run("LOADING", func(t *testing.T) {
		r := redistest.New(t, redistest.Options{})
		s := open(t, Options{URL: "redis://" + r.Addr})
		mustTake(t, s, charge1(p, "warm"))
		do(t, r, "DEBUG", "POPULATE", "2000", "filler", "200")
		do(t, r, "CONFIG", "SET", "key-load-delay", "300", "loading-process-events-interval-bytes", "1024")
		reloaded := make(chan error, 1)
		go func() {
			_, err := r.Do(context.Background(), "DEBUG", "RELOAD")
			reloaded <- err
		}()
		until(t, func(ctx context.Context) error {
			info, err := r.Info(ctx, "persistence")
			if err == nil && info["loading"] != "1" {
				err = fmt.Errorf("loading:%s", info["loading"])
			}
			return err
		})
		decided(t, s, charge1(p, "s"))()
		if err := <-reloaded; err != nil {
			t.Fatal(err)
		}
		once(t, s, "s")
		if err := refused(t.Context(), r, "LOADING"); err != nil {
			t.Error(err)
		}
	})
	t.Run("READONLY", func(t *testing.T) {
		r := redistest.New(t, redistest.Options{})
		s := open(t, Options{URL: "redis://" + r.Addr})
		do(t, r, "REPLICAOF", "127.0.0.1", "1")
		wait := decided(t, s, charge1(p, "s"))
		until(t, func(ctx context.Context) error { return refused(ctx, r, "READONLY") })
		do(t, r, "REPLICAOF", "NO", "ONE")
		wait()
		once(t, s, "s")
	})
	t.Run("CLUSTERDOWN", func(t *testing.T) {
		c := redistest.NewCluster(t, redistest.Options{Config: []string{"cluster-require-full-coverage yes"}})
		s := open(t, Options{URL: clusterURL(c)})
		subject := tagged(s, 0, "s")
		mustTake(t, s, charge1(p, tagged(s, 0, "warm")))
		until(t, func(ctx context.Context) error {
			for _, node := range c.Nodes[:3] {
				// The other hash slots are served only while all are. CLUSTER DELSLOTS fails where it was done already, and
				// gossip under way may undo it.
				_, _ = node.Do(ctx, "CLUSTER", "DELSLOTS", "16383")
			}
			return clusterState(ctx, c.Nodes[0], "fail")
		})
		wait := decided(t, s, charge1(p, subject))
		until(t, func(ctx context.Context) error { return refused(ctx, c.Nodes[0], "CLUSTERDOWN") })
		do(t, c.Nodes[2], "CLUSTER", "ADDSLOTS", "16383")
		wait()
		once(t, s, subject)
	})
	t.Run("connection refused", func(t *testing.T) {
		r := redistest.New(t, redistest.Options{})
		s := open(t, Options{URL: "redis://" + r.Addr})
		r.Kill()
		// The client has a few connections and picks one at random, so it notices only after a while that they were closed.
		until(t, func(ctx context.Context) error {
			c := *s.client.Load()
			for range 100 {
				if err := c.Do(ctx, c.B().Get().Key("any").Build()).Error(); !rediscall.Once.Again(err) {
					return fmt.Errorf("the client doesn't know yet: %v", err)
				}
			}
			return nil
		})
		wait := decided(t, s, charge1(p, "s"))
		if err := r.Restart(); err != nil {
			t.Fatal(err)
		}
		wait()
		once(t, s, "s")
	})
}

func clusterState(ctx context.Context, r *redistest.Server, want string) error {
	v, err := r.Do(ctx, "CLUSTER", "INFO")
	if err == nil && !strings.Contains(v.(string), "cluster_state:"+want) {
		err = fmt.Errorf("not yet %s", want)
	}
	return err
}

// TestKeysInTwoPlaces checks that while a hash slot moves, a request that needs keys on both servers waits until they are
// together, and requests that only share a call are decided one by one.
func TestKeysInTwoPlaces(t *testing.T) {
	t.Parallel()
	c := redistest.NewCluster(t, redistest.Options{})
	s := open(t, Options{URL: clusterURL(c)})
	const tag = 5
	subject, other := tagged(s, tag, "s"), tagged(s, tag, "new")
	bucket, log := policy(t, "p", counter.TokenBucket, 100, year), policy(t, "l", counter.SlidingLog, 100, year)
	mustTake(t, s, charge1(bucket, subject), charge1(log, subject))
	name := func(p *counter.Policy, subject string) string {
		key, _ := s.names.Load().subject(&counter.Counter{Policy: p, Subject: []byte(subject)})
		return key
	}
	from, err := c.Owner(t.Context(), name(bucket, subject))
	if err != nil {
		t.Fatal(err)
	}
	to := c.Nodes[0]
	if to == from {
		to = c.Nodes[1]
	}
	slot := strconv.Itoa(slotOf(tagNames[tag]))
	do(t, to, "CLUSTER", "SETSLOT", slot, "IMPORTING", do(t, from, "CLUSTER", "MYID").(string))
	do(t, from, "CLUSTER", "SETSLOT", slot, "MIGRATING", do(t, to, "CLUSTER", "MYID").(string))
	host, port, _ := strings.Cut(to.Addr, ":")
	move := func(key string) { do(t, from, "MIGRATE", host, port, key, "0", "5000") }

	// One key is still here, and the other has never existed.
	batch := []*waiter{{act: takeAct(bucket, name(bucket, subject))}, {act: takeAct(bucket, name(bucket, other))}}
	l := &s.joiners[tag]
	errs, _ := l.call(&flight{joiner: l, deadline: patient.Parts, waiters: batch}, batch[1])
	for i := range batch {
		if errs[i] != nil || !batch[i].act.charges[0].fits {
			t.Errorf("act %d of a joined call: %v", i, errs[i])
		}
	}
	if err := refused(t.Context(), from, "TRYAGAIN"); err != nil {
		t.Errorf("the test shows nothing: %v", err)
	}

	move(name(bucket, subject))
	do(t, from, "CONFIG", "RESETSTAT")
	wait := decided(t, s, charge1(bucket, subject), charge1(log, subject))
	until(t, func(ctx context.Context) error { return refused(ctx, from, "TRYAGAIN") })
	move(name(log, subject))
	wait()
	number, _ := strconv.Atoi(slot)
	if err := c.MoveSlots(t.Context(), number, number, to); err != nil {
		t.Fatal(err)
	}
	if b, l, o := used(t, s, bucket, subject), used(t, s, log, subject), used(t, s, bucket, other); b != 3 || l != 2 || o != 1 {
		t.Errorf("counted %d, %d and %d, want 3, 2 and 1", b, l, o)
	}
	lasting(t, primaries(t, c)...)
}

// TestTheLastHoldOfASlotThatMoves checks that a counter's last hold gives back its tokens while its hash slot moves. Redis then
// ends a script that asks for a key which the script itself has emptied.
func TestTheLastHoldOfASlotThatMoves(t *testing.T) {
	t.Parallel()
	c := redistest.NewCluster(t, redistest.Options{})
	s := open(t, Options{URL: clusterURL(c)})
	const tag = 5
	subject := tagged(s, tag, "s")
	window := policy(t, "w", counter.FixedWindow, 100, year)
	flight, err := counter.NewPolicy("flight", counter.Limit{Algorithm: counter.Concurrency, Count: 2, Window: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	held := func(p *counter.Policy, n int64, id byte) counter.Charge {
		return counter.Charge{Counter: counter.Counter{Policy: p, Subject: []byte(subject)}, N: n, Hold: &counter.Hold{ID: counter.Once{id}, For: time.Hour}}
	}
	reserved, slot := held(window, 10, 1), held(flight, 1, 2)
	results := make([]counter.Result, 2)
	s.Take(t.Context(), []counter.Charge{reserved, slot}, results)
	for i := range results {
		if !results[i].Allowed {
			t.Fatalf("%+v", results[i])
		}
	}
	key, _ := s.names.Load().subject(&reserved.Counter)
	from, err := c.Owner(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	to := c.Nodes[0]
	if to == from {
		to = c.Nodes[1]
	}
	number := slotOf(tagNames[tag])
	do(t, to, "CLUSTER", "SETSLOT", strconv.Itoa(number), "IMPORTING", do(t, from, "CLUSTER", "MYID").(string))
	do(t, from, "CLUSTER", "SETSLOT", strconv.Itoa(number), "MIGRATING", do(t, to, "CLUSTER", "MYID").(string))
	for i, c := range []counter.Charge{reserved, slot} {
		back := counter.Return{Counter: c.Counter, N: c.N, Slot: results[i].Slot, Hold: c.Hold}
		if i == 0 {
			back.Used, back.Recorded = 4, true
		}
		if err := s.GiveBack(t.Context(), counter.Once{}, 0, []counter.Return{back}); err != nil { // a mark would be a new key
			t.Errorf("%s: %v", c.Policy.Name, err)
		}
	}
	if err := c.MoveSlots(t.Context(), number, number, to); err != nil {
		t.Fatal(err)
	}
	if w, f := used(t, s, window, subject), used(t, s, flight, subject); w != 4 || f != 0 {
		t.Errorf("%d are counted and %d slots taken, want 4 and 0", w, f)
	}
	lasting(t, primaries(t, c)...)
}

func takeAct(p *counter.Policy, key string) *act {
	return &act{kind: kindTake, charges: []charge{{policy: p, key: key, n: 1}}}
}

// TestWhatRedisSaysIsTold checks that if a server refuses writes, the store reports the server's error, and not the timeout of
// a retry.
func TestWhatRedisSaysIsTold(t *testing.T) {
	t.Parallel()
	r := redistest.New(t, redistest.Options{})
	var log lines
	s := open(t, Options{URL: "redis://" + r.Addr, Timeout: 2 * time.Second, Logger: log.logger()})
	p := policy(t, "p", counter.TokenBucket, 10, time.Hour)
	mustTake(t, s, charge1(p, "s"))
	do(t, r, "REPLICAOF", "127.0.0.1", "1")
	until(t, func(ctx context.Context) error {
		take(ctx, s, charge1(p, "s"))
		if log.count("redis can't be reached") == 0 {
			return errors.New("not lost yet")
		}
		return nil
	})
	if log.count("READONLY") != 1 || log.count("deadline") != 0 {
		t.Errorf("it is lost for another reason:\n%s", log.text.String())
	}
	for range 3 { // probes say so, too
		was := s.joiners[0].shard.Load().cause.Load()
		until(t, func(context.Context) error {
			if s.joiners[0].shard.Load().cause.Load() == was {
				return errors.New("not probed yet")
			}
			return nil
		})
		if h := s.Health(); !strings.Contains(h.Shards[0].Error, "READONLY") {
			t.Errorf("%+v", h.Shards[0])
		}
	}
	// Some of the failures that opened the breaker may have been probes, which don't count as calls. So the number of failed
	// calls isn't known exactly.
	if got := s.Health().Shards[0]; failed(got, "reply") == 0 || failed(got, "timeout") > 0 || got.Up {
		t.Errorf("%+v", got)
	}
}
