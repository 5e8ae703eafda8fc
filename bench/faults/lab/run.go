package faults

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
	"sync"
	"time"

	"github.com/weirhq/weir/server/internal/load"
)

// Config is how hard scenarios are run.
type Config struct {
	// Rate is how many checks are due a second.
	Rate float64
	// Workers is how many of them may be in flight.
	Workers int
	// Budget of a check.
	Budget time.Duration
	// MaxHold is the longest that a fault lasts. 0 means as long as the scenario says.
	MaxHold time.Duration
	// Settle is how long load runs before the fault, and after limits are exact again.
	Settle time.Duration
	// Log is told what the store says. Nil means nobody is.
	Log *slog.Logger
}

// trial is a scenario under way.
type trial struct {
	Scenario
	config  Config
	bed     *bed
	node    *node
	client  client
	traffic *traffic
	fresh   []string  // keys that the struck server keeps, for one exact count each
	from    time.Time // what the time until limits are exact is counted from
	again   time.Time // limits were exact
	result  *Result
}

const (
	loadKeys  = 32
	freshKeys = 40
)

// Run runs one scenario. An error means that it couldn't be run; what went wrong with
// the node is in the result.
func Run(ctx context.Context, s Scenario, c Config) (_ *Result, err error) {
	t := &trial{Scenario: s, config: c, result: &Result{Scenario: s}}
	if t.bed, err = s.on(s.config...); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.bed.close()) }()
	if s.early {
		if err := s.fault(t.bed, c.Budget); err != nil {
			return nil, err
		}
	}
	begin := time.Now()
	if t.node, err = startNode(t.bed.url, c.Budget, c.Log); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.node.close()) }()
	t.client.addr = t.node.addr
	defer t.client.close()
	if err := t.prepare(ctx); err != nil {
		return nil, err
	}
	if s.early {
		t.traffic.fault = begin
	}
	if err := t.underLoad(ctx); err != nil {
		return nil, err
	}
	return t.result, t.audit()
}

// prepare finds the keys that the fault hits, and those that it doesn't.
func (t *trial) prepare(ctx context.Context) error {
	if !t.early {
		ready, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		if err := t.node.store.Ready(ready); err != nil {
			return err
		}
	}
	var names []string
	var spared []bool
	for n := 0; len(t.fresh) < freshKeys; n++ {
		name := fmt.Sprintf("key%d", n)
		hit, err := t.bed.keeps(ctx, func() error {
			_, err := t.client.check("allow", name, 1)
			return err
		})
		switch {
		case err != nil:
			return err
		case len(names) < loadKeys:
			names, spared = append(names, name), append(spared, !hit)
		case hit:
			t.fresh = append(t.fresh, name)
		}
	}
	t.traffic = newTraffic(t.node.addr, names)
	for i := range t.traffic.keys {
		k := &t.traffic.keys[i]
		k.spared = spared[i]
		if t.bed.cluster && k.rule == "allow" { // by which it was touched
			k.sent, k.counted = 1, 1
		}
	}
	if t.early {
		return nil
	}
	if err := t.exact(); err != nil {
		return fmt.Errorf("before the fault: %w", err)
	}
	return nil
}

// underLoad has a fault come and go under load.
func (t *trial) underLoad(ctx context.Context) error {
	plan := load.Plan{Duration: time.Hour, Workers: t.config.Workers, Rate: t.config.Rate, Keys: loadKeys}
	loading, enough := context.WithCancel(ctx)
	var report *load.Report
	var failed error
	var running sync.WaitGroup
	running.Go(func() { report, failed = load.Run(loading, plan, t.traffic, nil) })
	end := func() {
		enough()
		running.Wait()
		t.traffic.close()
	}
	defer end()
	r := t.result
	m := startMeter()
	err := t.traffic.untilAllSend(ctx, t.config.Workers) // each connection has a goroutine of the node's
	if err == nil {
		err = pause(ctx, t.config.Settle)
	}
	r.Before = t.goroutines()
	if err == nil {
		err = t.breakAndHeal(ctx)
	}
	if err == nil {
		err = pause(ctx, t.config.Settle)
	}
	m.stop()
	if err != nil {
		return err
	}
	r.Most, r.After = m.most-t.config.Workers, t.goroutines()
	end()
	if failed != nil {
		return failed
	}
	t.traffic.report(r, t.from, t.again)
	r.Answers, r.Slowest = report.Checks, report.Latency.Max
	return nil
}

// goroutines is how many there are but for those that make the load.
func (t *trial) goroutines() int { return runtime.NumGoroutine() - t.config.Workers }

// breakAndHeal brings the fault about, ends it, and waits until limits are exact again.
func (t *trial) breakAndHeal(ctx context.Context) error {
	if !t.early {
		t.traffic.begin()
		if err := t.fault(t.bed, t.config.Budget); err != nil {
			return err
		}
	}
	if t.Failover {
		if err := t.untilExact(ctx, t.traffic.fault); err != nil {
			return err
		}
		return t.heal(t.bed)
	}
	hold := t.Hold
	if t.config.MaxHold > 0 {
		hold = min(hold, t.config.MaxHold)
	}
	if err := pause(ctx, hold); err != nil {
		return err
	}
	if err := t.heal(t.bed); err != nil {
		return err
	}
	return t.untilExact(ctx, time.Now())
}

// untilExact notes when limits are exact again, counted from a moment.
func (t *trial) untilExact(ctx context.Context, from time.Time) error {
	t.from = from
	for began := time.Now(); len(t.fresh) > 1 && time.Since(began) < patience; {
		a, err := t.client.check("tight", t.fresh[0], 0)
		if err != nil {
			return err
		}
		if !a.degraded && t.exact() == nil {
			t.again = time.Now()
			return nil
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
	t.again = time.Now().Add(patience) // as good as never
	return nil
}

// exact takes a fresh key to its limit and beyond, and returns an error unless it was held exactly.
func (t *trial) exact() error {
	name := t.fresh[0]
	t.fresh = t.fresh[1:]
	allowed, refused := 0, 0
	for range tight + 5 {
		a, err := t.client.check("tight", name, 1)
		switch {
		case err != nil:
			return err
		case a.degraded:
			return fmt.Errorf("a degraded answer, %d", a.status)
		case a.status == http.StatusOK:
			allowed++
		default:
			refused++
		}
	}
	if allowed != tight {
		return fmt.Errorf("%d of %d were allowed, and %d refused", allowed, tight, refused)
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
