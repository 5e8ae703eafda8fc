package main

import (
	"context"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/server/bench/internal/workload"
)

// openStore is the store alone: one charge to one counter.
func openStore(l limit, keys int) (instance, error) {
	p, err := counter.NewPolicy("bench", weirLimit(l))
	if err != nil {
		return instance{}, err
	}
	s := newStore(keys)
	return instance{
		worker: func() check {
			ctx, w := context.Background(), &storeWorker{}
			w.charges[0] = counter.Charge{Counter: counter.Counter{Policy: p}, N: 1}
			return func(key string) bool {
				w.charges[0].Subject = append(w.subject[:0], key...) // a copy, as the limiter makes one
				s.Take(ctx, w.charges[:], w.results[:])
				return w.results[0].Allowed
			}
		},
		stats: s.Stats,
		close: func() {},
	}, nil
}

// storeWorker is what one goroutine writes at every check.
type storeWorker struct {
	_       padding
	charges [1]counter.Charge
	results [1]counter.Result
	subject [workload.KeyLength]byte
	_       padding
}

// openLimiter is a whole check by rules: a request against a hundred rules, one of which applies.
func openLimiter(l limit, keys int) (instance, error) { return openRules(l, keys, "") }

// openAmount is a whole check by rules that count an amount of the request.
func openAmount(l limit, keys int) (instance, error) { return openRules(l, keys, "tokens") }

func openRules(l limit, keys int, amount string) (instance, error) {
	hundred := workload.HundredRules(weirLimit(l))
	for i := range hundred {
		hundred[i].Amount = amount
	}
	rules, err := weir.Compile(weir.Rules{Version: 1, Rules: hundred})
	if err != nil {
		return instance{}, err
	}
	s := newStore(keys)
	lim := weir.NewLimiter(s, rules, weir.Options{})
	return instance{
		worker: func() check {
			ctx, w := context.Background(), &limiterWorker{}
			w.req = weir.Request{Method: "GET", Path: workload.RulesPath}
			if amount != "" {
				w.req.Amounts = map[string]counter.Amount{amount: counter.Whole(1)}
			}
			return func(key string) bool {
				w.req.APIKey = key
				d, err := lim.Check(ctx, &w.req)
				// A check that no rule applies to would be cheap, and measure nothing.
				return err == nil && d.Allowed && d.Policy != nil
			}
		},
		stats: s.Stats,
		close: func() {},
	}, nil
}

// limiterWorker is what one goroutine writes at every check.
type limiterWorker struct {
	_   padding
	req weir.Request
	_   padding
}

// newStore has room for twice what is needed, so that nothing is evicted.
func newStore(keys int) *memstore.Store {
	return memstore.New(memstore.Options{MemoryCap: memstore.DefaultMemoryCap + int64(keys)*100})
}

func weirLimit(l limit) weir.Limit {
	return weir.Limit{Count: l.tokens, Window: time.Hour, Refill: l.perSecond()}
}
