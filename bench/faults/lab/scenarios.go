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
	// Failover says that Redis replaces the lost server by itself while the fault lasts.
	Failover bool

	on      func(config ...string) (*backend, error)
	config  []string
	early   bool // the fault comes before the node starts
	forgets bool // counters may be lost
	unseen  bool // clients may not notice
	planned bool // a few charges may be lost
	fault   func(b *backend, budget time.Duration) error
	heal    func(b *backend) error // returns when Redis is back
}

// Scenarios are all of them.
var Scenarios = []Scenario{
	{
		Name: "kill -9, restart empty", Hold: 2 * time.Second, on: alone, forgets: true,
		fault: kill,
		heal:  func(b *backend) error { return b.victim.RestartEmpty() },
	},
	{
		Name: "SIGSTOP", Hold: 6 * time.Second, on: alone,
		fault: stop,
		heal:  cont,
	},
	{
		Name: "LOADING", Hold: time.Second, on: alone, forgets: true,
		// The server loads so slowly that clients see it loading.
		config: []string{"key-load-delay 1000", "loading-process-events-interval-bytes 1024"},
		fault: func(b *backend, _ time.Duration) error {
			if err := b.do("DEBUG", "POPULATE", "1500", "weight", "100"); err != nil {
				return err
			}
			if err := b.do("SAVE"); err != nil {
				return err
			}
			b.victim.Kill()
			loading := make(chan error, 1)
			b.loading = loading
			go func() { loading <- b.victim.Restart() }()
			return nil
		},
		heal: func(b *backend) error {
			err := <-b.loading
			b.loading = nil
			return err
		},
	},
	{
		Name: "OOM", Hold: 2 * time.Second, on: alone, unseen: true,
		fault: func(b *backend, _ time.Duration) error { return b.do("CONFIG", "SET", "maxmemory", "1") },
		heal:  func(b *backend) error { return b.do("CONFIG", "SET", "maxmemory", "0") },
	},
	{
		Name: "READONLY", Hold: 2 * time.Second, on: alone,
		fault: func(b *backend, _ time.Duration) error { return b.do("REPLICAOF", "127.0.0.1", "1") },
		heal:  func(b *backend) error { return b.do("REPLICAOF", "NO", "ONE") },
	},
	{
		Name: "out of connections", Hold: 2 * time.Second, on: proxied, config: []string{"maxclients 40"},
		fault: func(b *backend, _ time.Duration) error {
			b.proxy.Down() // open connections stay open
			if err := b.exhaust(); err != nil {
				return err
			}
			return b.proxy.Up()
		},
		heal: func(b *backend) error { b.release(); return nil },
	},
	{
		Name: "slow: twice the budget", Hold: 3 * time.Second, on: proxied,
		fault: func(b *backend, budget time.Duration) error { return b.proxy.Delay(2*budget, 0) },
		heal:  mend,
	},
	{
		Name: "slow: 1 KB/s", Hold: 3 * time.Second, on: proxied,
		fault: func(b *backend, _ time.Duration) error { return b.proxy.Throttle(1) },
		heal:  mend,
	},
	{
		Name: "half-open", Hold: 3 * time.Second, on: proxied,
		fault: func(b *backend, _ time.Duration) error { return b.proxy.DropCommands() },
		heal:  mend,
	},
	{
		Name: "replies lost", Hold: 3 * time.Second, on: proxied,
		fault: func(b *backend, _ time.Duration) error { return b.proxy.DropReplies() },
		heal:  mend,
	},
	{
		Name: "reset at a command", Hold: 2 * time.Second, on: proxied,
		fault: func(b *backend, _ time.Duration) error { return b.proxy.ResetCommands() },
		heal:  mend,
	},
	{
		Name: "reset at a reply", Hold: 2 * time.Second, on: proxied,
		fault: func(b *backend, _ time.Duration) error { return b.proxy.ResetReplies() },
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
		heal:  func(*backend) error { return nil },
	},
	{
		// As in docs/guides/redis.md, but with a longer pause, since the machine may be busy: no charge may be lost.
		Name: "Sentinel: planned failover, writes paused", Failover: true, on: sentinel,
		fault: func(b *backend, budget time.Duration) error {
			if err := b.do("CLIENT", "PAUSE", "60000", "WRITE"); err != nil {
				return err
			}
			if err := b.caughtUp(); err != nil {
				return err
			}
			return failOver(b, budget)
		},
		heal: func(b *backend) error { return b.do("CLIENT", "UNPAUSE") },
	},
	{
		Name: "Sentinel: all killed, restart empty", Hold: 6 * time.Second, on: sentinel, forgets: true,
		fault: func(b *backend, _ time.Duration) error {
			b.other.Kill()
			b.victim.Kill()
			return nil
		},
		heal: func(b *backend) error { return errors.Join(b.victim.RestartEmpty(), b.other.RestartEmpty()) },
	},
	{Name: "Cluster: kill -9", Failover: true, on: cluster, forgets: true, fault: kill, heal: restart},
	{Name: "Cluster: SIGSTOP", Failover: true, on: cluster, forgets: true, fault: stop, heal: cont},
}

func kill(b *backend, _ time.Duration) error {
	b.victim.Kill()
	return nil
}

// failOver makes the Sentinels replace a healthy primary, and waits until they have.
func failOver(b *backend, _ time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := b.sentinels.Sentinels[0].Do(ctx, "SENTINEL", "FAILOVER", redistest.MasterName); err != nil {
		return err
	}
	return redistest.Until(ctx, func(ctx context.Context) error {
		primary, err := b.sentinels.Primary(ctx)
		if err == nil && primary == b.victim {
			err = errors.New("the primary isn't replaced yet")
		}
		return err
	})
}

func stop(b *backend, _ time.Duration) error { return b.victim.Stop() }
func down(b *backend, _ time.Duration) error { b.proxy.Down(); return nil }

func cont(b *backend) error    { return b.victim.Cont() }
func restart(b *backend) error { return b.victim.Restart() }
func up(b *backend) error      { return b.proxy.Up() }
func mend(b *backend) error    { b.proxy.Heal(); return nil }
