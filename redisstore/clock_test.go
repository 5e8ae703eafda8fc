package redisstore

import (
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/storetest"
	"pgregory.net/rapid"
)

// TestRedisClockStepsBack checks that an hour's step back, on two nodes at once, blocks no client for longer than a window and
// creates no tokens.
func TestRedisClockStepsBack(t *testing.T) {
	t.Parallel()
	oneServerAndACluster(t, func(t *testing.T, url string) {
		for _, a := range storetest.Algorithms {
			t.Run(a.String(), func(t *testing.T) {
				var us atomic.Int64
				us.Store(storetest.Start.UnixMicro())
				clock := func() time.Time { return time.UnixMicro(us.Load()) }
				nodes := []*Store{open(t, Options{URL: url, Now: clock}), open(t, Options{URL: url, Now: clock})}
				p := policy(t, fmt.Sprint("p", a), a, 10, time.Minute)
				subject := func(i int) string { return fmt.Sprint("s", i%20) }
				if got := storm(16, 400, func(i int) bool { return mustTake(t, nodes[i%2], charge1(p, subject(i))) }); got != 200 {
					t.Fatalf("%d admitted of 200", got)
				}
				us.Add(-time.Hour.Microseconds())
				if got := storm(16, 400, func(i int) bool { return mustTake(t, nodes[i%2], charge1(p, subject(i))) }); got != 0 {
					t.Errorf("the step back minted %d", got)
				}
				window := time.Minute
				if a == counter.SlidingCounter {
					window *= 2 // it is one window until the last one counts for less, and another until for nothing
				}
				us.Add(window.Microseconds())
				if got := storm(16, 200, func(i int) bool { return mustTake(t, nodes[i%2], charge1(p, subject(i))) }); got != 200 {
					t.Errorf("a window later %d admitted of 200", got)
				}
			})
		}
	})
}

// TestTheNodesClockDecidesNothing checks that calls contain no time of the node. So a node whose clock is ahead by seconds or
// hours gains nothing.
func TestTheNodesClockDecidesNothing(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	s := open(t, Options{URL: "redis://" + r.Addr})
	p := policy(t, "p", counter.TokenBucket, 10, time.Hour)
	var c call
	c.encode([]*act{takeAct(p, "key")}, s.time(), s.leastTTL, s.peers.id)
	if now := string(c.body[:7]); now != "\x00\x00\x00\x00\x00\x00\x00" {
		t.Errorf("the call carries the time %x", now)
	}
	redisTime := func() int64 {
		t.Helper()
		v := do(t, r, "TIME").([]any)
		seconds, errS := strconv.ParseInt(v[0].(string), 10, 64)
		micros, errM := strconv.ParseInt(v[1].(string), 10, 64)
		if errS != nil || errM != nil {
			t.Fatal(errS, errM)
		}
		return seconds*1e6 + micros
	}
	before := redisTime()
	slot := take(t.Context(), s, charge1(p, "s"))[0].Slot
	if after := redisTime(); slot < before || slot > after {
		t.Errorf("decided at %d, while Redis' clock went from %d to %d", slot, before, after)
	}
}

// However far ahead Redis' clock is, and however long its replies take, a node's estimate of Redis' time is off by at most half
// the length of the first call. Steps of the node's wall clock don't matter, since only its monotonic clock counts.
func TestTheClockFollowsRedis(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var c clock
		mine := time.Now() // monotonic
		ahead := time.Duration(rapid.Int64Range(-1e15, 1e15).Draw(t, "ahead"))
		first := time.Duration(-1)
		for range rapid.IntRange(1, 20).Draw(t, "beats") {
			there := time.Duration(rapid.Int64Range(0, 1e9).Draw(t, "there"))
			back := time.Duration(rapid.Int64Range(0, 1e9).Draw(t, "back"))
			if first < 0 {
				first = there + back
			}
			told := mine.Round(0).Add(there + ahead)
			c.see(told, mine, mine.Add(there+back))
			s := c.last.Load()
			mine = mine.Add(there + back)
			if off := s.redis.Add(mine.Sub(s.mine)).Sub(mine.Round(0).Add(ahead)).Abs(); off > first/2+1 {
				t.Fatalf("off by %v, and the first answer took %v", off, first)
			}
			mine = mine.Add(2 * time.Second)
		}
	})
	var c clock
	start := time.Now()
	c.see(start.Round(0).Add(time.Hour), start, start.Add(10*time.Millisecond))
	first := c.last.Load()
	if ahead := first.redis.Sub(start.Round(0)); ahead != time.Hour+5*time.Millisecond {
		t.Errorf("after the first answer it is %v ahead", ahead)
	}
	c.see(start.Round(0).Add(time.Hour+2*time.Second), start.Add(2*time.Second), start.Add(3*time.Second))
	if c.last.Load() != first {
		t.Error("a slow answer that agrees has moved it")
	}
	c.see(start.Round(0).Add(time.Minute), start.Add(4*time.Second), start.Add(4*time.Second+time.Millisecond))
	if got := c.last.Load().redis.Sub(start.Round(0)); got != time.Minute+time.Millisecond {
		t.Errorf("after Redis' clock was set back it is %v ahead", got)
	}
}
