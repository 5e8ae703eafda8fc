package main

import (
	"context"
	"hash/maphash"
	"net/http"
	"net/http/httptest"
	"sync"
	"time"

	"github.com/go-chi/httprate"
	"github.com/sethvargo/go-limiter/memorystore"
	"github.com/throttled/throttled/v2"
	throttledstore "github.com/throttled/throttled/v2/store/memstore"
	"golang.org/x/time/rate"

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

// openGoLimiter has its map made large enough. It sweeps every six hours only.
func openGoLimiter(l compare.Limit, keys int) (*compare.Limiter, error) {
	s, err := memorystore.New(&memorystore.Config{
		Tokens: uint64(l.Tokens), Interval: l.Window(), InitialAlloc: keys,
	})
	if err != nil {
		return nil, err
	}
	return compare.Shared(func(key string) error {
		_, _, _, ok, err := s.Take(background, key)
		return verdict(ok && err == nil)
	}, func() { _ = s.Close(background) }), nil // or else its sweeper keeps the store alive
}

// openTimeRate makes a limiter for a key on the key's first request alone.
func openTimeRate(l compare.Limit, _ int) (*compare.Limiter, error) {
	var limiters sync.Map
	return compare.Shared(func(key string) error {
		v, ok := limiters.Load(key)
		if !ok {
			v, _ = limiters.LoadOrStore(key, rate.NewLimiter(rate.Limit(l.PerSecond()), int(l.Tokens)))
		}
		return verdict(v.(*rate.Limiter).Allow())
	}, func() {}), nil
}

// openThrottled uses the plain map, since the LRU that a maximum of keys brings is slower. Ten attempts, its default, are
// too few for a contended key.
func openThrottled(l compare.Limit, _ int) (*compare.Limiter, error) {
	s, err := throttledstore.NewCtx(0)
	if err != nil {
		return nil, err
	}
	g, err := throttled.NewGCRARateLimiterCtx(s, throttled.RateQuota{
		MaxRate: throttled.PerDuration(1, l.Every), MaxBurst: int(l.Tokens) - 1,
	})
	if err != nil {
		return nil, err
	}
	g.SetMaxCASAttemptsLimit(1 << 20)
	return compare.Shared(func(key string) error {
		limited, _, err := g.RateLimitCtx(background, key, 1)
		return verdict(!limited && err == nil)
	}, func() {}), nil
}

// openHTTPRate calls what the middleware calls, with the response headers turned off.
func openHTTPRate(l compare.Limit, _ int) (*compare.Limiter, error) {
	lim := httprate.NewRateLimiter(int(l.Tokens), l.Window(), httprate.WithResponseHeaders(httprate.ResponseHeaders{}))
	worker := func() compare.Check {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		return func(key string) error { return verdict(!lim.OnLimit(w, r, key)) }
	}
	return &compare.Limiter{Worker: worker, Close: func() {}}, nil
}
