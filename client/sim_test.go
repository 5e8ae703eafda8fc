package client_test

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/client"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/memstore"
)

// service is a handler behind a simulated network delay, for tests in virtual time. It records the requests that it
// received and the responses that it sent.
type service struct {
	handler  http.Handler
	min, max time.Duration // round-trip time

	mu     sync.Mutex
	rand   *rand.Rand
	sent   []exchange
	pauses map[string]time.Time // by policy: the time until which no request may be sent
	broken []string
}

type exchange struct {
	at      time.Time
	refused bool
}

func (s *service) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		defer req.Body.Close()
	}
	now := time.Now()
	s.mu.Lock()
	there := s.min/2 + time.Duration(s.rand.Int64N(int64(s.max-s.min)/2+1))
	back := s.min/2 + time.Duration(s.rand.Int64N(int64(s.max-s.min)/2+1))
	for policy, until := range s.pauses {
		if now.Before(until) {
			s.broken = append(s.broken, fmt.Sprintf("%s is paused for another %v", policy, until.Sub(now)))
		}
	}
	s.mu.Unlock()
	time.Sleep(there)
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, req)
	time.Sleep(back)
	res := w.Result()
	res.Request = req
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent = append(s.sent, exchange{now, res.StatusCode == http.StatusTooManyRequests})
	if res.StatusCode == http.StatusTooManyRequests {
		wait, err := time.ParseDuration(res.Header.Get("Retry-After") + "s")
		if err != nil {
			s.broken = append(s.broken, "a refusal without Retry-After")
		}
		if until := time.Now().Add(wait); until.After(s.pauses[res.Header.Get("X-RateLimit-Rule")]) {
			s.pauses[res.Header.Get("X-RateLimit-Rule")] = until
		}
	}
	return res, nil
}

// outcome counts requests from some time on.
type outcome struct{ sent, refused int }

func (s *service) since(from time.Time) (o outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.sent {
		if !e.at.Before(from) {
			o.sent++
			if e.refused {
				o.refused++
			}
		}
	}
	return o
}

func limited(limits ...weir.Limit) http.Handler {
	doc := weir.Rules{}
	for i, l := range limits {
		doc.Rules = append(doc.Rules, weir.Rule{ID: fmt.Sprint("orders-", i), Algorithm: l.Algorithm, Limits: []weir.Limit{l}})
	}
	rules, err := weir.Compile(doc)
	if err != nil {
		panic(err)
	}
	l := weir.NewLimiter(memstore.New(memstore.Options{}), rules, weir.Options{})
	return httplimit.New(l, httplimit.Options{}).Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "done") }))
}

func newService(h http.Handler, min, max time.Duration, seed uint64) *service {
	return &service{handler: h, min: min, max: max, rand: rand.New(rand.NewPCG(1, seed)), pauses: map[string]time.Time{}}
}

// flood has n goroutines send one request after another until ctx ends.
func flood(ctx context.Context, url string, n int, transports ...http.RoundTripper) {
	var wg sync.WaitGroup
	for i := range n {
		c := http.Client{Transport: transports[i%len(transports)]}
		wg.Go(func() {
			for ctx.Err() == nil {
				req, _ := http.NewRequestWithContext(ctx, http.MethodGet, url+"/v1/orders", nil)
				req.Header.Set("X-API-Key", "sk_1")
				res, err := c.Do(req)
				if err != nil {
					return // the deadline is before the request's turn
				}
				_, _ = io.Copy(io.Discard, res.Body)
				res.Body.Close()
			}
		})
	}
	wg.Wait()
}

const ms = time.Millisecond

var loads = []struct {
	name   string
	limits []weir.Limit
	rate   float64 // requests per second
	run    time.Duration
	learn  time.Duration // part of run that isn't measured
	used   float64       // share of the limit that a process uses, at least
	shared float64       // and two processes
}{
	{"token bucket 100/s", []weir.Limit{{Count: 100, Window: time.Second}}, 100, time.Minute, 5 * time.Second, 0.95, 0.95},
	{"token bucket 1000/s", []weir.Limit{{Count: 1000, Window: time.Second}}, 1000, 30 * time.Second, 5 * time.Second, 0.95, 0.95},
	{"token bucket 100/s, burst 10", []weir.Limit{{Count: 100, Window: time.Second, Burst: 10}}, 100, time.Minute, 5 * time.Second, 0.95, 0.9},
	{"token bucket 600/min", []weir.Limit{{Count: 600, Window: time.Minute}}, 10, 10 * time.Minute, 2 * time.Minute, 0.95, 0.95},
	{"token bucket 600/min, burst 5", []weir.Limit{{Count: 600, Window: time.Minute, Burst: 5}}, 10, 10 * time.Minute, 2 * time.Minute, 0.95, 0.9},
	{"leaky bucket 100/s", []weir.Limit{{Algorithm: weir.LeakyBucket, Count: 100, Window: time.Second}}, 100, time.Minute, 5 * time.Second, 0.95, 0.95},
	{"fixed window 100/s", []weir.Limit{{Algorithm: weir.FixedWindow, Count: 100, Window: time.Second}}, 100, time.Minute, 5 * time.Second, 0.93, 0.85},
	{"fixed window 600/min", []weir.Limit{{Algorithm: weir.FixedWindow, Count: 600, Window: time.Minute}}, 10, 10 * time.Minute, 2 * time.Minute, 0.95, 0.95},
	{"sliding counter 100/s", []weir.Limit{{Algorithm: weir.SlidingCounter, Count: 100, Window: time.Second}}, 100, time.Minute, 5 * time.Second, 0.85, 0.85},
	{"sliding counter 600/min", []weir.Limit{{Algorithm: weir.SlidingCounter, Count: 600, Window: time.Minute}}, 10, 10 * time.Minute, 2 * time.Minute, 0.85, 0.9},
	{"100/s and 3000/min", []weir.Limit{{Count: 100, Window: time.Second}, {Count: 3000, Window: time.Minute}}, 50, 5 * time.Minute, 2 * time.Minute, 0.95, 0.9},
	{"100/s and 3000 in a fixed minute", []weir.Limit{{Count: 100, Window: time.Second}, {Algorithm: weir.FixedWindow, Count: 3000, Window: time.Minute}}, 50, 5 * time.Minute, 2 * time.Minute, 0.95, 0.9},
}

