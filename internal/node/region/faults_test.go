package region

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/node/stake"
	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/redisstore"
)

// mail delivers messages between regions. It duplicates, delays and reorders them, and sometimes responds with the
// previous response.
type mail struct {
	late    sync.WaitGroup // deliveries whose senders have given up
	mu      sync.Mutex
	calm    bool
	said    map[string][]byte // the previous response, by sender, receiver and number of operations
	doubled int
	delayed int
	stale   int
}

// carry delivers a message and returns the response.
func (m *mail) carry(from string, to *site, r *http.Request) (*http.Response, error) {
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	var sent message
	if err := json.Unmarshal(text, &sent); err != nil {
		return nil, err
	}
	arrive := func(ctx context.Context) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		to.link.ServeHTTP(w, httptest.NewRequestWithContext(ctx, r.Method, "https://"+to.link.name+path, bytes.NewReader(text)))
		return w
	}
	m.mu.Lock()
	calm := m.calm || len(sent.Acts) == 0
	m.mu.Unlock()
	if calm {
		return arrive(r.Context()).Result(), nil
	}
	if rand.IntN(4) == 0 { // delivered again once or twice, up to 3 s later
		for range 1 + rand.IntN(2) {
			m.late.Go(func() {
				time.Sleep(rand.N(3 * time.Second))
				arrive(context.Background())
			})
		}
		m.count(&m.doubled)
	}
	wait := rand.N(300 * time.Millisecond)
	if rand.IntN(8) == 0 { // delivered after the sender has given up
		wait = DefaultTimeout + rand.N(2*time.Second)
		m.late.Go(func() {
			time.Sleep(wait)
			arrive(context.Background())
		})
		m.count(&m.delayed)
		<-r.Context().Done()
		return nil, errors.New("late")
	}
	time.Sleep(wait)
	w := arrive(context.WithoutCancel(r.Context()))
	time.Sleep(rand.N(100 * time.Millisecond))
	m.mu.Lock()
	defer m.mu.Unlock()
	key := from + " " + to.link.name + string(rune(len(sent.Acts)))
	before, new := m.said[key], bytes.Clone(w.Body.Bytes())
	m.said[key] = new
	if before != nil && rand.IntN(6) == 0 { // the previous response replaces this one, which is lost
		m.stale++
		w.Body = bytes.NewBuffer(before)
	}
	return w.Result(), nil
}

func (m *mail) count(n *int) {
	m.mu.Lock()
	*n++
	m.mu.Unlock()
}

