package weir

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/memstore"
)

// KeyLimiter applies one limit to every key. A key identifies a client: a user, an address or an API key. A KeyLimiter is safe
// for concurrent use. While its store can't be reached, it allows every request.
type KeyLimiter struct {
	store   counter.Store
	memory  *memstore.Store // the store, if it is in memory: it doesn't need scratch space
	policy  *counter.Policy
	scratch sync.Pool
	warning sync.Once
}

// Option is an option of [New].
type Option func(*keyOptions)

type keyOptions struct {
	limit Limit
	store counter.Store
	name  string
}

// WithBurst sets how many requests may come at once. The default is the number of the limit. It is only for buckets, since
// windows have no burst.
func WithBurst(n int64) Option { return func(o *keyOptions) { o.limit.Burst = n } }

// WithAlgorithm sets the algorithm. The default is TokenBucket. LeakyQueue and Concurrency need rules: see [NewLimiter].
func WithAlgorithm(a counter.Algorithm) Option {
	return func(o *keyOptions) { o.limit.Algorithm = a }
}

// WithStore makes the limiter count in a store, such as Redis with package redisstore, instead of in this process. Limiters
// with the same store and the same name share counters.
func WithStore(s counter.Store, name string) Option {
	return func(o *keyOptions) { o.store, o.name = s, name }
}

func newKeyOptions(limit Limit, opts []Option) *keyOptions {
	o := &keyOptions{limit: limit, name: "limit"}
	for _, set := range opts {
		set(o)
	}
	if o.store == nil {
		o.store = memstore.New(memstore.Options{})
	}
	return o
}

// New returns a KeyLimiter. It panics if the limit is invalid, such as 0 a minute.
//
//	limit := weir.New(weir.PerMinute(100))
//	if !limit.Allow(user) {
//		// too many requests
//	}
func New(limit Limit, opts ...Option) *KeyLimiter {
	o := newKeyOptions(limit, opts)
	p, err := counter.NewPolicy(o.name, o.limit)
	switch {
	case err != nil:
		panic(fmt.Sprintf("weir.New: %v", err))
	case o.limit.Algorithm == LeakyQueue, o.limit.Algorithm == Concurrency, o.limit.Decimal:
		panic(fmt.Sprintf("weir.New: %s, and amounts, need rules: use weir.NewLimiter", o.limit.Algorithm))
	}
	k := &KeyLimiter{store: o.store, policy: p}
	k.memory, _ = o.store.(*memstore.Store)
	k.scratch.New = func() any {
		c := new(keyCheck)
		c.charges[0].Policy = p
		return c
	}
	return k
}

// keyCheck is the scratch space of one check.
type keyCheck struct {
	charges [1]counter.Charge
	results [1]counter.Result
	key     []byte
}

// take charges a key. The caller returns the result to the pool.
func (k *KeyLimiter) take(ctx context.Context, key string, n int64) *keyCheck {
	c := k.scratch.Get().(*keyCheck)
	c.key = append(c.key[:0], key...)
	c.charges[0].Subject, c.charges[0].N = c.key, k.atMost(n)
	k.store.Take(ctx, c.charges[:], c.results[:])
	if c.results[0].Err != nil {
		c.results[0].Allowed = true
	}
	return c
}

// atMost limits a cost to the range that stores accept.
func (k *KeyLimiter) atMost(n int64) int64 {
	if n <= 1 {
		return 1
	}
	return min(n, k.policy.MaxCharge())
}

// Allow reports whether a request with this key may pass, and counts it if so. An empty key identifies no client, so Allow
// refuses it, and logs the first such request.
func (k *KeyLimiter) Allow(key string) bool { return k.AllowN(key, 1) }

// AllowN is Allow for a request with a cost of n, at least 1. It takes all n tokens or none.
func (k *KeyLimiter) AllowN(key string, n int64) bool {
	if key == "" {
		k.warning.Do(func() { slog.Warn("weir: a request was refused because its key is empty, so it names no client") })
		return false
	}
	if k.memory != nil {
		return k.memory.Allow(k.policy, key, k.atMost(n))
	}
	c := k.take(context.Background(), key, n)
	allowed := c.results[0].Allowed
	k.scratch.Put(c)
	return allowed
}

// Check is Allow with details: what remains, and when to retry. It returns an error if the store couldn't be reached, in which
// case it allows the request, or if the key is empty, in which case it refuses the request.
func (k *KeyLimiter) Check(key string) (Decision, error) { return k.check(context.Background(), key) }

func (k *KeyLimiter) check(ctx context.Context, key string) (Decision, error) {
	if key == "" {
		return Decision{Reason: ReasonIdentityRequired, RetryAfter: Never}, ErrNoClient
	}
	c := k.take(ctx, key, 1)
	r := c.results[0]
	k.scratch.Put(c)
	d := Decision{Allowed: r.Allowed, Degraded: r.Err != nil, n: 1}
	d.few[0].set(k.policy, &r)
	d.bind(&d.few[0])
	if !r.Allowed {
		d.Reason = ReasonLimited
	}
	return d, r.Err
}

// Wait waits until a request with this key may pass, and counts it. It returns an error when the context ends, or at once if
// the wait would last beyond the context's deadline.
func (k *KeyLimiter) Wait(ctx context.Context, key string) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		d, err := k.check(ctx, key)
		switch deadline, bounded := ctx.Deadline(); {
		case errors.Is(err, ErrNoClient):
			return err
		case d.Degraded && ctx.Err() != nil: // the context may be why the store didn't answer
			return ctx.Err()
		case d.Allowed:
			return nil
		case bounded && time.Until(deadline) < d.RetryAfter:
			return fmt.Errorf("weir: %s has to wait for %s: %w", k.policy.Name, d.RetryAfter, context.DeadlineExceeded)
		}
		select {
		case <-ctx.Done():
		case <-time.After(d.RetryAfter):
		}
	}
}

// perUser returns a limiter that counts by user alone, for the same options as [New].
func perUser(limit Limit, opts []Option) *Limiter {
	o := newKeyOptions(limit, opts)
	rules, err := Compile(Rules{Rules: []Rule{{ID: o.name, By: []string{"user"}, Algorithm: o.limit.Algorithm, Limits: []Limit{o.limit}}}})
	if err != nil {
		panic(fmt.Sprintf("httplimit.PerUser: %v", err))
	}
	return NewLimiter(o.store, rules, Options{})
}
