package cooldown_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/cooldown"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func limiter(t testing.TB, g *cooldown.Guard, rules ...weir.Rule) *weir.Limiter {
	t.Helper()
	return limiterOf(t, g, weir.Rules{Rules: rules})
}

func limiterOf(t testing.TB, g *cooldown.Guard, rules weir.Rules) *weir.Limiter {
	t.Helper()
	set, err := weir.Compile(rules)
	if err != nil {
		t.Fatal(err)
	}
	return weir.NewLimiter(memstore.New(memstore.Options{}), set, weir.Options{Guard: g})
}

// abuse returns the settings of "abuse: {refusals: N/minute}" in a rule file.
func abuse(refusals int64) *counter.Abuse {
	return &counter.Abuse{Refusals: refusals, Window: time.Minute, Cooldown: time.Minute, Grow: 2, Most: 24 * time.Hour, Forgive: time.Hour}
}

// abuseFor is like abuse, with another length of the first cooldown.
func abuseFor(refusals int64, first time.Duration) *counter.Abuse {
	a := abuse(refusals)
	a.Cooldown = first
	return a
}

// dropping is like abuse, and also closes connections after this many refusals in a row.
func dropping(after int64) *counter.Abuse {
	a := abuse(1000)
	a.DropAfter = after
	return a
}

func limits(l ...weir.Limit) []weir.Limit { return l }

func check(t testing.TB, l *weir.Limiter, r *weir.Request) weir.Decision {
	t.Helper()
	d, err := l.Check(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// hammer sends ten requests a second until a cooldown refuses one, and returns that decision.
func hammer(t testing.TB, l *weir.Limiter, r *weir.Request) weir.Decision {
	t.Helper()
	for range 100_000 {
		if d := check(t, l, r); d.Reason == weir.ReasonCooldown {
			return d
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatal("no cooldown")
	return weir.Decision{}
}

// Limits with waits below a second also start cooldowns, for clients that send more than twice what the limit admits.
func TestFastLimits(t *testing.T) {
	for name, c := range map[string]struct {
		limit    weir.Limit
		at       int // requests in each every
		every    time.Duration
		requests int
		begins   bool
	}{
		"100/minute, 202 a second":   {weir.PerMinute(100), 1, 4940 * time.Microsecond, 2430, true},
		"60/minute, 100 a second":    {weir.PerMinute(60), 1, 10 * time.Millisecond, 1200, true},
		"1000/s, 17,000 a second":    {weir.PerSecond(1000), 17, time.Millisecond, 17 * 9000, true},
		"1000/s, 3,000 a second":     {weir.PerSecond(1000), 3, time.Millisecond, 60_000, true},
		"1000/s, 1,800 a second":     {weir.PerSecond(1000), 9, 5 * time.Millisecond, 200_000, false},
		"1000/s, 1,010 a second":     {weir.PerSecond(1000), 1, time.Second / 1010, 200_000, false},
		"window, 1,010 a second":     {weir.Limit{Algorithm: weir.FixedWindow, Count: 1000, Window: time.Second}, 1, time.Second / 1010, 200_000, false},
		"window, 17,000 a second":    {weir.Limit{Algorithm: weir.FixedWindow, Count: 1000, Window: time.Second}, 17, time.Millisecond, 17 * 9000, true},
		"sliding, 17,000 a second":   {weir.Limit{Algorithm: weir.SlidingCounter, Count: 1000, Window: time.Second}, 17, time.Millisecond, 17 * 9000, true},
		"20,000 at once, once":       {weir.PerSecond(1000), 20_000, time.Hour, 20_000, false},
		"20,000 at once, each 2 s":   {weir.PerSecond(1000), 20_000, 2 * time.Second, 200_000, false},
		"100/minute, burst each 2 s": {weir.PerMinute(100), 5000, 2 * time.Second, 100_000, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := cooldown.New(cooldown.Options{})
				l := limiter(t, g, weir.Rule{ID: "api", Algorithm: c.limit.Algorithm, Limits: limits(c.limit), Abuse: abuse(100)})
				for i := 0; i < c.requests && g.Stats().Begun == 0; i += c.at {
					for range c.at {
						check(t, l, &weir.Request{APIKey: "k"})
					}
					time.Sleep(c.every)
				}
				if got := g.Stats(); (got.Begun > 0) != c.begins {
					t.Errorf("%+v", got)
				}
			})
		})
	}
}

var tenAMinute = weir.Rule{ID: "api", Limits: limits(weir.PerMinute(10)), Abuse: &counter.Abuse{
	Refusals: 20, Window: time.Minute, Cooldown: time.Minute, Grow: 2, Most: 5 * time.Minute, Forgive: 10 * time.Minute,
}}

// Each cooldown is twice as long as the previous one, up to a maximum. Once a client is forgiven, it starts over at the first
// step.
func TestCooldownsGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := cooldown.New(cooldown.Options{})
		l, client := limiter(t, g, tenAMinute), &weir.Request{APIKey: "k"}
		for i, want := range []time.Duration{time.Minute, 2 * time.Minute, 4 * time.Minute, 5 * time.Minute, 5 * time.Minute} {
			d := hammer(t, l, client)
			if over := want - d.RetryAfter; over < 0 || over > 100*time.Millisecond || d.Allowed || d.Rule != "api" || d.Remaining != 0 {
				t.Fatalf("cooldown %d: %+v, want %s", i, d, want)
			}
			if all := g.All(); len(all) != 1 || all[0].N != i+1 || all[0].Rule != "api" || time.Until(all[0].Ends) != d.RetryAfter {
				t.Fatalf("%+v", all)
			}
			time.Sleep(d.RetryAfter - time.Microsecond)
			if d := check(t, l, client); d.Reason != weir.ReasonCooldown {
				t.Fatalf("a moment before its end: %+v", d)
			}
			time.Sleep(time.Microsecond)
			if d := check(t, l, client); !d.Allowed {
				t.Fatalf("at its end: %+v", d)
			}
		}
		time.Sleep(10*time.Minute + time.Second)
		if d := hammer(t, l, client); d.RetryAfter > time.Minute {
			t.Errorf("forgiven, and then for %s", d.RetryAfter)
		}
	})
}

