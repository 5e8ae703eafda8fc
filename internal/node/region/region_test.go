package region

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/private"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/storetest"
)

func TestMain(m *testing.M) {
	// A closed Cluster client keeps a goroutine for some seconds.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*clusterClient)._refresh.func2"))
}

var secret = NewSecret([]byte(strings.Repeat("s", 32)))

// site is a region in a test: its own store, its link, and the store with which its limiter counts.
type site struct {
	own  *memstore.Store
	link *Link
	*Store
	cut atomic.Bool // the region can't be reached
}

// world creates regions that reach each other without a network. The first region is the home.
func world(tb storetest.TB, now func() time.Time, names ...string) []*site {
	tb.Helper()
	sites := make([]*site, len(names))
	peers := map[string][]string{}
	for _, name := range names {
		peers[name] = []string{name}
	}
	for i, name := range names {
		others := map[string][]string{}
		for _, other := range names {
			if other != name {
				others[other] = peers[other]
			}
		}
		link, err := NewLink(Options{Name: name, Home: names[0], Secret: secret, Peers: others, Timeout: time.Minute})
		if err != nil {
			tb.Fatalf("%v", err)
		}
		own := memstore.New(memstore.Options{Now: now})
		sites[i] = &site{own: own, link: link, Store: NewStore(own, link, MemoryCells())}
		sites[i].refusals.believed = 0
		link.Serve(weir.NewLimiter(own, nil, weir.Options{}), own)
		for _, p := range link.peers {
			p.heard = time.Now().Add(time.Hour) // so that no region counts as silent before its first message
			p.client.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
				to := sites[slices.Index(names, r.URL.Host)]
				if to.cut.Load() || sites[i].cut.Load() {
					return nil, errors.New("cut off")
				}
				w := httptest.NewRecorder()
				to.link.ServeHTTP(w, r)
				return w.Result(), nil
			})
		}
	}
	return sites
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// global is a store that makes all limits global and uses the regions in turn.
type global struct {
	sites    []*site
	turn     atomic.Int64
	mu       sync.Mutex
	policies map[*counter.Policy]*counter.Policy
}

func (g *global) site() *site { return g.sites[int(g.turn.Add(1))%len(g.sites)] }

func (g *global) of(p *counter.Policy) *counter.Policy {
	g.mu.Lock()
	defer g.mu.Unlock()
	q := g.policies[p]
	if q == nil {
		q = p.With(func(d *counter.Definition) { d.Global, d.Strict, d.Travels = true, true, true })
		g.policies[p] = q
	}
	return q
}

func (g *global) Take(ctx context.Context, charges []counter.Charge, results []counter.Result) {
	charges = slices.Clone(charges)
	for i := range charges {
		charges[i].Policy = g.of(charges[i].Policy)
	}
	g.site().Take(ctx, charges, results)
}

func (g *global) GiveBack(ctx context.Context, once counter.Once, keep time.Duration, returns []counter.Return) error {
	returns = slices.Clone(returns)
	for i := range returns {
		returns[i].Policy = g.of(returns[i].Policy)
	}
	return g.site().GiveBack(ctx, once, keep, returns)
}

func (g *global) Reset(ctx context.Context, counters []counter.Counter) error {
	counters = slices.Clone(counters)
	for i := range counters {
		counters[i].Policy = g.of(counters[i].Policy)
	}
	return g.site().Reset(ctx, counters)
}

// TestRegionsAreOneStore checks that regions that are used in turn behave like one store.
func TestRegionsAreOneStore(t *testing.T) {
	storetest.Run(t, func(tb storetest.TB, now func() time.Time) counter.Store {
		return &global{sites: world(tb, now, "us", "eu", "ap"), policies: map[*counter.Policy]*counter.Policy{}}
	})
}

func policyOf(t testing.TB, name string, l counter.Limit, global bool) *counter.Policy {
	p, err := counter.NewPolicy(name, l)
	if err != nil {
		t.Fatal(err)
	}
	p = p.With(func(d *counter.Definition) { d.Global, d.Strict, d.Travels = global, global, global })
	return p
}

func take(s counter.Store, charges ...counter.Charge) []counter.Result {
	results := make([]counter.Result, len(charges))
	s.Take(context.Background(), charges, results)
	return results
}

func on(p *counter.Policy, n int64) counter.Charge {
	return counter.Charge{Counter: counter.Counter{Policy: p, Subject: []byte("s")}, N: n}
}

func (s *site) left(p *counter.Policy) int64 {
	c := on(p, 1)
	c.Peek = true
	return take(s, c)[0].Remaining
}

