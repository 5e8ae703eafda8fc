package load

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// takes is a target that answers after a fixed time.
func takes(d time.Duration) target {
	return func(ctx context.Context, _ uint32) Answer {
		select {
		case <-time.After(d):
			return Answer{}
		case <-ctx.Done():
			return Answer{Outcome: Unfinished}
		}
	}
}

func TestClosedLoopSendsAsAnswersCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := mustRun(t, Plan{Duration: time.Second, Warmup: 250 * time.Millisecond, Workers: 2}, takes(100*time.Millisecond))
		// Each worker begins a request at 300 ms, 400 ms, … 1200 ms. The measured time is from 250 to 1250 ms.
		if r.Checks != 20 || r.Allowed != 20 || r.PerSecond != 20 || r.Seconds != 1 {
			t.Errorf("%d checks, %d allowed, %v/s in %vs", r.Checks, r.Allowed, r.PerSecond, r.Seconds)
		}
		if !near(r.Latency.P50, 100*time.Millisecond) || r.Latency.Max != 100*time.Millisecond {
			t.Errorf("latency is %+v", r.Latency)
		}
		if r.OpenLoop != nil || r.Interrupted || r.TimedOneIn != 1 {
			t.Errorf("got %+v", r)
		}
	})
}

func TestClosedLoopTimesOneRequestInMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := mustRun(t, Plan{Duration: 1600*time.Millisecond - 1, Sample: 16}, takes(time.Millisecond))
		if r.Checks != 1600 || r.latency.hdr.TotalCount() != 100 || r.TimedOneIn != 16 {
			t.Errorf("%d of %d timed, one in %d", r.latency.hdr.TotalCount(), r.Checks, r.TimedOneIn)
		}
	})
}

// batcher is a target that accepts batches. It passes each request of a batch to the function target.
type batcher struct{ target }

func (b batcher) Sender() Sender { return b }
func (b batcher) SendBatch(clients []uint32) (refused int64) {
	for _, n := range clients {
		if b.target(context.Background(), n).Outcome == Refused {
			refused++
		}
	}
	return refused
}

func TestClosedLoopSendsBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked [4]int64
		to := batcher{func(_ context.Context, n uint32) Answer {
			asked[n]++
			time.Sleep(time.Millisecond)
			return Answer{Outcome: Outcome(n % 2)}
		}}
		r := mustRun(t, Plan{Duration: time.Second, Keys: 4, Sample: 50}, to)
		// A batch that begins in the measured time counts as a whole.
		if r.Checks < 1000 || r.Checks > 1050 || r.Allowed != asked[0]+asked[2] || r.Refused != asked[1]+asked[3] {
			t.Errorf("%d checks, %d allowed, %d refused of %v", r.Checks, r.Allowed, r.Refused, asked)
		}
	})
}

func TestOpenLoopCountsLatencyFromTheDueTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := mustRun(t, Plan{Duration: time.Second, Rate: 10}, takes(300*time.Millisecond))
		// Ten requests are due, at 0, 100, … 900 ms. The only worker sends at 0, 300, 600 and 900.
		o := r.OpenLoop
		if o.Due != 10 || o.Sent != 4 || o.Late != 3 || o.Dropped != 6 || r.Checks != 4 {
			t.Errorf("%d checks, %+v", r.Checks, o)
		}
		// The answers to the requests that were due at 0, 100, 200 and 300 come at 300, 600, 900 and 1200.
		if !near(r.Latency.P50, 500*time.Millisecond) || r.Latency.Max != 900*time.Millisecond {
			t.Errorf("latency is %+v", r.Latency)
		}
		if !near(o.Service.P50, 300*time.Millisecond) || o.Service.Max != 300*time.Millisecond {
			t.Errorf("service is %+v", o.Service)
		}
	})
}

