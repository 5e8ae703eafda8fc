package load

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir/server/internal/cputime"
)

// Phase is a part of a run.
type Phase int32

const (
	// Warming means that requests are sent but not counted.
	Warming Phase = iota
	// Measuring means that requests are counted.
	Measuring
	// Finishing means that no more requests are sent, and that the run waits for those in flight.
	Finishing
)

// Progress is the state of a run.
type Progress struct {
	Phase Phase
	// Elapsed is how much time of the phase has passed. Total is the length of the phase.
	Elapsed, Total time.Duration
	// Answered and Failed count requests in the measured time.
	Answered, Failed int64
}

// ProgressInterval is how often a run reports its progress.
const ProgressInterval = 200 * time.Millisecond

// run is one call of [Run].
type run struct {
	plan      Plan
	sample    int
	pacer     *pacer // only in an open loop
	recorders []*recorder
	start     time.Time
	phase     atomic.Int32
	over      chan struct{} // closed when the measured time is over
	finish    atomic.Int64  // when the measured time ends, relative to start. An interruption sets it to an earlier time
	watch     func(Progress)
}

// now returns the time since the start.
func (r *run) now() time.Duration { return time.Since(r.start) }

// end returns when the measured time ends, relative to the start. No requests are sent after that.
func (r *run) end() time.Duration { return time.Duration(r.finish.Load()) }

// Run generates the load of a plan and returns a report. If ctx is done, it stops early, and the report covers the time
// until then. Run calls watch, unless that is nil, with the progress every [ProgressInterval].
func Run(ctx context.Context, p Plan, t Target, watch func(Progress)) (*Report, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	r := &run{plan: p, sample: p.sample(), over: make(chan struct{}), watch: watch}
	if p.open() {
		r.pacer = newPacer(&p)
	}
	workers := r.workers(t)
	// Read the store's totals before the first request, because reading them may take long.
	var store *storeReading
	if p.Warmup == 0 {
		store = p.readStore(ctx)
	}
	r.start = time.Now()
	r.finish.Store(int64(p.Warmup + p.Duration))
	if p.Warmup == 0 {
		r.phase.Store(int32(Measuring)) // before the first request, which must be counted
	}

	// Requests in flight continue after the measured time. They are canceled only when ctx is done. Before that, finish
	// is set to an earlier time, so that workers don't count them as failures.
	sending, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	var group sync.WaitGroup
	for _, w := range workers {
		group.Go(func() {
			if p.open() {
				w.open(sending)
			} else {
				w.closed(sending)
			}
		})
	}
	done := make(chan struct{})
	go func() { group.Wait(); close(done) }()

	completed := p.Warmup == 0 || r.wait(ctx, Warming, p.Warmup)
	if completed && p.Warmup > 0 {
		store = p.readStore(ctx)
	}
	began, cpu := min(r.now(), r.end()), cputime.Used()
	if completed {
		if p.open() || p.Warmup == 0 {
			began = p.Warmup // the exact time, because the timer has fired a bit late
		} else {
			began = r.now()
			r.finish.Store(int64(began + p.Duration))
		}
		r.phase.Store(int32(Measuring))
		completed = r.wait(ctx, Measuring, r.end()-r.now())
	}
	ended := min(r.now(), r.end())
	r.finish.Store(int64(ended))
	r.phase.Store(int32(Finishing))
	close(r.over)
	if completed {
		r.tell(Finishing, 0, 0)
		select {
		case <-done:
		case <-ctx.Done():
		}
	}
	giveUp()
	<-done
	report := r.report(t, ended-began, cputime.Used()-cpu, !completed)
	p.reportStore(store, p.readStore(ctx), report)
	return report, nil
}

func (r *run) workers(t Target) []*worker {
	if r.plan.sequence == nil {
		r.plan.Prepare()
	}
	for range min(r.plan.Workers, maxRecorders) {
		r.recorders = append(r.recorders, newRecorder(r.plan.open()))
	}
	workers := make([]*worker, r.plan.Workers)
	for i := range workers {
		workers[i] = &worker{
			run: r, sender: t.Sender(), recorder: r.recorders[i%len(r.recorders)],
			seq: r.plan.sequence, rng: rand.New(rand.NewPCG(2, uint64(i))),
		}
		workers[i].many, _ = workers[i].sender.(Batcher)
	}
	return workers
}

// wait waits until the end of a phase. If ctx is done first, it returns false.
func (r *run) wait(ctx context.Context, phase Phase, d time.Duration) bool {
	begin := r.now()
	timer := time.NewTimer(d)
	defer timer.Stop()
	ticker := time.NewTicker(ProgressInterval)
	defer ticker.Stop()
	for {
		select {
		case <-timer.C:
			return true
		case <-ctx.Done():
			return false
		case <-ticker.C:
			r.tell(phase, r.now()-begin, d)
		}
	}
}

func (r *run) tell(phase Phase, elapsed, total time.Duration) {
	if r.watch == nil {
		return
	}
	var c counts
	for _, t := range r.recorders {
		s := t.snapshot()
		c.merge(&s)
	}
	r.watch(Progress{Phase: phase, Elapsed: elapsed, Total: total, Answered: c.answered(), Failed: c.failed()})
}
