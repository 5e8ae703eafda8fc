package main

import (
	"context"
	"hash/maphash"
	"time"

	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/server/bench/internal/compare"
)

// contender is one way to limit, ready to be opened.
type contender struct {
	name string
	kind kind
	open func(l compare.Limit, keys int) (*compare.Limiter, error)
}

type kind uint8

const (
	weirs kind = iota
	rival
	floor
)

var background = context.Background()

// verdict is what a check returns.
func verdict(allowed bool) error {
	if allowed {
		return nil
	}
	return compare.ErrRefused
}

const (
	allowName = "Weir Allow"
	checkName = "Weir check by rules"
	// amountName is a check by rules that an amount decides.
	amountName = "Weir check by rules, one amount"
)

// contenders are listed in the order of the tables. Whatever a program would call to limit a key belongs side by side: a
// contender of Weir's beside the rival that it is held against.
var contenders = []contender{
	{allowName, weirs, openAllow},
	{checkName, weirs, openCheck("")},
	{amountName, weirs, openCheck("tokens")},
	{"sethvargo/go-limiter 0.7.1", rival, openGoLimiter},
	{"x/time/rate 0.16 in a sync.Map", rival, openTimeRate},
	{"throttled 2.15, GCRA", rival, openThrottled},
	{"go-chi/httprate 0.16.1", rival, openHTTPRate},
	{"floor: hash the key, read the clock", floor, openFloor},
}

// openAllow limits by the key alone.
func openAllow(l compare.Limit, keys int) (*compare.Limiter, error) {
	s := newStore(keys)
	limiter := compare.Shared(compare.Allow(s, l), func() {})
	limiter.Stats = s.Stats
	return limiter, nil
}

func openCheck(amount string) func(compare.Limit, int) (*compare.Limiter, error) {
	return func(l compare.Limit, keys int) (*compare.Limiter, error) {
		s := newStore(keys)
		worker, err := compare.WholeCheck(s, l, amount)
		return &compare.Limiter{Worker: worker, Close: func() {}, Stats: s.Stats}, err
	}
}

// newStore has room for twice what is needed, so that nothing is evicted.
func newStore(keys int) *memstore.Store {
	return memstore.New(memstore.Options{MemoryCap: memstore.DefaultMemoryCap + int64(keys)*100})
}

// openFloor does only what every limiter has to do.
func openFloor(compare.Limit, int) (*compare.Limiter, error) {
	seed, start := maphash.MakeSeed(), time.Now()
	return compare.Shared(func(key string) error {
		// Both are part of the result, so that the compiler keeps both.
		return verdict(maphash.String(seed, key)|uint64(time.Since(start)) != 0)
	}, func() {}), nil
}
