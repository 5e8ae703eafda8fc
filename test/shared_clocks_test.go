package test

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/redistest"
)

// skewed is the clock of a Redis server. It is off by some time, and can be stepped.
type skewed struct {
	clock *redistest.Clock
	mu    sync.Mutex
	steps []step
}

// step is a change of a clock's error. It happened at some time between from and by.
type step struct {
	from, by time.Time
	skew     time.Duration
}

// to changes the clock's error.
func (c *skewed) to(t *testing.T, skew time.Duration) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	begun := time.Now()
	c.clock.Set(t, skew)
	c.steps = append(c.steps, step{begun, time.Now(), skew})
}

// between returns the smallest and the largest error that the clock may have had between two times.
func (c *skewed) between(from, to time.Time) (least, most time.Duration) {
	least, most = math.MaxInt64, math.MinInt64
	for i, s := range c.steps {
		if s.from.After(to) || i+1 < len(c.steps) && c.steps[i+1].by.Before(from) {
			continue
		}
		least, most = min(least, s.skew), max(most, s.skew)
	}
	return least, most
}

// newSkewed starts a Redis server whose clock is off by skew.
func newSkewed(t *testing.T, skew time.Duration) (*redistest.Server, *skewed) {
	t.Helper()
	c := &skewed{clock: redistest.NewClock(t, skew)}
	c.to(t, skew)
	redis := redistest.New(t, c.clock.Options())
	begun := time.Now()
	at, err := redis.Do(t.Context(), "EVAL", "local t = redis.call('TIME') return t[1] * 1000000 + t[2]", "0")
	if err != nil {
		t.Fatal(err)
	}
	if is := time.UnixMicro(at.(int64)).Add(-skew + time.Millisecond); is.Before(begun) || is.After(time.Now().Add(2*time.Millisecond)) {
		t.Fatalf("with %v, the clock is %v off", skew, time.Until(is))
	}
	return redis, c
}

// sharedAndClocks checks shared limits with wrong clocks: one region's clock is a second behind, one's is a second
// ahead, and two are stepped while tokens are lent. No window admits more than its limit, whichever region enters it
// first. A budget is used up to the last token. A bucket admits only as much extra as clocks that step forward refill
// too early.
func sharedAndClocks(t *testing.T) {
	const limit = 200
	clocks := map[string]*skewed{}
	var places []place
	for _, r := range []struct {
		name string
		skew time.Duration
	}{{"us", 0}, {"eu", -1}, {"ap", 1}, {"sa", 0}} {
		redis, clock := newSkewed(t, r.skew*time.Second)
		places, clocks[r.name] = append(places, place{name: r.name, redis: redis}), clock
	}
	all := areas(t, fmt.Sprintf(`
rules:
  - {id: short, by: ["attr:short"], missing: skip, scope: global, algorithm: fixed_window, limit: %d/10s}
  - {id: daily, by: ["attr:daily"], missing: skip, scope: global, algorithm: fixed_window, limit: 2000/day}
  - {id: rate, by: ["attr:rate"], missing: skip, scope: global, limit: 300/minute}
`, limit), 2*time.Second, places...)
	in := values(all, "us", "eu", "ap", "sa")
	short, daily, rate := oracleOf("short"), oracleOf("daily"), oracleOf("rate")
	short.pace, daily.pace, rate.pace = 40*time.Millisecond, 150*time.Millisecond, 60*time.Millisecond
	end := time.Now().Add(24 * time.Second)
	var wait sync.WaitGroup
	for _, o := range []*oracle{short, daily, rate} {
		wait.Go(func() { o.flood(t, 1, func() bool { return time.Now().After(end) }, in...) })
	}
	for _, s := range []struct {
		region string
		skew   time.Duration
	}{{"sa", 1}, {"us", 1}, {"sa", 0}, {"us", 0}, {"sa", -1}, {"sa", 0}} {
		time.Sleep(3 * time.Second)
		clocks[s.region].to(t, s.skew*time.Second)
	}
	wait.Wait()
	rate.bucket(t, 300, 5, 5*(0.85+2*0.05)) // us steps forward once, sa twice
	daily.pace = 0
	daily.spent(t, 2000, 2, in...)
	for _, o := range []*oracle{short, daily, rate} {
		o.unfailing(t)
	}

	// An admission counts for a window if the clock certainly wasn't at the window's edge. A window that a region has
	// entered stays current if its clock steps back.
	windows, latest := map[int64]int{}, map[string]int64{}
	first, last := int64(math.MaxInt64), int64(0)
	everything := slices.Concat(short.admitted, short.refused)
	slices.SortFunc(everything, func(a, b admission) int { return a.sent.Compare(b.sent) })
	admitted := map[admission]bool{}
	for _, x := range short.admitted {
		admitted[x] = true
	}
	known := 0
	for _, x := range everything {
		least, most := clocks[x.region].between(x.sent, x.answered)
		from, to := x.sent.Add(least).UnixMilli()/10_000, x.answered.Add(most).UnixMilli()/10_000
		if admitted[x] {
			first, last = min(first, from), max(last, to)
			if from == to && latest[x.region] <= from {
				windows[from]++
				known++
			}
		}
		latest[x.region] = max(latest[x.region], to)
	}
	for window, n := range windows {
		if n > limit {
			t.Errorf("%d were admitted of %d in window %d", n, limit, window)
		}
	}
	if n := len(short.admitted); n > int(last-first+1)*limit {
		t.Errorf("%d were admitted in %d windows of %d", n, last-first+1, limit)
	}
	t.Logf("%d were admitted, in windows %v; in a window that is known: %d; rate: %d", len(short.admitted), windows, known, rate.total())
}
