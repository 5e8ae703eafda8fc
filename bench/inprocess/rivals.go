package main

import (
	"net/http"
	"net/http/httptest"
	"sync"

	"github.com/go-chi/httprate"
	"github.com/sethvargo/go-limiter/memorystore"
	"github.com/throttled/throttled/v2"
	throttledstore "github.com/throttled/throttled/v2/store/memstore"
	"golang.org/x/time/rate"

	"github.com/weirhq/weir/server/bench/internal/compare"
)

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
