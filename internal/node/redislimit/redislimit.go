// Package redislimit makes the limiter of a node that counts in Redis. The limiter uses leases, falls back to local
// counters when Redis can't be reached, and uses Redis' clock and secret.
package redislimit

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/cooldown"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/node/region"
	"github.com/weirhq/weir/internal/private"
	"github.com/weirhq/weir/lease"
	"github.com/weirhq/weir/redisstore"
)

// Limiter is a limiter with the stores that have its counters. Create one with [New].
type Limiter struct {
	*weir.Limiter
	Redis  *redisstore.Store
	Leases *lease.Store
	Guard  *cooldown.Guard

	stop    context.CancelFunc
	running sync.WaitGroup
}

// New creates a Limiter without rules. It doesn't wait for Redis. While Redis can't be reached, the store local counts,
// with each node's share of the limits. See [cooldown.Options] for fingerprint. link connects to other regions; it is
// nil if there are none.
func New(redis redisstore.Options, local counter.Store, o weir.Options, fingerprint func([][2]string) string, link *region.Link) (*Limiter, error) {
	l := &Limiter{}
	made := make(chan struct{})
	redis.OnSecret = func(secret []byte) {
		<-made
		private.SetSecret(l.Limiter, secret)
		l.Guard.SetSecret(secret)
	}
	store, err := redisstore.New(redis)
	if err != nil {
		return nil, err
	}
	o.Local, o.Now = store.Share(local), store.Now
	l.Redis, l.Leases = store, lease.New(store, lease.Options{Local: o.Local, Nodes: store.Nodes})
	l.Guard = cooldown.New(cooldown.Options{Shared: cooldowns{store}, Fingerprint: fingerprint})
	o.Guard = l.Guard
	var counters counter.Store = l.Leases
	if link != nil {
		counters = region.NewStore(counters, link, region.RedisCells(store))
	}
	if store.Cluster() { // on a single server, splitting a limit would only refuse requests wrongly
		counters = newSplitter(counters, cmp.Or(redis.Timeout, redisstore.DefaultTimeout))
	}
	l.Limiter = weir.NewLimiter(counters, nil, o)
	if link != nil {
		link.Serve(l.Limiter, store)
	}
	close(made)
	ctx, stop := context.WithCancel(context.Background())
	l.stop = stop
	l.running.Go(func() { l.Guard.Run(ctx) })
	return l, nil
}

// Await waits until the first attempt to reach Redis has ended, but no longer than atMost. Without this wait, a node's
// first checks would follow failure modes although Redis is healthy.
func (l *Limiter) Await(atMost time.Duration) {
	select {
	case <-l.Redis.Tried():
	case <-time.After(atMost):
	}
}

// Close gives borrowed tokens back if Redis can be reached, and closes the connections. If Redis can't be reached, the
// leases expire: the tokens stay debited, and their buckets refill as usual.
func (l *Limiter) Close(atMost time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), atMost)
	defer cancel()
	l.stop()
	l.running.Wait()
	err := l.Leases.Close(ctx)
	l.Redis.Close()
	return err
}
