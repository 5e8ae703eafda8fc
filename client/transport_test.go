package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir/client"
)

// answers is a function that serves as a Transport's Base.
type answers func(*http.Request) (*http.Response, error)

func (f answers) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		_, _ = io.Copy(io.Discard, req.Body)
		_ = req.Body.Close()
	}
	return f(req)
}

// answer returns a response with the given headers, as pairs of names and values.
func answer(status int, headers ...string) *http.Response {
	res := &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("words"))}
	for i := 0; i < len(headers); i += 2 {
		res.Header.Add(headers[i], headers[i+1])
	}
	return res
}

func request(t *testing.T, ctx context.Context, method, path string, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, "http://service"+path, body)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

// get sends a request, reads the response, and returns its status.
func get(t *testing.T, rt http.RoundTripper, ctx context.Context, path string) (int, error) {
	t.Helper()
	res, err := rt.RoundTrip(request(t, ctx, "GET", path, nil))
	if err != nil {
		return 0, err
	}
	_, _ = io.Copy(io.Discard, res.Body)
	return res.StatusCode, res.Body.Close()
}

// once returns a Base that refuses only the first request.
func once(status int, headers ...string) (answers, *atomic.Int64) {
	var n atomic.Int64
	return func(*http.Request) (*http.Response, error) {
		if n.Add(1) == 1 {
			return answer(status, headers...), nil
		}
		return answer(200), nil
	}, &n
}

func TestRefusedRequestsAreRetried(t *testing.T) {
	now := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // the start of a synctest bubble
	for _, c := range []struct {
		name    string
		status  int
		headers []string
		wait    time.Duration
	}{
		{"seconds", 429, []string{"Retry-After", "7"}, 7 * time.Second},
		{"a date, by the server's clock", 429, []string{"Retry-After", now.Add(-time.Hour + 9*time.Second).Format(http.TimeFormat),
			"Date", now.Add(-time.Hour).Format(http.TimeFormat)}, 9 * time.Second},
		{"a date that is over", 429, []string{"Retry-After", now.Add(-time.Hour).Format(http.TimeFormat)}, 0},
		{"Retry-After before RateLimit", 429, []string{"Retry-After", "3", "RateLimit", `"a";r=0;t=20`}, 3 * time.Second},
		{"RateLimit", 429, []string{"RateLimit", `"a";r=0;t=20`, "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "50"}, 20 * time.Second},
		{"Unix seconds", 429, []string{"X-RateLimit-Remaining", "0", "X-RateLimit-Reset", fmt.Sprint(now.Unix() + 12)}, 12 * time.Second},
		{"Unix milliseconds", 429, []string{"X-RateLimit-Remaining", "0", "X-RateLimit-Reset", fmt.Sprint(now.UnixMilli() + 1500)}, 1500 * ms},
		{"a duration", 429, []string{"X-RateLimit-Remaining-Requests", "0", "X-RateLimit-Reset-Requests", "6m0s"}, 6 * time.Minute},
		{"503 that says when", 503, []string{"Retry-After", "2"}, 2 * time.Second},
		{"403 that says when", 403, []string{"Retry-After", "2"}, 2 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				base, n := once(c.status, c.headers...)
				rt := &client.Transport{Base: base, MaxWait: time.Hour}
				began := time.Now()
				status, err := get(t, rt, t.Context(), "/")
				if took := time.Since(began); status != 200 || err != nil || n.Load() != 2 || took != c.wait {
					t.Errorf("got %d, %v after %v and %d tries, want 200 after %v and 2", status, err, took, n.Load(), c.wait)
				}
			})
		})
	}
}

// TestBackOff checks the wait after a refusal that doesn't say how long to wait: it is limited, and random.
func TestBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waits := map[time.Duration]bool{}
		for range 20 {
			base, _ := once(429)
			began := time.Now()
			if status, err := get(t, &client.Transport{Base: base}, t.Context(), "/"); status != 200 || err != nil {
				t.Fatal(status, err)
			}
			waits[time.Since(began)] = true
			if took := time.Since(began); took <= 0 || took > time.Second {
				t.Errorf("waited %v", took)
			}
		}
		if len(waits) < 15 {
			t.Errorf("20 waits are %v", waits)
		}
	})
}

