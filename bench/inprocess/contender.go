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
	open func(l compare.Limit, keys int) (*instance, error)
}

type kind uint8

const (
	weirs kind = iota
	rival
	floor
)

// instance is a contender with a store of its own.
type instance struct {
	compare.Limiter
	// stats reports what a Weir store holds; nil for others.
	stats func() memstore.Stats
}

var background = context.Background()

// limiterOf is an instance whose check all goroutines may use.
func limiterOf(check compare.Check, close func()) (*instance, error) {
	return &instance{Limiter: compare.Limiter{Worker: func() compare.Check { return check }, Close: close}}, nil
}

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
func openAllow(l compare.Limit, keys int) (*instance, error) {
	s := newStore(keys)
	in, err := limiterOf(compare.Allow(s, l), func() {})
	in.stats = s.Stats
	return in, err
}

func openCheck(amount string) func(compare.Limit, int) (*instance, error) {
	return func(l compare.Limit, keys int) (*instance, error) {
		s := newStore(keys)
		worker, err := compare.WholeCheck(s, l, amount)
		return &instance{compare.Limiter{Worker: worker, Close: func() {}}, s.Stats}, err
	}
}

// newStore has room for twice what is needed, so that nothing is evicted.
func newStore(keys int) *memstore.Store {
	return memstore.New(memstore.Options{MemoryCap: memstore.DefaultMemoryCap + int64(keys)*100})
}

// openFloor does only what every limiter has to do.
func openFloor(compare.Limit, int) (*instance, error) {
	seed, start := maphash.MakeSeed(), time.Now()
	return limiterOf(func(key string) error {
		// Both are part of the result, so that the compiler keeps both.
		return verdict(maphash.String(seed, key)|uint64(time.Since(start)) != 0)
	}, func() {})
}