// TestAllOrNothingOverRegions checks that a request is charged to all of its limits or to none, whichever limit refuses
// and wherever it is counted. The home is cut off from time to time.
func TestAllOrNothingOverRegions(t *testing.T) {
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 1))
	now := storetest.Start
	sites := world(t, func() time.Time { return now }, "us", "eu", "ap")
	window := counter.Limit{Algorithm: counter.FixedWindow, Count: 40, Window: 24 * time.Hour}
	own, wide := policyOf(t, "own", window, false), policyOf(t, "wide", window, true)
	other := policyOf(t, "other", window, true)
	other = other.With(func(d *counter.Definition) { d.Home = "ap" })
	apart := policyOf(t, "apart", window, true)
	apart = apart.With(func(d *counter.Definition) { d.OnPartition = counter.FailLocal })
	limits := []*counter.Policy{own, wide, other, apart}
	limiters := make([]*weir.Limiter, len(sites))
	for i, s := range sites {
		limiters[i] = weir.NewLimiter(s, nil, weir.Options{})
	}
	used := map[string]int64{} // by limit, and also by region if each region has its own counter
	unheard := func(i int, p *counter.Policy) bool {
		home := sites[i].link.homeOf(p)
		return sites[0].cut.Load() && home != "" && (home == "us" || i == 0)
	}
	where := func(i int, p *counter.Policy, local bool) string {
		if !p.Global || local {
			return p.Name + " in " + sites[i].link.name
		}
		return p.Name
	}
	for step := range 4000 {
		i := rnd.IntN(len(sites))
		sites[0].cut.Store(rnd.IntN(4) == 0)
		for _, s := range sites { // so that no region counts as silent
			for _, p := range s.link.peers {
				p.mu.Lock()
				p.Up, p.heard = true, time.Now()
				p.mu.Unlock()
			}
		}
		var charges []counter.Charge
		for _, p := range limits {
			if rnd.IntN(2) == 0 {
				charges = append(charges, on(p, 1+rnd.Int64N(3)))
			}
		}
		if len(charges) == 0 {
			continue
		}
		d, err := private.Take(limiters[i], t.Context(), &weir.Request{Receipt: true}, charges, nil)
		fits := true
		for j, c := range charges {
			local := unheard(i, c.Policy) && c.Policy.OnPartition == counter.FailLocal
			if unheard(i, c.Policy) && !local || used[where(i, c.Policy, local)]+c.N > 40 {
				fits = false
			}
			if got := d.Limits()[j].Local; got != local {
				t.Fatalf("step %d (seed %d): %s: local is %v", step, seed, c.Policy.Name, got)
			}
		}
		if d.Allowed != fits {
			t.Fatalf("step %d (seed %d): in %s %v of %v, cut off %v: %+v, %v", step, seed, sites[i].link.name, charges, used, sites[0].cut.Load(), d, err)
		}
		if fits {
			for _, c := range charges {
				used[where(i, c.Policy, unheard(i, c.Policy))] += c.N
			}
		}
		if rnd.IntN(2) == 0 {
			sites[0].cut.Store(false)
		}
		back := slices.ContainsFunc(charges, func(c counter.Charge) bool { return unheard(i, c.Policy) && c.Policy.OnPartition != counter.FailLocal })
		if fits && rnd.IntN(3) == 0 && !back {
			if err := limiters[i].Finish(t.Context(), &weir.Decision{Receipt: d.Receipt}, weir.Outcome{Abandoned: true}); err != nil {
				t.Fatal(err)
			}
			for j, c := range charges {
				used[where(i, c.Policy, d.Limits()[j].Local)] -= c.N
			}
		}
		sites[0].cut.Store(false)
		for j, s := range sites {
			peek := on(apart, 1)
			peek.Peek = true
			if got, want := take(s.own, peek)[0].Remaining, 40-used[where(j, apart, true)]; got != want {
				t.Fatalf("step %d (seed %d): %s has %d left for itself, want %d; after %v, %+v", step, seed, s.link.name, got, want, charges, d)
			}
			for _, p := range limits {
				if got, want := s.left(p), 40-used[where(j, p, false)]; got != want {
					t.Fatalf("step %d (seed %d): in %s %d are left of %s, want %d; after %v, %+v", step, seed, s.link.name, got, p.Name, want, charges, d)
				}
			}
		}
		if rnd.IntN(200) == 0 {
			now = now.Add(24 * time.Hour)
			clear(used)
		}
	}
}

