package test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/redistest"
)

// TestSharedLimitsSurviveFailovers checks failovers of the home's Redis with Sentinel. If the replica was up to date,
// the regions admit exactly the limit. If not, they admit at most as much extra as was admitted just before the primary
// died.
func TestSharedLimitsSurviveFailovers(t *testing.T) {
	t.Parallel()
	awayFromMidnight(t)
	rules := `
rules:
  - {id: rate, by: ["attr:rate"], missing: skip, scope: global, limit: 300/minute, on_store_failure: refuse}
  - {id: calm, by: ["attr:calm"], missing: skip, scope: global, algorithm: fixed_window, limit: 1000/day, on_store_failure: refuse}
  - {id: busy, by: ["attr:busy"], missing: skip, scope: global, algorithm: fixed_window, limit: 3000/day, on_store_failure: refuse}
`
	group := redistest.NewSentinel(t, redistest.Options{})
	all := areas(t, rules, 2*time.Second, place{name: "us", store: "redis-sentinel://" + strings.Join(group.Addrs(), ",") + "/" + redistest.MasterName},
		place{name: "eu"}, place{name: "ap"})
	in := values(all, "us", "eu", "ap")
	rate, calm, busy := oracleOf("rate"), oracleOf("calm"), oracleOf("busy")
	// Except for intended failovers, the Sentinels wait long. On a busy machine they might otherwise believe that the
	// new primary is dead, and promote the old one, which has just restarted empty.
	downAfter := func(ms string) {
		t.Helper()
		for _, s := range group.Sentinels {
			if _, err := s.Do(t.Context(), "SENTINEL", "SET", redistest.MasterName, "down-after-milliseconds", ms); err != nil {
				t.Fatal(err)
			}
		}
	}
	downAfter("60000")
	failOver := func(whileDead func()) (dead *redistest.Server) {
		t.Helper()
		primary, err := group.Primary(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		primary.Kill()
		downAfter("1000")
		whileDead()
		until(t, func() error {
			_, err := group.Primary(t.Context())
			return err
		})
		downAfter("60000")
		until(t, func() error {
			if status := rate.ask(t, all["us"], 0); failed(status) {
				return fmt.Errorf("%d", status)
			}
			return nil
		})
		return primary
	}

	replicated := func() {
		t.Helper()
		primary, err := group.Primary(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		replica := group.Servers[0]
		if replica == primary {
			replica = group.Servers[1]
		}
		until(t, func() error { return replica.Follows(t.Context(), primary) })
	}
	calm.flood(t, 2, func() bool { return calm.total() >= 400 }, in...)
	rate.flood(t, 2, func() bool { return rate.total() >= 200 }, in...)
	replicated()
	dead := failOver(func() {
		for range 50 {
			for _, a := range in {
				rate.ask(t, a, 0)
			}
		}
	})
	if err := dead.Restart(); err != nil { // not earlier, because it restarts empty
		t.Fatal(err)
	}
	until(t, func() error { return group.Healthy(t.Context()) })
	calm.spent(t, 1000, 2, in...)
	calm.unfailing(t)
	rate.flood(t, 1, func() bool { return rate.status(func(status int) bool { return status == 429 }) > 100 }, in...)
	rate.bucket(t, 300, 5, 0)

	var flooding sync.WaitGroup
	var enough atomic.Bool
	flooding.Go(func() { busy.flood(t, 4, enough.Load, in...) })
	until(t, func() error {
		if n := busy.total(); n < 1500 {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	followed := time.Now() // the replica has all that was answered by then
	replicated()
	var died time.Time
	failOver(func() { died = time.Now() })
	since := died.Add(-time.Second)
	if followed.Before(since) { // only on a busy machine
		since = followed
	}
	enough.Store(true)
	flooding.Wait()
	lost := int64(0)
	for _, x := range busy.admitted {
		if x.sent.Before(died) && x.answered.After(since) {
			lost += x.n
		}
	}
	refused := func() int { return busy.status(func(status int) bool { return status == 429 }) }
	was := refused()
	busy.flood(t, 2, func() bool { return refused() > was+2000 }, in...)
	if n := busy.total(); n < 3000 || n > 3000+lost {
		t.Errorf("%d were admitted of 3000, and %d in the moment before the primary died: %v", n, lost, busy.statuses)
	}
	t.Logf("rate: %v; busy: %d admitted, %d in the last moment of the primary: %v", rate.statuses, busy.total(), lost, busy.statuses)
}
