package redislimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/redisstore"
)

// nodes returns limiters on one Cluster with long timeouts. The secret is fixed, so that the parts of a client's
// counter are always in the same slots.
func nodes(t testing.TB, c *redistest.Cluster, n int) (all []*Limiter) {
	t.Helper()
	for range n {
		l, err := New(redisstore.Options{URL: "redis-cluster://" + strings.Join(c.Addrs(), ","), Secret: []byte("split"), Timeout: 20 * time.Second}, memstore.New(memstore.Options{}), weir.Options{Secret: []byte("receipts")}, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close(time.Second) })
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if err := l.Redis.Ready(ctx); err != nil {
			t.Fatal(err)
		}
		all = append(all, l)
	}
	return all
}

// acts has each server's number of calls from all nodes, as of the last reading.
type acts map[string]uint64

func (a acts) since(all []*Limiter) (new []uint64) {
	now := acts{}
	for _, l := range all {
		for _, s := range l.Redis.Health().Shards {
			now[s.Name] += s.Acts
		}
	}
	for name, n := range now {
		new = append(new, n-a[name])
		a[name] = n
	}
	return new
}

// unevenness returns how far the busiest and the least busy server are from the mean, as fractions of the mean.
func unevenness(n []uint64) (more, less float64) {
	sum := uint64(0)
	for _, x := range n {
		sum += x
	}
	mean := float64(sum) / float64(len(n))
	return float64(slices.Max(n))/mean - 1, 1 - float64(slices.Min(n))/mean
}

// TestSplitOnACluster checks that three servers share the load of one busy counter evenly, and that two nodes at full
// load never admit more than the limit, in any window or, for buckets, any interval.
func TestSplitOnACluster(t *testing.T) {
	const limit, requests, callers = 10_000, 30_000, 64
	all := nodes(t, redistest.NewCluster(t, redistest.Options{}), 2)
	seen := acts{}
	for _, a := range splitAlgorithms {
		p := policyOf(t, 9, weir.Limit{Algorithm: a, Count: limit, Window: time.Second})
		stores := []*splitter{newSplitter(all[0].Leases, 20*time.Second), newSplitter(all[1].Leases, 20*time.Second)}
		seen.since(all)
		var sent atomic.Int64
		var mu sync.Mutex
		var admitted []admission
		var wg sync.WaitGroup
		for i := range callers {
			wg.Go(func() {
				var mine []admission
				for sent.Add(1) <= requests {
					switch r := take(stores[i%2], charge(p, 1)); {
					case r.Err != nil:
						t.Error(r.Err)
						return
					case r.Allowed:
						mine = append(mine, admission{r.Slot, 1})
					}
				}
				mu.Lock()
				defer mu.Unlock()
				admitted = append(admitted, mine...)
			})
		}
		wg.Wait()
		if over := most(p, admitted); over != "" {
			t.Errorf("%s: %s", a, over)
		}
		loads := seen.since(all)
		more, less := unevenness(loads)
		t.Logf("%s: %d of %d admitted; acts of the servers %v", a, len(admitted), requests, loads)
		if len(loads) != 3 || more > 0.2 || less > 0.2 {
			t.Errorf("%s: the servers were asked %v times", a, loads)
		}
		if len(admitted) < limit {
			t.Errorf("%s: only %d admitted", a, len(admitted))
		}
	}
}

// most says by how much admissions exceed a limit, or "". An admission's time is the window for windows, and Redis'
// time for buckets.
func most(p *counter.Policy, admitted []admission) string {
	if p.Limit.Algorithm > weir.LeakyBucket {
		windows := map[int64]int64{}
		for _, a := range admitted {
			windows[a.at] += a.n
		}
		for at, n := range windows {
			if n > p.Limit.Count {
				return fmt.Sprintf("%d admitted in the window at %d", n, at)
			}
		}
		return ""
	}
	slices.SortFunc(admitted, func(a, b admission) int { return cmp.Compare(a.at, b.at) })
	rate := float64(p.Limit.Count) / p.Limit.Window.Seconds() / 1e6
	// Of all intervals that end here, the one with the largest excess began where this value was lowest.
	sum, lowest := 0.0, 0.0
	for i, a := range admitted {
		at := float64(a.at - admitted[0].at)
		if before := sum - rate*at; i == 0 || before < lowest {
			lowest = before
		}
		sum += float64(a.n)
		if in := sum - rate*at - lowest; in > float64(p.Limit.Max())+1e-3 {
			return fmt.Sprintf("%f admitted beyond what refilled, by a bucket of %d", in, p.Limit.Max())
		}
	}
	return ""
}

// TestSplitReceiptsOnACluster checks that another node can give back a receipt's tokens to the parts from which they
// were taken, and that people see the whole limit.
func TestSplitReceiptsOnACluster(t *testing.T) {
	all := nodes(t, redistest.NewCluster(t, redistest.Options{}), 2)
	rs := compiled(t, weir.Rule{ID: "hot", Strict: true, Split: 9, Limits: []weir.Limit{weir.PerHour(9000)}}, weir.Rule{ID: "other", By: []string{}, Strict: true, Limits: []weir.Limit{weir.PerHour(1_000_000)}})
	for _, l := range all {
		l.SetRules(rs)
	}
	for _, cost := range []int64{1, 5000} {
		var receipts []string
		for range 9 / min(cost, 9) {
			d, err := all[0].Check(t.Context(), &weir.Request{APIKey: "k", Cost: cost, Receipt: true})
			if err != nil || !d.Allowed {
				t.Fatal(d, err)
			}
			receipts = append(receipts, d.Receipt)
		}
		left := func(want int64) {
			t.Helper()
			if d, err := all[1].Check(t.Context(), &weir.Request{APIKey: "k", Peek: true}); err != nil || d.Limits()[0].Remaining != want {
				t.Errorf("cost %d: %d left, want %d; %v", cost, d.Limits()[0].Remaining, want, err)
			}
		}
		left(9000 - int64(len(receipts))*cost)
		for _, r := range receipts {
			if err := all[1].Finish(t.Context(), &weir.Decision{Receipt: r}, weir.Outcome{Abandoned: true}); err != nil {
				t.Error(err)
			}
		}
		left(9000)
	}
}

