package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/redisstore"
	"github.com/weirhq/weir/server/bench/internal/workload"
)

// newStore makes a store with default options, except for the timeout, unless that is 0.
func newStore(ctx context.Context, e *env, timeout time.Duration) (*redisstore.Store, error) {
	s, err := redisstore.New(redisstore.Options{URL: "redis://" + e.server.Addr, Secret: []byte("bench"), Timeout: timeout})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := s.Ready(ctx); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func weirLimit(l limit) weir.Limit {
	return weir.Limit{Count: l.tokens, Window: time.Hour, Refill: 1 / l.every.Seconds()}
}

// openStore is the store alone: one charge to one counter.
func openStore(ctx context.Context, e *env) (*instance, error) {
	return openCharges(ctx, e, e.timeout, wide.tokens)
}

// openTen charges ten counters of one client at once, of so many tokens each. It has a long timeout, since it measures
// memory.
func openTen(tokens ...int64) func(context.Context, *env) (*instance, error) {
	return func(ctx context.Context, e *env) (*instance, error) {
		return openCharges(ctx, e, time.Minute, tokens...)
	}
}

func openCharges(ctx context.Context, e *env, timeout time.Duration, tokens ...int64) (*instance, error) {
	var policies []*counter.Policy
	for i, n := range tokens {
		p, err := counter.NewPolicy(fmt.Sprintf("bench-%d", i), weirLimit(limit{n, wide.every}))
		if err != nil {
			return nil, err
		}
		policies = append(policies, p)
	}
	s, err := newStore(ctx, e, timeout)
	if err != nil {
		return nil, err
	}
	return &instance{
		worker: func() check {
			charges, results := make([]counter.Charge, len(policies)), make([]counter.Result, len(policies))
			subject := make([]byte, 0, workload.KeyLength)
			for i, p := range policies {
				charges[i] = counter.Charge{Counter: counter.Counter{Policy: p}, N: 1}
			}
			return func(n uint32) error {
				subject = append(subject[:0], e.keys.At(n)...) // a copy, as the limiter makes one
				for i := range charges {
					charges[i].Subject = subject
				}
				s.Take(background, charges, results)
				for i := range results {
					if r := &results[i]; r.Err != nil {
						return r.Err
					} else if !r.Allowed {
						return errRefused
					}
				}
				return nil
			}
		},
		close: s.Close,
	}, nil
}

// openLimiter is a whole check by rules: a request against a hundred rules, one of which applies.
func openLimiter(ctx context.Context, e *env) (*instance, error) {
	rules, err := weir.Compile(weir.Rules{Version: 1, Rules: workload.HundredRules(weirLimit(wide))})
	if err != nil {
		return nil, err
	}
	s, err := newStore(ctx, e, e.timeout)
	if err != nil {
		return nil, err
	}
	limiter := weir.NewLimiter(s, rules, weir.Options{})
	return &instance{
		worker: func() check {
			req := weir.Request{Method: "GET", Path: workload.RulesPath}
			return func(n uint32) error {
				req.APIKey = e.keys.At(n)
				d, err := limiter.Check(background, &req)
				switch {
				case err != nil:
					return err
				case d.Policy == nil:
					return errors.New("no rule applies")
				case !d.Allowed:
					return errRefused
				}
				return nil
			}
		},
		close: s.Close,
	}, nil
}