// A burst of concurrent requests starts no cooldown, whatever its size. Neither does a burst that takes a second to arrive, or
// one that a client sends each time after it has waited as told.
func TestABurstBeginsNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := cooldown.New(cooldown.Options{})
		l := limiter(t, g, tenAMinute)
		for range 5 {
			var d weir.Decision
			for range 100 {
				for range 1000 {
					d = check(t, l, &weir.Request{APIKey: "k"})
				}
				time.Sleep(9 * time.Millisecond)
			}
			time.Sleep(toldBy["seconds"](d.RetryAfter))
		}
		if got := g.Stats(); got.Begun != 0 || got.Clients != 1 {
			t.Errorf("%+v", got)
		}
	})
}

// toldBy has, for each kind of edge, how long it tells a client to wait, with the largest jitter.
var toldBy = map[string]func(time.Duration) time.Duration{
	"exact": func(d time.Duration) time.Duration { return d },
	"seconds": func(d time.Duration) time.Duration {
		return max(time.Second, (d + time.Second - 1).Truncate(time.Second))
	},
	"jittered": func(d time.Duration) time.Duration {
		return max(time.Second, (d + d/5 + time.Second - 1).Truncate(time.Second))
	},
}

// A client that waits as told never gets a cooldown, whatever the limits and the edge. If it is told whole seconds, it may have
// several workers that each know only their own wait: a quarter of the refusals that start a cooldown.
func TestWhoWaitsIsNeverKeptOut(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		synctest.Test(t, func(t *testing.T) {
			algorithm := rapid.SampledFrom([]counter.Algorithm{weir.TokenBucket, weir.LeakyBucket, weir.FixedWindow, weir.SlidingLog, weir.SlidingCounter}).Draw(r, "algorithm")
			seconds := func(from, to int, label string) time.Duration {
				return time.Duration(rapid.IntRange(from, to).Draw(r, label)) * time.Second
			}
			all := limits(weir.Limit{Count: rapid.Int64Range(4, 40).Draw(r, "count"), Window: seconds(1, 300, "window")})
			if rapid.Bool().Draw(r, "two") {
				all = append(all, weir.Limit{Count: rapid.Int64Range(4, 40).Draw(r, "count 2"), Window: seconds(301, 900, "window 2")})
			}
			g := cooldown.New(cooldown.Options{})
			l := limiter(t, g, weir.Rule{ID: "api", Algorithm: algorithm, Limits: all, Abuse: abuseFor(120, time.Second)})
			workers, seed := rapid.IntRange(1, 30).Draw(r, "workers"), rapid.Uint64().Draw(r, "seed")
			edge := rapid.SampledFrom([]string{"exact", "seconds", "jittered"}).Draw(r, "edge")
			if edge == "exact" {
				workers = 1
			}
			cost := rapid.Int64Range(1, 4).Draw(r, "cost")
			late := rapid.IntRange(0, 900).Draw(r, "late ms") // how long an answer may take to its client
			var running sync.WaitGroup
			for i := range workers {
				running.Go(func() {
					random := rand.New(rand.NewPCG(seed, uint64(i)))
					for range 30 {
						d, err := l.Check(t.Context(), &weir.Request{APIKey: "k", Cost: cost})
						switch {
						case err != nil || d.Reason == weir.ReasonCooldown:
							t.Errorf("%+v: %v", d, err)
							return
						case d.RetryAfter > 0:
							time.Sleep(toldBy[edge](d.RetryAfter))
						}
						time.Sleep(time.Duration(random.IntN(late+1)) * time.Millisecond)
					}
				})
			}
			running.Wait()
			if got := g.Stats(); got.Begun != 0 {
				r.Errorf("%+v", got)
			}
		})
	})
}

