package gateway

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
)

// In a burst of 500 requests against a bucket of 100, exactly 100 pass, and no more reach the upstream.
func TestBurst(t *testing.T) {
	var served atomic.Int64
	up := startUpstream(t, func(http.ResponseWriter, *http.Request) { served.Add(1) })
	d := start(t, setup{upstream: up.URL, limiter: limiterOf(t, weir.Options{}, few("api", "/", 100))})
	const n = 500
	statuses := make([]int, n)
	var wg sync.WaitGroup
	begin := make(chan struct{})
	for i := range n {
		req := d.request(t, "GET", "/v1/orders", nil)
		wg.Go(func() {
			<-begin
			res, err := d.client.Do(req)
			if err != nil {
				t.Error(err)
				return
			}
			defer res.Body.Close()
			statuses[i] = res.StatusCode
			if after := res.Header.Get("Retry-After"); (res.StatusCode == 429) != (after != "") {
				t.Errorf("%d with Retry-After %q", res.StatusCode, after)
			}
		})
	}
	close(begin)
	wg.Wait()
	count := map[int]int{}
	for _, s := range statuses {
		count[s]++
	}
	if count[200] != 100 || count[429] != 400 || served.Load() != 100 {
		t.Errorf("answers %v, %d requests upstream; want 100×200, 400×429, 100 upstream", count, served.Load())
	}
}

func TestRefusalsNeverReachTheUpstream(t *testing.T) {
	up := startUpstream(t, nil)
	d := start(t, setup{upstream: up.URL, limiter: limiterOf(t, weir.Options{}, few("api", "/", 1))})
	if a := d.get(t, "/"); a.StatusCode != 200 {
		t.Fatal(a.Status)
	}
	a := d.get(t, "/")
	if a.StatusCode != 429 || !strings.Contains(a.body, "RATE_LIMIT_EXCEEDED") || a.Header.Get("X-RateLimit-Rule") != "api" {
		t.Errorf("%s %q %v", a.Status, a.body, a.Header)
	}
	if n := len(up.requests()); n != 1 {
		t.Errorf("the upstream saw %d requests", n)
	}
}

// The gateway doesn't ask for the body of a refused request: a client that waits for 100 Continue never gets it.
func TestRefusedBodiesAreNotAskedFor(t *testing.T) {
	up := startUpstream(t, nil)
	d := start(t, setup{upstream: up.URL, limiter: limiterOf(t, weir.Options{}, few("api", "/", 1))})
	d.get(t, "/")
	for _, head := range []string{
		"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n",                         // too long to read
		"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\nExpect: 100-continue\r\n\r\n",         // waits for 100 Continue
		"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n", // waits for 100 Continue, and has no length
	} {
		if a := d.raw(t, head); a.StatusCode != 429 || !a.Close {
			t.Errorf("%q: %s, connection kept: %t", head, a.Status, !a.Close)
		}
	}
	if n := len(up.requests()); n != 1 {
		t.Errorf("the upstream saw %d requests", n)
	}
}

// The gateway reads the short body of a refused request, so that the connection can serve the next one.
func TestRefusalsKeepTheConnection(t *testing.T) {
	up := startUpstream(t, nil)
	d := start(t, setup{upstream: up.URL, limiter: limiterOf(t, weir.Options{}, few("login", "/login", 1))})
	d.get(t, "/login")
	conn := d.dial(t)
	for range 3 {
		a := exchangeRaw(t, conn, "POST /login HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello")
		if a.StatusCode != 429 {
			t.Fatal(a.Status)
		}
	}
	if a := exchangeRaw(t, conn, "GET /other HTTP/1.1\r\nHost: x\r\n\r\n"); a.StatusCode != 200 {
		t.Error(a.Status)
	}
}

