package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/storetest"
)

// withHolds has a policy of every algorithm, and how much ten charges may take.
func withHolds(t testing.TB, count int64) map[*counter.Policy]int64 {
	t.Helper()
	policies := map[*counter.Policy]int64{slotted(t, "slots", count, time.Hour): 1}
	for _, a := range storetest.Algorithms {
		policies[policy(t, fmt.Sprint("p", a), a, count, year/2)] = 1
	}
	for _, a := range []counter.Algorithm{counter.TokenBucket, counter.LeakyBucket, counter.FixedWindow} {
		p := amounts(t, fmt.Sprint("amount", a), a, count, year/2)
		p = p.With(func(d *counter.Definition) { d.GivesBack = true })
		policies[p] = 1_000_000
	}
	p := storetest.Policy(t, "month", counter.Limit{Algorithm: counter.FixedWindow, Count: count, Window: 31 * 24 * time.Hour, Calendar: counter.Calendar{Unit: counter.Month}})
	policies[p] = 1
	return policies
}

// TestAFullRedisMakesNoHolds checks that nothing is taken if its hold can't be stored. Existing holds are still renewed,
// released and settled.
func TestAFullRedisMakesNoHolds(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	s := open(t, Options{URL: "redis://" + r.Addr})
	policies := withHolds(t, 10)
	taken := map[*counter.Policy]counter.Result{}
	for p, n := range policies {
		taken[p] = take(t.Context(), s, holding(p, "s", 2*n, 1))[0]
		mustTake(t, s, holding(p, "s", n, 2))
	}
	do(t, r, "CONFIG", "SET", "maxmemory", "1")
	for p, n := range policies {
		before := left(t, s, p, "s")
		res := take(t.Context(), s, holding(p, "s", n, 3), holding(p, "new", n, 3))
		for i, r := range res {
			if !errors.Is(r.Err, counter.ErrNoRoom) {
				t.Errorf("%s: charge %d: %+v", p.Name, i, r)
			}
		}
		if got := left(t, s, p, "s"); got < before || got > before+n/100+1 {
			t.Errorf("%s: %d left, want %d: it was debited without a record", p.Name, got, before)
		}
		gone(t, r, s, p, "new")
		c := holding(p, "s", n, 2)
		_, ends := keysOf(s, p, "s")
		end := func() any { return do(t, r, "ZSCORE", ends, string(c.Hold.ID[:])) }
		was := end()
		if res := take(t.Context(), s, c)[0]; res.Err != nil || !res.Allowed || (end() == was) == (p.Limit.Algorithm == counter.Concurrency) {
			t.Errorf("%s: repeated: %+v, and ends at %v, as before or not: only slots are renewed", p.Name, res, was)
		}
		settled := back(holding(p, "s", 2*n, 1), taken[p], n)
		if err := s.GiveBack(t.Context(), counter.Once{}, 0, []counter.Return{settled}); err != nil {
			t.Errorf("%s: settled: %v", p.Name, err)
		}
		want := before + n
		if p.Limit.Algorithm == counter.Concurrency {
			want = before + 2*n
		}
		if got := left(t, s, p, "s"); got < want || got > want+n/100+1 {
			t.Errorf("%s: %d left after the settlement, want %d", p.Name, got, want)
		}
	}
	// The excess is charged even if the counter is gone.
	p := amounts(t, "amountfixed", counter.FixedWindow, 10, year/2)
	owed := back(holding(p, "gone", 1_000_000, 9), counter.Result{}, 3_000_000)
	if err := s.GiveBack(t.Context(), counter.Once{}, 0, []counter.Return{owed}); err != nil || left(t, s, p, "gone") != 8_000_000 {
		t.Errorf("booked: %v, %d left", err, left(t, s, p, "gone"))
	}
	if h := s.Health(); !h.Up {
		t.Errorf("held against Redis: %+v", h)
	}
	do(t, r, "CONFIG", "SET", "maxmemory", "0")
	for p, n := range policies {
		if !mustTake(t, s, holding(p, "s", n, 3)) {
			t.Errorf("%s: refused with memory", p.Name)
		}
	}
	lasting(t, r)
}

