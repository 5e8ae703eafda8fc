package tail_test

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/server/internal/observe/tail"
	"github.com/weirhq/weir/server/internal/observe/top"
)

// open returns a limiter whose decisions can be watched.
func open(t testing.TB) (*weir.Limiter, *tail.Hub) {
	t.Helper()
	rules, err := weir.Compile(weir.Rules{
		Rules: []weir.Rule{
			{ID: "orders", Match: weir.Match{Endpoint: "GET /orders/{id}"}, Limits: []weir.Limit{{Count: 2, Window: time.Hour}}},
			{ID: "trial", By: []string{"ip"}, Shadow: true, Limits: []weir.Limit{{Count: 1, Window: time.Hour}}},
			{ID: "all", By: []string{}, Limits: []weir.Limit{{Count: 1_000_000, Window: time.Hour}}},
		},
		Deny: []string{"sk_denied"},
	})
	if err != nil {
		t.Fatal(err)
	}
	hub := &tail.Hub{Clients: top.New(top.Options{})}
	return weir.NewLimiter(memstore.New(memstore.Options{}), rules, weir.Options{Observe: hub.Observe}), hub
}

func check(t testing.TB, l *weir.Limiter, times int, r weir.Request) {
	t.Helper()
	for range times {
		if _, err := l.Check(t.Context(), &r); err != nil {
			t.Fatal(err)
		}
	}
}

func watch(t testing.TB, h *tail.Hub, f tail.Filter) *tail.Viewer {
	t.Helper()
	v, err := h.Watch("", f)
	if err != nil {
		t.Fatal(err)
	}
	if v == nil {
		t.Fatal("too many watch")
	}
	t.Cleanup(v.Close)
	return v
}

// taken returns the decisions that are waiting for a viewer.
func taken(v *tail.Viewer) (all []*tail.Decision) {
	for range len(v.Decisions()) {
		all = append(all, <-v.Decisions())
	}
	return all
}

var home = netip.MustParseAddr("203.0.113.7")

// A decision is shown with all that people may see of it, and no more.
func TestADecisionIsShown(t *testing.T) {
	l, h := open(t)
	v := watch(t, h, tail.Filter{})
	check(t, l, 3, weir.Request{APIKey: "sk_prod_0123456789", IP: home, Method: "GET", Path: "/orders/secret-17", Edge: "check"})
	check(t, l, 1, weir.Request{APIKey: "sk_denied", Method: "MAKE-UP", Path: "/"})
	check(t, l, 1, weir.Request{IP: home, Peek: true, Path: "/"})
	all := taken(v)
	if len(all) != 4 {
		t.Fatalf("%d decisions are shown", len(all))
	}
	first, third, denied := all[0], all[2], all[3]
	if first.Client != "sk_p…89" || first.Kind != "api_key" || len(first.Fingerprint) != 8 || first.Rule != "orders" || first.Outcome != "allowed" || first.Reason != "within" ||
		first.Edge != "check" || first.Method != "GET" || first.Path != "/orders/{id}" || first.Limit != 2 || first.Remaining != 1 || first.RetryMS != 0 || len(first.Shadow) != 0 ||
		time.Since(first.Time) > time.Minute {
		t.Errorf("%+v", first)
	}
	if third.Outcome != "refused" || third.Reason != "limited" || third.Remaining != 0 || third.RetryMS < 1000 || fmt.Sprint(third.Shadow) != "[trial]" {
		t.Errorf("%+v", third)
	}
	if denied.Reason != "denied" || denied.RetryMS != -1 || denied.Method != "other" || denied.Edge != "library" || denied.Rule != "" || denied.Limit != 0 {
		t.Errorf("%+v", denied)
	}
	if p := v.Pulse(); p != (tail.Pulse{Seen: 4, Sent: 4, OneIn: 1}) {
		t.Errorf("%+v", p)
	}
}

func TestFilters(t *testing.T) {
	l, h := open(t)
	ask := weir.Request{APIKey: "sk_a", KeyVerified: true, IP: home, Method: "GET", Path: "/orders/1", Edge: "check"}
	other := weir.Request{APIKey: "sk_b", IP: home, Path: "/free", Edge: "gateway"}
	print := func(r weir.Request) uint32 {
		client, _ := h.Clients.Prints(&r)
		return client
	}
	var viewers []*tail.Viewer
	cases := []struct {
		filter tail.Filter
		want   uint64
	}{
		{tail.Filter{}, 9},
		{tail.Filter{Outcome: "refused"}, 2},
		{tail.Filter{Outcome: "allowed"}, 7},
		{tail.Filter{Rule: "orders"}, 4},
		{tail.Filter{Rule: "orders", Outcome: "refused"}, 2},
		{tail.Filter{Edge: "gateway"}, 5},
		{tail.Filter{Client: print(ask), ByClient: true}, 4},
		{tail.Filter{Client: print(other), ByClient: true}, 5},
		{tail.Filter{Client: print(weir.Request{IP: home}), ByClient: true}, 5}, // the key isn't verified
		{tail.Filter{Client: print(weir.Request{APIKey: "sk_c"}), ByClient: true}, 0},
		{tail.Filter{ByClient: true}, 0}, // although some requests have no second fingerprint
	}
	for _, c := range cases {
		viewers = append(viewers, watch(t, h, c.filter))
	}
	check(t, l, 4, ask)
	check(t, l, 5, other)
	for i, c := range cases {
		if p, all := viewers[i].Pulse(), taken(viewers[i]); p != (tail.Pulse{Seen: c.want, Sent: c.want, OneIn: 1}) || uint64(len(all)) != c.want {
			t.Errorf("%+v: %+v and %d decisions, want %d", c.filter, p, len(all), c.want)
		}
	}
}