// A response has the headers of one limiter only: Weir's, if the upstream has more left.
func TestUpstreamRateLimitHeaders(t *testing.T) {
	theirs := func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-RateLimit-Limit", "7")
		h.Set("X-RateLimit-Used", "6")
		h.Set("X-Rate-Limit-Remaining", "1")
		h.Set("RateLimit", `"theirs";r=1000;t=1`)
		h.Set("RateLimit-Limit", "7")
		h.Set("Retry-After", "9")
		h.Set("Access-Control-Expose-Headers", "X-Theirs")
		h.Set("X-RateLimiter-Version", "not about limits")
		if r.URL.Path == "/limited/hint" {
			w.WriteHeader(http.StatusEarlyHints)
		}
	}
	up := startUpstream(t, theirs)
	d := start(t, setup{
		upstream: up.URL, limiter: limiterOf(t, weir.Options{}, few("mine", "/limited/", 100)),
		limit: httplimit.Options{Answers: httplimit.Answers{Dialects: []httplimit.Dialect{httplimit.XRateLimit}, Expose: true}},
	})
	// The same after a 103: httputil.ReverseProxy removes the headers that were set before it.
	for i, path := range []string{"/limited/plain", "/limited/hint"} {
		h := d.get(t, path).Header
		want := map[string][]string{
			"X-RateLimit-Limit":      {"100"},
			"X-RateLimit-Remaining":  {[]string{"99", "98"}[i]},
			"X-RateLimit-Used":       nil,
			"X-Rate-Limit-Remaining": nil,
			"RateLimit":              nil,
			"RateLimit-Limit":        nil,
			"Retry-After":            {"9"},
			"X-RateLimiter-Version":  {"not about limits"},
		}
		for name, values := range want {
			if got := h.Values(name); strings.Join(got, "|") != strings.Join(values, "|") {
				t.Errorf("%s: %s is %q, want %q", path, name, got, values)
			}
		}
		if got := strings.Join(h.Values("Access-Control-Expose-Headers"), ", "); !strings.Contains(got, "X-RateLimit-Limit") || !strings.Contains(got, "X-Theirs") {
			t.Errorf("%s: exposed: %s", path, got)
		}
	}
	// If no limit of Weir's applies, the response keeps the upstream's headers.
	h := d.get(t, "/free").Header
	if h.Get("X-RateLimit-Limit") != "7" || h.Get("RateLimit") == "" || len(h.Values("X-RateLimit-Limit")) != 1 {
		t.Errorf("without a limit: %v", h)
	}
}

// Queued requests wait for their turn, and a client that leaves the queue makes room for another.
func TestQueue(t *testing.T) {
	decided := make(chan weir.Decision, 10)
	observe := func(o *weir.Observation) { decided <- *o.Decision }
	queue := func(id string, rate float64, length int64) weir.Rule {
		return weir.Rule{
			ID: id, Match: weir.Match{Endpoint: "/" + id}, By: []string{"ip"}, Algorithm: weir.LeakyQueue,
			Limits: []weir.Limit{{Algorithm: weir.LeakyQueue, Count: length, Window: time.Hour, Refill: rate, MaxDelay: 2 * time.Hour}},
		}
	}
	up := startUpstream(t, nil)
	handled := make(chan struct{}, 10)
	d := start(t, setup{
		upstream: up.URL, handled: handled,
		limiter: limiterOf(t, weir.Options{Observe: observe}, queue("quick", 20, 10), queue("slow", 1.0/3600, 2)),
	})

	var wg sync.WaitGroup
	for range 3 {
		req := d.request(t, "GET", "/quick", nil)
		wg.Go(func() {
			if res, err := d.client.Do(req); err != nil {
				t.Error(err)
			} else if res.Body.Close(); res.StatusCode != 200 {
				t.Error(res.Status)
			}
		})
	}
	wg.Wait()
	waited := 0
	for range 3 {
		if d := <-decided; d.Delay > 0 {
			waited++
		}
		<-handled
	}
	if waited == 0 || len(up.requests()) != 3 {
		t.Errorf("%d of 3 waited, %d reached the upstream", waited, len(up.requests()))
	}

	d.get(t, "/slow") // goes at once; the next goes in an hour, and one after that doesn't fit
	<-decided
	<-handled
	for range 3 {
		ctx, hangUp := context.WithCancel(t.Context())
		gone := make(chan error, 1)
		req := d.request(t, "GET", "/slow", nil).WithContext(ctx)
		go func() {
			_, err := d.client.Do(req)
			gone <- err
		}()
		if d := await(t, decided, "the check"); !d.Allowed || d.Delay < time.Minute {
			t.Errorf("allowed: %t, after %s", d.Allowed, d.Delay)
		}
		hangUp()
		await(t, handled, "leaving the queue")
		if err := <-gone; err == nil {
			t.Error("answered after all")
		}
	}
	if n := len(up.requests()); n != 4 {
		t.Errorf("%d requests reached the upstream", n)
	}
	if d.log.loud() {
		t.Error(d.log)
	}
}