// TestGuestsMakeNoHolds checks that guests get no holds while memory is short, and get an error that says so.
func TestGuestsMakeNoHolds(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	s := open(t, Options{URL: "redis://" + r.Addr})
	s.tight.Store(true)
	for p, n := range withHolds(t, 10) {
		c := holding(p, "s", n, 1)
		c.Guest = true
		if res := take(t.Context(), s, c)[0]; !errors.Is(res.Err, counter.ErrNoRoom) {
			t.Errorf("%s: %+v", p.Name, res)
		}
		gone(t, r, s, p, "s")
		if n := do(t, r, "EXISTS", keyOf(s, p, "s")); n != int64(0) {
			t.Errorf("%s: a counter was made", p.Name)
		}
	}
}

// TestSpoiledHoldsConcernNobodyElse checks that invalid data of holds is dropped, and that acts in the same call aren't
// affected.
func TestSpoiledHoldsConcernNobodyElse(t *testing.T) {
	t.Parallel()
	r := redistest.New(t, redistest.Options{})
	s := open(t, Options{URL: "redis://" + r.Addr})
	spoils := map[string][][]string{}
	for _, key := range []string{"H", "E"} {
		spoils["text "+key] = [][]string{{"SET", key, "x"}}
		spoils["list "+key] = [][]string{{"RPUSH", key, "a", "b"}}
		spoils["gone "+key] = [][]string{{"DEL", key}}
	}
	spoils["a set of records"] = [][]string{{"DEL", "H"}, {"ZADD", "H", "1", "a"}}
	spoils["a hash of ends"] = [][]string{{"DEL", "E"}, {"HSET", "E", "a", "b"}}
	spoils["ends of nobody"] = [][]string{{"ZADD", "E", "1", "a", "2", "b", "-inf", "c", "inf", "d"}}
	for _, n := range []int{0, 1, 7, 8, 9, 14, 15, 16, 1000} {
		text := strings.Repeat("\xff", n)
		first := id(1)
		spoils[fmt.Sprint(n, " bytes")] = [][]string{{"HSET", "H", string(first[:]), text, "s", text}}
	}
	for p, n := range withHolds(t, 10) {
		for what, commands := range spoils {
			for _, kind := range []kind{kindTake, kindGiveBack, kindReset} {
				spoiled := fmt.Sprint(p.Name, what, kind)
				records, ends := keysOf(s, p, spoiled)
				for i := range 10 {
					mustTake(t, s, holding(p, spoiled, n, i))
				}
				for _, c := range commands {
					c = append([]string{}, c...)
					c[1] = map[string]string{"H": records, "E": ends}[c[1]]
					if c[0] != "ZADD" && c[0] != "HSET" {
						do(t, r, "DEL", c[1])
					}
					do(t, r, c...)
					do(t, r, "PEXPIRE", c[1], "100000")
				}
				var acts []*act
				for i := range 8 {
					who := fmt.Sprint(spoiled, i)
					if i == 4 {
						who = spoiled
					}
					c := holding(p, who, n, 1)
					ch := charge{policy: p, key: keyOf(s, p, who)}
					one := &act{}
					if i == 4 {
						one.kind = kind
					}
					if one.kind == kindGiveBack {
						ret := back(c, counter.Result{Slot: 1}, n)
						ch.settle(&ret)
					} else {
						ch.ask(&c, nil)
					}
					one.charges = []charge{ch}
					if one.kind == kindReset {
						one.charges[0].hold = nil
					}
					acts = append(acts, one)
				}
				if err := s.call(t.Context(), &s.joiners[0], acts); err != nil {
					t.Fatalf("%s, act %d: %v", spoiled, kind, err)
				}
				for i, a := range acts {
					if i != 4 && !a.charges[0].fits {
						t.Errorf("%s: a neighbour was refused", spoiled)
					}
				}
				// Lost slots are free again at once, since they might otherwise never end.
				free := 0
				for i := range 10 {
					if mustTake(t, s, holding(p, spoiled, n, 100+i)) {
						free++
					}
				}
				if p.Limit.Algorithm == counter.Concurrency && (what == "gone E" || strings.HasPrefix(what, "text") || strings.HasPrefix(what, "list")) && free < 9 {
					t.Errorf("%s: %d slots of 10 are free afterwards", spoiled, free)
				}
			}
		}
	}
	if h := s.Health(); !h.Up || s.joiners[0].shard.Load().fails.Load() != 0 {
		t.Errorf("spoiled holds are held against Redis: %+v", h)
	}
	lasting(t, r)
}