// TestGivenBackInParts checks that if only one of two homes could give back, the call can be repeated.
func TestGivenBackInParts(t *testing.T) {
	sites := world(t, time.Now, "us", "eu", "ap")
	p, q := policyOf(t, "p", counter.PerHour(10), true), policyOf(t, "q", counter.PerHour(10), true)
	q = q.With(func(d *counter.Definition) { d.Home = "ap" })
	take(sites[1], on(p, 4), on(q, 4))
	back := []counter.Return{{Counter: on(p, 1).Counter, N: 4}, {Counter: on(q, 1).Counter, N: 4}}
	sites[2].cut.Store(true)
	for i, want := range []bool{false, true, false} { // ap is back for the second attempt
		err := sites[1].GiveBack(t.Context(), counter.Once{1}, time.Hour, back)
		if (err == nil) != want || i == 2 && err != counter.ErrUsed {
			t.Errorf("%d: %v", i, err)
		}
		sites[2].cut.Store(false)
	}
	if a, b := sites[0].left(p), sites[0].left(q); a != 10 || b != 10 {
		t.Errorf("%d and %d are left", a, b)
	}
}

// TestHomeThatIsSilent checks that requests don't wait for a silent home.
func TestHomeThatIsSilent(t *testing.T) {
	sites := world(t, time.Now, "us", "eu")
	p := policyOf(t, "p", counter.PerHour(10), true)
	sites[0].cut.Store(true)
	home := sites[1].link.peers["us"]
	if r := take(sites[1], on(p, 1))[0]; !errors.Is(r.Err, counter.ErrPartition) || !strings.Contains(r.Err.Error(), "cut off") {
		t.Errorf("%+v", r)
	}
	var asked atomic.Int64
	inner := home.client.Transport
	home.client.Transport = roundTripper(func(r *http.Request) (*http.Response, error) { asked.Add(1); return inner.RoundTrip(r) })
	home.heard = time.Now().Add(-2 * silentAfter)
	if r := take(sites[1], on(p, 1))[0]; !errors.Is(r.Err, counter.ErrPartition) || asked.Load() != 0 {
		t.Errorf("a silent home was asked: %+v", r)
	}
	sites[0].cut.Store(false)
	if _, err := home.say(t.Context(), &message{}); err != nil {
		t.Fatal(err)
	}
	if r := take(sites[1], on(p, 1))[0]; r.Err != nil || !r.Allowed || r.Remaining != 9 {
		t.Errorf("after a heartbeat: %+v", r)
	}
	if s := sites[1].link.Peers(); len(s) != 1 || !s[0].Up || !s[0].Home || !s[0].SameRules {
		t.Errorf("%+v", s)
	}
}

// TestConcurrentChecksShareMessages checks that only a few messages are in flight, however many checks wait.
func TestConcurrentChecksShareMessages(t *testing.T) {
	sites := world(t, time.Now, "us", "eu")
	p := policyOf(t, "p", counter.PerHour(100), true)
	home := sites[1].link.peers["us"]
	inner := home.client.Transport
	var messages, underWay, most atomic.Int64
	hold := make(chan struct{})
	home.client.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
		messages.Add(1)
		if n := underWay.Add(1); n > most.Load() {
			most.Store(n)
		}
		defer underWay.Add(-1)
		<-hold
		return inner.RoundTrip(r)
	})
	var all sync.WaitGroup
	var allowed atomic.Int64
	for range 1000 {
		all.Go(func() {
			if r := take(sites[1], on(p, 1))[0]; r.Allowed && r.Err == nil {
				allowed.Add(1)
			} else if r.Err != nil {
				t.Error(r.Err)
			}
		})
	}
	for {
		home.mu.Lock()
		waiting := len(home.queue)
		home.mu.Unlock()
		if waiting == 1000-maxMessages {
			break
		}
		time.Sleep(time.Millisecond)
	}
	close(hold)
	all.Wait()
	if allowed.Load() != 100 || most.Load() > maxMessages || messages.Load() > 2*maxMessages {
		t.Errorf("%d allowed of 100; %d messages, %d at once", allowed.Load(), messages.Load(), most.Load())
	}
}

