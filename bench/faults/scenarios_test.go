package faults

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/redistest"
)

// scenario is one fault.
type scenario struct {
	name     string
	hold     time.Duration // how long the fault lasts
	failover bool          // Redis replaces the lost server on its own during the fault

	on      func(t *testing.T, config ...string) *backend
	redis   []string // lines of its configuration file
	early   bool     // the fault begins before the node starts
	forgets bool     // counters may be lost
	unseen  bool     // clients may not notice
	planned bool     // a planned failover, which may lose a few charges
	fault   func(b *backend, budget time.Duration) error
	heal    func(b *backend) error // returns when Redis is back
}

var scenarios = []scenario{
	{
		name: "kill -9, restart empty", hold: 2 * time.Second, on: alone, forgets: true,
		fault: kill,
		heal:  func(b *backend) error { return b.victim.RestartEmpty() },
	},
	{
		name: "SIGSTOP", hold: 6 * time.Second, on: alone,
		fault: stop,
		heal:  cont,
	},
	{
		name: "LOADING", hold: time.Second, on: alone, forgets: true,
		// The server loads so slowly that clients see it loading.
		redis: []string{"key-load-delay 1000", "loading-process-events-interval-bytes 1024"},
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
		name: "OOM", hold: 2 * time.Second, on: alone, unseen: true,
		fault: func(b *backend, _ time.Duration) error { return b.do("CONFIG", "SET", "maxmemory", "1") },
		heal:  func(b *backend) error { return b.do("CONFIG", "SET", "maxmemory", "0") },
	},
	{
		name: "READONLY", hold: 2 * time.Second, on: alone,
		fault: func(b *backend, _ time.Duration) error { return b.do("REPLICAOF", "127.0.0.1", "1") },
		heal:  func(b *backend) error { return b.do("REPLICAOF", "NO", "ONE") },
	},
	{
		name: "out of connections", hold: 2 * time.Second, on: proxied, redis: []string{"maxclients 40"},
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
		name: "slow: twice the budget", hold: 3 * time.Second, on: proxied,
		fault: func(b *backend, budget time.Duration) error { return b.proxy.Delay(2 * budget) },
		heal:  mend,
	},
	{
		name: "slow: 1 KB/s", hold: 3 * time.Second, on: proxied,
		fault: func(b *backend, _ time.Duration) error { return b.proxy.Throttle(1) },
		heal:  mend,
	},
	{
		name: "half-open", hold: 3 * time.Second, on: proxied,
		fault: func(b *backend, _ time.Duration) error { return b.proxy.DropCommands() },
		heal:  mend,
	},
	{
		name: "replies lost", hold: 3 * time.Second, on: proxied,
		fault: func(b *backend, _ time.Duration) error { return b.proxy.DropReplies() },
		heal:  mend,
	},
	{
		name: "reset at a command", hold: 2 * time.Second, on: proxied,
		fault: func(b *backend, _ time.Duration) error { return b.proxy.ResetCommands() },
		heal:  mend,
	},
	{
		name: "reset at a reply", hold: 2 * time.Second, on: proxied,
		fault: func(b *backend, _ time.Duration) error { return b.proxy.ResetReplies() },
		heal:  mend,
	},
	{
		name: "refused", hold: 2 * time.Second, on: proxied,
		fault: down,
		heal:  up,
	},
	{
		name: "started without Redis", hold: 2 * time.Second, on: proxied, early: true,
		fault: down,
		heal:  up,
	},
	{name: "Sentinel: kill -9", failover: true, on: sentinel, forgets: true, fault: kill, heal: restart},
	{name: "Sentinel: SIGSTOP", failover: true, on: sentinel, forgets: true, fault: stop, heal: cont},
	{
		name: "Sentinel: planned failover", failover: true, on: sentinel, forgets: true, planned: true, unseen: true,
		fault: failOver,
		heal:  func(*backend) error { return nil },
	},
	{
		// As in docs/guides/redis.md, but with a longer pause, since the machine may be busy: no charge may be lost.
		name: "Sentinel: planned failover, writes paused", failover: true, on: sentinel,
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
		name: "Sentinel: all killed, restart empty", hold: 6 * time.Second, on: sentinel, forgets: true,
		fault: func(b *backend, _ time.Duration) error {
			b.other.Kill()
			b.victim.Kill()
			return nil
		},
		heal: func(b *backend) error { return errors.Join(b.victim.RestartEmpty(), b.other.RestartEmpty()) },
	},
	{name: "Cluster: kill -9", failover: true, on: cluster, forgets: true, fault: kill, heal: restart},
	{name: "Cluster: SIGSTOP", failover: true, on: cluster, forgets: true, fault: stop, heal: cont},
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
