package test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/redistest"
)

// area is a region that shares limits with other regions. It has nodes, a store, and a proxy for each other region's
// requests.
type area struct {
	name  string
	nodes []*node
	redis *redistest.Server // nil if the area has another store
	ways  map[string][]*redistest.Proxy
	args  []string
	at    []string // addresses where its nodes listen for other regions, once they do
	rules string   // path of the rule file
}

// place describes an area to start.
type place struct {
	name  string
	nodes int               // zero means 1
	redis *redistest.Server // nil means a new server
	store string            // URL of another store
}

// areas starts regions with the same rules and a round trip of 150 ms between them. The first region is the home. The
// timeout applies to requests between regions.
func areas(t *testing.T, rules string, timeout time.Duration, places ...place) map[string]*area {
	t.Helper()
	dir := t.TempDir()
	secret := write(t, filepath.Join(dir, "secret"), strings.Repeat("0123456789abcdef", 4)+"\n")
	all := map[string]*area{}
	for _, p := range places {
		a := &area{name: p.name, redis: p.redis, ways: map[string][]*redistest.Proxy{}, at: make([]string, max(1, p.nodes))}
		if a.redis == nil && p.store == "" {
			a.redis = redistest.New(t, redistest.Options{})
		}
		if p.store == "" {
			p.store = "redis://" + a.redis.Addr
		}
		a.rules = write(t, filepath.Join(dir, p.name+".rules.yaml"), rules)
		a.args = []string{"--store", p.store, "--rules", a.rules, "--region-timeout", timeout.String(), "--store-timeout", "10s", "--config", filepath.Join(dir, p.name+".yaml")}
		for _, other := range places {
			for range a.at {
				if other.name != p.name {
					a.ways[other.name] = append(a.ways[other.name], redistest.NewProxy(t, "127.0.0.1:1")) // until the node listens
				}
			}
		}
		all[p.name] = a
	}
	for _, p := range places {
		settings := fmt.Sprintf("regions:\n  name: %s\n  home: %s\n  listen: 127.0.0.1:0\n  secret_file: %s\n  peers:\n", p.name, places[0].name, secret)
		for _, other := range places {
			if other.name == p.name {
				continue
			}
			var to []string
			for _, way := range all[other.name].ways[p.name] {
				to = append(to, way.Addr)
			}
			settings += fmt.Sprintf("    %s: [%s]\n", other.name, strings.Join(to, ", "))
		}
		write(t, filepath.Join(dir, p.name+".yaml"), settings)
	}
	for _, p := range places {
		a := all[p.name]
		for range a.at {
			a.nodes = append(a.nodes, start(t, a.args...))
		}
	}
	for _, a := range all {
		for i := range a.nodes {
			a.serves(t, i)
		}
		a.far(t, 150*time.Millisecond)
	}
	hear(t, all)
	return all
}

// serves waits until node i serves, and connects the proxies to it.
func (a *area) serves(t *testing.T, i int) {
	t.Helper()
	a.nodes[i].serves()
	a.at[i] = a.nodes[i].await("serving", always)["region_listen"].(string)
	for _, ways := range a.ways {
		if err := ways[i].Redirect(a.at[i]); err != nil {
			t.Fatal(err)
		}
	}
}

// each calls a function for all proxies to an area. If all is given, it also calls it for the proxies from this area to
// the others.
func (a *area) each(t *testing.T, all map[string]*area, do func(*redistest.Proxy) error) {
	t.Helper()
	var ways []*redistest.Proxy
	for _, w := range a.ways {
		ways = append(ways, w...)
	}
	for _, other := range all {
		ways = append(ways, other.ways[a.name]...)
	}
	for _, w := range ways {
		if err := do(w); err != nil {
			t.Fatal(err)
		}
	}
}

// far delays all responses of an area by a round-trip time.
func (a *area) far(t *testing.T, rtt time.Duration) {
	t.Helper()
	a.each(t, nil, func(w *redistest.Proxy) error { w.Heal(); return w.Delay(rtt) })
}

// mend removes all faults and restores the delay of 150 ms. Proxies to dead nodes stay down.
func mend(t *testing.T, all map[string]*area) {
	t.Helper()
	for _, a := range all {
		a.far(t, 150*time.Millisecond)
	}
	hear(t, all)
}

// hear waits until all nodes have heard from all regions, and all regions have the same rules.
func hear(t *testing.T, all map[string]*area) {
	t.Helper()
	until(t, func() error {
		for name, a := range all {
			for _, n := range a.nodes {
				for other, up := range (&site{node: n}).peersOf(t) {
					if !up {
						return fmt.Errorf("%s doesn't hear of %s", name, other)
					}
				}
			}
		}
		return nil
	})
}

// upAgain waits until an area's first node can reach its store again.
func (a *area) upAgain(t *testing.T) {
	t.Helper()
	until(t, func() error {
		if r := ready(t, a.nodes[0].Admin+"/readyz"); r.Store.Status != "up" {
			return fmt.Errorf("%s: %+v", a.name, r.Store)
		}
		return nil
	})
}

// asking is the HTTP client of these tests. It keeps many idle connections, for many concurrent requests.
var asking = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}, Timeout: 30 * time.Second}

// oracle records what all regions admit, and when.
type oracle struct {
	of   string // the counted attribute
	more string // more fields of each request, as JSON
	cost int64
	pace time.Duration // pause between a client's requests

	mu       sync.Mutex
	admitted []admission
	refused  []admission
	statuses map[string]map[int]int // how many responses had each status, by region
	degraded map[string]int         // how many responses were degraded, by region
}

