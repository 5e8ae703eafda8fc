package weir_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/memstore"
)

func TestKeysAreLimitedEachByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := weir.New(weir.PerMinute(60), weir.WithBurst(2))
		for i, want := range []bool{true, true, false} {
			if got := limit.Allow("ada"); got != want {
				t.Errorf("request %d of ada: %v, want %v", i+1, got, want)
			}
		}
		if !limit.Allow("bob") {
			t.Error("bob was refused, who has sent nothing before")
		}
		d, err := limit.Check("ada")
		if d.Allowed || d.Reason != weir.ReasonLimited || d.RetryAfter != time.Second || d.ResetAfter != 2*time.Second || err != nil {
			t.Errorf("check of ada: %+v, %v; want a retry after 1s, full after 2s", d, err)
		}
		time.Sleep(d.RetryAfter)
		if d, err := limit.Check("ada"); !d.Allowed || d.Remaining != 0 || err != nil || d.Limits()[0].Remaining != 0 {
			t.Errorf("check of ada after the wait: %+v, %v; want it allowed, with 0 left", d, err)
		}
		if limit.AllowN("cyd", 3) || !limit.AllowN("cyd", 2) || limit.AllowN("cyd", -1) {
			t.Error("a burst of 2 should refuse 3, allow 2, and then refuse a cost below 1, which counts as 1")
		}
	})
}

func TestAlgorithmOfKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := weir.New(weir.PerMinute(2), weir.WithAlgorithm(weir.SlidingLog))
		limit.Allow("ada")
		time.Sleep(30 * time.Second)
		limit.Allow("ada")
		if d, _ := limit.Check("ada"); d.Allowed || d.RetryAfter != 30*time.Second {
			t.Errorf("%+v, want a retry after 30s: a bucket would have had a token by now", d)
		}
	})
}

func TestNewPanicsOfWhatCantBe(t *testing.T) {
	for want, create := range map[string]func(){
		"must be at least 1":  func() { weir.New(weir.PerMinute(0)) },
		"has no burst":        func() { weir.New(weir.PerMinute(5), weir.WithAlgorithm(weir.FixedWindow), weir.WithBurst(2)) },
		"use weir.NewLimiter": func() { weir.New(weir.PerMinute(5), weir.WithAlgorithm(weir.LeakyQueue)) },
	} {
		func() {
			defer func() {
				if got, _ := recover().(string); !strings.Contains(got, want) {
					t.Errorf("panic with %q, want %q", got, want)
				}
			}()
			create()
		}()
	}
}

func TestLimitersShareCountersByName(t *testing.T) {
	store := memstore.New(memstore.Options{})
	login := weir.New(weir.PerHour(1), weir.WithStore(store, "login"))
	again := weir.New(weir.PerHour(1), weir.WithStore(store, "login"))
	search := weir.New(weir.PerHour(1), weir.WithStore(store, "search"))
	if !login.Allow("ada") || again.Allow("ada") || !search.Allow("ada") {
		t.Error("limiters of one name should count together, and apart from others")
	}
}

func TestAllowIsExactInParallel(t *testing.T) {
	limit := weir.New(weir.PerHour(100))
	var allowed atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				if limit.Allow("ada") {
					allowed.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if allowed.Load() != 100 {
		t.Errorf("%d of 400 requests were allowed at 100 an hour", allowed.Load())
	}
}

func TestWaitForATurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := weir.New(weir.PerSecond(1))
		began := time.Now()
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				if err := limit.Wait(t.Context(), "ada"); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("four requests at 1 a second took %s, want 3s", took)
		}

		began = time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		if err := limit.Wait(ctx, "ada"); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 0 {
			t.Errorf("a context that ends before the turn: %v after %s, want its error at once", err, time.Since(began))
		}
		ctx, stop := context.WithCancel(t.Context())
		time.AfterFunc(100*time.Millisecond, stop)
		if err := limit.Wait(ctx, "ada"); !errors.Is(err, context.Canceled) || time.Since(began) != 100*time.Millisecond {
			t.Errorf("a context that is cancelled: %v after %s, want its error after 100ms", err, time.Since(began))
		}
	})
}

// away is a store that can't be reached.
type away struct{ *memstore.Store }

var errAway = errors.New("connection refused")

func (away) Take(_ context.Context, _ []counter.Charge, results []counter.Result) {
	for i := range results {
		results[i] = counter.Result{Err: errAway}
	}
}

func TestAStoreThatIsGoneLetsKeysPass(t *testing.T) {
	limit := weir.New(weir.PerMinute(1), weir.WithStore(away{}, "api"))
	for range 2 {
		if d, err := limit.Check("ada"); !d.Allowed || !d.Degraded || !errors.Is(err, errAway) {
			t.Errorf("%+v, %v: want it allowed, with the store's error", d, err)
		}
	}
	if !limit.Allow("ada") || limit.Wait(t.Context(), "ada") != nil {
		t.Error("a request was refused because the store is gone")
	}
}

// logged returns what f logs.
func logged(t *testing.T, f func()) string {
	t.Helper()
	var out bytes.Buffer
	was := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&out, nil)))
	defer slog.SetDefault(was)
	f()
	return out.String()
}

func TestClientsWithoutANameAreNeverCountedSilently(t *testing.T) {
	limit := weir.New(weir.PerMinute(100))
	out := logged(t, func() {
		for range 3 {
			if limit.Allow("") {
				t.Error("a request of nobody was allowed")
			}
		}
	})
	if strings.Count(out, "names no client") != 1 {
		t.Errorf("logged %q, want one warning for three requests", out)
	}
	if d, err := limit.Check(""); d.Allowed || !errors.Is(err, weir.ErrNoClient) {
		t.Errorf("%+v, %v; want ErrNoClient", d, err)
	}
	if err := limit.Wait(t.Context(), ""); !errors.Is(err, weir.ErrNoClient) {
		t.Errorf("%v, want ErrNoClient", err)
	}

	rules, err := weir.Compile(weir.Rules{Rules: []weir.Rule{{ID: "api", Limits: []weir.Limit{weir.PerMinute(100)}}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		req  weir.Request
		want int
	}{
		{weir.Request{}, 1}, {weir.Request{APIKey: "sk_1"}, 0}, {weir.Request{User: "ada"}, 0}, {weir.Request{IP: netip.MustParseAddr("203.0.113.7")}, 0},
	} {
		limiter := weir.NewLimiter(memstore.New(memstore.Options{}), rules, weir.Options{})
		out := logged(t, func() {
			for range 2 {
				if _, err := limiter.Check(t.Context(), &c.req); err != nil {
					t.Error(err)
				}
			}
		})
		if got := strings.Count(out, "names no client"); got != c.want {
			t.Errorf("%d warnings for two checks of %+v, want %d: %q", got, c.req, c.want, out)
		}
	}
}
