package redisstore

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/storetest"
)

// allCommands returns how many commands, except those of heartbeats, and how many scripts a server has run.
func allCommands(t testing.TB, r *redistest.Server) (commands, scripts int64) {
	t.Helper()
	for _, name := range []string{"hget", "hset", "hdel", "hlen", "hrandfield", "zadd", "zrange", "zrem", "zcard", "pttl", "pexpire", "unlink", "del", "set"} {
		commands += calls(t, r, name)
	}
	return commands, calls(t, r, "evalsha") + calls(t, r, "eval")
}

// TestHoldsAreNeverCostly checks that taking and releasing a slot are two script calls with a few commands each, however many
// slots there are. At most 128 expired holds are cleaned up at once.
func TestHoldsAreNeverCostly(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	now := storetest.Start
	s := open(t, Options{URL: "redis://" + r.Addr, Now: func() time.Time { return now }})
	s.end() // no heartbeat
	for _, n := range []int{1, 100, 10_000} {
		for _, p := range []*counter.Policy{
			slotted(t, fmt.Sprint("slots", n), int64(n)+1, time.Hour),
			amounts(t, fmt.Sprint("amount", n), counter.TokenBucket, int64(n)+1, year),
		} {
			each := int64(1)
			if p.Limit.Decimal {
				each, p = 1_000_000, p.With(func(d *counter.Definition) { d.GivesBack = true })
			}
			subject := fmt.Sprint("s", n)
			fillHolds(t, s, p, subject, each, n)
			counted := func(what string, most int64, f func()) {
				t.Helper()
				before, scripts := allCommands(t, r)
				f()
				after, then := allCommands(t, r)
				if after-before > most || then-scripts > 1 {
					t.Errorf("%s with %d others, %s: %d commands in %d calls", p.Name, n, what, after-before, then-scripts)
				}
			}
			c := holding(p, subject, each, n+1)
			var res counter.Result
			counted("take", 12, func() { res = take(t.Context(), s, c)[0] })
			if res.Err != nil || !res.Allowed {
				t.Fatalf("%+v", res)
			}
			counted("renew", 8, func() { mustTake(t, s, c) })
			counted("refuse", 10, func() {
				other := holding(p, subject, 2*each, n+2)
				if mustTake(t, s, other) {
					t.Error("admitted")
				}
			})
			counted("peek", 6, func() { left(t, s, p, subject) })
			counted("release", 12, func() {
				if err := s.GiveBack(t.Context(), counter.Once{}, 0, []counter.Return{back(c, res, each)}); err != nil {
					t.Error(err)
				}
			})
			now = now.Add(48 * time.Hour)
			counted("after the end", 12+128, func() { left(t, s, p, subject) })
		}
	}
}

// fillHolds takes n holds of a counter.
func fillHolds(t testing.TB, s *Store, p *counter.Policy, subject string, each int64, n int) {
	t.Helper()
	key := keyOf(s, p, subject)
	for done := 0; done < n; {
		var acts []*act
		for ; done < n && len(acts) < 1000; done++ {
			c := holding(p, subject, each, done)
			ch := charge{policy: p, key: key}
			ch.ask(&c, nil)
			acts = append(acts, &act{charges: []charge{ch}})
		}
		if err := s.call(t.Context(), &s.joiners[0], acts); err != nil {
			t.Fatal(err)
		}
	}
}

// TestChargesWithoutHoldsCostWhatTheyDid checks that charges without holds cost one read and one write, whatever they count.
func TestChargesWithoutHoldsCostWhatTheyDid(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	now := storetest.Start
	s := open(t, Options{URL: "redis://" + r.Addr, Now: func() time.Time { return now }})
	s.end() // no heartbeat
	for p, n := range withHolds(t, 100) {
		if p = p.With(func(d *counter.Definition) { d.GivesBack = false }); p.Limit.Algorithm == counter.Concurrency || p.Limit.Algorithm == counter.SlidingLog {
			continue
		}
		c := charge1(p, "s"+p.Name)
		c.N = n
		mustTake(t, s, c)
		reads, writes := calls(t, r, "hget"), calls(t, r, "hset")
		before, _ := allCommands(t, r)
		mustTake(t, s, c)
		if after, _ := allCommands(t, r); after-before != 2 || calls(t, r, "hget") != reads+1 || calls(t, r, "hset") != writes+1 {
			t.Errorf("%s: %d commands", p.Name, after-before)
		}
	}
}

// TestHoldsAreSmall logs how many bytes a slot takes in Redis, which is the same for a reservation: about 280 for a single one,
// 68 each for a hundred in compact lists, and 230 each for many thousands.
func TestHoldsAreSmall(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	s := open(t, Options{URL: "redis://" + r.Addr})
	for _, n := range []int{1, 10, 100, 1_000, 20_000} {
		for _, p := range []*counter.Policy{slotted(t, "slot", 100_000, time.Hour), amounts(t, "reservation", counter.TokenBucket, 100_000, year)} {
			subject := fmt.Sprint(p.Name, n)
			each := int64(1)
			if p.Limit.Decimal {
				each = 1_000_000
			}
			fillHolds(t, s, p, subject, each, n)
			records, ends := keysOf(s, p, subject)
			var bytes int64
			for _, key := range []string{records, ends} {
				bytes += do(t, r, "MEMORY", "USAGE", key, "SAMPLES", "0").(int64)
			}
			t.Logf("%d %ss: %d bytes each", n, p.Name, bytes/int64(n))
			if most := int64(260); n >= 10 && bytes/int64(n) > most {
				t.Errorf("%d %ss take %d bytes each, want at most %d", n, p.Name, bytes/int64(n), most)
			}
		}
	}
}
