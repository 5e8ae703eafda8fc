package load

import (
	"context"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/server/internal/cputime"
)

func inProcess(tb testing.TB, set *weir.RuleSet, keys int, c Check) *InProcess {
	tb.Helper()
	return NewInProcess([]*weir.Limiter{limiter(set)}, "in process", keys, c)
}

func limiter(set *weir.RuleSet) *weir.Limiter {
	return weir.NewLimiter(memstore.New(memstore.Options{}), set, weir.Options{})
}

func compile(tb testing.TB, rules ...weir.Rule) *weir.RuleSet {
	tb.Helper()
	set, err := weir.Compile(weir.Rules{Rules: rules})
	if err != nil {
		tb.Fatal(err)
	}
	return set
}

// untilSent is a target that ends a run once enough requests were sent, so that the number of measured requests doesn't depend
// on time.
func untilSent(n int, to Target, end context.CancelFunc) Target {
	sender := to.Sender()
	return target(func(ctx context.Context, k uint32) Answer {
		if n--; n == 0 {
			end()
		}
		return sender.Send(ctx, k)
	})
}

func TestInProcessChecks(t *testing.T) {
	set := compile(t,
		weir.Rule{ID: "orders", Match: weir.Match{Endpoint: "POST /v1/orders/{id}"}, Limits: []weir.Limit{weir.PerHour(50)}},
		weir.Rule{ID: "address", By: []string{"ip"}, Limits: []weir.Limit{weir.PerHour(80)}},
	)
	for _, c := range []struct {
		name    string
		check   Check
		allowed int64
	}{
		{"by key", Check{KeyPrefix: "sk_", Method: "POST", Path: "/v1/orders/{n}", Cost: 1}, 3 * 50},
		{"cost", Check{KeyPrefix: "sk_", Method: "POST", Path: "/v1/orders/{n}", Cost: 5}, 3 * 10},
		{"by address", Check{KeyPrefix: "sk_", Method: "GET", Path: "/", Cost: 1}, 3 * 80},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			to := untilSent(1000, inProcess(t, set, 3, c.check), cancel)
			r, err := Run(ctx, Plan{Duration: time.Hour, Workers: 1, Keys: 3, Sample: InProcessSample}, to, nil)
			if err != nil {
				t.Fatal(err)
			}
			if r.Allowed != c.allowed || r.Checks < 1000 || r.Refused != r.Checks-r.Allowed || !r.Interrupted {
				t.Errorf("%d checks, %d allowed, %d refused", r.Checks, r.Allowed, r.Refused)
			}
		})
	}
}

func TestInProcessPeekTakesNothing(t *testing.T) {
	sender := inProcess(t, compile(t, weir.Rule{ID: "one", Limits: []weir.Limit{weir.PerHour(1)}}), 1, Check{}).Sender()
	for range 3 {
		if a := sender.Send(t.Context(), 0); a != (Answer{}) {
			t.Errorf("got %+v", a)
		}
	}
}

// Requests are spread over all limiters.
func TestInProcessSpreadsOverLimiters(t *testing.T) {
	set := compile(t, weir.Rule{ID: "ten", Limits: []weir.Limit{weir.PerHour(10)}})
	sender := NewInProcess([]*weir.Limiter{limiter(set), limiter(set), limiter(set)}, "in process", 1, Check{Cost: 1}).Sender()
	allowed := 0
	for range 1000 {
		if sender.Send(t.Context(), 0).Outcome == Allowed {
			allowed++
		}
	}
	if allowed != 3*10 {
		t.Errorf("%d allowed by three limiters that share nothing", allowed)
	}
}

func TestGenerousRulesRefuseNoClient(t *testing.T) {
	set, err := GenerousRules()
	if err != nil {
		t.Fatal(err)
	}
	sender := inProcess(t, set, 1, Check{Cost: 1}).Sender()
	for range 10_000 {
		if a := sender.Send(t.Context(), 0); a.Outcome != Allowed {
			t.Fatalf("got %+v", a)
		}
	}
}

// Under the race detector, workers share recorders and use a real limiter.
func TestInProcessWithManyWorkers(t *testing.T) {
	set, err := GenerousRules()
	if err != nil {
		t.Fatal(err)
	}
	for _, rate := range []float64{0, 20_000} {
		told := 0
		plan := Plan{Duration: 250 * time.Millisecond, Workers: 2 * maxRecorders, Rate: rate, Keys: 100, Distribution: Zipf, Exponent: 1.1, Sample: InProcessSample}
		r, err := Run(t.Context(), plan, inProcess(t, set, 100, Check{Cost: 1}), func(Progress) { told++ })
		if err != nil {
			t.Fatal(err)
		}
		if r.Checks == 0 || r.Allowed != r.Checks || r.Latency.Max == 0 || told == 0 {
			t.Errorf("at %v/s: %d checks, %d allowed, %+v, told %d times", rate, r.Checks, r.Allowed, r.Latency, told)
		}
		if o := r.OpenLoop; o != nil && (o.Due != 5000 || o.Sent != r.Checks || o.Sent+o.Dropped != o.Due) {
			t.Errorf("%+v", o)
		}
	}
}

// BenchmarkClosedLoop measures what generating load costs in addition to the checks: Loop minus Bare, or Nothing. On a
// busy machine, the CPU time is more reliable than elapsed time.
func BenchmarkClosedLoop(b *testing.B) {
	set, err := GenerousRules()
	if err != nil {
		b.Fatal(err)
	}
	const keys = 10_000
	to := inProcess(b, set, keys, Check{KeyPrefix: "bench_", Method: "GET", Path: "/", Cost: 1})
	measure := func(f func(b *testing.B)) func(b *testing.B) {
		return func(b *testing.B) {
			b.ReportAllocs()
			begin := cputime.Used()
			f(b)
			b.ReportMetric(float64(cputime.Used()-begin)/float64(b.N), "cpu-ns/op")
		}
	}
	loop := func(to Target) func(*testing.B) {
		r := &run{plan: Plan{Workers: 1, Keys: keys}, sample: InProcessSample, start: time.Now()}
		w := r.workers(to)[0]
		return measure(func(b *testing.B) {
			for i := 0; i < b.N; i += InProcessSample {
				w.batch(b.Context(), 0, true)
			}
		})
	}
	b.Run("Bare", measure(func(b *testing.B) {
		ctx := b.Context()
		req := weir.Request{KeyVerified: true, Method: "GET", Path: "/", Cost: 1}
		key := newName("{n}", keys)
		for i := range b.N {
			n := uint32(i) % keys
			req.APIKey, req.IP = key.of(n), clientAddr(n)
			if d, _ := to.limiters[0].Check(ctx, &req); !d.Allowed {
				b.Fatal("refused")
			}
		}
	}))
	b.Run("Loop", loop(to))
	b.Run("Nothing", loop(target(func(context.Context, uint32) Answer { return Answer{} })))
}
