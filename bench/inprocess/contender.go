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

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/server/bench/internal/command"
	"github.com/weirhq/weir/server/bench/internal/compare"
)

// contender is a limiter to compare. Its open function creates the limiter, with a new store.
type contender struct {
	name string
	kind kind
	open func(r *command.Run, l compare.Limit, keys int) *compare.Limiter
}

type kind uint8

const (
	weirs kind = iota
	rival
	floor
)

var background = context.Background()

// verdict returns nil if a check was allowed, and [compare.ErrRefused] otherwise.
func verdict(allowed bool) error {
	if allowed {
		return nil
	}
	return compare.ErrRefused
}

const (
	allowName = "Weir Allow"
	oneName   = "Weir check by one rule"
	checkName = "Weir check by 100 rules, one of which applies"
	// amountName names a check by rules that count an amount, not requests.
	amountName = "Weir check by 100 rules, with an amount"
)

// contenders are listed in the order of the printed tables. Each of Weir's contenders comes next to the rival that it
// is compared with.
var contenders = []contender{
	{allowName, weirs, openAllow},
	{oneName, weirs, openCheck(compare.OneRule)},
	{checkName, weirs, openCheck(func(l compare.Limit) []weir.Rule { return compare.HundredRules(l, "") })},
	{amountName, weirs, openCheck(func(l compare.Limit) []weir.Rule { return compare.HundredRules(l, "tokens") })},
	{"sethvargo/go-limiter 0.7.1", rival, openGoLimiter},
	{"x/time/rate 0.16 in a sync.Map", rival, openTimeRate},
	{"throttled 2.15, GCRA", rival, openThrottled},
	{"go-chi/httprate 0.16.1", rival, openHTTPRate},
	{"floor: hash the key, read the clock", floor, openFloor},
}

// openAllow opens Weir with a limit by key, without rules.
func openAllow(_ *command.Run, l compare.Limit, keys int) *compare.Limiter {
	s := newStore(keys)
	limiter := compare.Shared(compare.Allow(s, l))
	limiter.Stats = s.Stats
	return limiter
}

func openCheck(rules func(compare.Limit) []weir.Rule) func(*command.Run, compare.Limit, int) *compare.Limiter {
	return func(_ *command.Run, l compare.Limit, keys int) *compare.Limiter {
		s := newStore(keys)
		return &compare.Limiter{Worker: compare.WholeCheck(s, rules(l)), Stats: s.Stats}
	}
}

// newStore makes a store that is large enough for twice the keys, so that nothing is evicted.
func newStore(keys int) *memstore.Store {
	return memstore.New(memstore.Options{MemoryCap: memstore.DefaultMemoryCap + int64(keys)*100})
}

// openFloor does only what every limiter has to do: hash the key and read the clock.
func openFloor(*command.Run, compare.Limit, int) *compare.Limiter {
	seed, start := maphash.MakeSeed(), time.Now()
	return compare.Shared(func(key string) error {
		// Use both in the result, so that the compiler removes neither.
		return verdict(maphash.String(seed, key)|uint64(time.Since(start)) != 0)
	})
}

// openGoLimiter allocates its map in advance. The limiter sweeps it only every six hours.
func openGoLimiter(r *command.Run, l compare.Limit, keys int) *compare.Limiter {
	s := command.Must(memorystore.New(&memorystore.Config{
		Tokens: uint64(l.Tokens), Interval: l.Window(), InitialAlloc: keys,
	}))
	r.Cleanup(func() { _ = s.Close(background) }) // otherwise the sweeper would keep the store alive
	return compare.Shared(func(key string) error {
		_, _, _, ok, err := s.Take(background, key)
		return verdict(ok && err == nil)
	})
}

// openTimeRate creates the limiter for a key at the key's first request.
func openTimeRate(_ *command.Run, l compare.Limit, _ int) *compare.Limiter {
	var limiters sync.Map
	return compare.Shared(func(key string) error {
		v, ok := limiters.Load(key)
		if !ok {
			v, _ = limiters.LoadOrStore(key, rate.NewLimiter(rate.Limit(l.PerSecond()), int(l.Tokens)))
		}
		return verdict(v.(*rate.Limiter).Allow())
	})
}

// openThrottled uses the plain map, because the LRU that limits the number of keys is slower. It allows more than the
// default of ten attempts, which are too few for a contended key.
func openThrottled(_ *command.Run, l compare.Limit, _ int) *compare.Limiter {
	g := command.Must(throttled.NewGCRARateLimiterCtx(command.Must(throttledstore.NewCtx(0)), throttled.RateQuota{
		MaxRate: throttled.PerDuration(1, l.Every), MaxBurst: int(l.Tokens) - 1,
	}))
	g.SetMaxCASAttemptsLimit(1 << 20)
	return compare.Shared(func(key string) error {
		limited, _, err := g.RateLimitCtx(background, key, 1)
		return verdict(!limited && err == nil)
	})
}

// openHTTPRate calls the same functions as the middleware, without response headers.
func openHTTPRate(_ *command.Run, l compare.Limit, _ int) *compare.Limiter {
	lim := httprate.NewRateLimiter(int(l.Tokens), l.Window(), httprate.WithResponseHeaders(httprate.ResponseHeaders{}))
	worker := func() compare.Check {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		return func(key string) error { return verdict(!lim.OnLimit(w, r, key)) }
	}
	return &compare.Limiter{Worker: worker}
}