// TestStrangersAreRefused checks that a real connection without the secret fails before any message is sent.
func TestStrangersAreRefused(t *testing.T) {
	sites := world(t, time.Now, "us", "eu")
	server := httptest.NewUnstartedServer(sites[0].link)
	config, err := secret.TLS()
	if err != nil {
		t.Fatal(err)
	}
	server.TLS, server.EnableHTTP2 = config, true
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	ask := func(s *Secret, to string) error {
		l, err := NewLink(Options{Name: "eu", Home: "us", Secret: s, Peers: map[string][]string{to: {server.Listener.Addr().String()}}})
		if err != nil {
			t.Fatal(err)
		}
		defer l.peers[to].client.CloseIdleConnections()
		_, err = l.peers[to].say(t.Context(), &message{})
		return err
	}
	if err := ask(secret, "us"); err != nil {
		t.Error(err)
	}
	if err := ask(NewSecret([]byte(strings.Repeat("t", 32))), "us"); err == nil || !strings.Contains(err.Error(), "secret") {
		t.Errorf("with another secret: %v", err)
	}
	if err := ask(secret, "ap"); err == nil || !strings.Contains(err.Error(), "this is region us, not ap") {
		t.Errorf("the wrong region: %v", err)
	}
	plain := &http.Client{Transport: &http.Transport{TLSClientConfig: server.Client().Transport.(*http.Transport).TLSClientConfig.Clone()}}
	plain.Transport.(*http.Transport).TLSClientConfig.InsecureSkipVerify = true
	if res, err := plain.Post(server.URL+path, "application/json", strings.NewReader("{}")); err == nil {
		res.Body.Close()
		t.Errorf("without a certificate: %s", res.Status)
	}
}

// TestHostileMessages checks that invalid messages get an error response and change nothing.
func TestHostileMessages(t *testing.T) {
	sites := world(t, time.Now, "us", "eu")
	many := message{To: "us", Acts: make([]operation, maxActs+1)}
	wide := message{To: "us", Acts: []operation{{Charges: make([]charge, maxCharges+1)}, {Returns: make([]charge, maxCharges+1)}, {Resets: make([]charge, maxCharges+1)}}}
	broken := message{To: "us", Acts: []operation{{Charges: []charge{{N: 1}}}, {Returns: []charge{{N: 1}}}, {Resets: []charge{{}}}, {}}}
	text := func(m message) string {
		b, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	for _, c := range []struct {
		method, path, body string
		status             int
		says               string
	}{
		{"GET", path, "", 404, "post"},
		{"POST", "/", "{}", 404, "post"},
		{"POST", path, "", 400, ""},
		{"POST", path, "[]", 400, ""},
		{"POST", path, `{"to": "eu"}`, 421, "this is region us"},
		{"POST", path, strings.Repeat(" ", maxMessage+1), 413, ""},
		{"POST", path, text(many), 413, "at most"},
		{"POST", path, text(wide), 200, "too many charges"},
		{"POST", path, text(broken), 200, "failed"},
	} {
		w := httptest.NewRecorder()
		sites[0].link.ServeHTTP(w, httptest.NewRequest(c.method, c.path, bytes.NewReader([]byte(c.body))))
		answer, _ := io.ReadAll(w.Result().Body)
		if w.Code != c.status || !strings.Contains(string(answer), c.says) {
			t.Errorf("%s %s %.60s: %d %.200s", c.method, c.path, c.body, w.Code, answer)
		}
	}
	if n := sites[0].own.Stats().Counters; n != 0 {
		t.Errorf("%d counters were made", n)
	}
}

// TestNamesStayInTheirRegion checks that messages to a home don't contain clients' names, and that the same client has
// different names for different limits.
func TestNamesStayInTheirRegion(t *testing.T) {
	sites := world(t, time.Now, "us", "eu")
	home := sites[1].link.peers["us"]
	inner := home.client.Transport
	var sent []string
	home.client.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
		text, _ := io.ReadAll(r.Body)
		sent = append(sent, string(text))
		r.Body = io.NopCloser(bytes.NewReader(text))
		return inner.RoundTrip(r)
	})
	var names []string
	for i := range 2 {
		c := on(policyOf(t, fmt.Sprint("p", i), counter.PerHour(10), true), 1)
		c.Policy = c.Policy.With(func(d *counter.Definition) { d.ID = uint64(i + 1) })
		c.Subject = []byte("ada@example.com")
		if r := take(sites[1], c)[0]; !r.Allowed {
			t.Fatalf("%+v", r)
		}
		var m message
		if err := json.Unmarshal([]byte(sent[i]), &m); err != nil {
			t.Fatal(err)
		}
		names = append(names, string(m.Acts[0].Charges[0].Subject))
	}
	if strings.Contains(strings.Join(sent, ""), "ada") || names[0] == names[1] || len(names[0]) != 16 {
		t.Errorf("%q: %s", names, sent)
	}
}