func TestRequestsThatArentRetried(t *testing.T) {
	body := func() io.Reader { return io.MultiReader(strings.NewReader("once")) } // without GetBody
	for _, c := range []struct {
		name   string
		status int
		method string
		body   io.Reader
		key    bool
		budget float64
		tries  int64
	}{
		{"POST, refused", 429, "POST", strings.NewReader("x"), false, 0, 2},
		{"POST that can't be sent again", 429, "POST", body(), false, 0, 1},
		{"GET, unavailable", 503, "GET", nil, false, 0, 2},
		{"POST, unavailable: it may have begun", 503, "POST", strings.NewReader("x"), false, 0, 1},
		{"POST with a key, unavailable", 503, "POST", strings.NewReader("x"), true, 0, 2},
		{"no budget", 429, "GET", nil, false, -1, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				base, n := once(c.status, "Retry-After", "1")
				req := request(t, t.Context(), c.method, "/", c.body)
				if c.key {
					req.Header.Set("Idempotency-Key", "17")
				}
				res, err := (&client.Transport{Base: base, RetryBudget: c.budget}).RoundTrip(req)
				if err != nil {
					t.Fatal(err)
				}
				text, _ := io.ReadAll(res.Body)
				res.Body.Close()
				if string(text) != "words" || n.Load() != c.tries {
					t.Errorf("%d tries, want %d; %d %q", n.Load(), c.tries, res.StatusCode, text)
				}
			})
		})
	}
}

// TestBudget checks that retries are limited to a tenth of the requests plus a few, even if a service refuses every
// request.
func TestBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		rt := &client.Transport{Base: answers(func(*http.Request) (*http.Response, error) {
			n++
			return answer(429, "Retry-After", "1"), nil
		})}
		for range 400 {
			if status, err := get(t, rt, t.Context(), "/"); status != 429 || err != nil {
				t.Fatal(status, err)
			}
		}
		if n < 430 || n > 450 {
			t.Errorf("400 requests were sent %d times", n)
		}
	})
}

func TestOnePauseForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base, n := once(429, "Retry-After", "10")
		rt := &client.Transport{Base: base}
		began := time.Now()
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 100 * ms)
				if status, err := get(t, rt, t.Context(), fmt.Sprint("/", string(rune('a'+i)))); status != 200 || err != nil {
					t.Error(status, err)
				}
				if took := time.Since(began); took != 10*time.Second {
					t.Errorf("answered after %v", took)
				}
			})
		}
		time.Sleep(5 * time.Second)
		if n.Load() != 1 {
			t.Errorf("%d were sent during the pause", n.Load()-1)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		_, err := get(t, rt, ctx, "/late")
		paused, ok := errors.AsType[*client.PausedError](err)
		if !ok || !errors.Is(err, context.DeadlineExceeded) || paused.Host != "http://service" || paused.Until.Sub(began) != 10*time.Second {
			t.Errorf("got %v", err)
		}
		if time.Since(began) != 5*time.Second {
			t.Errorf("the request took %v to fail", time.Since(began)-5*time.Second)
		}
		wg.Wait()
	})
}

// TestWaitersLeave checks requests that wait in line when a pause begins. Those whose deadline is before its end fail
// at once, although the first in line waits.
func TestWaitersLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int64
		rt := &client.Transport{Base: answers(func(*http.Request) (*http.Response, error) {
			time.Sleep(500 * ms)
			if n.Add(1) > 1 {
				return answer(200), nil
			}
			return answer(429, "Retry-After", "30"), nil
		})}
		began := time.Now()
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * ms)
				ctx, cancel := t.Context(), func() {}
				if i > 1 {
					ctx, cancel = context.WithTimeout(ctx, 20*time.Second)
				}
				defer cancel()
				_, err := get(t, rt, ctx, "/")
				if took := time.Since(began); i > 1 && (took != 500*ms || !errors.Is(err, context.DeadlineExceeded)) || i <= 1 && err != nil {
					t.Errorf("%d: %v after %v", i, err, took)
				}
			})
		}
		wg.Wait()
	})
}

