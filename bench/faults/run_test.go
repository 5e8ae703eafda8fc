package faults

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/server/internal/load"
)

// config says how much load a scenario has, and for how long.
type config struct {
	rate    float64       // how many checks are due a second
	workers int           // how many of them may be in flight
	budget  time.Duration // the time that a check may take in the store
	maxHold time.Duration // how long a fault lasts at most; 0 means no bound
	settle  time.Duration // how long load runs before the fault, and after limits are exact again
	log     *slog.Logger  // receives what the store logs; nil discards it
}

// experiment is one run of a scenario.
type experiment struct {
	scenario
	config  config
	backend *backend
	node    *node
	client  client
	traffic *traffic
	fresh   []string  // unused keys on the victim, each for one test whether limits are exact
	from    time.Time // start of the time until limits are exact
	again   time.Time // when limits were exact again
	result  *result
}

const (
	loadKeys  = 32
	freshKeys = 40
)

// runScenario runs one scenario. An error means that the scenario couldn't be run; the result says what went wrong with the node.
func runScenario(test *testing.T, s scenario, c config) (_ *result, err error) {
	ctx, t := test.Context(), &experiment{scenario: s, config: c, result: &result{scenario: s}}
	t.backend = s.on(test, s.redis...)
	defer func() { err = errors.Join(err, t.backend.close()) }()
	if s.early {
		if err := s.fault(t.backend, c.budget); err != nil {
			return nil, err
		}
	}
	begin := time.Now()
	if t.node, err = startNode(t.backend.url, c.budget, c.log); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.node.close()) }()
	t.client.Addr = t.node.addr
	defer t.client.Close()
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

// prepare finds keys that the fault hits, and keys that it doesn't.
func (t *experiment) prepare(ctx context.Context) error {
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
		hit, err := t.backend.keeps(ctx, func() error {
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
		if t.backend.cluster && k.rule == "allow" { // keeps used this key
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

// underLoad generates the load while the fault begins and ends.
func (t *experiment) underLoad(ctx context.Context) error {
	plan := load.Plan{Duration: time.Hour, Workers: t.config.workers, Rate: t.config.rate, Keys: loadKeys}
	loading, enough := context.WithCancel(ctx)
	earlier := t.node.connections.Load()
	var report *load.Report
	var failed error
	var running sync.WaitGroup
	running.Go(func() { report, failed = load.Run(loading, plan, &t.traffic.target, nil) })
	end := func() {
		enough()
		running.Wait()
		t.traffic.target.Close()
	}
	defer end()
	if err := errors.Join(t.connected(ctx, earlier), pause(ctx, t.config.settle)); err != nil {
		return err
	}
	t.result.before = t.goroutines()
	if err := t.breakAndHeal(ctx); err != nil {
		return err
	}
	if err := pause(ctx, t.config.settle); err != nil {
		return err
	}
	t.result.after = t.goroutines()
	end()
	if failed != nil {
		return failed
	}
	t.report(report)
	return nil
}

// connected waits until the node has accepted the connections of all workers in addition to the earlier ones. The node has a
// goroutine for each connection.
func (t *experiment) connected(ctx context.Context, earlier int64) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return redistest.Until(ctx, func(context.Context) error {
		if n := t.node.connections.Load() - earlier; n < int64(t.config.workers) {
			return fmt.Errorf("%d of %d connections", n, t.config.workers)
		}
		return nil
	})
}

// goroutines returns the number of goroutines, without those that generate the load.
func (t *experiment) goroutines() int { return runtime.NumGoroutine() - t.config.workers }

// breakAndHeal causes the fault, ends it, and waits until limits are exact again.
func (t *experiment) breakAndHeal(ctx context.Context) error {
	if !t.early {
		t.traffic.begin()
		if err := t.fault(t.backend, t.config.budget); err != nil {
			return err
		}
	}
	if t.failover {
		if err := t.untilExact(ctx, t.traffic.fault); err != nil {
			return err
		}
		return t.heal(t.backend)
	}
	hold := t.hold
	if t.config.maxHold > 0 {
		hold = min(hold, t.config.maxHold)
	}
	if err := pause(ctx, hold); err != nil {
		return err
	}
	if err := t.heal(t.backend); err != nil {
		return err
	}
	return t.untilExact(ctx, time.Now())
}

// untilExact records when limits are exact again, and how long that took since `from`.
func (t *experiment) untilExact(ctx context.Context, from time.Time) error {
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
	t.again = time.Now().Add(patience) // so far in the future that it means never
	return nil
}

// exact uses up the limit of a fresh key and sends more requests. It returns an error unless exactly the limit was
// allowed.
func (t *experiment) exact() error {
	name := t.fresh[0]
	t.fresh = t.fresh[1:]
	allowed, refused := 0, 0
	for range tight + 5 {
		a, err := t.client.check("tight", name, 1)
		switch {
		case err != nil:
			return err
		case a.degraded:
			return fmt.Errorf("a degraded answer with status %d", a.status)
		case a.status == http.StatusOK:
			allowed++
		default:
			refused++
		}
	}
	if allowed != tight {
		return fmt.Errorf("%d requests of a limit of %d were allowed, and %d refused", allowed, tight, refused)
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