// An allow-listed client isn't limited, so it gets no cooldown. A user's cooldown doesn't affect another user at the same
// address.
func TestOthersArentKeptOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, cooldown.New(cooldown.Options{}), weir.Rules{
			Abuse: abuse(20),
			Allow: []string{"friend", "10.0.0.0/8"},
			Rules: []weir.Rule{
				{ID: "users", By: []string{"user"}, Limits: limits(weir.PerMinute(10))},
				{ID: "addresses", By: []string{"ip"}, Limits: limits(weir.PerMinute(1000))},
				{ID: "quiet", By: []string{"org"}, Limits: limits(weir.PerHour(1)), Abuse: &counter.Abuse{}, Match: weir.Match{Endpoint: "/quiet"}},
			},
		})
		at := netip.MustParseAddr("203.0.113.7")
		hammer(t, l, &weir.Request{User: "bad", IP: at})
		for name, r := range map[string]*weir.Request{
			"another user at the address": {User: "good", IP: at},
			"an allow-listed key":         {User: "bad", APIKey: "friend", KeyVerified: true, IP: at},
			"an allow-listed address":     {User: "bad", IP: netip.MustParseAddr("10.0.0.1")},
		} {
			if d := check(t, l, r); !d.Allowed {
				t.Errorf("%s: %+v", name, d)
			}
		}
		if d := check(t, l, &weir.Request{User: "bad", IP: netip.MustParseAddr("203.0.113.8")}); d.Reason != weir.ReasonCooldown {
			t.Errorf("the user at another address: %+v", d)
		}
		for range 100 {
			if d := check(t, l, &weir.Request{User: "other", Org: "o", Path: "/quiet", IP: at}); d.Reason == weir.ReasonCooldown {
				t.Fatalf("a rule that has no abuse: %+v", d)
			}
			time.Sleep(time.Second)
		}
	})
}