// TestLearnFirst checks that until a host has responded, it gets one request, and one more for each second without a
// response.
func TestLearnFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int64
		rt := &client.Transport{Base: answers(func(*http.Request) (*http.Response, error) {
			n.Add(1)
			time.Sleep(2500 * ms)
			return answer(200, "RateLimit-Policy", `"all";q=500;w=60`, "RateLimit", `"all";r=400;t=60`), nil
		})}
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				if status, err := get(t, rt, t.Context(), "/"+string(rune('a'+i))); status != 200 || err != nil {
					t.Error(status, err)
				}
			})
		}
		for i, want := range []int64{1, 2, 3, 20} {
			time.Sleep(800 * ms) // 0.8, 1.6, 2.4 and 3.2 s
			if got := n.Load(); got != want {
				t.Errorf("at look %d, %d requests were sent, want %d", i, got, want)
			}
		}
		wg.Wait()
	})
}

// TestNumbersOnlyWithRefusals checks a host that sends numbers only when it refuses. After the pause, requests go one by
// one at first, and then together.
func TestNumbersOnlyWithRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int64
		rt := &client.Transport{Base: answers(func(*http.Request) (*http.Response, error) {
			if n.Add(1) == 1 {
				return answer(429, "X-RateLimit-Limit", "100", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "5"), nil
			}
			time.Sleep(100 * ms)
			return answer(200), nil
		})}
		began := time.Now()
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				if status, err := get(t, rt, t.Context(), "/"); status != 200 || err != nil {
					t.Error(status, err)
				}
			})
		}
		wg.Wait()
		if took := time.Since(began); took < 5*time.Second || took > 6*time.Second {
			t.Errorf("100 requests took %v", took)
		}
	})
}

func TestMaxWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base, n := once(429, "Retry-After", "61")
		rt := &client.Transport{Base: base}
		if status, err := get(t, rt, t.Context(), "/"); status != 429 || err != nil {
			t.Error(status, err)
		}
		if _, err := get(t, rt, t.Context(), "/"); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		time.Sleep(2 * time.Second)
		if status, err := get(t, rt, t.Context(), "/"); status != 200 || err != nil || n.Load() != 2 {
			t.Error(status, err, n.Load())
		}
	})
}

// TestPoliciesPauseTheirOwn checks that a pause of one policy doesn't stop requests that are known to be counted by
// another.
func TestPoliciesPauseTheirOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refuse := false
		rt := &client.Transport{Base: answers(func(req *http.Request) (*http.Response, error) {
			if req.URL.Path == "/login" {
				if refuse {
					return answer(429, "RateLimit-Policy", `"login";q=5;w=60`, "RateLimit", `"login";r=0;t=30`, "Retry-After", "30"), nil
				}
				return answer(200, "RateLimit-Policy", `"login";q=5;w=60`, "RateLimit", `"login";r=4;t=60`), nil
			}
			return answer(200, "RateLimit-Policy", `"all";q=500;w=60`, "RateLimit", `"all";r=400;t=60`), nil
		}), RetryBudget: -1}
		for _, path := range []string{"/login", "/v1/orders/17"} {
			if status, err := get(t, rt, t.Context(), path); status != 200 || err != nil {
				t.Fatal(status, err)
			}
		}
		refuse = true
		if status, _ := get(t, rt, t.Context(), "/login"); status != 429 {
			t.Fatal(status)
		}
		for path, wait := range map[string]time.Duration{"/v1/orders/18": 0, "/new": 30 * time.Second} {
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			status, err := get(t, rt, ctx, path)
			cancel()
			if took := time.Since(began); path == "/v1/orders/18" && took != 0 || status != 200 || err != nil || took > wait {
				t.Errorf("%s: %d, %v after %v, want %v", path, status, err, took, wait)
			}
		}
	})
}

