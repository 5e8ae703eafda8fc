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

// KeyLimiter holds every key to one limit. A key is whatever names a client: a user, an address, an API key. A KeyLimiter is
// safe for concurrent use. While its store can't be reached, it allows everything.
type KeyLimiter struct {
	store   counter.Store
	memory  *memstore.Store // the store, if it is in this process: it decides without scratch space
	policy  *counter.Policy
	scratch sync.Pool
	warning sync.Once
}

// Option changes what [New] makes.
type Option func(*keyOptions)

type keyOptions struct {
	limit Limit
	store counter.Store
	name  string
}

// WithBurst sets how many requests may come at once. Without it, that is the number of the limit. It is for buckets: windows
// have no burst.
func WithBurst(n int64) Option { return func(o *keyOptions) { o.limit.Burst = n } }

// WithAlgorithm replaces the token bucket. LeakyQueue and Concurrency need rules: see [NewLimiter].
func WithAlgorithm(a counter.Algorithm) Option {
	return func(o *keyOptions) { o.limit.Algorithm = a }
}

// WithStore counts in a store, such as Redis by package redisstore, instead of in this process. Limiters that share a store
// share counters if they have the same name.
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

// take charges a key. The caller puts what it returns back into the pool.
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

// atMost brings a cost into the range that stores accept.
func (k *KeyLimiter) atMost(n int64) int64 {
	if n <= 1 {
		return 1
	}
	return min(n, k.policy.MaxCharge())
}

// Allow reports whether a request of this key may pass, and counts it if so. An empty key names no client: it is refused, and
// the first one is logged.
func (k *KeyLimiter) Allow(key string) bool { return k.AllowN(key, 1) }

// AllowN is Allow for a request that costs n, at least 1: all of it fits, or nothing is taken.
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

// Check is Allow with the numbers: what remains, and when to retry. An error means that the store couldn't be reached, and the
// decision is to allow; or that the key is empty, and the decision is to refuse.
func (k *KeyLimiter) Check(key string) (Decision, error) { return k.check(context.Background(), key) }

func (k *KeyLimiter) check(ctx context.Context, key string) (Decision, error) {
	if key == "" {
		return Decision{Reason: ReasonIdentityRequired, RetryAfter: Never}, ErrNoClient
	}
	c := k.take(ctx, key, 1)
	r := c.results[0]
	k.scratch.Put(c)
	d := Decision{
		Allowed: r.Allowed, Degraded: r.Err != nil, Rule: k.policy.Rule, Policy: k.policy,
		Remaining: r.Remaining, RetryAfter: r.RetryAfter, ResetAfter: r.ResetAfter, n: 1,
	}
	if !r.Allowed {
		d.Reason = ReasonLimited
	}
	d.few[0] = LimitStatus{
		Policy: k.policy, Allowed: r.Allowed, Degraded: d.Degraded,
		Remaining: r.Remaining, RetryAfter: r.RetryAfter, ResetAfter: r.ResetAfter, left: r.Remaining,
	}
	return d, r.Err
}

// Wait waits until a request of this key may pass, and counts it. It returns an error when the context ends, and at once if
// the context would end first.
func (k *KeyLimiter) Wait(ctx context.Context, key string) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		d, err := k.check(ctx, key)
		switch deadline, bounded := ctx.Deadline(); {
		case errors.Is(err, ErrNoClient):
			return err
		case d.Degraded && ctx.Err() != nil: // perhaps that alone kept the store from answering
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

// perUser is private.PerUser.
func perUser(limit Limit, opts []Option) *Limiter {
	o := newKeyOptions(limit, opts)
	rules, err := Compile(Rules{Rules: []Rule{{ID: o.name, By: []string{"user"}, Algorithm: o.limit.Algorithm, Limits: []Limit{o.limit}}}})
	if err != nil {
		panic(fmt.Sprintf("httplimit.PerUser: %v", err))
	}
	return NewLimiter(o.store, rules, Options{})
}