// Shadow cooldowns are reported and refuse no request.
func TestShadow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := cooldown.New(cooldown.Options{})
		shadow := abuseFor(20, time.Hour)
		shadow.DropAfter, shadow.Shadow = 3, true
		l, client := limiter(t, g, weir.Rule{ID: "api", Limits: limits(weir.PerMinute(10)), Abuse: shadow}), &weir.Request{APIKey: "k"}
		for range 500 {
			if d := check(t, l, client); d.Reason == weir.ReasonCooldown || d.Drop {
				t.Fatalf("%+v", d)
			}
			time.Sleep(100 * time.Millisecond)
		}
		if got := g.Stats(); got.InForce != 0 || got.Shadow != 1 {
			t.Errorf("%+v", got)
		}
	})
}

// A peek neither adds to a row of refusals nor ends it. An admission ends it.
func TestDropAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, client := limiter(t, cooldown.New(cooldown.Options{}), weir.Rule{ID: "api", Limits: limits(weir.PerMinute(1)), Abuse: dropping(5)}), &weir.Request{APIKey: "k"}
		for round := range 3 {
			if d := check(t, l, client); !d.Allowed {
				t.Fatalf("round %d: %+v", round, d)
			}
			for i := range 10 {
				if d := check(t, l, &weir.Request{APIKey: "k", Peek: true}); d.Drop {
					t.Errorf("round %d: a peek is dropped", round)
				}
				if d := check(t, l, client); d.Drop != (i >= 5) || d.Allowed {
					t.Errorf("round %d, refusal %d: %+v", round, i, d)
				}
			}
			time.Sleep(time.Minute)
		}
	})
}

// A charge that is booked past the limit is also booked during a cooldown.
func TestBookingsInACooldown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, client := limiter(t, cooldown.New(cooldown.Options{}),
			weir.Rule{ID: "api", Limits: limits(weir.PerMinute(10)), Abuse: abuse(20)},
			weir.Rule{ID: "tokens", Limits: limits(weir.Limit{Count: 1_000_000, Window: 24 * time.Hour}), Book: true},
		), &weir.Request{APIKey: "k"}
		hammer(t, l, client)
		left := func() int64 {
			d := check(t, l, &weir.Request{APIKey: "k", Peek: true})
			for _, s := range d.Limits() {
				if s.Policy.Rule == "tokens" {
					return s.Remaining
				}
			}
			t.Fatalf("%+v", d)
			return 0
		}
		before := left()
		if d := check(t, l, &weir.Request{APIKey: "k", Cost: 5000}); d.Reason != weir.ReasonCooldown {
			t.Fatalf("%+v", d)
		}
		if got := before - left(); got < 4000 {
			t.Errorf("%d tokens were booked", got)
		}
	})
}

func TestLift(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := cooldown.New(cooldown.Options{})
		l, client := limiter(t, g, tenAMinute), &weir.Request{APIKey: "sk_live_0123456789abcdefghij"}
		hammer(t, l, client)
		c := g.All()[0]
		if !strings.HasPrefix(c.Client, "sk_") || strings.Contains(c.Client, "456789") {
			t.Errorf("shown as %q", c.Client)
		}
		if lifted, err := g.Lift(t.Context(), c.ID); lifted == nil || *lifted != c || err != nil {
			t.Fatal(lifted, err)
		}
		if d := check(t, l, client); d.Reason == weir.ReasonCooldown || len(g.All()) != 0 {
			t.Errorf("%+v", d)
		}
		if lifted, _ := g.Lift(t.Context(), c.ID); lifted != nil {
			t.Error("lifted twice")
		}
		if d := hammer(t, l, client); d.RetryAfter > time.Minute {
			t.Errorf("lifted, and not forgiven: %s", d.RetryAfter)
		}
		if n, err := l.Reset(t.Context(), client); n != 1 || err != nil || len(g.All()) != 0 {
			t.Errorf("%d counters, %v: %+v", n, err, g.All())
		}
		if d := check(t, l, client); !d.Allowed {
			t.Errorf("reset: %+v", d)
		}
	})
}