// openRedis starts a Redis server and opens a store on it.
func openRedis(t testing.TB) (*redistest.Server, *redisstore.Store) {
	t.Helper()
	redis := redistest.New(t, redistest.Options{})
	store, err := redisstore.New(redisstore.Options{URL: "redis://" + redis.Addr, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	<-store.Tried()
	return redis, store
}

// onRedis creates regions that keep their stakes in a separate Redis each. The first region is the home.
func onRedis(t *testing.T, m *mail, names ...string) []*site {
	sites := world(t, time.Now, names...)
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for i, s := range sites {
		_, store := openRedis(t)
		s.Store = NewStore(s.own, s.link, RedisCells(store))
		s.link.timeout = DefaultTimeout
		for _, p := range s.link.peers {
			to := sites[slices.Index(names, p.name)]
			p.client.Transport = roundTripper(func(r *http.Request) (*http.Response, error) { return m.carry(names[i], to, r) })
		}
	}
	for _, s := range sites {
		running.Go(func() { _ = s.link.Run(ctx) })
	}
	t.Cleanup(func() {
		stop()
		running.Wait()
		m.late.Wait()
	})
	return sites
}

// TestDoubledLateAndReorderedMessages checks that duplicated, late and reordered messages move no token twice, and that
// no token of a budget is lost for good.
func TestDoubledLateAndReorderedMessages(t *testing.T) {
	m := &mail{said: map[string][]byte{}}
	sites := onRedis(t, m, "us", "eu", "ap")
	shared := func(d *counter.Definition) { d.Travels, d.Floor = false, 5 }
	budget := policyOf(t, "budget", counter.Limit{Algorithm: counter.FixedWindow, Count: 1500, Window: 1000 * time.Hour}, true).With(shared)
	limits := []*counter.Policy{budget}
	for i := range 4 {
		bucket := policyOf(t, "bucket", counter.Limit{Algorithm: counter.TokenBucket, Count: 50, Window: time.Second, Burst: 100}, true)
		limits = append(limits, bucket.With(func(d *counter.Definition) { shared(d); d.ID = uint64(i + 1) }))
	}
	type admission struct{ sent, answered time.Time }
	var late atomic.Int64
	var mu sync.Mutex
	admitted := map[*counter.Policy][]admission{}
	total := func(p *counter.Policy) int {
		mu.Lock()
		defer mu.Unlock()
		return len(admitted[p])
	}
	ask := func(s *site, p *counter.Policy) {
		begun := time.Now()
		r := take(s, on(p, 1))[0]
		if r.Err != nil { // Redis was slow, as on a busy machine, so the token may have been taken
			late.Add(1)
		}
		if r.Allowed {
			mu.Lock()
			admitted[p] = append(admitted[p], admission{begun, time.Now()})
			mu.Unlock()
		}
	}
	var all sync.WaitGroup
	end := time.Now().Add(6 * time.Second)
	for _, p := range limits {
		for _, s := range sites {
			for range 4 {
				all.Go(func() {
					for time.Now().Before(end) {
						ask(s, p)
						time.Sleep(rand.N(60 * time.Millisecond))
					}
				})
			}
		}
	}
	all.Wait()
	stormy := total(budget)
	if stormy > 1500 {
		t.Errorf("%d were admitted of 1500", stormy)
	}
	m.late.Wait()
	m.mu.Lock()
	m.calm = true
	m.mu.Unlock()
	for end := time.Now().Add(time.Minute); total(budget)+int(late.Load()) < 1500 && time.Now().Before(end); {
		for _, s := range sites {
			ask(s, budget)
		}
	}
	for range 10 {
		for _, s := range sites {
			ask(s, budget)
		}
	}
	if n := total(budget); n > 1500 || n+int(late.Load()) < 1500 {
		t.Errorf("%d were admitted of 1500, and %d had no answer", n, late.Load())
	}
	t.Logf("budget: %d of 1500 in the storm; buckets: %d and more; %d doubled, %d late, %d answers before", stormy, total(limits[1]), m.doubled, m.delayed, m.stale)
	if m.doubled == 0 || m.delayed == 0 || m.stale == 0 {
		t.Error("the mail does no harm")
	}
	for _, p := range limits[1:] {
		byEnd := slices.Clone(admitted[p])
		slices.SortFunc(byEnd, func(a, b admission) int { return a.answered.Compare(b.answered) })
		for _, first := range admitted[p] {
			n := 0.0
			for _, x := range byEnd {
				if x.sent.Before(first.sent) {
					continue
				}
				if n++; n > 100+50*(x.answered.Sub(first.sent).Seconds()+0.1) {
					t.Fatalf("%v were admitted in %v", n, x.answered.Sub(first.sent))
				}
			}
		}
	}
}

// slowCells are cells whose updates block until hold is closed, even if the caller gives up.
type slowCells struct {
	Cells
	hold chan struct{}
}

func (c slowCells) Update(ctx context.Context, keys []string, change func([][]byte, int64) []Cell) error {
	<-c.hold
	return c.Cells.Update(ctx, keys, change)
}

// TestAskersThatHaveGivenUp checks that a region processes another region's message even if that region no longer waits
// for the response.
func TestAskersThatHaveGivenUp(t *testing.T) {
	sites := world(t, time.Now, "us", "eu")
	hold := make(chan struct{})
	s := newStakes(sites[0].link, slowCells{MemoryCells(), hold})
	p := policyOf(t, "p", counter.PerHour(100), true)
	p = p.With(func(d *counter.Definition) { d.Travels, d.Floor = false, 5 })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	go func() {
		time.Sleep(10 * time.Millisecond)
		close(hold)
	}()
	answer, err := s.hear(ctx, "eu", counterOf(p), &stake.Message{Need: 1, Want: 1, Held: &stake.Loan{ID: 1, Sent: 1}})
	if err == nil || answer != nil {
		t.Errorf("%v, %v", answer, err)
	}
	s.close()
}

// TestFlightsAreShared has requests join asks at arbitrary times.
func TestFlightsAreShared(t *testing.T) {
	sites := world(t, time.Now, "us", "eu")
	p := policyOf(t, "p", counter.PerHour(1000), true)
	p = p.With(func(d *counter.Definition) { d.Travels, d.Floor = false, 5 })
	var all sync.WaitGroup
	for range 8 {
		for _, s := range sites {
			all.Go(func() {
				for i := range 40 {
					s.stakes.ask(keyOf(counterOf(p)), counterOf(p), int64(i%2), lenders{first: slices.Sorted(maps.Keys(s.link.peers))})
				}
			})
		}
	}
	all.Wait()
	for _, s := range sites {
		s.stakes.close()
	}
}

func counterOf(p *counter.Policy) *counter.Counter {
	return &counter.Counter{Policy: p, Subject: []byte("s")}
}

// TestManyReservationsOfOneCounter makes hundreds of concurrent reservations on two nodes that are 2 ms from their
// Redis. None fails, and each is charged once, however often it is sent.
func TestManyReservationsOfOneCounter(t *testing.T) {
	redis := redistest.NewProxy(t, redistest.New(t, redistest.Options{}).Addr)
	if err := redis.Delay(2 * time.Millisecond); err != nil {
		t.Fatal(err)
	}
	var nodes []*Store
	for range 2 {
		s := world(t, time.Now, "us", "eu")[0]
		store, err := redisstore.New(redisstore.Options{URL: "redis://" + redis.Addr, Timeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(store.Close)
		<-store.Tried()
		nodes = append(nodes, NewStore(s.own, s.link, RedisCells(store)))
	}
	p := policyOf(t, "p", counter.Limit{Algorithm: counter.FixedWindow, Count: 1000, Window: 1000 * time.Hour}, true)
	p = p.With(func(d *counter.Definition) { d.Travels, d.Floor = false, 5 })
	var all sync.WaitGroup
	for i := range 600 {
		for _, node := range nodes { // the same reservation on both nodes
			all.Go(func() {
				c := on(p, 1)
				c.Hold = &counter.Hold{For: time.Hour}
				c.Hold.ID[0], c.Hold.ID[1] = byte(i), byte(i>>8)
				if r := take(node, c)[0]; !r.Allowed || r.Err != nil {
					t.Errorf("%+v", r)
				}
			})
		}
	}
	all.Wait()
	for _, node := range nodes {
		c := on(p, 1)
		c.Peek = true
		if r := take(node, c)[0]; r.Remaining != 950-600 || r.Err != nil {
			t.Errorf("%+v", r)
		}
		node.stakes.close()
	}
}

// TestGivenBackAgainAndAgain checks that a region remembers both what was given back and what was used.
func TestGivenBackAgainAndAgain(t *testing.T) {
	s := world(t, time.Now, "us", "eu")[0]
	p := policyOf(t, "p", counter.Limit{Algorithm: counter.FixedWindow, Count: 100, Window: 1000 * time.Hour}, true)
	p = p.With(func(d *counter.Definition) { d.Travels, d.Floor = false, 5 })
	take(s, on(p, 50))
	for i := range 4 {
		err := s.GiveBack(t.Context(), counter.Once{1}, time.Hour, []counter.Return{{Counter: on(p, 1).Counter, N: 10}})
		if i == 0 && err != nil || i > 0 && !errors.Is(err, counter.ErrUsed) {
			t.Errorf("%d: %v", i, err)
		}
		if n := s.left(p); n != 95-40 {
			t.Errorf("%d: %d are left", i, n)
		}
	}
}
