package httplimit_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/httplimit"
)

// slow is a store that never answers in time.
type slow struct{ counter.Store }

func (slow) Take(ctx context.Context, _ []counter.Charge, results []counter.Result) {
	<-ctx.Done()
	for i := range results {
		results[i] = counter.Result{Err: ctx.Err()}
	}
}

// TestWhoLeavesIsNotServed: a client can't evade its limits by disconnecting before the store has decided, for example with a
// reset right after its request.
func TestWhoLeavesIsNotServed(t *testing.T) {
	set, err := weir.Compile(weir.Rules{Rules: []weir.Rule{{ID: "all", Limits: []weir.Limit{weir.PerMinute(1)}}}})
	if err != nil {
		t.Fatal(err)
	}
	h := httplimit.New(weir.NewLimiter(slow{}, set, weir.Options{}), httplimit.Options{}).Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		t.Error("the request was served")
	}))
	ctx, leave := context.WithCancel(t.Context())
	leave()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, "GET", "/", nil))
	if w.Code != http.StatusServiceUnavailable {
		t.Error(w.Code, w.Body)
	}
}

// Once a request is allowed, the handler serves it even if the client has left, as without a limiter. The client has paid for
// the request and may want it to run.
func TestWhoLeavesBehindTheDecisionIsServed(t *testing.T) {
	for name, l := range map[string]*weir.Limiter{
		"counted at once":   limiter(t, rules(weir.Rule{ID: "all", Limits: per(1, time.Hour)})),
		"counted by status": counting(t, 401),
	} {
		served := false
		ctx, leave := context.WithCancel(t.Context())
		leave()
		h := wrap(l, httplimit.Options{}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served = true }))
		if h.ServeHTTP(httptest.NewRecorder(), request("/").WithContext(ctx)); !served {
			t.Errorf("%s: not served", name)
		}
	}
}