// TestOtherUnits checks that a limit on tokens says nothing about the number of requests. It pauses requests only after
// it refuses one.
func TestOtherUnits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		headers := []string{
			"RateLimit-Policy", `"tokens";q=1000;qu="tokens";w=60, "requests";q=600;w=60`, "RateLimit", `"tokens";r=0;t=50`, "X-RateLimit-Remaining", "0",
		}
		n := 0
		rt := &client.Transport{Base: answers(func(*http.Request) (*http.Response, error) {
			if n++; n == 20 {
				return answer(429, append(headers, "Retry-After", "9")...), nil
			}
			return answer(200, headers...), nil
		}), MaxWait: time.Hour}
		began := time.Now()
		for range 19 {
			if status, err := get(t, rt, t.Context(), "/"); status != 200 || err != nil {
				t.Fatal(status, err)
			}
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("19 requests took %v: remaining tokens were taken for remaining requests", took)
		}
		if status, err := get(t, rt, t.Context(), "/"); status != 200 || err != nil || time.Since(began) != 9*time.Second {
			t.Errorf("%d, %v after %v, want 200 after 9s", status, err, time.Since(began))
		}
	})
}

func TestInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kinds := []string{"closed", "read", "error", "panic", "no body", "upgrade"}
		rt := &client.Transport{MaxInFlight: 1, Base: answers(func(req *http.Request) (*http.Response, error) {
			res := answer(200)
			switch req.URL.Path {
			case "/error":
				return nil, io.ErrUnexpectedEOF
			case "/panic":
				panic("of Base")
			case "/no body":
				res.Body = http.NoBody
			case "/upgrade":
				res.StatusCode = 101
			}
			return res, nil
		})}
		for range 3 {
			for _, kind := range kinds {
				func() {
					defer func() { _ = recover() }()
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					req := request(t, ctx, "GET", "/", nil)
					req.URL.Path = "/" + kind
					res, err := rt.RoundTrip(req)
					switch {
					case errors.Is(err, context.DeadlineExceeded):
						t.Fatalf("the request before %q still counts as in flight", kind)
					case kind == "closed":
						_ = res.Body.Close()
						_ = res.Body.Close()
					case kind == "read":
						_, _ = io.Copy(io.Discard, res.Body)
					}
				}()
			}
		}
		res, err := rt.RoundTrip(request(t, t.Context(), "GET", "/", nil))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := get(t, rt, ctx, "/"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a second request was sent while the first was in flight: %v", err)
		}
		res.Body.Close()
	})
}

type closer struct {
	io.Reader
	closed bool
}

func (c *closer) Close() error { c.closed = true; return nil }

// TestContract checks the contract of http.RoundTripper: the body is closed even if a request isn't sent, and the
// request's context ends a wait.
func TestContract(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base, _ := once(429, "Retry-After", "30")
		rt := &client.Transport{Base: base, RetryBudget: -1}
		if status, _ := get(t, rt, t.Context(), "/"); status != 429 {
			t.Fatal(status)
		}
		b := &closer{Reader: strings.NewReader("x")}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		_, err := rt.RoundTrip(request(t, ctx, "POST", "/", b))
		if !errors.Is(err, context.Canceled) || !b.closed {
			t.Errorf("%v, closed: %v", err, b.closed)
		}
		rt.CloseIdleConnections()
	})
}

// TestHostile checks that hostile responses can't make the Transport remember an unlimited number of hosts, policies or
// paths.
func TestHostile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		rt := &client.Transport{Base: answers(func(*http.Request) (*http.Response, error) {
			n++
			return answer(200, "RateLimit-Policy", fmt.Sprintf(`"p%d";q=%d;w=1`, n, n), "RateLimit", fmt.Sprintf(`"p%d";r=5;t=1`, n)), nil
		}), MaxWait: time.Hour}
		for i := range 5000 {
			req := request(t, t.Context(), "GET", "/"+strings.Repeat("x", i%3000), nil)
			if i%2 == 0 {
				req.URL.Host = fmt.Sprint("host", i)
			}
			res, err := rt.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
		}
		if hosts, policies, routes := rt.Sizes(); hosts > 1024 || policies > 64 || routes > 1024 {
			t.Errorf("%d hosts, %d policies and %d routes are remembered", hosts, policies, routes)
		}
	})
}