// During one stall of a second, a closed loop sees one slow request, and an open loop sees every request that the stall
// delayed.
func TestStallShowsInAnOpenLoop(t *testing.T) {
	stalls := func() target {
		var n atomic.Int64
		return func(context.Context, uint32) Answer {
			if n.Add(1) == 101 {
				time.Sleep(time.Second)
			} else {
				time.Sleep(time.Millisecond)
			}
			return Answer{}
		}
	}
	synctest.Test(t, func(t *testing.T) {
		closed := mustRun(t, Plan{Duration: 10 * time.Second}, stalls())
		if closed.Latency.P99 > 2*time.Millisecond {
			t.Errorf("closed loop: p99 is %s", closed.Latency.P99)
		}
		open := mustRun(t, Plan{Duration: 10 * time.Second, Rate: 100}, stalls())
		if open.OpenLoop.Due != 1000 || open.OpenLoop.Dropped != 0 || open.Checks != 1000 {
			t.Errorf("open loop: %d checks, %+v", open.Checks, open.OpenLoop)
		}
		if open.Latency.P99 < 900*time.Millisecond || open.Latency.P90 < 50*time.Millisecond {
			t.Errorf("open loop: p90 is %s, p99 is %s", open.Latency.P90, open.Latency.P99)
		}
		if open.OpenLoop.Service.P99 > 2*time.Millisecond {
			t.Errorf("open loop: p99 of service is %s", open.OpenLoop.Service.P99)
		}
	})
}

func TestOpenLoopBoundsRequestsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now, most atomic.Int64
		busy := target(func(context.Context, uint32) Answer {
			n := now.Add(1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			time.Sleep(100 * time.Millisecond)
			now.Add(-1)
			return Answer{}
		})
		r := mustRun(t, Plan{Duration: time.Second, Rate: 1000, Workers: 3}, busy)
		if most.Load() != 3 {
			t.Errorf("%d were in flight at once", most.Load())
		}
		o := r.OpenLoop
		if o.Due != 1000 || o.Sent+o.Dropped != o.Due || o.Sent != r.Checks || o.Sent < 28 || o.Sent > 33 {
			t.Errorf("%d checks, %+v", r.Checks, o)
		}
	})
}

func TestOpenLoopIsOnTimeWhileThereIsAPlace(t *testing.T) {
	for _, poisson := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			r := mustRun(t, Plan{Duration: 10 * time.Second, Warmup: time.Second, Rate: 500, Poisson: poisson, Workers: 50}, takes(5*time.Millisecond))
			if r.OpenLoop.Late != 0 || r.OpenLoop.Dropped != 0 || r.Latency.Max != 5*time.Millisecond {
				t.Errorf("poisson %v: %+v, %+v", poisson, r.OpenLoop, r.Latency)
			}
			if n := r.Checks; !poisson && n != 5000 || n < 4700 || n > 5300 {
				t.Errorf("poisson %v: %d checks", poisson, n)
			}
		})
	}
}

func TestBacklogOfTheWarmUpIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent atomic.Int64
		r := mustRun(t, Plan{Duration: time.Second, Warmup: 500 * time.Millisecond, Rate: 10}, target(func(context.Context, uint32) Answer {
			if sent.Add(1) == 1 {
				time.Sleep(950 * time.Millisecond)
			}
			return Answer{}
		}))
		// The first request lasts until 950 ms. Requests due from 100 to 400 belong to the warm-up, those due from 500 to 900
		// are late, and those due from 1000 to 1400 are on time.
		if sent.Load() != 11 || r.Checks != 10 || r.OpenLoop.Late != 5 || r.OpenLoop.Dropped != 0 {
			t.Errorf("%d sent, %d checks, %+v", sent.Load(), r.Checks, r.OpenLoop)
		}
		if r.Latency.Max != 450*time.Millisecond {
			t.Errorf("latency is %+v", r.Latency)
		}
	})
}

func TestInterruptionReportsWhatWasMeasured(t *testing.T) {
	for _, c := range []struct {
		name                        string
		plan                        Plan
		after                       time.Duration
		checks, unfinished, dropped int64
	}{
		{"closed", Plan{Duration: time.Hour}, 1050 * time.Millisecond, 10, 1, 0},
		{"open", Plan{Duration: time.Hour, Rate: 5}, 1050 * time.Millisecond, 5, 1, 0},
		{"overloaded", Plan{Duration: time.Hour, Rate: 20}, 1020 * time.Millisecond, 10, 1, 10},
		{"warming up", Plan{Duration: time.Hour, Warmup: time.Hour, Rate: 5}, time.Second, 0, 0, 0},
		{"finishing", Plan{Duration: 50 * time.Millisecond}, 70 * time.Millisecond, 0, 1, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), c.after)
				defer cancel()
				begin := time.Now()
				r, err := Run(ctx, virtual(c.plan), takes(100*time.Millisecond), nil)
				if err != nil {
					t.Fatal(err)
				}
				if took := time.Since(begin); took != c.after {
					t.Errorf("it stopped after %s", took)
				}
				var dropped int64
				if r.OpenLoop != nil {
					dropped = r.OpenLoop.Dropped
				}
				if r.Checks != c.checks || r.Unfinished != c.unfinished || r.Errors != 0 || dropped != c.dropped {
					t.Errorf("%d checks, %d unfinished, %d errors, %d dropped", r.Checks, r.Unfinished, r.Errors, dropped)
				}
				if want := c.after < c.plan.Duration; r.Interrupted != want {
					t.Errorf("interrupted: %v", r.Interrupted)
				}
			})
		})
	}
}

func TestClosedLoopPausesWhileRequestsFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := mustRun(t, Plan{Duration: 10 * time.Second}, target(func(context.Context, uint32) Answer {
			return Answer{Outcome: Failed, Err: errors.New("connection refused")}
		}))
		// The pauses are 1, 2, 4 … 512 ms, and then 1 s.
		if r.Errors < 15 || r.Errors > 21 || r.Checks != 0 || r.Latency != (Quantiles{}) {
			t.Errorf("%d errors, %d checks, %+v", r.Errors, r.Checks, r.Latency)
		}
		if len(r.Faults) != 1 || r.Faults[0] != (Fault{"connection refused", r.Errors}) {
			t.Errorf("faults are %v", r.Faults)
		}
	})
}

// After an outage, the store needs the processor to recover.
func TestClosedLoopPausesWhileTheStoreIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := mustRun(t, Plan{Duration: 10 * time.Second}, target(func(context.Context, uint32) Answer { return Answer{Degraded: true} }))
		if r.Checks < 15 || r.Checks > 21 || r.Degraded != r.Checks {
			t.Errorf("%d checks, %d degraded", r.Checks, r.Degraded)
		}
	})
}

func TestFaultsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int64
		r := mustRun(t, Plan{Duration: time.Second, Rate: 100}, target(func(context.Context, uint32) Answer {
			return Answer{Outcome: Failed, Err: errors.New(strings.Repeat("x", int(n.Add(1))))}
		}))
		if len(r.Faults) != maxFaults+1 || r.Faults[0] != (Fault{"other errors", 100 - maxFaults}) {
			t.Errorf("%d faults, the first %v", len(r.Faults), r.Faults[0])
		}
	})
}

func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []Progress
		plan := virtual(Plan{Duration: time.Second + time.Millisecond, Warmup: 500 * time.Millisecond, Rate: 100})
		if _, err := Run(t.Context(), plan, takes(time.Millisecond), func(p Progress) { told = append(told, p) }); err != nil {
			t.Fatal(err)
		}
		if len(told) != 2+5+1 {
			t.Fatalf("told %d times: %v", len(told), told)
		}
		if told[1] != (Progress{Phase: Warming, Elapsed: 400 * time.Millisecond, Total: 500 * time.Millisecond}) {
			t.Errorf("got %+v", told[1])
		}
		if p := told[4]; p.Phase != Measuring || p.Elapsed != 600*time.Millisecond || p.Answered != 60 {
			t.Errorf("got %+v", p)
		}
		if told[7].Phase != Finishing {
			t.Errorf("got %+v", told[7])
		}
	})
}

func TestInvalidPlans(t *testing.T) {
	good := Plan{Duration: time.Second, Workers: 1, Keys: 1}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Plan){
		"duration: ":     func(p *Plan) { p.Duration = 0 },
		"warmup: ":       func(p *Plan) { p.Warmup = -1 },
		"concurrency: ":  func(p *Plan) { p.Workers = MaxWorkers + 1 },
		"rate: ":         func(p *Plan) { p.Rate = -1 },
		"poisson: ":      func(p *Plan) { p.Poisson = true },
		"keys: ":         func(p *Plan) { p.Keys = 0 },
		"distribution: ": func(p *Plan) { p.Distribution = "normal" },
		"zipf: ":         func(p *Plan) { p.Distribution, p.Exponent = Zipf, 1 },
	} {
		p := good
		change(&p)
		if _, err := Run(t.Context(), p, takes(0), nil); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want an error that begins with %q", err, want)
		}
	}
}