// oracle is one exact bucket in this process.
type oracle struct {
	mu     sync.Mutex // guards state
	policy *counter.Policy
	state  counter.State
}

func (o *oracle) take() (ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.state, ok = o.policy.Try(o.state, time.Now().UnixMicro(), 1)
	return ok
}

// BenchmarkSplit measures one counter of 10,000 a second on a Cluster. Three nodes use it at the same time at a given
// load, once with a single part on one server and once with nine parts, starting from an empty bucket. It prints the
// share of requests that were refused but that an exact limiter in this process admits, and the busiest server's share
// of the load.
func BenchmarkSplit(b *testing.B) {
	const limit = 10_000
	c := redistest.NewCluster(b, redistest.Options{})
	all := nodes(b, c, 3)
	seen := acts{}
	for _, parts := range []int{1, 9} {
		for _, load := range []float64{0.9, 1, 1.2, 2} {
			b.Run(fmt.Sprintf("parts=%d/load=%v", parts, load), func(b *testing.B) {
				p := policyOf(b, max(parts, 2), weir.Limit{Count: limit, Window: time.Second})
				if parts == 1 {
					whole := p.Definition
					whole.Split = 0
					p, _ = counter.Define(whole) // the same definition is valid with parts, too
				}
				subject := []byte(b.Name() + fmt.Sprint(b.N))
				var stores []counter.Store
				for _, l := range all {
					stores = append(stores, newSplitter(l.Leases, time.Second))
				}
				// A full bucket would admit everything for seconds.
				if r := take(stores[0], []counter.Charge{{Counter: counter.Counter{Policy: p, Subject: subject}, N: limit}}); !r.Allowed {
					b.Fatal(r)
				}
				exact := &oracle{policy: p, state: p.AtLevel(0, time.Now().UnixMicro())}
				seen.since(all)
				var want, got, failed atomic.Int64
				var wg sync.WaitGroup
				seats := make(chan struct{}, 512)
				b.ResetTimer()
				begun := time.Now()
				for i := range b.N {
					due := begun.Add(time.Duration(float64(i) / (load * limit) * 1e9))
					if wait := time.Until(due); wait > time.Millisecond {
						time.Sleep(wait)
					}
					seats <- struct{}{}
					wg.Go(func() {
						defer func() { <-seats }()
						ask := []counter.Charge{{Counter: counter.Counter{Policy: p, Subject: subject}, N: 1}}
						if exact.take() {
							want.Add(1)
						}
						switch r := take(stores[i%len(stores)], ask); {
						case r.Err != nil:
							failed.Add(1)
						case r.Allowed:
							got.Add(1)
						}
					})
				}
				wg.Wait()
				took := time.Since(begun).Seconds()
				more, _ := unevenness(seen.since(all))
				b.ReportMetric(float64(b.N)/took, "checks/s")
				b.ReportMetric(100*float64(want.Load()-got.Load())/float64(want.Load()), "%falsely-refused")
				b.ReportMetric(100*(1+more)/3, "%of-load-on-busiest")
				b.ReportMetric(float64(failed.Load()), "errors")
			})
		}
	}
}

// TestFinishedOnceOnACluster checks that a check with an id, whose limits are on several servers, can be settled or
// given back, but not both.
func TestFinishedOnceOnACluster(t *testing.T) {
	c := redistest.NewCluster(t, redistest.Options{})
	l := nodes(t, c, 1)[0]
	set, err := weir.Compile(weir.Rules{Rules: []weir.Rule{
		{ID: "tokens", By: []string{"api_key"}, Amount: "tokens", Algorithm: weir.FixedWindow, Limits: []weir.Limit{{Count: 1000, Window: 24 * time.Hour}}},
		{ID: "requests", By: []string{"org"}, Algorithm: weir.FixedWindow, Limits: []weir.Limit{{Count: 10, Window: 24 * time.Hour}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	l.SetRules(set)
	for i := range 30 { // enough to reach all servers
		req := &weir.Request{
			APIKey: fmt.Sprint("key ", i), Org: fmt.Sprint("org ", i), Receipt: true,
			Amounts: map[string]counter.Amount{"tokens": counter.Whole(100)}, Reserve: time.Minute, Repeat: counter.Once{byte(i), 1},
		}
		d, err := l.Check(t.Context(), req)
		if err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		if err := l.Finish(t.Context(), &weir.Decision{Receipt: d.Receipt}, weir.Outcome{Amounts: map[string]counter.Amount{"tokens": counter.Whole(40)}}); err != nil {
			t.Fatal(err)
		}
		if err := l.Finish(t.Context(), &weir.Decision{Receipt: d.Receipt}, weir.Outcome{Abandoned: true}); !errors.Is(err, counter.ErrUsed) {
			t.Errorf("%d: given back after it was settled: %v", i, err)
		}
		req.Peek, req.Receipt = true, false
		if d, err = l.Check(t.Context(), req); err != nil || d.Limits()[0].Remaining != 960 || d.Limits()[1].Remaining != 9 {
			t.Errorf("%d: %+v, %v", i, d.Limits(), err)
		}
	}
}
