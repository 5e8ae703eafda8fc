package faults

import (
	"context"
	"errors"
	"time"

	"github.com/weirhq/weir/internal/redistest"
)

// Scenario is one fault.
type Scenario struct {
	Name string
	// Hold is how long the fault lasts.
	Hold time.Duration
	// Failover: Redis replaces what was lost by itself, while the fault lasts.
	Failover bool

	on      func(config ...string) (*bed, error)
	config  []string
	early   bool // the fault is there before the node starts
	forgets bool // counters may be lost
	unseen  bool // only clients without a counter notice, if there are any
	planned bool // charges may be lost, but few
	fault   func(b *bed, budget time.Duration) error
	heal    func(b *bed) error // returns when Redis is back
}

// Scenarios are all of them.
var Scenarios = []Scenario{
	{
		Name: "kill -9, restart empty", Hold: 2 * time.Second, on: alone, forgets: true,
		fault: kill,
		heal:  func(b *bed) error { return b.struck.RestartEmpty() },
	},
	{
		Name: "SIGSTOP", Hold: 6 * time.Second, on: alone,
		fault: stop,
		heal:  cont,
	},
	{
		Name: "LOADING", Hold: time.Second, on: alone, forgets: true,
		// Keys are loaded so slowly that the server has time to say so.
		config: []string{"key-load-delay 1000", "loading-process-events-interval-bytes 1024"},
		fault: func(b *bed, _ time.Duration) error {
			if err := b.do("DEBUG", "POPULATE", "1500", "weight", "100"); err != nil {
				return err
			}
			if err := b.do("SAVE"); err != nil {
				return err
			}
			b.struck.Kill()
			loading := make(chan error, 1)
			b.loading = loading
			go func() { loading <- b.struck.Restart() }()
			return nil
		},
		heal: func(b *bed) error {
			err := <-b.loading
			b.loading = nil
			return err
		},
	},
	{
		Name: "OOM", Hold: 2 * time.Second, on: alone, unseen: true,
		fault: func(b *bed, _ time.Duration) error { return b.do("CONFIG", "SET", "maxmemory", "1") },
		heal:  func(b *bed) error { return b.do("CONFIG", "SET", "maxmemory", "0") },
	},
	{
		Name: "READONLY", Hold: 2 * time.Second, on: alone,
		fault: func(b *bed, _ time.Duration) error { return b.do("REPLICAOF", "127.0.0.1", "1") },
		heal:  func(b *bed) error { return b.do("REPLICAOF", "NO", "ONE") },
	},
	{
		Name: "out of connections", Hold: 2 * time.Second, on: proxied, config: []string{"maxclients 40"},
		fault: func(b *bed, _ time.Duration) error {
			b.proxy.Down() // what is connected stays so
			if err := b.hog(); err != nil {
				return err
			}
			return b.proxy.Up()
		},
		heal: func(b *bed) error { b.release(); return nil },
	},
	{
		Name: "slow: twice the budget", Hold: 3 * time.Second, on: proxied,
		fault: func(b *bed, budget time.Duration) error { return b.proxy.Delay(2*budget, 0) },
		heal:  mend,
	},
	{
		Name: "slow: 1 KB/s", Hold: 3 * time.Second, on: proxied,
		fault: func(b *bed, _ time.Duration) error { return b.proxy.Throttle(1) },
		heal:  mend,
	},
	{
		Name: "half-open", Hold: 3 * time.Second, on: proxied,
		fault: func(b *bed, _ time.Duration) error { return b.proxy.DropCommands() },
		heal:  mend,
	},
	{
		Name: "replies lost", Hold: 3 * time.Second, on: proxied,
		fault: func(b *bed, _ time.Duration) error { return b.proxy.DropReplies() },
		heal:  mend,
	},
	{
		Name: "reset at a command", Hold: 2 * time.Second, on: proxied,
		fault: func(b *bed, _ time.Duration) error { return b.proxy.ResetCommands() },
		heal:  mend,
	},
	{
		Name: "reset at a reply", Hold: 2 * time.Second, on: proxied,
		fault: func(b *bed, _ time.Duration) error { return b.proxy.ResetReplies() },
		heal:  mend,
	},
	{
		Name: "refused", Hold: 2 * time.Second, on: proxied,
		fault: down,
		heal:  up,
	},
	{
		Name: "started without Redis", Hold: 2 * time.Second, on: proxied, early: true,
		fault: down,
		heal:  up,
	},
	{Name: "Sentinel: kill -9", Failover: true, on: sentinel, forgets: true, fault: kill, heal: restart},
	{Name: "Sentinel: SIGSTOP", Failover: true, on: sentinel, forgets: true, fault: stop, heal: cont},
	{
		Name: "Sentinel: planned failover", Failover: true, on: sentinel, forgets: true, planned: true, unseen: true,
		fault: failOver,
		heal:  func(*bed) error { return nil },
	},
	{
		// As in docs/guides/redis.md, but for longer, since the machine may be busy: no charge may be lost.
		Name: "Sentinel: planned failover, writes paused", Failover: true, on: sentinel,
		fault: func(b *bed, budget time.Duration) error {
			if err := b.do("CLIENT", "PAUSE", "60000", "WRITE"); err != nil {
				return err
			}
			if err := b.caughtUp(); err != nil {
				return err
			}
			return failOver(b, budget)
		},
		heal: func(b *bed) error { return b.do("CLIENT", "UNPAUSE") },
	},
	{
		Name: "Sentinel: all killed, restart empty", Hold: 6 * time.Second, on: sentinel, forgets: true,
		fault: func(b *bed, _ time.Duration) error {
			b.other.Kill()
			b.struck.Kill()
			return nil
		},
		heal: func(b *bed) error { return errors.Join(b.struck.RestartEmpty(), b.other.RestartEmpty()) },
	},
	{Name: "Cluster: kill -9", Failover: true, on: cluster, forgets: true, fault: kill, heal: restart},
	{Name: "Cluster: SIGSTOP", Failover: true, on: cluster, forgets: true, fault: stop, heal: cont},
}

func kill(b *bed, _ time.Duration) error {
	b.struck.Kill()
	return nil
}

// failOver has the Sentinels replace the primary, which is well, and waits until they have.
func failOver(b *bed, _ time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := b.sentinels.Sentinels[0].Do(ctx, "SENTINEL", "FAILOVER", redistest.MasterName); err != nil {
		return err
	}
	return redistest.Until(ctx, func(ctx context.Context) error {
		primary, err := b.sentinels.Primary(ctx)
		if err == nil && primary == b.struck {
			err = errors.New("the primary isn't replaced yet")
		}
		return err
	})
}

func stop(b *bed, _ time.Duration) error { return b.struck.Stop() }
func down(b *bed, _ time.Duration) error { b.proxy.Down(); return nil }

func cont(b *bed) error    { return b.struck.Cont() }
func restart(b *bed) error { return b.struck.Restart() }
func up(b *bed) error      { return b.proxy.Up() }
func mend(b *bed) error    { b.proxy.Heal(); return nil }