// TestHoldsLiveAsLongAsTheyMatter checks that the keys of holds live long enough, and not much longer.
func TestHoldsLiveAsLongAsTheyMatter(t *testing.T) {
	t.Parallel()
	r := redistest.New(t, redistest.Options{})
	s := open(t, Options{URL: "redis://" + r.Addr})
	p := amounts(t, "p", counter.TokenBucket, 10, time.Hour)
	p = p.With(func(d *counter.Definition) { d.GivesBack = true })
	for i, c := range []struct {
		last    time.Duration // of the holds, one after the other
		then    time.Duration
		back    bool
		atLeast time.Duration
	}{
		{time.Second, time.Millisecond, false, time.Second},
		{time.Millisecond, time.Hour, false, time.Hour},
		{time.Hour, time.Second, false, time.Hour},
		{time.Minute, time.Minute, true, 24*time.Hour + time.Minute},
		{24 * time.Hour, time.Second, true, 24*time.Hour + time.Second},
	} {
		subject := fmt.Sprint("s", i)
		for j, d := range []time.Duration{c.last, c.then} {
			h := holding(p, subject, 1, j)
			h.Hold.For, h.Hold.GiveBack = d, c.back && j == 1
			mustTake(t, s, h)
		}
		records, ends := keysOf(s, p, subject)
		for _, key := range []string{records, ends} {
			if ttl := pttl(t, r, key); ttl < c.atLeast-time.Second || ttl > c.atLeast*9/8+2*time.Second {
				t.Errorf("%d: %s lives for %v, want %v and a bit", i, key, ttl, c.atLeast)
			}
		}
	}
	lasting(t, r)
}

// TestCalendarCountersLiveOn checks that calendar counters live until after their window's end.
func TestCalendarCountersLiveOn(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	s := open(t, Options{URL: "redis://" + r.Addr})
	for _, unit := range []counter.CalendarUnit{counter.Day, counter.Week, counter.Month} {
		length := map[counter.CalendarUnit]time.Duration{counter.Day: 1, counter.Week: 7, counter.Month: 31}[unit] * 24 * time.Hour
		p := storetest.Policy(t, unit.String(), counter.Limit{Algorithm: counter.FixedWindow, Count: 10, Window: length, Calendar: counter.Calendar{Unit: unit}})
		res := take(t.Context(), s, charge1(p, unit.String()))[0]
		if ttl := pttl(t, r, keyOf(s, p, unit.String())); res.Err != nil || ttl < res.ResetAfter || ttl > 6*length {
			t.Errorf("a %s that ends in %v lives for %v (%v)", unit, res.ResetAfter, ttl, res.Err)
		}
	}
}