// With a million offenders, memory is bounded, and the worst offenders aren't forgotten in favor of lesser ones.
func TestAMillionOffenders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := cooldown.New(cooldown.Options{Clients: 1 << 14})
		l := limiter(t, g, weir.Rule{ID: "api", Limits: limits(weir.PerHour(1)), Abuse: abuseFor(3, time.Hour)})
		worst := make([]*weir.Request, 200)
		for i := range worst {
			worst[i] = &weir.Request{APIKey: fmt.Sprintf("worst-%d", i)}
			for range 3 {
				check(t, l, worst[i])
			}
		}
		time.Sleep(2 * time.Second)
		for _, r := range worst {
			for range 4 {
				check(t, l, r)
			}
		}
		if got := g.Stats(); got.InForce != len(worst) {
			t.Fatalf("%+v", got)
		}
		others := 200_000
		if !testing.Short() {
			others = 1_000_000
		}
		var before, after runtime.MemStats
		g2 := weir.NewLimiter(refusesAll{}, l.Rules(), weir.Options{Guard: g}) // a million counters aren't what this is about
		runtime.GC()
		runtime.ReadMemStats(&before)
		for i := range others {
			r := &weir.Request{APIKey: fmt.Sprintf("other-%d", i)}
			check(t, g2, r)
			check(t, g2, r)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		if got := g.Stats(); got.InForce != len(worst) || got.Clients > 1<<14 {
			t.Errorf("%+v", got)
		}
		if per := (int64(after.HeapAlloc) - int64(before.HeapAlloc)) / (1 << 14); per > 512 {
			t.Errorf("%d bytes a client", per)
		}
	})
}

type refusesAll struct{ counter.Store }

func (refusesAll) Take(_ context.Context, charges []counter.Charge, results []counter.Result) {
	for i := range charges {
		results[i] = counter.Result{RetryAfter: time.Hour}
	}
}

// charge returns a charge of a rule that allows 100 an hour.
func charge(t testing.TB, abuse counter.Abuse) *counter.Charge {
	t.Helper()
	p, err := counter.NewPolicy("api", weir.PerHour(100))
	if err != nil {
		t.Fatal(err)
	}
	p = p.With(func(d *counter.Definition) { d.Abuse = &abuse })
	return &counter.Charge{Counter: counter.Counter{Policy: p, Subject: []byte("k")}, N: 1}
}

// A client whose requests have different costs is told different times. It may retry once the earliest of them has passed or a
// request was admitted, because a cheaper request may pass while another one waits.
func TestTheEarliestWaitCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := cooldown.New(cooldown.Options{})
		c := charge(t, counter.Abuse{Refusals: 3, Window: time.Hour, Cooldown: time.Minute, Grow: 2, Most: time.Hour})
		for range 20 {
			g.Decided(c, 48*time.Second) // many tokens
			g.Decided(c, 6*time.Second)  // one
			time.Sleep(6 * time.Second)
			g.Decided(c, 6*time.Second) // which others on another node have taken
			time.Sleep(6 * time.Second)
		}
		for range 20 {
			g.Decided(c, time.Minute)
			time.Sleep(2 * time.Second)
			g.Decided(c, 0)
			for range 3 {
				g.Decided(c, time.Minute)
			}
			time.Sleep(time.Minute)
		}
		if got := g.Stats(); got.Begun != 0 {
			t.Errorf("%+v", got)
		}
	})
}