// measure has a thousand goroutines send requests for a while. It returns the results from the time after they have
// learned the limit.
func measure(t *testing.T, s *service, run, learn time.Duration, rate float64, transports ...http.RoundTripper) (refused, used float64) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), run)
	defer cancel()
	flood(ctx, "http://service", 1000, transports...)
	o := s.since(began.Add(learn))
	return float64(o.refused) / float64(o.sent), float64(o.sent-o.refused) / (run - learn).Seconds() / rate
}

// TestAThousandGoroutines checks a thousand goroutines against a limited server: no request is sent during a pause,
// less than 1% of requests are refused once the pace is known, and most of the limit is used.
func TestAThousandGoroutines(t *testing.T) {
	for _, l := range loads {
		t.Run(l.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newService(limited(l.limits...), 10*ms, 40*ms, 2)
				refused, used := measure(t, s, l.run, l.learn, l.rate, &client.Transport{Base: s, MaxWait: time.Hour})
				t.Logf("%.2f%% refused, %.1f%% of the limit used", 100*refused, 100*used)
				if len(s.broken) > 0 {
					t.Errorf("%d were sent during a pause: %v", len(s.broken), s.broken[0])
				}
				if refused >= 0.01 {
					t.Errorf("%.1f%% were refused", 100*refused)
				}
				if used < l.used {
					t.Errorf("only %.1f%% of the limit were used", 100*used)
				}
			})
		})
	}
}

// TestTwoProcesses checks two processes that share a key and don't know about each other. They find a common pace.
// When a fixed window begins, each believes that the whole window is its own, so some requests are refused.
func TestTwoProcesses(t *testing.T) {
	for _, l := range loads {
		t.Run(l.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newService(limited(l.limits...), 10*ms, 40*ms, 2)
				refused, used := measure(t, s, l.run, l.learn, l.rate,
					&client.Transport{Base: s, MaxWait: time.Hour}, &client.Transport{Base: s, MaxWait: time.Hour})
				t.Logf("%.2f%% refused, %.1f%% of the limit used", 100*refused, 100*used)
				if refused >= 0.2 {
					t.Errorf("%.1f%% were refused", 100*refused)
				}
				if used < l.shared {
					t.Errorf("only %.1f%% of the limit were used", 100*used)
				}
			})
		})
	}
}

// TestAPlainClient measures a client without a Transport, for comparison.
func TestAPlainClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(limited(weir.PerSecond(100)), 10*ms, 40*ms, 2)
		refused, used := measure(t, s, 2*time.Second, time.Second, 100, s)
		t.Logf("%.2f%% refused, %.1f%% of the limit used", 100*refused, 100*used)
		if refused < 0.9 {
			t.Errorf("%.1f%% were refused: the test's load is too small to show anything", 100*refused)
		}
	})
}

// TestRandomServers does the same as TestAThousandGoroutines with random limits and delays. With a window of a second,
// each window loses a round trip; with a small count, the Transport's reserve is a larger share.
func TestRandomServers(t *testing.T) {
	for seed := range uint64(*worlds) {
		r := rand.New(rand.NewPCG(7, seed))
		l := weir.Limit{Algorithm: []counter.Algorithm{weir.TokenBucket, weir.LeakyBucket, weir.FixedWindow, weir.SlidingCounter}[r.IntN(4)]}
		l.Window = []time.Duration{time.Second, 10 * time.Second, time.Minute}[r.IntN(3)]
		l.Count = max(50, int64(float64(10*(1+r.IntN(30)))*l.Window.Seconds()))
		if l.Algorithm <= weir.LeakyBucket && r.IntN(2) == 0 {
			l.Burst = max(10, l.Count/(1+r.Int64N(20)))
		}
		least := time.Duration(1+r.IntN(60)) * ms
		most := least + time.Duration(1+r.IntN(50))*ms
		synctest.Test(t, func(t *testing.T) {
			s := newService(limited(l), least, most, seed)
			refused, used := measure(t, s, max(40*time.Second, 5*l.Window), max(10*time.Second, 2*l.Window),
				float64(l.Count)/l.Window.Seconds(), &client.Transport{Base: s, MaxWait: time.Hour})
			if len(s.broken) > 0 || refused >= 0.01 || used < 0.85 {
				t.Errorf("%d: %v of %v, burst %d, %v to %v: %.2f%% refused, %.1f%% used, %d sent during a pause",
					seed, l.Algorithm, l, l.Burst, least, most, 100*refused, 100*used, len(s.broken))
			}
		})
	}
}

var worlds = flag.Int("worlds", 12, "random servers to try")
