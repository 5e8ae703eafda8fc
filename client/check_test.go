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
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/client"
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

// node starts an HTTP server with the handler and returns its URL.
func node(t testing.TB, h http.Handler) string {
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return srv.URL
}

// checkAPI is a small check API, with the fields that these tests read. The tests in test/client use the real one.
func checkAPI(l *weir.Limiter) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/checks", func(w http.ResponseWriter, r *http.Request) {
		var batch struct {
			Checks []struct {
				Key  string
				Cost int64
			}
		}
		read(r, &batch)
		var results []map[string]any
		for _, c := range batch.Checks {
			d, err := l.Check(r.Context(), &weir.Request{APIKey: c.Key, KeyVerified: true, Cost: c.Cost, Receipt: true})
			if err != nil {
				panic(err)
			}
			result := map[string]any{"status": 200, "allowed": d.Allowed, "rule": d.Rule, "remaining": d.Remaining}
			if d.Slots() > 0 {
				result["receipt"], result["slot_ttl_ms"] = d.Receipt, d.Slots().Milliseconds()
			}
			if !d.Allowed {
				result["status"], result["retry_after_ms"] = 429, d.RetryAfter.Milliseconds()
				result["retry_is_a_guess"] = d.Policy.Limit.Algorithm == weir.Concurrency
			}
			results = append(results, result)
		}
		write(w, 200, map[string]any{"results": results})
	})
	mux.HandleFunc("POST /v1/renew", func(w http.ResponseWriter, r *http.Request) {
		var ask struct {
			Receipt  string
			Receipts []string
		}
		read(r, &ask)
		renew := func(receipt string) error { return l.Renew(r.Context(), &weir.Decision{Receipt: receipt}) }
		if ask.Receipt != "" {
			about(w, renew(ask.Receipt))
			return
		}
		var results []map[string]any
		for _, receipt := range ask.Receipts {
			result := map[string]any{"renewed": true}
			if err := renew(receipt); errors.Is(err, weir.ErrSlotLost) {
				result = map[string]any{"renewed": false, "reason": "slot_lost"}
			} else if err != nil {
				panic(err)
			}
			results = append(results, result)
		}
		write(w, 200, map[string]any{"results": results})
	})
	mux.HandleFunc("POST /v1/release", func(w http.ResponseWriter, r *http.Request) {
		var ask struct{ Receipt string }
		read(r, &ask)
		about(w, l.Release(r.Context(), &weir.Decision{Receipt: ask.Receipt}))
	})
	return mux
}

func read(r *http.Request, v any) {
	if err := json.NewDecoder(r.Body).Decode(v); err != nil {
		panic(err)
	}
}

// about responds to a renewal or a release of a receipt.
func about(w http.ResponseWriter, err error) {
	switch {
	case errors.Is(err, weir.ErrSlotLost):
		write(w, 409, map[string]any{"error": map[string]any{"code": "SLOT_LOST"}})
	case err != nil:
		panic(err)
	default:
		write(w, 200, map[string]any{})
	}
}

func write(w http.ResponseWriter, status int, v any) {
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(v); err != nil {
		panic(err)
	}
}

func open(t testing.TB, opts client.Options) *client.Client {
	t.Helper()
	if opts.Timeout == 0 {
		opts.Timeout = 10 * time.Second // a busy machine must not count as an unreachable node
	}
	c, err := client.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// TestConcurrentChecksAreJoined checks that the first check is sent at once, and that checks that arrive while it is in
// flight share the next call.
func TestConcurrentChecksAreJoined(t *testing.T) {
	api := checkAPI(limiter(perHour(1e6)))
	var mu sync.Mutex
	var sizes []int
	first, goOn := make(chan struct{}), make(chan struct{})
	c := open(t, client.Options{URL: node(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var batch struct{ Checks []json.RawMessage }
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
	cancel() // cancels the check whose call is in flight
	close(goOn)
	wg.Wait()
	if fmt.Sprint(sizes) != "[1 700]" {
		t.Errorf("calls had %v checks", sizes)
	}
}

func TestTLS(t *testing.T) {
	srv := httptest.NewTLSServer(checkAPI(limiter(perHour(10))))
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

// TestFallback checks that a node counts as unreachable if its response isn't Weir's, or comes too late. Then the
// fallback decides.
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
			_, _ = io.Copy(io.Discard, r.Body) // lets the server notice when the client disconnects
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

// TestUnreachableNodesAreRarelyAsked checks that the client rarely asks an unreachable node, and finds it again once it is
// back.
func TestUnreachableNodesAreRarelyAsked(t *testing.T) {
	var calls atomic.Int64
	var alive atomic.Bool
	api := checkAPI(limiter(perHour(1e6)))
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if calls.Add(1); alive.Load() {
			api.ServeHTTP(w, r)
			return
		}
		time.Sleep(time.Hour) // virtual time
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
			t.Errorf("the node was asked %d times in a minute, and %d checks waited", n, slow)
		}
		alive.Store(true)
		time.Sleep(5 * time.Second)
		if d, err := c.Check(t.Context(), &client.Request{Key: "a"}); err != nil || d.Degraded {
			t.Error(d, err)
		}
		if d, err := c.Check(t.Context(), &client.Request{Key: "a"}); err != nil || d.Degraded {
			t.Error(d, err)
		}
		time.Sleep(2 * time.Hour) // lets the handlers end
	})
}
