package test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/redistest"
)

// sharedRules are limits that regions share: a bucket, budgets per day and per month, and budgets of tokens.
const sharedRules = `
rules:
  - {id: rate, by: ["attr:rate"], missing: skip, scope: global, limit: 300/minute}
  - {id: daily, by: ["attr:daily"], missing: skip, scope: global, algorithm: fixed_window, limit: 2000/day}
  - {id: monthly, by: ["attr:monthly"], missing: skip, scope: global, limit: 2000/month, calendar: {tz: Asia/Tokyo}}
  - {id: hot, by: ["attr:hot"], missing: skip, scope: global, algorithm: fixed_window, limit: 600/day}
  - {id: tokens, by: ["attr:tokens"], missing: skip, amount: tokens, scope: global, limit: 10000/month}
  - {id: held, by: ["attr:held"], missing: skip, amount: tokens, scope: global, limit: 3000/month}
`

// TestSharedLimits checks that three regions, 150 ms apart, one of them with two nodes, together admit as much as a
// single region would.
func TestSharedLimits(t *testing.T) {
	t.Parallel()
	awayFromMidnight(t)
	all := areas(t, sharedRules, 10*time.Second, place{name: "us"}, place{name: "eu", nodes: 2}, place{name: "ap"})
	in := values(all, "us", "eu", "ap")
	t.Run("spent to the last token", func(t *testing.T) { spentExactly(t, in) })
	t.Run("a hot key", func(t *testing.T) { hotKey(t, in) })
	t.Run("reservations", func(t *testing.T) { reservations(t, all) })
}

// spentExactly checks that, under load in all regions, budgets are used up to the last token and no further, and a
// bucket stays within its bound.
func spentExactly(t *testing.T, in []*area) {
	rate, daily, monthly := oracleOf("rate"), oracleOf("daily"), oracleOf("monthly")
	var wait sync.WaitGroup
	wait.Go(func() { daily.spent(t, 2000, 6, in...) })
	wait.Go(func() { monthly.spent(t, 2000, 6, in...) })
	wait.Go(func() {
		begun := time.Now()
		rate.flood(t, 2, func() bool { return time.Since(begun) > 8*time.Second }, in...)
	})
	wait.Wait()
	rate.bucket(t, 300, 5, 0)
	for _, o := range []*oracle{rate, daily, monthly} {
		o.unfailing(t)
	}
	t.Logf("in the budgets' last moments, %d and %d were refused while others were admitted", daily.falsely(), monthly.falsely())
}

// hotKey sends hundreds of concurrent requests for one counter to two nodes that share a Redis, and to the other
// regions. None fails, and none is refused while tokens are left. That also holds for reservations with ids, which can
// be repeated.
func hotKey(t *testing.T, in []*area) {
	hot, held := oracleOf("hot"), oracleOf("held")
	held.more = `, "amounts": {"tokens": 5}, "reserve": "1h", "id": "%d"`
	var wait sync.WaitGroup
	for i := range 480 {
		a := in[[]int{0, 1, 1, 2}[i%4]]
		wait.Go(func() { hot.ask(t, a, i) })
		wait.Go(func() { held.ask(t, a, i) })
	}
	wait.Wait()
	for _, o := range []*oracle{hot, held} {
		o.unfailing(t)
		if n := o.total(); n != 480 {
			t.Errorf("%s: %d were admitted of 480, and there were 600: %v", o.of, n, o.statuses)
		}
	}
	hot.spent(t, 600, 1, in...)
}

