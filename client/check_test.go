package client_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/client"
	"github.com/weirhq/weir/internal/checkapi"
	"github.com/weirhq/weir/internal/guard"
	"github.com/weirhq/weir/memstore"
)

func limiter(rules ...weir.Rule) *weir.Limiter {
	set, err := weir.Compile(weir.Rules{Version: 42, Rules: rules, Deny: []string{"sk_bad"}})
	if err != nil {
		panic(err)
	}
	return weir.NewLimiter(memstore.New(memstore.Options{MemoryCap: 4 << 20}), set, weir.Options{Secret: []byte("of the tests")})
}

func perHour(n int64) weir.Rule {
	return weir.Rule{ID: "orders", Limits: []weir.Limit{weir.PerHour(n)}}
}

// node is the check API over HTTP.
func node(t testing.TB, h http.Handler) string {
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return srv.URL
}

func open(t testing.TB, opts client.Options) *client.Client {
	t.Helper()
	if opts.Timeout == 0 {
		opts.Timeout = 10 * time.Second // a busy machine is no dead one
	}
	c, err := client.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// TestChecksAreAsTheAPIAnswersThem, the fallback's as well.
func TestChecksAreAsTheAPIAnswersThem(t *testing.T) {
	rules := []weir.Rule{
		{ID: "orders", Match: weir.Match{Endpoint: "GET /v1/orders/{id}"}, By: []string{"api_key", "user", "header:X-Tenant"},
			Limits: []weir.Limit{{Count: 3, Window: time.Hour, Burst: 5}}},
		{ID: "ip", By: []string{"ip"}, Limits: []weir.Limit{weir.PerHour(100)}},
	}
	ctx := t.Context()
	c := open(t, client.Options{URL: node(t, checkapi.New(limiter(rules...), nil, checkapi.Options{}))})
	dead := open(t, client.Options{URL: "http://127.0.0.1:1", Fallback: limiter(rules...)})
	api := checkapi.New(limiter(rules...), nil, checkapi.Options{})
	ip := netip.MustParseAddr("203.0.113.7")
	for _, req := range []client.Request{
		{Key: "a", Method: "GET", Path: "/v1/orders/17", IP: ip, User: "42", Attributes: map[string]string{"header:x-tenant": "t"}},
		{Key: "a", Method: "GET", Path: "/v1/orders/17", IP: ip, User: "42", Attributes: map[string]string{"header:X-Tenant": "t"}, Cost: 3},
		{Key: "a", Method: "GET", Path: "/v1/orders/17", IP: ip, User: "42", Attributes: map[string]string{"header:X-Tenant": "t"}, Peek: true},
		{Key: "a", Method: "GET", Path: "/v1/orders/17", IP: ip, User: "42", Attributes: map[string]string{"header:X-Tenant": "t"}, Cost: 2},
		{Key: "a", Method: "GET", Path: "/v1/orders/17", IP: ip, User: "42", Attributes: map[string]string{"header:X-Tenant": "t"}, Cost: 9},
		{Key: "a", Method: "GET", Path: "/v1/orders/17", IP: ip, User: "43", Attributes: map[string]string{"header:X-Tenant": "t"}},
		{Key: "sk_bad", IP: ip},
		{IP: ip, Path: "/" + strings.Repeat("x", 5000)},
	} {
		got, err := c.Check(ctx, &req)
		if err != nil {
			t.Fatal(err)
		}
		fallen, err := dead.Check(ctx, &req)
		if err != nil || !fallen.Degraded || !errors.Is(fallen.Unreached, client.ErrUnreachable) {
			t.Fatal(fallen, err)
		}
		attributes := map[string]string{"header:X-Tenant": "t", "user": req.User}
		cost := max(req.Cost, 1)
		if req.Peek {
			cost = 0
		}
		body, _ := json.Marshal(checkapi.CheckRequest{Key: req.Key, Method: req.Method, Path: req.Path, IP: ip.String(), Attributes: attributes, Cost: &cost})
		w := httptest.NewRecorder()
		api.ServeHTTP(w, httptest.NewRequest("POST", "/v1/check", bytes.NewReader(body)))
		var want checkapi.CheckResponse
		if err := json.Unmarshal(w.Body.Bytes(), &want); err != nil {
			t.Fatal(err)
		}
		for name, d := range map[string]client.Decision{"Weir": got, "fallback": fallen} {
			have := checkapi.CheckResponse{
				Allowed: d.Allowed, Rule: d.Rule, Limit: d.Limit, Burst: d.Burst, Remaining: d.Remaining, DelayMS: d.Delay.Milliseconds(),
				Degraded: want.Degraded, RulesVersion: d.RulesVersion, Reason: d.Reason, Code: d.Code, Message: want.Message,
				RetryAfterMS: want.RetryAfterMS, ResetAfterMS: want.ResetAfterMS, Limits: []checkapi.LimitStatus{},
			}
			for _, l := range d.Limits {
				if l.LimitAmount != weir.Whole(l.Limit) || l.Left != weir.Whole(l.Remaining) {
					t.Errorf("%s: %+v", name, l)
				}
				have.Limits = append(have.Limits, checkapi.LimitStatus{
					Rule: l.Rule, Allowed: l.Allowed, Limit: float64(l.Limit), Burst: l.Burst, Remaining: float64(l.Remaining), Shadow: l.Shadow,
				})
			}
			if !reflect.DeepEqual(have, want) || d.Status != w.Code || name == "Weir" && d.Message != want.Message {
				t.Errorf("%s, %+v:\ngot  %d %+v\nwant %d %+v", name, req, d.Status, have, w.Code, want)
			}
			near := func(a time.Duration, ms int64) bool {
				return (a < 0) == (ms < 0) && (a-time.Duration(ms)*time.Millisecond).Abs() < time.Minute
			}
			if !near(d.RetryAfter, want.RetryAfterMS) || !near(d.ResetAfter, want.ResetAfterMS) {
				t.Errorf("%s: retry after %v, reset after %v, want %d and %d ms", name, d.RetryAfter, d.ResetAfter, want.RetryAfterMS, want.ResetAfterMS)
			}
		}
	}
}

// TestConcurrentChecksAreJoined: the first goes alone, and those that come while it is under way go together.
func TestConcurrentChecksAreJoined(t *testing.T) {
	api := checkapi.New(limiter(perHour(1e6)), nil, checkapi.Options{})
	var mu sync.Mutex
	var sizes []int
	first, goOn := make(chan struct{}), make(chan struct{})
	c := open(t, client.Options{URL: node(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var batch checkapi.BatchRequest
		if err := json.Unmarshal(body, &batch); err != nil {
			t.Error(err)
		}
		mu.Lock()
		sizes = append(sizes, len(batch.Checks))
		calls := len(sizes)
		mu.Unlock()
		if calls == 1 {
			close(first)
			<-goOn
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		api.ServeHTTP(w, r)
	}))})
	var wg sync.WaitGroup
	check := func(ctx context.Context, key string, want error) {
		wg.Go(func() {
			if d, err := c.Check(ctx, &client.Request{Key: key}); !errors.Is(err, want) || want == nil && d.Remaining != 1e6-1 {
				t.Error(key, d, err)
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	check(ctx, "first", context.Canceled)
	<-first
	for i := range 700 {
		check(t.Context(), fmt.Sprint(i), nil)
	}
	left, leave := context.WithCancel(t.Context())
	check(left, "leaves", context.Canceled)
	for c.Waiting() < 701 {
		time.Sleep(time.Millisecond)
	}
	leave()
	cancel() // of the one whose call it is
	close(goOn)
	wg.Wait()
	if fmt.Sprint(sizes) != "[1 700]" {
		t.Errorf("calls had %v checks", sizes)
	}
}

// TestBatchesFit: neither more checks nor more bytes than the API takes.
func TestBatchesFit(t *testing.T) {
	c := open(t, client.Options{URL: node(t, checkapi.New(limiter(perHour(1e6)), nil, checkapi.Options{}))})
	var wg sync.WaitGroup
	for i := range 3000 {
		wg.Go(func() {
			cost := int64(1 + i%7) // so that each is seen to get its own answer
			req := client.Request{Key: fmt.Sprint(i), Cost: cost, Attributes: map[string]string{"a": strings.Repeat("x", 1000), "b": strings.Repeat("y", 900)}}
			if d, err := c.Check(t.Context(), &req); err != nil || !d.Allowed || d.Remaining != 1e6-cost {
				t.Error(d, err)
			}
		})
	}
	wg.Wait()
	for _, size := range []int{70 << 10, 2 << 20} {
		_, err := c.Check(t.Context(), &client.Request{Path: "/" + strings.Repeat("x", size)})
		if e, ok := errors.AsType[*client.Error](err); !ok || e.Code != "BODY_TOO_LARGE" {
			t.Error(err)
		}
	}
}

func TestErrorsHaveCodes(t *testing.T) {
	l := limiter(perHour(10))
	c := open(t, client.Options{URL: node(t, checkapi.New(l, nil, checkapi.Options{})), Fallback: limiter(perHour(10))})
	code := func(err error) string {
		if e, ok := errors.AsType[*client.Error](err); ok {
			return e.Code
		}
		return fmt.Sprint(err)
	}
	if _, err := c.Check(t.Context(), &client.Request{Cost: -1}); code(err) != "BAD_REQUEST" || strings.Contains(err.Error(), "sk_") {
		t.Error(err)
	}
	d, err := c.Check(t.Context(), &client.Request{Key: "a", Cost: 4, Receipt: true})
	if err != nil || d.Receipt == "" || d.Remaining != 6 {
		t.Fatal(d, err)
	}
	if err := c.Refund(t.Context(), d.Receipt); err != nil {
		t.Error(err)
	}
	if err := c.Refund(t.Context(), d.Receipt); !errors.Is(err, weir.ErrUsed) || code(err) != "RECEIPT_USED" {
		t.Error(err)
	}
	if err := c.Refund(t.Context(), "none"); !errors.Is(err, weir.ErrReceiptInvalid) {
		t.Error(err)
	}
	if d, err := c.Check(t.Context(), &client.Request{Key: "a"}); err != nil || d.Remaining != 9 {
		t.Error(d, err)
	}
	const secret = "a token that is long enough for one"
	tokens, err := guard.OneToken("http", secret)
	if err != nil {
		t.Fatal(err)
	}
	guarded := node(t, checkapi.New(l, nil, checkapi.Options{Guard: guard.New(guard.Options{AnyName: true, Tokens: tokens})}))
	if _, err := open(t, client.Options{URL: guarded, Token: "wrong", Fallback: l}).Check(t.Context(), &client.Request{}); code(err) != "UNAUTHORIZED" {
		t.Error(err)
	}
	if d, err := open(t, client.Options{URL: guarded, Token: secret}).Check(t.Context(), &client.Request{Key: "b"}); err != nil || !d.Allowed {
		t.Error(d, err)
	}
	for _, u := range []string{"", "127.0.0.1:8080", "ftp://x", "http://u:p@x", "http://"} {
		if _, err := client.New(client.Options{URL: u}); err == nil || strings.Contains(err.Error(), "u:p") {
			t.Errorf("%q: %v", u, err)
		}
	}
}

func TestTLS(t *testing.T) {
	srv := httptest.NewTLSServer(checkapi.New(limiter(perHour(10)), nil, checkapi.Options{}))
	defer srv.Close()
	roots := x509.NewCertPool()
	roots.AddCert(srv.Certificate())
	if d, err := open(t, client.Options{URL: srv.URL, TLS: &tls.Config{RootCAs: roots}}).Check(t.Context(), &client.Request{}); err != nil || !d.Allowed {
		t.Error(d, err)
	}
	if _, err := open(t, client.Options{URL: srv.URL}).Check(t.Context(), &client.Request{}); !errors.Is(err, client.ErrUnreachable) {
		t.Error(err)
	}
}

// TestFallback: what doesn't answer as Weir does, or not in time, is out of reach.
func TestFallback(t *testing.T) {
	for name, h := range map[string]http.HandlerFunc{
		"overloaded": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(503)
			fmt.Fprint(w, `{"error":{"code":"OVERLOADED","message":"busy"}}`)
		},
		"a proxy": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404); fmt.Fprint(w, "<html>") },
		"too few": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"results":[]}`) },
		"garbage": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `results`) },
		"broken":  func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"slow": func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body) // so that the server notices when the client leaves
			<-r.Context().Done()
		},
	} {
		opts := client.Options{URL: node(t, h)}
		if name == "slow" {
			opts.Timeout = 20 * time.Millisecond
		}
		if _, err := open(t, opts).Check(t.Context(), &client.Request{}); !errors.Is(err, client.ErrUnreachable) {
			t.Errorf("%s: %v", name, err)
		}
		opts.Fallback = limiter(perHour(1))
		c := open(t, opts)
		for _, allowed := range []bool{true, false} {
			d, err := c.Check(t.Context(), &client.Request{Key: "a"})
			if err != nil || d.Allowed != allowed || !d.Degraded || d.Unreached == nil {
				t.Errorf("%s: %+v, %v", name, d, err)
			}
		}
	}
}

// TestADeadWeirIsAskedSeldom, and found again.
func TestADeadWeirIsAskedSeldom(t *testing.T) {
	var calls atomic.Int64
	var alive atomic.Bool
	api := checkapi.New(limiter(perHour(1e6)), nil, checkapi.Options{})
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if calls.Add(1); alive.Load() {
			api.ServeHTTP(w, r)
			return
		}
		time.Sleep(time.Hour) // in virtual time
	})
	synctest.Test(t, func(t *testing.T) {
		c, err := client.New(client.Options{URL: "http://weir", Fallback: limiter(perHour(1e6))})
		if err != nil {
			t.Fatal(err)
		}
		c.Through(answers(func(r *http.Request) (*http.Response, error) {
			w := httptest.NewRecorder()
			done := make(chan struct{})
			go func() {
				h.ServeHTTP(w, httptest.NewRequest("POST", r.URL.Path, strings.NewReader(`{"checks":[{}]}`)))
				close(done)
			}()
			select {
			case <-done:
				return w.Result(), nil
			case <-r.Context().Done():
				return nil, r.Context().Err()
			}
		}))
		began, slow := time.Now(), 0
		for time.Since(began) < time.Minute {
			at := time.Now()
			if d, err := c.Check(t.Context(), &client.Request{Key: "a"}); err != nil || !d.Degraded {
				t.Fatal(d, err)
			}
			if time.Since(at) > 0 {
				slow++
			}
			time.Sleep(10 * time.Millisecond)
		}
		if n := calls.Load(); n < 10 || n > 30 || slow != int(n) {
			t.Errorf("it was asked %d times in a minute, and %d checks waited", n, slow)
		}
		alive.Store(true)
		time.Sleep(5 * time.Second)
		if d, err := c.Check(t.Context(), &client.Request{Key: "a"}); err != nil || d.Degraded {
			t.Error(d, err)
		}
		if d, err := c.Check(t.Context(), &client.Request{Key: "a"}); err != nil || d.Degraded {
			t.Error(d, err)
		}
		time.Sleep(2 * time.Hour) // the handlers end
	})
}

// BenchmarkCheck is 256 goroutines that ask one node: joined, and one by one.
func BenchmarkCheck(b *testing.B) {
	url := node(b, checkapi.New(limiter(perHour(1e9)), nil, checkapi.Options{}))
	run := func(b *testing.B, check func() error) {
		var wg sync.WaitGroup
		var left atomic.Int64
		left.Store(int64(b.N))
		for range 256 {
			wg.Go(func() {
				for left.Add(-1) >= 0 {
					if err := check(); err != nil {
						b.Error(err)
					}
				}
			})
		}
		wg.Wait()
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "checks/s")
	}
	b.Run("joined", func(b *testing.B) {
		c := open(b, client.Options{URL: url})
		run(b, func() error {
			_, err := c.Check(b.Context(), &client.Request{Key: "sk_1", Method: "GET", Path: "/v1/orders/17"})
			return err
		})
	})
	b.Run("one by one", func(b *testing.B) {
		rt := &http.Transport{MaxIdleConnsPerHost: 256}
		defer rt.CloseIdleConnections()
		run(b, func() error {
			res, err := (&http.Client{Transport: rt}).Post(url+"/v1/check", "application/json", strings.NewReader(`{"key":"sk_1","method":"GET","path":"/v1/orders/17"}`))
			if err != nil {
				return err
			}
			defer res.Body.Close()
			var d checkapi.CheckResponse
			return json.NewDecoder(res.Body).Decode(&d)
		})
	})
}