// admission is a response whose decision was made between two times.
type admission struct {
	region         string
	sent, answered time.Time
	n              int64
}

func oracleOf(of string) *oracle {
	return &oracle{of: of, cost: 1, statuses: map[string]map[int]int{}, degraded: map[string]int{}}
}

// ask sends one request and returns the response's status.
func (o *oracle) ask(t *testing.T, a *area, i int) int {
	begun := time.Now()
	status, text := post(t, asking, a.nodes[i%len(a.nodes)].HTTP+"/v1/check", fmt.Sprintf(`{"attributes": {%q: "x"}, "cost": %d%s}`, o.of, o.cost, strings.ReplaceAll(o.more, "%d", fmt.Sprint(i))))
	x := admission{a.name, begun, time.Now(), o.cost}
	var got struct{ Degraded bool }
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Errorf("%s: %d %q: %v", a.name, status, text, err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.statuses[a.name] == nil {
		o.statuses[a.name] = map[int]int{}
	}
	if o.statuses[a.name][status]++; got.Degraded {
		o.degraded[a.name]++
	}
	switch status {
	case http.StatusOK:
		o.admitted = append(o.admitted, x)
	case http.StatusTooManyRequests:
		o.refused = append(o.refused, x)
	}
	return status
}

// total returns how much the given regions have admitted so far, or all regions if none are given.
func (o *oracle) total(in ...string) (n int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, x := range o.admitted {
		if len(in) == 0 || slices.Contains(in, x.region) {
			n += x.n
		}
	}
	return n
}

// status returns how many responses had a status for which the function returns true.
func (o *oracle) status(is func(status int) bool) (n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, by := range o.statuses {
		for status, times := range by {
			if is(status) {
				n += times
			}
		}
	}
	return n
}

func failed(status int) bool { return status != http.StatusOK && status != http.StatusTooManyRequests }

// unfailing fails the test if a response was degraded, or if a request was neither admitted nor refused.
func (o *oracle) unfailing(t *testing.T) {
	t.Helper()
	o.mu.Lock()
	if len(o.degraded) > 0 {
		t.Errorf("%s: answers were degraded: %v", o.of, o.degraded)
	}
	o.mu.Unlock()
	if n := o.status(failed); n > 0 {
		t.Errorf("%s: %d requests failed: %v", o.of, n, o.statuses)
	}
}

// falsely returns how many requests were refused although later ones were admitted. If a counter never gets tokens
// back, these refusals were wrong.
func (o *oracle) falsely() (n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	var last time.Time
	for _, x := range o.admitted {
		if x.sent.After(last) {
			last = x.sent
		}
	}
	for _, x := range o.refused {
		if x.answered.Before(last) {
			n++
		}
	}
	return n
}

// bucket fails the test if, in any time t, more than burst + rate·(t + 0.1 s) + extra was admitted. A request counts
// for a time if it was sent and answered within it.
func (o *oracle) bucket(t *testing.T, burst, rate, extra float64) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	byEnd := slices.Clone(o.admitted)
	slices.SortFunc(byEnd, func(a, b admission) int { return a.answered.Compare(b.answered) })
	for _, first := range o.admitted {
		n := 0.0
		for _, x := range byEnd {
			if x.sent.Before(first.sent) {
				continue
			}
			n += float64(x.n)
			if time := x.answered.Sub(first.sent).Seconds(); n > burst+rate*(time+0.1)+extra {
				t.Errorf("%s: %v were admitted in %.3f s, at most %v + %v a second and %v may be", o.of, n, time, burst, rate, extra)
				return
			}
		}
	}
}

// flood runs clients in each given region that send requests until enough returns true.
func (o *oracle) flood(t *testing.T, clients int, enough func() bool, in ...*area) {
	var all sync.WaitGroup
	var stop atomic.Bool
	for _, a := range in {
		for i := range clients {
			all.Go(func() {
				for !stop.Load() && !t.Failed() {
					if o.ask(t, a, i); enough() {
						stop.Store(true)
					}
					time.Sleep(o.pace)
				}
			})
		}
	}
	all.Wait()
}

// spent sends requests to all given regions until the limit is used up, and then a few more. It fails the test unless
// exactly the limit is admitted.
func (o *oracle) spent(t *testing.T, limit int64, clients int, in ...*area) {
	t.Helper()
	end := time.Now().Add(time.Minute)
	o.flood(t, clients, func() bool { return o.total() >= limit || time.Now().After(end) }, in...)
	for range 3 {
		for _, a := range in {
			o.ask(t, a, 0)
		}
	}
	if n := o.total(); n != limit {
		t.Errorf("%s: %d were admitted of %d: %v", o.of, n, limit, o.statuses)
	}
}

// values returns areas in the order of the given names.
func values(all map[string]*area, names ...string) (list []*area) {
	for _, name := range names {
		list = append(list, all[name])
	}
	return list
}

// awayFromMidnight waits if the UTC day ends within two minutes, so that no daily window ends during a test.
func awayFromMidnight(t *testing.T) {
	t.Helper()
	now := time.Now().UTC()
	if left := now.Truncate(24 * time.Hour).Add(24 * time.Hour).Sub(now); left < 2*time.Minute {
		time.Sleep(left + 2*time.Second)
	}
}