// reservations checks that a reservation in one region counts in all regions, is charged once per id, and can be
// settled on any node of its region.
func reservations(t *testing.T, all map[string]*area) {
	type reply struct {
		Receipt string
		Already bool
	}
	send := func(a *area, i int, path, body string, want int) (got reply) {
		t.Helper()
		status, text := post(t, asking, a.nodes[i].HTTP+path, body)
		if err := json.Unmarshal([]byte(text), &got); err != nil || status != want {
			t.Errorf("%s %s: %d %s, want %d", path, body, status, text, want)
		}
		return got
	}
	reserve := func(a *area, i int, tokens int, id string, want int) string {
		t.Helper()
		return send(a, i, "/v1/check", fmt.Sprintf(`{"attributes": {"tokens": "x"}, "amounts": {"tokens": %d}, "reserve": "1h", "id": %q}`, tokens, id), want).Receipt
	}
	us, eu, ap := all["us"], all["eu"], all["ap"]
	first := reserve(eu, 0, 6000, "a", 200)
	reserve(eu, 1, 6000, "a", 200) // the same id is charged once
	reserve(ap, 0, 4001, "b", 429)
	settle := fmt.Sprintf(`{"receipt": %q, "amounts": {"tokens": 1000}}`, first)
	if send(eu, 1, "/v1/settle", settle, 200).Already || !send(eu, 0, "/v1/settle", settle, 200).Already {
		t.Error("only the second settlement must be reported as repeated")
	}
	var last string
	until(t, func() error { // regions that found no tokens wait before they ask again
		status, text := post(t, asking, ap.nodes[0].HTTP+"/v1/check", `{"attributes": {"tokens": "x"}, "amounts": {"tokens": 9000}, "reserve": "1h", "id": "c"}`)
		var got reply
		if err := json.Unmarshal([]byte(text), &got); err != nil || status != 200 {
			return fmt.Errorf("%d: %s", status, text)
		}
		last = got.Receipt
		return nil
	})
	for _, a := range all {
		reserve(a, 0, 1, "d", 429)
	}
	send(ap, 0, "/v1/refund", fmt.Sprintf(`{"receipt": %q}`, last), 200)
	send(ap, 0, "/v1/refund", fmt.Sprintf(`{"receipt": %q}`, last), 409) // a second refund fails
	until(t, func() error {
		if status, text := post(t, asking, us.nodes[0].HTTP+"/v1/check", `{"attributes": {"tokens": "x"}, "amounts": {"tokens": 9000}}`); status != 200 {
			return fmt.Errorf("%d: %s", status, text)
		}
		return nil
	})
	for _, a := range all {
		reserve(a, 0, 1, "e", 429)
	}
}

// cutRules are limits that show what happens while a region is cut off.
const cutRules = `
rules:
  - {id: rate, by: ["attr:rate"], missing: skip, scope: global, limit: 300/minute}
  - {id: daily, by: ["attr:daily"], missing: skip, scope: global, algorithm: fixed_window, limit: 2000/day}
  - {id: own, by: ["attr:own"], missing: skip, scope: global, algorithm: fixed_window, limit: 200/day}
  - {id: apart, by: ["attr:apart"], missing: skip, scope: global, on_partition: local, algorithm: fixed_window, limit: 100/day}
  - {id: closed, by: ["attr:closed"], missing: skip, scope: global, on_partition: refuse, algorithm: fixed_window, limit: 100/day}
`

// TestSharedLimitsUnderFaults runs its tests concurrently, however many cores there are, because they mostly wait.
func TestSharedLimitsUnderFaults(t *testing.T) {
	t.Parallel()
	awayFromMidnight(t)
	var all sync.WaitGroup
	for name, test := range map[string]func(*testing.T){
		"cuts":                sharedUnderCuts,
		"stores that forget":  storesThatForget,
		"numbers that change": numbersThatChange,
		"clocks":              sharedAndClocks,
		"a home that moves":   homeThatMoves,
	} {
		all.Go(func() { t.Run(name, test) })
	}
	all.Wait()
}

