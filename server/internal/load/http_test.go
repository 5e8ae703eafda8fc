package load

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/server/internal/edge/checkapi"
)

func parseURL(t *testing.T, s string) *url.URL {
	t.Helper()
	u, err := url.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// A server takes 300 ms and gets ten requests a second over one connection. Requests wait for the ones before them, and their
// latency shows that, although the server never takes more than 300 ms.
func TestHTTPLatencyCountsFromTheDueTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := serve(t, func(http.ResponseWriter, *http.Request) { time.Sleep(300 * time.Millisecond) }, HTTPOptions{Check: Check{Method: http.MethodGet}})
		r := mustRun(t, Plan{Duration: time.Second, Rate: 10}, to)
		if o := r.OpenLoop; o.Due != 10 || o.Sent != 4 || o.Dropped != 6 || o.Service.Max != 300*time.Millisecond {
			t.Errorf("got %+v", o)
		}
		if r.Latency.Max != 900*time.Millisecond || !near(r.Latency.P50, 500*time.Millisecond) {
			t.Errorf("latency is %+v", r.Latency)
		}
		if r.Statuses[200] != 4 || r.Allowed != 4 {
			t.Errorf("%d allowed, statuses %v", r.Allowed, r.Statuses)
		}
	})
}

func TestHTTPStallDelaysDueRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		n := 0
		to := serve(t, func(http.ResponseWriter, *http.Request) {
			mu.Lock()
			n++
			stall := n == 11
			mu.Unlock()
			if stall {
				time.Sleep(time.Second)
			}
		}, HTTPOptions{Check: Check{Method: http.MethodGet}})
		r := mustRun(t, Plan{Duration: 3 * time.Second, Rate: 100}, to)
		// The requests that were due during the stall waited for its end: a hundred, including the one that caused it.
		if o := r.OpenLoop; r.Checks != 300 || o.Late != 99 || o.Dropped != 0 {
			t.Errorf("%d checks, %+v", r.Checks, o)
		}
		if r.Latency.Max != time.Second || r.Latency.P90 < 600*time.Millisecond || r.OpenLoop.Service.P99 > time.Millisecond {
			t.Errorf("latency %+v, service %+v", r.Latency, r.OpenLoop.Service)
		}
	})
}

func TestHTTPCountsStatuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		statuses := []int{200, 204, 429, 302, 404, 503}
		var mu sync.Mutex
		n := 0
		to := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			w.Header().Set("Location", "/elsewhere") // isn't followed
			w.WriteHeader(statuses[n%len(statuses)])
			n++
		}, HTTPOptions{Check: Check{Method: http.MethodGet}})
		r := mustRun(t, Plan{Duration: time.Second, Rate: 60}, to)
		if r.Checks != 60 || r.Allowed != 20 || r.Refused != 10 || r.Other != 30 || r.Errors != 0 || n != 60 {
			t.Errorf("%d checks, %d allowed, %d refused, %d other, %d errors, %d seen", r.Checks, r.Allowed, r.Refused, r.Other, r.Errors, n)
		}
		for _, s := range statuses {
			if r.Statuses[s] != 10 {
				t.Errorf("%d × %d", r.Statuses[s], s)
			}
		}
	})
}

func TestHTTPTimeoutsCountAsLatency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := serve(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, HTTPOptions{Check: Check{Method: http.MethodGet}, Timeout: 2 * time.Second})
		r := mustRun(t, Plan{Duration: time.Second, Rate: 5, Workers: 5}, to)
		if r.Checks != 0 || r.Errors != 5 || r.Timeouts != 5 || r.Latency.P50 != 2*time.Second {
			t.Errorf("%d checks, %d errors, %d timeouts, %+v", r.Checks, r.Errors, r.Timeouts, r.Latency)
		}
		if len(r.Faults) != 1 || r.Faults[0].Text != "no answer within 2s" {
			t.Errorf("faults are %v", r.Faults)
		}
	})
}

// A response that ends too early doesn't count as an answer.
func TestHTTPBrokenAnswersAreErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "half")
			panic(http.ErrAbortHandler)
		}, HTTPOptions{Check: Check{Method: http.MethodGet}})
		r := mustRun(t, Plan{Duration: time.Second, Rate: 5}, to)
		if r.Checks != 0 || r.Errors != 5 || r.Timeouts != 0 {
			t.Errorf("%d checks, %d errors: %v", r.Checks, r.Errors, r.Faults)
		}
	})
}

func TestHTTPReadsAnswersToTheirEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		peers := map[string]bool{}
		to := serve(t, func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			peers[fmt.Sprintf("%p", r.Context().Value(http.LocalAddrContextKey))] = true
			_, _ = io.WriteString(w, strings.Repeat("long ", maxBody))
		}, HTTPOptions{Check: Check{Method: http.MethodGet}})
		if r := mustRun(t, Plan{Duration: time.Second, Rate: 20}, to); r.Allowed != 20 || len(peers) != 1 {
			t.Errorf("%d allowed over %d connections", r.Allowed, len(peers))
		}
	})
}

func TestHTTPRequestsToAnEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		got := map[string]int{}
		to := serve(t, func(_ http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			got[r.Method+" "+r.Host+" "+r.RequestURI+" "+r.Header.Get("X-Tenant-Key")+" "+r.Header.Get("Authorization")+" "+r.UserAgent()]++
		}, HTTPOptions{
			URL: parseURL(t, "http://test/a%2Fb/{n}/c?page={n}"), Check: Check{Method: http.MethodPut, KeyPrefix: "sk_"}, Keys: 3, KeyHeader: "X-Tenant-Key",
			Header: http.Header{"Authorization": {"Bearer x"}, "Host": {"example.org"}},
		})
		mustRun(t, Plan{Duration: time.Second, Rate: 100, Keys: 3}, to)
		for n := range 3 {
			want := fmt.Sprintf("PUT example.org /a%%2Fb/%d/c?page=%d sk_%d Bearer x weir-bench", n, n, n)
			if got[want] == 0 {
				t.Errorf("no %q in %v", want, got)
			}
		}
		if len(got) != 3 {
			t.Errorf("got %v", got)
		}
	})
}

// This is the check API itself, with rules that refuse by key and by address.
func TestHTTPChecksOfANode(t *testing.T) {
	set, err := weir.Compile(weir.Rules{Rules: []weir.Rule{
		{ID: "orders", Match: weir.Match{Endpoint: "POST /v1/orders/{id}"}, Limits: []weir.Limit{weir.PerHour(6)}},
		{ID: "address", By: []string{"ip"}, Limits: []weir.Limit{weir.PerHour(100)}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	answers, err := httplimit.NewAnswerer(httplimit.Answers{})
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		api := checkapi.New(weir.NewLimiter(memstore.New(memstore.Options{Now: time.Now}), set, weir.Options{}), answers, checkapi.Options{})
		to := serve(t, api.ServeHTTP, HTTPOptions{
			URL: parseURL(t, "http://test/v1/check"), Node: true, Keys: 4, Check: Check{KeyPrefix: `odd "prefix" `, Method: "POST", Path: "/v1/orders/{n}", Cost: 2},
		})
		if to.String() != "POST http://test/v1/check" {
			t.Error(to)
		}
		if a, body := to.Probe(t.Context()); a.Outcome != Allowed || !strings.Contains(string(body), `"rule":"orders"`) {
			t.Errorf("%+v: %s", a, body)
		}
		r := mustRun(t, Plan{Duration: time.Second, Rate: 100, Keys: 4}, to)
		// Each of the four keys has six tokens, and a check takes two. The first key has already been checked once.
		if r.Checks != 100 || r.Allowed != 11 || r.Refused != 89 || r.Statuses[429] != 89 || r.Degraded != 0 {
			t.Errorf("%d checks, %d allowed, %d refused, %v", r.Checks, r.Allowed, r.Refused, r.Statuses)
		}
	})
}

func TestHTTPAnswersOfANode(t *testing.T) {
	for _, c := range []struct {
		status   int
		body     string
		outcome  Outcome
		degraded bool
	}{
		{200, `{"allowed":true,"degraded":false}`, Allowed, false},
		{200, `{"allowed":true,"degraded":true}`, Allowed, true},
		{429, `{"allowed":false,"degraded":false}`, Refused, false},
		{403, `{"allowed":false,"degraded":false}`, Refused, false},
		{503, `{"allowed":false,"degraded":true}`, Refused, true},
		{503, `no healthy upstream`, Other, false},
		{200, `<html>`, Other, false},
		{400, `{"error":{"code":"BAD_REQUEST"}}`, Other, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			to := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if !json.Valid(mustRead(t, r.Body)) {
					t.Error("the body is not JSON")
				}
				w.WriteHeader(c.status)
				_, _ = io.WriteString(w, c.body)
			}, HTTPOptions{Node: true})
			a, body := to.Probe(t.Context())
			if want := (Answer{Outcome: c.outcome, Degraded: c.degraded, Status: uint16(c.status)}); a != want || string(body) != c.body {
				t.Errorf("%d %s: got %+v", c.status, c.body, a)
			}
		})
	}
}

func mustRead(t *testing.T, r io.Reader) []byte {
	t.Helper()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Error(err)
	}
	return b
}
