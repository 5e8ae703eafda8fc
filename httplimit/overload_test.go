package httplimit_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
)

// bounded is a middleware that decides one request at a time. Requests with the key "slow" wait until goOn allows them to
// continue.
func bounded(l *weir.Limiter, goOn chan struct{}, next http.Handler) http.Handler {
	return wrap(l, httplimit.Options{MaxInFlight: 1, Identify: func(_ *http.Request, req *weir.Request) {
		switch req.APIKey {
		case "slow":
			<-goOn
		case "panic":
			panic(http.ErrAbortHandler)
		}
	}}, next)
}

func askAs(h http.Handler, method, key string, headers ...string) *httptest.ResponseRecorder {
	r := request("/", append(headers, "X-API-Key", key)...)
	r.Method = method
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// TestShed: while as many requests as allowed are being decided, others get exactly this 503.
func TestShed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		next, at := visits()
		goOn := make(chan struct{})
		h := bounded(limiter(t, rules(weir.Rule{ID: "a", Limits: per(100, time.Hour)})), goOn, next)
		first := make(chan int)
		go func() { first <- askAs(h, "GET", "slow").Code }()
		synctest.Wait()
		const json = `{"error":{"code":"OVERLOADED","message":"The server is overloaded; try again shortly","details":{"retry_after_seconds":1}}}` + "\n"
		const problem = `{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",` +
			`"title":"Request cannot be satisfied due to temporary server capacity constraints","status":503,` +
			`"detail":"The server is overloaded; try again shortly","code":"OVERLOADED","details":{"retry_after_seconds":1}}` + "\n"
		for _, c := range []struct{ method, accept, media, body string }{
			{"GET", "*/*", "application/json", json},
			{"GET", "application/problem+json", "application/problem+json", problem},
			{"HEAD", "*/*", "application/json", ""},
		} {
			w := askAs(h, c.method, "k", "Accept", c.accept)
			header := w.Header()
			if w.Code != 503 || header.Get("Retry-After") != "1" || header.Get("Cache-Control") != "no-store" || header.Get("Content-Type") != c.media {
				t.Errorf("%s %s: %d %v", c.method, c.accept, w.Code, header)
			}
			if w.Body.String() != c.body {
				t.Errorf("%s %s: got %q", c.method, c.accept, w.Body)
			}
		}
		if len(at) != 0 {
			t.Error("the handler was called")
		}
		close(goOn)
		if got := <-first; got != 200 {
			t.Errorf("the one in flight: %d", got)
		}
		if w := askAs(h, "GET", "k"); w.Code != 200 || w.Header().Get("X-RateLimit-Remaining") != "99" {
			t.Errorf("afterwards: %d, %s left: one that was shed was counted", w.Code, w.Header().Get("X-RateLimit-Remaining"))
		}
	})
}

// TestSlowRequestsHoldNoPlace: a request uses up no place of max-in-flight while it is in a handler or a queue, or after a panic.
func TestSlowRequestsHoldNoPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		goOn := make(chan struct{})
		busy := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { // like a handler that waits for an upstream or streams
			if r.Header.Get("X-API-Key") == "busy" {
				<-goOn
			}
		})
		l := limiter(t, rules(weir.Rule{ID: "q", Match: weir.Match{APIKeyPattern: "queued"}, Algorithm: weir.LeakyQueue, Limits: []weir.Limit{{Count: 1, Window: time.Hour, Burst: 10}}}))
		h := bounded(l, nil, busy)
		for _, key := range []string{"busy", "queued", "queued", "queued"} {
			go askAs(h, "GET", key)
			synctest.Wait()
		}
		func() {
			defer func() { _ = recover() }()
			askAs(h, "GET", "panic")
		}()
		if w := askAs(h, "GET", "k"); w.Code != 200 {
			body, _ := io.ReadAll(w.Body)
			t.Errorf("got %d %s", w.Code, body)
		}
		close(goOn)
		time.Sleep(4 * time.Hour) // until the queue has served all
	})
}