// sharedUnderCuts delays one region, cuts off another, drops a third one's requests, and drops the replies to a fourth.
// No bound is exceeded, each region uses what its rules leave it, and in the end a budget is used up to the last token.
func sharedUnderCuts(t *testing.T) {
	all := areas(t, cutRules, 500*time.Millisecond, place{name: "us"}, place{name: "eu"}, place{name: "ap"}, place{name: "sa"})
	in := values(all, "us", "eu", "ap", "sa")
	us, eu, ap, sa := in[0], in[1], in[2], in[3]
	rate, daily := oracleOf("rate"), oracleOf("daily")
	rate.pace, daily.pace = 60*time.Millisecond, 60*time.Millisecond
	over := make(chan struct{})
	isOver := func() bool {
		select {
		case <-over:
			return true
		default:
			return false
		}
	}
	var wait sync.WaitGroup
	wait.Go(func() { rate.flood(t, 1, isOver, in...) })
	wait.Go(func() { daily.flood(t, 1, func() bool { return isOver() || daily.total() > 1500 }, in...) })

	us.far(t, 400*time.Millisecond)
	until(t, func() error {
		if n := daily.total(); n < 150 {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	us.far(t, 150*time.Millisecond)
	eu.each(t, all, func(w *redistest.Proxy) error { w.Down(); return nil })
	for _, other := range all {
		for _, w := range other.ways["ap"] {
			if err := w.DropCommands(); err != nil {
				t.Fatal(err)
			}
		}
		for _, w := range other.ways["sa"] {
			if err := w.DropReplies(); err != nil {
				t.Fatal(err)
			}
		}
	}
	closed := oracleOf("closed")
	cut := []*area{eu, ap, sa}
	for _, a := range cut {
		until(t, func() error {
			if status := closed.ask(t, a, 0); status != http.StatusServiceUnavailable {
				return fmt.Errorf("%s: %d", a.name, status)
			}
			return nil
		})
	}
	own, apart := oracleOf("own"), oracleOf("apart")
	for _, a := range append(cut, us) {
		for range 180 {
			own.ask(t, a, 0)
		}
		for range 105 {
			apart.ask(t, a, 0)
		}
		floor, whole := int64(10), int64(100)
		if a == us {
			floor, whole = 170, 95 // us owns 170; ap and sa, which still respond to us, don't use all of theirs
		}
		if n := own.total(a.name); n != floor && a != us || n > floor {
			t.Errorf("%s: %d were admitted of its own %d", a.name, n, floor)
		}
		if n := apart.total(a.name); n != whole && a != us || n > whole {
			t.Errorf("%s: %d were admitted of %d, which are the whole limit", a.name, n, whole)
		}
		if n := apart.degraded[a.name]; n != 105 && a != us || n != 0 && a == us {
			t.Errorf("%s: %d answers of 105 were degraded", a.name, n)
		}
		if n := own.degraded[a.name]; n != 0 {
			t.Errorf("%s: %d answers about what is its own were degraded", a.name, n)
		}
	}
	for _, w := range []*oracle{own, rate, daily} {
		w.unfailing(t)
	}
	eu.each(t, all, (*redistest.Proxy).Up)
	mend(t, all)
	close(over)
	wait.Wait()
	rate.bucket(t, 300, 5, 0)
	atCut := daily.total()
	daily.pace = 0
	daily.spent(t, 2000, 2, in...)
	own.spent(t, 200, 1, in...)
	t.Logf("rate: %d admitted; daily: %d before it was mended: %v; closed: %v", rate.total(), atCut, daily.statuses, closed.statuses)
}

// storesThatForget loses data: a region's Redis is emptied, then the home's, the home's Redis restarts from an older
// snapshot, and the home's node dies. No request hangs, and at most the limit plus the forgotten tokens are admitted.
func storesThatForget(t *testing.T) {
	rules := "rules:\n  - {id: rate, by: [\"attr:rate\"], missing: skip, scope: global, limit: 300/minute}\n"
	for _, name := range []string{"eu", "us", "snapshot", "killed"} {
		rules += fmt.Sprintf("  - {id: %s, by: [\"attr:%s\"], missing: skip, scope: global, algorithm: fixed_window, limit: 1000/day}\n", name, name)
	}
	all := areas(t, rules, 2*time.Second, place{name: "us"}, place{name: "eu"}, place{name: "ap"})
	in := values(all, "us", "eu", "ap")
	us, eu := all["us"], all["eu"]
	use := func(o *oracle, n int64, in ...*area) {
		t.Helper()
		o.flood(t, 2, func() bool { return o.total() >= n }, in...)
	}
	do := func(a *area, command string) {
		t.Helper()
		if _, err := a.redis.Do(t.Context(), command); err != nil {
			t.Fatal(err)
		}
	}
	// exhaust sends requests until all regions have refused for longer than they wait before they ask other regions
	// again
	exhaust := func(o *oracle, bound func() int64) {
		t.Helper()
		o.pace = 5 * time.Millisecond
		last, at := o.total(), time.Now()
		o.flood(t, 1, func() bool {
			o.mu.Lock()
			defer o.mu.Unlock()
			if n := int64(len(o.admitted)); n != last {
				last, at = n, time.Now()
			}
			return time.Since(at) > 4500*time.Millisecond
		}, in...)
		// After a restart of Redis, old connections fail on their first request, which on_store_failure then decides.
		uncounted := int64(0)
		for _, n := range o.degraded {
			uncounted += int64(n)
		}
		clear(o.degraded)
		o.unfailing(t)
		if n, most := o.total(), bound()+uncounted; n > most || n < 600 { // tokens that a region had borrowed may be lost
			t.Errorf("%s: %d were admitted, at most %d may be: %v", o.of, n, most, o.statuses)
		} else {
			t.Logf("%s: %d were admitted, at most %d may be", o.of, n, most)
		}
	}
	// eu forgets that it has spent or lent its floor: 50 of 1000, and 15 of 300. The tokens that it borrowed are lost.
	rate, inEU := oracleOf("rate"), oracleOf("eu")
	use(inEU, 600, in...)
	use(rate, 250, in...)
	do(eu, "FLUSHALL")

	// The node dies, but its Redis stays up, so nothing is forgotten.
	killed := oracleOf("killed")
	use(killed, 500, in...)
	_ = us.nodes[0].cmd.Process.Signal(syscall.SIGKILL)
	for range 100 {
		for _, a := range values(all, "eu", "ap") {
			killed.ask(t, a, 0)
			rate.ask(t, a, 0)
		}
	}
	us.nodes[0] = start(t, us.args...)
	us.serves(t, 0)
	us.far(t, 150*time.Millisecond)
	hear(t, all)
	killed.spent(t, 1000, 1, in...)
	killed.unfailing(t)

	// The home's Redis restarts from a snapshot. It forgets what it has admitted and lent since.
	snapshot := oracleOf("snapshot")
	use(snapshot, 400, in...)
	do(us, "SAVE")
	saved, others := snapshot.total(), snapshot.total("eu", "ap")
	use(snapshot, 600, us)
	forgotten := snapshot.total() - saved
	if err := us.redis.Restart(); err != nil {
		t.Fatal(err)
	}
	us.upAgain(t)
	var wait sync.WaitGroup
	wait.Go(func() { exhaust(inEU, func() int64 { return 1000 + 50 }) })
	wait.Go(func() {
		exhaust(snapshot, func() int64 { return 1000 + forgotten + snapshot.total("eu", "ap") - others })
	})
	wait.Wait()

	// The home forgets what it has spent and lent of its own tokens: 900 of 1000, and 270 of 300.
	home := oracleOf("us")
	use(home, 600, in...)
	do(us, "FLUSHALL")
	use(rate, rate.total()+100, in...)
	exhaust(home, func() int64 { return 1000 + 900 })
	rate.bucket(t, 300, 5, 15+270)
	rate.unfailing(t)
}

// numbersThatChange lowers and raises a limit in one region after the other. Meanwhile at most the larger limit is
// admitted. Once all regions have the new limit and the loans have ended, at most the new one is admitted.
func numbersThatChange(t *testing.T) {
	rules := func(rate, daily int) string {
		return fmt.Sprintf(`
rules:
  - {id: rate, by: ["attr:rate"], missing: skip, scope: global, limit: %d/minute}
  - {id: daily, by: ["attr:daily"], missing: skip, scope: global, algorithm: fixed_window, limit: %d/day}
`, rate, daily)
	}
	all := areas(t, rules(600, 1000), 2*time.Second, place{name: "us"}, place{name: "eu"}, place{name: "ap"})
	in := values(all, "us", "eu", "ap")
	apply := func(rate, daily int) {
		t.Helper()
		for _, a := range in {
			write(t, a.rules, rules(rate, daily))
			until(t, func() error {
				if _, text := admin(t, a.nodes[0], "GET", "/v1/rules", ""); !strings.Contains(text, fmt.Sprintf("%d/day", daily)) {
					return fmt.Errorf("%s: %s", a.name, text)
				}
				return nil
			})
		}
	}
	rate, daily := oracleOf("rate"), oracleOf("daily")
	rate.pace = 30 * time.Millisecond
	over := make(chan struct{})
	var wait sync.WaitGroup
	wait.Go(func() {
		rate.flood(t, 1, func() bool {
			select {
			case <-over:
				return true
			default:
				return false
			}
		}, in...)
	})
	daily.flood(t, 2, func() bool { return daily.total() >= 300 }, in...)
	apply(120, 600)
	lowered := time.Now()
	// Floors are now 30 instead of 50. eu and ap may each have used 20 more before, which the home doesn't know.
	daily.flood(t, 2, func() bool { return daily.total() >= 600 }, in...)
	daily.pace = 20 * time.Millisecond
	daily.flood(t, 1, func() bool { return time.Since(lowered) > 6*time.Second }, in...)
	daily.pace = 0
	if n := daily.total(); n > 600+2*20 {
		t.Errorf("%d were admitted of 600, and 40 that were in use", n)
	}
	time.Sleep(time.Until(lowered.Add(13 * time.Second))) // the guarantee allows a term and its margin
	later := time.Now()
	time.Sleep(3 * time.Second)
	close(over)
	wait.Wait()
	rate.unfailing(t)
	rate.bucket(t, 600, 10, 0)
	since := oracleOf("rate since it was lowered")
	for _, x := range rate.admitted {
		if x.sent.After(later) {
			since.admitted = append(since.admitted, x)
		}
	}
	since.bucket(t, 120, 2, 0)
	t.Logf("rate: %d were admitted, %d in the last 3 s", len(rate.admitted), len(since.admitted))
	apply(900, 1500)
	daily.spent(t, 1500, 2, in...)
	daily.unfailing(t)
}

// TestSharedLimitsOnACluster checks that a region can keep its stakes in a Redis Cluster.
func TestSharedLimitsOnACluster(t *testing.T) {
	t.Parallel()
	awayFromMidnight(t)
	cluster := redistest.NewCluster(t, redistest.Options{})
	all := areas(t, sharedRules, 10*time.Second, place{name: "us"}, place{name: "eu", store: "redis-cluster://" + strings.Join(cluster.Addrs()[:2], ",")})
	hot := oracleOf("hot")
	hot.spent(t, 600, 4, values(all, "us", "eu")...)
	hot.unfailing(t)
	us, eu := all["us"], all["eu"]
	held := `{"attributes": {"tokens": "x"}, "amounts": {"tokens": 9000}, "reserve": "1h", "id": "a"}`
	for range 2 { // repeated, but charged once
		if status, text := post(t, asking, eu.nodes[0].HTTP+"/v1/check", held); status != 200 {
			t.Errorf("%d %s", status, text)
		}
	}
	until(t, func() error {
		if status, text := post(t, asking, us.nodes[0].HTTP+"/v1/check", `{"attributes": {"tokens": "x"}, "amounts": {"tokens": 1000}}`); status != 200 {
			return fmt.Errorf("%d %s", status, text)
		}
		return nil
	})
	if status, text := post(t, asking, us.nodes[0].HTTP+"/v1/check", `{"attributes": {"tokens": "x"}, "amounts": {"tokens": 1}}`); status != 429 {
		t.Errorf("%d %s", status, text)
	}
}

const movedRules = `
rules:
  - {id: rate, by: ["attr:rate"], missing: skip, scope: global, limit: 600/minute}
  - {id: day, by: ["attr:day"], missing: skip, scope: global, algorithm: fixed_window, limit: 1000/day}
`

// homeThatMoves kills the home and moves it to another region. At first the new home has only its floor; later it owns
// the rest, starting from an empty bucket. The old home comes back and steps down. No bound is exceeded.
func homeThatMoves(t *testing.T) {
	all := areas(t, movedRules, 500*time.Millisecond, place{name: "us"}, place{name: "eu"}, place{name: "ap"})
	us, eu, ap := all["us"], all["eu"], all["ap"]
	rate, day := oracleOf("rate"), oracleOf("day")
	rate.pace = 20 * time.Millisecond
	rate.flood(t, 2, func() bool { return rate.total() >= 300 }, us, eu, ap)
	day.flood(t, 2, func() bool { return day.total() >= 300 }, us, eu, ap)

	_ = us.nodes[0].cmd.Process.Signal(syscall.SIGKILL)
	move := func(force bool) (int, string) {
		return admin(t, ap.nodes[0], "POST", "/v1/regions", fmt.Sprintf(`{"do": "move", "region": "us", "to": "eu", "force": %v}`, force))
	}
	until(t, func() error {
		if _, text := admin(t, ap.nodes[0], "GET", "/v1/regions", ""); !strings.Contains(text, `"up":false`) {
			return errors.New("ap hasn't noticed yet: " + text)
		}
		return nil
	})
	if status, text := move(false); status != http.StatusConflict || !strings.Contains(text, "--force") {
		t.Errorf("us is dead: %d %s", status, text)
	}
	if status, text := move(true); status != http.StatusOK {
		t.Fatalf("%d %s", status, text)
	}
	seen := func(a *area) (got struct {
		Home  string
		Epoch int
		Grace bool
	}) {
		_, text := admin(t, a.nodes[0], "GET", "/v1/regions", "")
		if err := json.Unmarshal([]byte(text), &got); err != nil {
			t.Fatal(err)
		}
		return got
	}
	until(t, func() error {
		if s := seen(eu); s.Home != "eu" || s.Epoch != 2 || !s.Grace {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	end := time.Now().Add(time.Minute)
	rate.flood(t, 1, func() bool { return !seen(eu).Grace || time.Now().After(end) }, eu, ap)
	before := rate.total()
	rate.flood(t, 2, func() bool { return rate.total() >= before+50 || time.Now().After(end) }, eu, ap)
	if n := rate.total() - before; n < 50 {
		t.Errorf("eu owns the rest of the bucket now, and %d came of it", n)
	}
	us.nodes[0] = start(t, us.args...)
	us.serves(t, 0)
	us.far(t, 150*time.Millisecond)
	hear(t, all)
	until(t, func() error {
		if s := seen(us); s.Home != "eu" || s.Grace {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	for range 30 {
		for _, a := range []*area{us, eu, ap} {
			day.ask(t, a, 0)
			rate.ask(t, a, 0)
		}
	}
	rate.bucket(t, 600, 10, 0)
	if n := day.total(); n > 1000 {
		t.Errorf("%d were admitted of 1000 of a window in which the home moved", n)
	}
}
