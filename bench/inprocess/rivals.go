package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"

	"github.com/go-chi/httprate"
	"github.com/sethvargo/go-limiter/memorystore"
	"github.com/throttled/throttled/v2"
	throttledstore "github.com/throttled/throttled/v2/store/memstore"
	"github.com/ulule/limiter/v3"
	"github.com/ulule/limiter/v3/drivers/store/memory"
	"golang.org/x/time/rate"
)

// openGoLimiter has its map made large enough. It sweeps every six hours only.
func openGoLimiter(l limit, keys int) (instance, error) {
	s, err := memorystore.New(&memorystore.Config{
		Tokens: uint64(l.tokens), Interval: l.window(), InitialAlloc: keys,
	})
	if err != nil {
		return instance{}, err
	}
	ctx := context.Background()
	return instance{
		worker: func() check {
			return func(key string) bool {
				_, _, _, ok, err := s.Take(ctx, key)
				return ok && err == nil
			}
		},
		close: func() { _ = s.Close(ctx) }, // or else its sweeper keeps the store alive
	}, nil
}

// openTimeRate makes a limiter for a key on the key's first request alone.
func openTimeRate(l limit, _ int) (instance, error) {
	var limiters sync.Map
	return instance{
		worker: func() check {
			return func(key string) bool {
				v, ok := limiters.Load(key)
				if !ok {
					v, _ = limiters.LoadOrStore(key, rate.NewLimiter(rate.Limit(l.perSecond()), int(l.tokens)))
				}
				return v.(*rate.Limiter).Allow()
			}
		},
		close: func() {},
	}, nil
}

// openThrottled uses the plain map, since the LRU that a maximum of keys brings
// is slower. Ten attempts, its default, are too few for a contended key.
func openThrottled(l limit, _ int) (instance, error) {
	s, err := throttledstore.NewCtx(0)
	if err != nil {
		return instance{}, err
	}
	g, err := throttled.NewGCRARateLimiterCtx(s, throttled.RateQuota{
		MaxRate: throttled.PerDuration(1, l.every), MaxBurst: int(l.tokens) - 1,
	})
	if err != nil {
		return instance{}, err
	}
	g.SetMaxCASAttemptsLimit(1 << 20)
	ctx := context.Background()
	return instance{
		worker: func() check {
			return func(key string) bool {
				limited, _, err := g.RateLimitCtx(ctx, key, 1)
				return !limited && err == nil
			}
		},
		close: func() {},
	}, nil
}

// openUlule has no cleaner and no prefix.
func openUlule(l limit, _ int) (instance, error) {
	lim := limiter.New(
		memory.NewStoreWithOptions(limiter.StoreOptions{}),
		limiter.Rate{Period: l.window(), Limit: l.tokens},
	)
	ctx := context.Background()
	return instance{
		worker: func() check {
			return func(key string) bool {
				c, err := lim.Get(ctx, key)
				return !c.Reached && err == nil
			}
		},
		close: func() {},
	}, nil
}

// openHTTPRate calls what the middleware calls, with the response headers turned off.
func openHTTPRate(l limit, _ int) (instance, error) {
	lim := httprate.NewRateLimiter(int(l.tokens), l.window(), httprate.WithResponseHeaders(httprate.ResponseHeaders{}))
	return instance{
		worker: func() check {
			w := httptest.NewRecorder()
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			return func(key string) bool { return !lim.OnLimit(w, r, key) }
		},
		close: func() {},
	}, nil
}
