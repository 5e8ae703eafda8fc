package redisstore

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/ledger"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/storetest"
)

// fill takes one token at each of the given moments, without waiting in between.
func fill(t testing.TB, s *Store, p *counter.Policy, subject string, from, step int64, n int) {
	t.Helper()
	option := s.address.option
	option.ConnWriteTimeout, option.Dialer.KeepAlive = patience, patience // one reply may have to wait for all the others
	client, err := rueidis.NewClient(option)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	key := keyOf(s, p, subject)
	if err := client.Do(t.Context(), client.B().ScriptLoad().Script(decide.Body).Build()).Error(); err != nil {
		t.Fatal(err)
	}
	for done := 0; done < n; {
		var cmds rueidis.Commands
		for ; done < n && len(cmds) < 1000; done++ {
			var c call
			c.encode([]*act{{charges: []charge{{policy: p, key: key, n: 1}}}}, from+int64(done)*step, s.leastTTL, s.peers.id)
			cmds = append(cmds, client.B().Evalsha().Sha1(decide.SHA).Numkeys(1).Key(key).Arg(rueidis.BinaryString(c.body)).Build())
		}
		for _, r := range client.DoMulti(t.Context(), cmds...) {
			if err := r.Error(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// commands returns how many commands a server has run, including those in scripts.
func commands(t testing.TB, r *redistest.Server) (n int64) {
	t.Helper()
	info, err := r.Info(t.Context(), "commandstats")
	if err != nil {
		t.Fatal(err)
	}
	for name, line := range info {
		var calls int64
		if _, err := fmt.Sscanf(line, "calls=%d", &calls); err != nil {
			t.Fatalf("%s: %s", name, line)
		}
		if strings.HasPrefix(name, "cmdstat_") && name != "cmdstat_info" && !strings.HasPrefix(name, "cmdstat_z") { // not the heartbeat's
			n += calls
		}
	}
	return n
}

// TestNothingAClientAsksIsCostly checks that every act on a long log makes Redis run only a few commands, none of which reads
// more than a few entries. So even the longest log delays no other client.
func TestNothingAClientAsksIsCostly(t *testing.T) {
	const (
		most    = 40         // commands
		longest = 29 + 16*13 // bytes of a field
		step    = time.Millisecond
	)
	for _, n := range []int{100, 10_000, 100_000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			r := redistest.New(t, redistest.Options{})
			start := storetest.Start
			now := start
			s := open(t, Options{URL: "redis://" + r.Addr, Now: func() time.Time { return now }})
			p := policy(t, "p", counter.SlidingLog, int64(n), time.Hour)
			at := func(i int) time.Time { return start.Add(time.Duration(i) * step) }
			c := charge1(p, "s")
			fill(t, s, p, "s", start.UnixMicro(), step.Microseconds(), n)

			counted := func(what string, f func()) {
				t.Helper()
				before := commands(t, r)
				f()
				if got := commands(t, r) - before; got > most {
					t.Errorf("%s: %d commands", what, got)
				}
				for _, v := range do(t, r, "HVALS", keyOf(s, p, "s")).([]any) {
					if len(v.(string)) > longest {
						t.Fatalf("%s: a field of %d bytes", what, len(v.(string)))
					}
				}
			}
			check := func(what string, tokens int, allowed bool, retry time.Duration) {
				t.Helper()
				counted(what, func() {
					c := c
					c.N = int64(tokens)
					if got := take(t.Context(), s, c)[0]; got.Err != nil || got.Allowed != allowed || got.RetryAfter != retry {
						t.Errorf("%s: %+v", what, got)
					}
				})
			}
			back := func(what string, slot time.Time) {
				t.Helper()
				counted(what, func() {
					back := counter.Return{Counter: c.Counter, N: 1, Slot: slot.UnixMicro()}
					if err := s.GiveBack(t.Context(), counter.Once{}, 0, []counter.Return{back}); err != nil {
						t.Error(err)
					}
				})
			}

			now = at(n)
			check("one that is refused", 1, false, at(0).Add(time.Hour).Sub(now))
			check("a costly one", n/2, false, at(n/2-1).Add(time.Hour).Sub(now))
			check("the costliest", n, false, at(n-1).Add(time.Hour).Sub(now))
			for i := 1; i < n; i = 3*i + 1 {
				back("an old one is given back", at(i))
			}
			back("nothing is given back", at(n/2).Add(1))
			now = at(n / 2).Add(time.Hour)
			check("half has left", 1, true, 0)
			now = at(n * 3 / 4)
			check("the clock runs back", 1, true, 0)
			check("it stands", 1, true, 0)
			now = now.Add(time.Hour)
			check("all has left", n, true, 0)

			now = now.Add(time.Hour)
			fill(t, s, p, "s", now.UnixMicro(), step.Microseconds(), n)
			counted("a reset", func() {
				if err := s.Reset(t.Context(), []counter.Counter{c.Counter}); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestAHashThatGrowsIsntReadWhole checks that the hash of a subject with many counters is swept a bit at a time, and still
// loses the fields that no longer matter.
func TestAHashThatGrowsIsntReadWhole(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	now := storetest.Start
	s := open(t, Options{URL: "redis://" + r.Addr, Now: func() time.Time { return now }})
	const long = 1000
	at := func(name string, window time.Duration) counter.Charge {
		return charge1(policy(t, name, counter.FixedWindow, 10, window), "s")
	}
	for i := range long {
		mustTake(t, s, at(fmt.Sprint("long", i), year))
	}
	for i := range 4 * long {
		now = now.Add(10 * time.Second)
		c := at(fmt.Sprint("short", i), time.Second)
		before := commands(t, r)
		mustTake(t, s, c)
		if got := commands(t, r) - before; got > 40 {
			t.Fatalf("counter %d: %d commands", i, got)
		}
	}
	if got := calls(t, r, "hgetall"); got > 0 {
		t.Errorf("a hash was read whole %d times", got)
	}
	if got := do(t, r, "HLEN", keyOf(s, at("long", year).Policy, "s")).(int64); got > 3*long {
		t.Errorf("%d fields, of which %d matter", got, long)
	}
	if got := used(t, s, at("long7", year).Policy, "s"); got != 1 {
		t.Errorf("a counter that matters has %d used", got)
	}
}

// TestAgreeOnLongLogs is like TestAgree, with logs so long that they have several levels of sums, and returns of old entries.
func TestAgreeOnLongLogs(t *testing.T) {
	const steps = 60_000 / slowness
	r := redistest.New(t, redistest.Options{})
	for i, far := range []int64{1, 20, 400} { // how far a step may go
		t.Run(fmt.Sprint(far), func(t *testing.T) {
			t.Parallel()
			rnd := rand.New(rand.NewPCG(*seed, uint64(i)))
			now := storetest.Start
			clock := func() time.Time { return now }
			memory := memstore.New(memstore.Options{Now: clock})
			redis := open(t, Options{URL: "redis://" + r.Addr, Prefix: fmt.Sprint("far", far), Now: clock})
			p := policy(t, "p", counter.SlidingLog, 5000, 10*time.Millisecond)
			var slots []int64
			for n := range steps {
				now = now.Add(time.Duration(rnd.Int64N(far+1)) * time.Microsecond)
				switch rnd.IntN(2000) {
				case 0:
					now = now.Add(-time.Duration(rnd.IntN(12_000)) * time.Microsecond)
				case 1:
					now = now.Add(time.Duration(rnd.IntN(12_000)) * time.Microsecond)
				}
				c := charge1(p, "s")
				st := step{kind: kindTake, asks: []ledger.Ask{{Charge: c}}}
				switch {
				case len(slots) > 0 && rnd.IntN(3) == 0:
					back := counter.Return{Counter: c.Counter, N: 1 + rnd.Int64N(3), Slot: slots[len(slots)-1-rnd.IntN(min(len(slots), 1+rnd.IntN(6000)))]}
					st = step{kind: kindGiveBack, returns: []counter.Return{back}}
				case rnd.IntN(8) == 0:
					st.asks[0].N = 1 + rnd.Int64N(5000)
					st.asks[0].Peek = true
				case rnd.IntN(4) == 0:
					st.asks[0].N = 2
				}
				got, want := perform(redis, st), perform(memory, st)
				if diff := compare(st, got, want); diff != "" {
					t.Fatalf("step %d, seed %d: %s", n, *seed, diff)
				}
				if st.kind == kindTake && got.grants[0].Allowed && !st.asks[0].Peek {
					slots = append(slots, got.grants[0].Slot)
				}
			}
		})
	}
}