// A flood is sampled, and the viewer learns how many decisions there were. What the viewer doesn't read is left out,
// and no check waits.
func TestAFloodIsSampled(t *testing.T) {
	l, h := open(t)
	v, asleep := watch(t, h, tail.Filter{Rule: "all"}), watch(t, h, tail.Filter{})
	const flood = 3300 // of which one in 64 is about 50
	if check(t, l, flood, weir.Request{Path: "/"}); len(taken(v)) != tail.PerSecond {
		t.Error("the first decisions of the flood aren't shown")
	}
	if p := v.Pulse(); p != (tail.Pulse{Seen: flood, Sent: tail.PerSecond, LeftOut: flood - tail.PerSecond, OneIn: 1}) {
		t.Errorf("the first second: %+v", p)
	}
	check(t, l, flood, weir.Request{Path: "/"})
	n := uint64(len(taken(v)))
	if p := v.Pulse(); p.OneIn != 64 || p.Seen != flood || p.Sent != n || n < flood/64/2 || n > 3*flood/64/2 {
		t.Errorf("the second one: %+v, %d shown", p, n)
	}
	check(t, l, 50, weir.Request{Path: "/"})
	if p := v.Pulse(); p.OneIn != 64 || p.Seen != 50 {
		t.Errorf("after the flood: %+v", p)
	}
	taken(v)
	if check(t, l, 50, weir.Request{Path: "/"}); len(taken(v)) != 50 || v.Pulse().OneIn != 1 {
		t.Error("not all of a few are shown")
	}
	for range 5 { // the viewer reads its pulses, but no decisions
		check(t, l, 90, weir.Request{Path: "/"})
		asleep.Pulse()
	}
	if check(t, l, 90, weir.Request{Path: "/"}); asleep.Pulse().LeftOut != 90 {
		t.Error("decisions that weren't read don't count as left out")
	}
}

// Each decision is counted once, however many are made at the same time and however many viewers come and go.
func TestEveryDecisionCountsOnce(t *testing.T) {
	l, h := open(t)
	v := watch(t, h, tail.Filter{})
	const cores, each = 8, 2000
	var pulses, checks sync.WaitGroup
	done := make(chan struct{})
	var seen, shown uint64
	pulses.Go(func() {
		for {
			select {
			case <-v.Decisions():
				shown++
			case <-done:
				return
			default:
				p := v.Pulse()
				seen += p.Seen
			}
		}
	})
	for range cores {
		checks.Go(func() {
			for i := range each {
				check(t, l, 1, weir.Request{Path: "/"})
				if i%100 == 0 {
					if other, err := h.Watch("", tail.Filter{Outcome: "refused"}); err == nil {
						other.Close()
					}
				}
			}
		})
	}
	checks.Wait()
	close(done)
	pulses.Wait()
	shown += uint64(len(taken(v)))
	last := v.Pulse()
	if seen += last.Seen; seen != cores*each || shown == 0 {
		t.Errorf("%d were seen and %d shown, of %d", seen, shown, cores*each)
	}
}

func TestTheNumberOfViewersIsBounded(t *testing.T) {
	l, h := open(t)
	var all []*tail.Viewer
	watch := func(name, want string) {
		t.Helper()
		v, err := h.Watch(name, tail.Filter{})
		if err == nil {
			all = append(all, v)
		}
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", name, err, want)
		}
	}
	// One name can't take all seats.
	for range tail.MaxOfOne {
		watch("ada", "")
	}
	watch("ada", "the token of ada watches this node's decisions 4 times already")
	watch("bob", "")
	all[0].Close()
	all = all[1:]
	watch("ada", "")
	watch("ada", "the token of ada")
	for len(all) < tail.MaxViewers {
		watch("", "") // a viewer without a name
	}
	watch("", "16 watch this node's decisions already")
	watch("bob", "16 watch this node's decisions already")
	for i, v := range all {
		if !h.Watched() {
			t.Errorf("Watched is false with %d viewers open", len(all)-i)
		}
		v.Close()
	}
	if h.Watched() {
		t.Error("Watched is true after all viewers were closed")
	}
	check(t, l, 1, weir.Request{Path: "/"})
	watch("", "")
	all[len(all)-1].Close()
}
