// Package client_test tests the client against the real check API.
package client_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/client"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/server/internal/edge/checkapi"
	"github.com/weirhq/weir/server/internal/edge/guard"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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

// node serves the check API over HTTP.
func node(t testing.TB, h http.Handler) string {
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return srv.URL
}

func open(t testing.TB, opts client.Options) *client.Client {
	t.Helper()
	if opts.Timeout == 0 {
		opts.Timeout = 10 * time.Second // so that a busy machine doesn't look like a dead node
	}
	c, err := client.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func check(t *testing.T, c *client.Client, req client.Request) client.Decision {
	t.Helper()
	d, err := c.Check(t.Context(), &req)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestChecksMatchTheAPI checks that the client, and its fallback, return the same decisions as the API.
func TestChecksMatchTheAPI(t *testing.T) {
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
				if l.LimitAmount != counter.Whole(l.Limit) || l.Left != counter.Whole(l.Remaining) {
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

// TestBatchesFit checks that batches have neither more checks nor more bytes than the API accepts.
func TestBatchesFit(t *testing.T) {
	c := open(t, client.Options{URL: node(t, checkapi.New(limiter(perHour(1e6)), nil, checkapi.Options{}))})
	var wg sync.WaitGroup
	for i := range 3000 {
		wg.Go(func() {
			cost := int64(1 + i%7) // so that each caller's own response can be recognized
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
	if err := c.Refund(t.Context(), d.Receipt); !errors.Is(err, counter.ErrUsed) || code(err) != "RECEIPT_USED" {
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

func tokens(n int64) weir.Rule {
	return weir.Rule{ID: "tokens", Amount: "tokens", Algorithm: weir.FixedWindow, Limits: []weir.Limit{{Count: n, Fraction: 500_000, Window: time.Hour}}}
}

// TestAmounts checks that amounts can be charged, reserved and settled, both by Weir and by the fallback.
func TestAmounts(t *testing.T) {
	rules := []weir.Rule{perHour(10), tokens(1000)}
	c := open(t, client.Options{URL: node(t, checkapi.New(limiter(rules...), nil, checkapi.Options{}))})
	dead := open(t, client.Options{URL: "http://127.0.0.1:1", Fallback: limiter(rules...)})
	req := client.Request{Key: "a", Amounts: map[string]counter.Amount{"tokens": counter.Whole(400) + 250_000}, Reserve: 2 * time.Minute}
	var receipt string
	for name, c := range map[string]*client.Client{"Weir": c, "fallback": dead} {
		d := check(t, c, req)
		if len(d.Limits) != 2 || !d.Allowed || d.Remaining != 600 {
			t.Fatalf("%s: %+v", name, d)
		}
		end := time.Now().Truncate(time.Hour).Add(time.Hour)
		l := d.Limits[1]
		if l.Amount != "tokens" || l.Limit != 1000 || l.Remaining != 600 || l.LimitAmount.String() != "1000.5" || l.Left.String() != "600.25" || l.WindowEnd.Before(end) {
			t.Errorf("%s: %+v, want an end at %v", name, l, end)
		}
		if (d.Receipt == "") != (name == "fallback") {
			t.Errorf("%s: receipt %q", name, d.Receipt)
		}
		if name == "Weir" {
			receipt = d.Receipt
		}
	}
	settle := func(c *client.Client, receipt string, o weir.Outcome) bool {
		t.Helper()
		settled, err := c.Settle(t.Context(), receipt, o)
		if err != nil {
			t.Error(err)
		}
		return settled
	}
	left := func() string {
		return check(t, c, client.Request{Key: "a", Peek: true}).Limits[1].Left.String()
	}
	used := weir.Outcome{Amounts: map[string]counter.Amount{"tokens": counter.Whole(100)}}
	if !settle(c, receipt, used) || settle(c, receipt, used) || left() != "900.5" {
		t.Errorf("%s left", left())
	}
	if settle(c, receipt, weir.Outcome{Abandoned: true}) {
		t.Error("a settled charge was given back")
	}
	if receipt = check(t, c, req).Receipt; !settle(c, receipt, weir.Outcome{}) || left() != "500.25" {
		t.Errorf("%s left of one of which nothing is known", left())
	}
	if receipt = check(t, c, req).Receipt; !settle(c, receipt, weir.Outcome{Status: 200}) || left() != "100" {
		t.Errorf("%s left of one with a status", left())
	}
	req.Amounts = map[string]counter.Amount{"tokens": counter.Whole(100)}
	if receipt = check(t, c, req).Receipt; !settle(c, receipt, weir.Outcome{Abandoned: true}) || left() != "100" {
		t.Errorf("%s left of one that was abandoned", left())
	}
	// A decision of the fallback, or a check that charged nothing, has no receipt to settle.
	if settle(dead, "", used) || c.Release(t.Context(), "") != nil || c.Renew(t.Context(), "") != nil {
		t.Error("there is no receipt")
	}
	for _, err := range []error{c.Release(t.Context(), "none"), c.Renew(t.Context(), "none"), func() error { _, err := c.Settle(t.Context(), "none", used); return err }()} {
		if !errors.Is(err, weir.ErrReceiptInvalid) || strings.Contains(err.Error(), "none") {
			t.Error(err)
		}
	}
	if _, err := dead.Settle(t.Context(), "x", used); !errors.Is(err, client.ErrUnreachable) {
		t.Error(err)
	}
	if _, err := c.Check(t.Context(), &client.Request{Amounts: map[string]counter.Amount{"tokens": -1}}); err == nil {
		t.Error("a negative amount was taken")
	}
}

// goneStore is a store whose calls fail.
type goneStore struct{ counter.Store }

func (goneStore) Take(_ context.Context, _ []counter.Charge, results []counter.Result) {
	for i := range results {
		results[i] = counter.Result{Err: errors.New("gone")}
	}
}

// TestNotCounted checks that numbers that aren't known are -1.
func TestNotCounted(t *testing.T) {
	set, err := weir.Compile(weir.Rules{Rules: []weir.Rule{perHour(10), tokens(1000)}})
	if err != nil {
		t.Fatal(err)
	}
	l := weir.NewLimiter(goneStore{memstore.New(memstore.Options{})}, set, weir.Options{})
	c := open(t, client.Options{URL: node(t, checkapi.New(l, nil, checkapi.Options{}))})
	d := check(t, c, client.Request{Amounts: map[string]counter.Amount{"tokens": counter.Whole(1)}})
	for _, s := range d.Limits {
		if s.Remaining != -1 || s.Left != -1_000_000 || !s.WindowEnd.IsZero() {
			t.Errorf("%+v", s)
		}
	}
}

// TestIDs checks that a check that is repeated with the same id is charged once.
func TestIDs(t *testing.T) {
	c := open(t, client.Options{URL: node(t, checkapi.New(limiter(perHour(10)), nil, checkapi.Options{}))})
	for range 3 {
		if d := check(t, c, client.Request{Key: "a", ID: "1"}); d.Remaining != 9 {
			t.Errorf("%+v", d)
		}
	}
	if d := check(t, c, client.Request{Key: "a", ID: "2"}); d.Remaining != 8 {
		t.Errorf("%+v", d)
	}
	if _, err := c.Check(t.Context(), &client.Request{ID: strings.Repeat("x", 129)}); err == nil || strings.Contains(err.Error(), "xx") {
		t.Error(err)
	}
}

// TestASlotThatIsLost gives a request's slot to another request, and checks that the first one gets a slot again once
// one is free. The store's clock stands still, so no slot expires while the machine is busy.
func TestASlotThatIsLost(t *testing.T) {
	at := time.Now()
	now := func() time.Time { return at }
	set, err := weir.Compile(weir.Rules{Rules: []weir.Rule{{ID: "slots", Algorithm: weir.Concurrency, SlotTTL: time.Second, Limits: []weir.Limit{{Count: 1}}}}})
	if err != nil {
		t.Fatal(err)
	}
	l := weir.NewLimiter(memstore.New(memstore.Options{Now: now}), set, weir.Options{Now: now})
	url := node(t, checkapi.New(l, nil, checkapi.Options{}))
	c, other := open(t, client.Options{URL: url}), open(t, client.Options{URL: url})
	d := check(t, c, client.Request{Key: "a"})
	if !d.Allowed || d.SlotTTL != time.Second || d.Receipt == "" {
		t.Fatalf("%+v", d)
	}
	slot := c.Hold(&d)
	var taken client.Decision
	for !taken.Allowed { // repeated if a renewal took the slot again in between
		if err := other.Release(t.Context(), d.Receipt); err != nil {
			t.Fatal(err)
		}
		taken = check(t, other, client.Request{Key: "a"})
	}
	<-slot.Lost()
	if err := other.Renew(t.Context(), d.Receipt); !errors.Is(err, weir.ErrSlotLost) {
		t.Errorf("a lost slot is renewed: %v", err)
	}
	for taken.Allowed {
		if err := other.Release(t.Context(), taken.Receipt); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
		taken = check(t, other, client.Request{Key: "a"}) // refused once the first request has a slot again
	}
	if !taken.RetryIsGuess {
		t.Errorf("%+v", taken)
	}
	if err := slot.Release(); err != nil {
		t.Error(err)
	}
	if d := check(t, other, client.Request{Key: "a"}); !d.Allowed {
		t.Errorf("%+v", d)
	}
}

// TestAChat checks that a chat holds its slot while it runs, and that its reserved tokens are settled before the next
// chat.
func TestAChat(t *testing.T) {
	checks := open(t, client.Options{URL: node(t, checkapi.New(limiter(
		weir.Rule{ID: "streams", Algorithm: weir.Concurrency, Limits: []weir.Limit{{Count: 1}}},
		weir.Rule{ID: "tokens", Amount: "tokens", Limits: []weir.Limit{weir.PerHour(2000)}},
	), nil, checkapi.Options{}))})
	chat := client.Request{Key: "sk_123", Amounts: map[string]counter.Amount{"tokens": counter.Whole(1500)}, Reserve: time.Minute}
	d := check(t, checks, chat)
	slot := checks.Hold(&d)
	if !d.Allowed || d.Limits[1].Left != counter.Whole(500) {
		t.Errorf("%+v", d)
	}
	if _, err := checks.Settle(t.Context(), d.Receipt, weir.Outcome{Amounts: map[string]counter.Amount{"tokens": counter.Whole(1900)}}); err != nil {
		t.Error(err)
	}
	if err := slot.Release(); err != nil {
		t.Error(err)
	}
	if d := check(t, checks, chat); d.Allowed || d.Rule != "tokens" {
		t.Errorf("%+v", d)
	}
}

// BenchmarkCheck measures 256 goroutines that ask one node, with joined checks and with one request per check.
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
