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

// area is a region whose limits are shared with others: nodes with a store, and a way of its own from each other region to it.
type area struct {
	name  string
	nodes []*node
	redis *redistest.Server // nil if it has another store
	ways  map[string][]*redistest.Proxy
	args  []string
	at    []string // where its nodes listen for other regions, once they do
	rules string   // the file
}

// place is what an area is made of.
type place struct {
	name  string
	nodes int               // 0 means 1
	redis *redistest.Server // nil: a new one
	store string            // the URL of another store
}

// areas starts regions with the same rules, 150 ms apart. The first one is home. Asks are waited for up to a time.
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

// serves waits until a node does, and leads the ways to it.
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

// each does something to all ways to an area, and with it to those from it to the others, if all is given.
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

// far makes all answers of an area take so long.
func (a *area) far(t *testing.T, rtt time.Duration) {
	t.Helper()
	a.each(t, nil, func(w *redistest.Proxy) error { w.Heal(); return w.Delay(rtt) })
}

// mend takes all faults away, and makes ways long again. Those that are down stay so.
func mend(t *testing.T, all map[string]*area) {
	t.Helper()
	for _, a := range all {
		a.far(t, 150*time.Millisecond)
	}
	hear(t, all)
}

// hear waits until all nodes hear of all regions, by the same rules.
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

// upAgain waits until a node has its store.
func (a *area) upAgain(t *testing.T) {
	t.Helper()
	until(t, func() error {
		if r := ready(t, a.nodes[0].Admin+"/readyz"); r.Store.Status != "up" {
			return fmt.Errorf("%s: %+v", a.name, r.Store)
		}
		return nil
	})
}

// asking is how requests of these tests are sent: many at once, on connections that are kept.
var asking = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}, Timeout: 30 * time.Second}

// oracle counts what all regions admit, and knows when.
type oracle struct {
	of   string // the attribute that is counted, and its value
	more string // of the requests
	cost int64
	pace time.Duration // between requests of a client

	mu       sync.Mutex
	admitted []admission
	refused  []admission
	statuses map[string]map[int]int // by region
	degraded map[string]int         // answers by region
}

// admission is what was answered at some moment between two.
type admission struct {
	region         string
	sent, answered time.Time
	n              int64
}

func oracleOf(of string) *oracle {
	return &oracle{of: of, cost: 1, statuses: map[string]map[int]int{}, degraded: map[string]int{}}
}

// ask sends one request, and returns its status.
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

// total is what was admitted so far, in some regions or in all.
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

// status is how often regions have answered so.
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

// unfailing fails if requests were neither admitted nor refused, or not by what is counted.
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

// falsely is how many requests were refused although others, sent later, were admitted: a counter that never gets
// anything back had room.
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

// bucket fails if more was admitted in any time t than burst + rate·(t + 0.1 s), and extra. Whatever was sent and
// answered between two moments was admitted between them.
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

// flood has clients in each of some regions ask until enough is true.
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

// spent asks all regions until so much is admitted, and then some more, which nobody may admit.
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

// values are areas in the order of their names.
func values(all map[string]*area, names ...string) (list []*area) {
	for _, name := range names {
		list = append(list, all[name])
	}
	return list
}

// awayFromMidnight waits if a day ends in the next two minutes, so that no window of a day ends while a test counts it.
func awayFromMidnight(t *testing.T) {
	t.Helper()
	now := time.Now().UTC()
	if left := now.Truncate(24 * time.Hour).Add(24 * time.Hour).Sub(now); left < 2*time.Minute {
		time.Sleep(left + 2*time.Second)
	}
}