// TestARefusedRequestHoldsNothing checks a request with charges in two hash slots of a Cluster, one of which is refused. The
// other one's new hold is removed, but a hold that existed before stays.
func TestARefusedRequestHoldsNothing(t *testing.T) {
	t.Parallel()
	c := redistest.NewCluster(t, redistest.Options{})
	s := open(t, Options{URL: clusterURL(c)})
	servers := map[string]*redistest.Server{}
	policies := withHolds(t, 10)
	narrow := slotted(t, "narrow", 1, time.Hour)
	apart := apart(s, "s")
	mustTake(t, s, holding(narrow, apart[1], 1, 1))
	for p, n := range policies {
		records, _ := keysOf(s, p, apart[0])
		owner, err := c.Owner(t.Context(), records)
		if err != nil {
			t.Fatal(err)
		}
		servers[apart[0]] = owner
		before := left(t, s, p, apart[0])
		for i := range 3 {
			res := take(t.Context(), s, holding(p, apart[0], n, 5+i), holding(narrow, apart[1], 1, 2), peek1(p, apart[2]))
			if !res[0].Allowed || res[1].Allowed || res[0].Err != nil || res[1].Err != nil || res[0].Remaining != before {
				t.Fatalf("%s: %+v", p.Name, res)
			}
		}
		until(t, func(context.Context) error {
			if n := do(t, owner, "EXISTS", records); n != int64(0) {
				return fmt.Errorf("%s: holds are left", p.Name)
			}
			return nil
		})
		gone(t, owner, s, p, apart[0])
		if got := left(t, s, p, apart[0]); got < before-n/100 {
			t.Errorf("%s: %d left, want %d", p.Name, got, before)
		}
		mustTake(t, s, holding(p, apart[0], n, 5))
		mid := left(t, s, p, apart[0])
		if res := take(t.Context(), s, holding(p, apart[0], n, 5), holding(narrow, apart[1], 1, 2)); !res[0].Allowed || res[1].Allowed {
			t.Errorf("%s: %+v", p.Name, res)
		}
		if got := do(t, owner, "EXISTS", records); got != int64(1) {
			t.Errorf("%s: a refused repetition has ended the hold of the first request", p.Name)
		}
		if got := left(t, s, p, apart[0]); got < mid || got > mid+n/100+1 {
			t.Errorf("%s: a refused repetition gave back what the first request took: %d left, want %d", p.Name, got, mid)
		}
	}
	lasting(t, primaries(t, c)...)
}

// TestASettlementIsCompleted checks that repeating a settlement completes it after a node died halfway.
func TestASettlementIsCompleted(t *testing.T) {
	t.Parallel()
	c := redistest.NewCluster(t, redistest.Options{})
	s := open(t, Options{URL: clusterURL(c)})
	p, plain := amounts(t, "p", counter.FixedWindow, 100, year), policy(t, "plain", counter.FixedWindow, 100, year)
	apart := apart(s, "s")
	var returns []counter.Return
	for _, subject := range apart {
		charge := holding(p, subject, 50_000_000, 1)
		returns = append(returns, back(charge, take(t.Context(), s, charge)[0], 20_000_000))
	}
	last := charge1(plain, tagged(s, 77, "other"))
	returns = append(returns, counter.Return{Counter: last.Counter, N: 1, Slot: take(t.Context(), s, last)[0].Slot})
	once := id(99)
	check := func(what string, want ...int64) {
		t.Helper()
		for i, w := range want {
			if got := left(t, s, p, apart[i]); got != w*1_000_000 {
				t.Errorf("%s: %d left of %d, want %d", what, got, i, w)
			}
		}
	}
	check("reserved", 50, 50, 50)
	if err := s.GiveBack(t.Context(), once, time.Hour, returns[:1]); err != nil {
		t.Fatal(err)
	}
	check("one part", 80, 50, 50)
	if err := s.GiveBack(t.Context(), once, time.Hour, returns); err != nil {
		t.Errorf("the rest: %v", err)
	}
	check("the rest", 80, 80, 80)
	if got := used(t, s, plain, string(last.Subject)); got != 1 {
		t.Errorf("what isn't marked went back after the first part had: %d used", got)
	}
	for range 3 {
		if err := s.GiveBack(t.Context(), once, time.Hour, returns); err != counter.ErrUsed {
			t.Errorf("again: %v", err)
		}
	}
	check("again", 80, 80, 80)
	lasting(t, primaries(t, c)...)
}