// Each worker of a client may send one more request after an admission, because it hasn't been told to wait yet.
func TestPartsThatDontKnow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := cooldown.New(cooldown.Options{})
		l := limiter(t, g, weir.Rule{ID: "api", Algorithm: weir.FixedWindow, Limits: limits(weir.PerHour(50)), Abuse: abuse(50)})
		time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour)))
		for range 5 {
			for range 51 {
				check(t, l, &weir.Request{APIKey: "k"})
			}
			for range 50 {
				time.Sleep(time.Second)
				check(t, l, &weir.Request{APIKey: "k"})
			}
			for range 49 {
				time.Sleep(time.Second)
				check(t, l, &weir.Request{APIKey: "k"})
			}
			if got := g.Stats(); got.Begun != 0 {
				t.Fatalf("%+v", got)
			}
			time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour)))
		}
	})
}

// A cooldown that started in shadow mode refuses no request after the rule leaves shadow mode, and doesn't make later cooldowns
// longer.
func TestOutOfShadow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := cooldown.New(cooldown.Options{})
		c := charge(t, counter.Abuse{Refusals: 1, Window: time.Hour, Cooldown: time.Hour, Grow: 2, Most: time.Hour, Shadow: true})
		for range 4 {
			g.Decided(c, time.Minute)
			time.Sleep(2 * time.Second)
		}
		if got := g.Stats(); got.Shadow != 1 {
			t.Fatalf("%+v", got)
		}
		enforced := charge(t, counter.Abuse{Refusals: 1, Window: time.Hour, Cooldown: time.Minute, Grow: 2, Most: time.Hour})
		if wait := g.Cooldown(enforced); wait != 0 {
			t.Error(wait)
		}
		for range 4 {
			g.Decided(enforced, time.Minute)
			time.Sleep(2 * time.Second)
		}
		if all := g.All(); len(all) != 1 || all[0].Shadow || all[0].N != 1 {
			t.Errorf("%+v", all)
		}
	})
}

// If a rule counts by address alone, an address that it drops is refused as soon as it connects, until its wait is over. An
// address that only shares the subject of another rule isn't.
func TestDroppedAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := cooldown.New(cooldown.Options{})
		l := limiter(t, g,
			weir.Rule{ID: "addresses", By: []string{"ip"}, Limits: limits(weir.PerMinute(1)), Abuse: dropping(3), Match: weir.Match{Endpoint: "/a"}},
			weir.Rule{ID: "networks", By: []string{"ip"}, IPv4Prefix: 24, Limits: limits(weir.PerMinute(1)), Abuse: dropping(3), Match: weir.Match{Endpoint: "/n"}},
			weir.Rule{ID: "keys", By: []string{"api_key"}, Limits: limits(weir.PerMinute(1)), Abuse: dropping(3), Match: weir.Match{Endpoint: "/k"}},
		)
		six, neighbour := netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::ffff")
		four, near := netip.MustParseAddr("203.0.113.7"), netip.MustParseAddr("203.0.113.99")
		send := func(path string, ip netip.Addr, n int) {
			for range n {
				check(t, l, &weir.Request{Path: path, IP: ip})
			}
		}
		send("/k", four, 20) // without a key, so it is counted by address: others there may have one
		if g.Dropped(four) {
			t.Error("the address of clients without a key is dropped")
		}
		send("/a", six, 4)
		if g.Dropped(six) {
			t.Error("dropped after three refusals")
		}
		send("/a", six, 1)
		send("/n", four, 5)
		for addr, want := range map[netip.Addr]bool{
			six: true, neighbour: true, four: true, near: true, netip.MustParseAddr("::ffff:203.0.113.7"): true,
			netip.MustParseAddr("203.0.114.7"): false, netip.MustParseAddr("2001:db8:0:1::1"): false,
		} {
			if g.Dropped(addr) != want {
				t.Errorf("%s: %v", addr, !want)
			}
		}
		time.Sleep(time.Minute)
		if g.Dropped(six) || g.Dropped(four) {
			t.Error("dropped when it need not wait any more")
		}
		send("/a", six, 2) // one is allowed, one refused
		if g.Dropped(six) {
			t.Error("dropped though a request was allowed")
		}
	})
}
