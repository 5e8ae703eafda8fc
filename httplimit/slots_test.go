package httplimit_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/memstore"
)

// slots returns a rule for n requests in flight, for all clients together.
func slots(n int64) weir.Rule {
	return weir.Rule{ID: "slots", By: []string{}, Algorithm: weir.Concurrency, Limits: []weir.Limit{{Count: n}}}
}

// left returns what remains of each rule's limit.
func left(t testing.TB, l *weir.Limiter) map[string]string {
	t.Helper()
	d, err := l.Check(t.Context(), &weir.Request{Peek: true})
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, s := range d.Limits() {
		out[s.Policy.Rule] = s.Left().String()
	}
	return out
}

// handled wraps a handler, and sends on the channel whenever a call of it ends, even by a panic.
func handled(h http.Handler) (http.Handler, <-chan struct{}) {
	c := make(chan struct{}, 2000)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() { c <- struct{}{} }()
		h.ServeHTTP(w, r)
	}), c
}

// quiet returns start without logging, because handlers panic.
func quiet(start func(testing.TB, http.Handler) (*httptest.Server, *http.Client)) func(testing.TB, http.Handler) (*httptest.Server, *http.Client) {
	return func(t testing.TB, h http.Handler) (*httptest.Server, *http.Client) {
		s, c := start(t, h)
		s.Config.ErrorLog = log.New(io.Discard, "", 0)
		return s, c
	}
}

// However a request ends, its slot is released at its end and not before.
func TestSlotsEndWithTheirRequests(t *testing.T) {
	type ends func(w http.ResponseWriter, r *http.Request)
	flush := func(w http.ResponseWriter) {
		_, _ = io.WriteString(w, "data: 1\n\n")
		w.(http.Flusher).Flush()
	}
	for name, end := range map[string]ends{
		"with an answer":             func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") },
		"with nothing":               func(http.ResponseWriter, *http.Request) {},
		"with an error":              func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
		"in a panic":                 func(http.ResponseWriter, *http.Request) { panic("boom") },
		"aborted":                    func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"aborted in its answer":      func(w http.ResponseWriter, _ *http.Request) { flush(w); panic(http.ErrAbortHandler) },
		"after early hints":          func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusEarlyHints) },
		"with its goroutine":         func(http.ResponseWriter, *http.Request) { runtime.Goexit() },
		"when its client has gone":   func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"when its client has enough": func(w http.ResponseWriter, r *http.Request) { flush(w); <-r.Context().Done() },
	} {
		for protocol, start := range protocols {
			if name == "with its goroutine" && protocol == "HTTP/1.1" {
				continue // net/http then leaves the connection alone forever
			}
			t.Run(name+", "+protocol, func(t *testing.T) {
				l := limiter(t, rules(slots(1)))
				inside, goOn := make(chan struct{}), make(chan struct{})
				h, done := handled(wrap(l, httplimit.Options{}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					close(inside)
					<-goOn
					end(w, r)
				})))
				srv, client := quiet(start)(t, h)
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				over := make(chan struct{})
				go func() {
					defer close(over)
					req, _ := http.NewRequestWithContext(ctx, http.MethodGet, srv.URL, nil)
					resp, err := client.Do(req)
					if err != nil {
						return
					}
					defer resp.Body.Close()
					if name == "when its client has enough" {
						_, _ = bufio.NewReader(resp.Body).ReadString('\n')
						leave()
					}
					_, _ = io.Copy(io.Discard, resp.Body)
				}()
				<-inside
				if resp := get(t, client, srv.URL); resp.StatusCode != 429 || resp.Header.Get("Retry-After") == "" {
					t.Errorf("a second request beside it: %s %v", resp.Status, resp.Header)
				}
				<-done
				close(goOn)
				if name == "when its client has gone" {
					leave()
				}
				<-done
				if got := left(t, l)["slots"]; got != "1" {
					t.Errorf("%s slots are left", got)
				}
				leave()
				<-over
			})
		}
	}
}

// A long streamed response keeps its slot, flushed or not, and releases it at the end.
func TestSlotsOfStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, rules(slots(1)))
		network := servePipes(t, wrap(l, httplimit.Options{}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			for range 60 { // slots last for half a minute
				_, _ = io.WriteString(w, "data: 1\n\n")
				w.(http.Flusher).Flush()
				time.Sleep(5 * time.Second)
			}
		})))
		client := network.client(t)
		resp, err := client.Get("http://example.com/")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		lines := bufio.NewReader(resp.Body)
		for i := range 60 {
			if _, err := lines.ReadString('\n'); err != nil {
				t.Fatal(err)
			}
			if _, err := lines.ReadString('\n'); err != nil {
				t.Fatal(err)
			}
			if got := statusOf(client, "http://example.com/"); got != 429 {
				t.Fatalf("after %d s: %d", 5*i, got)
			}
		}
		if _, err := lines.ReadByte(); err != io.EOF {
			t.Error(err)
		}
		if got := left(t, l)["slots"]; got != "1" {
			t.Errorf("%s slots are left", got)
		}
	})
}

// With a thousand concurrent requests, the handler never runs more often at a time than the limit allows, and all slots are
// free in the end.
func TestSlotsBoundWhatIsInFlight(t *testing.T) {
	const most = 20
	for protocol, start := range protocols {
		t.Run(protocol, func(t *testing.T) {
			l := limiter(t, rules(slots(most)))
			var in, highest, served atomic.Int64
			srv, client := start(t, wrap(l, httplimit.Options{}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
				n := in.Add(1)
				defer in.Add(-1)
				for old := highest.Load(); n > old && !highest.CompareAndSwap(old, n); old = highest.Load() {
				}
				served.Add(1)
				for range 50 {
					runtime.Gosched() // give other requests time to arrive
				}
			})))
			get(t, client, srv.URL) // over HTTP/2, the others share its connection, which takes 250 at a time
			clients := map[string]int{"HTTP/1.1": 1000, "HTTP/2": 200}[protocol]
			statuses := make(chan int, 1000)
			var wg sync.WaitGroup
			for range clients {
				wg.Go(func() {
					for range 1000 / clients {
						statuses <- statusOf(client, srv.URL)
					}
				})
			}
			wg.Wait()
			srv.Close()
			count := map[int]int64{200: 1}
			for range 1000 {
				count[<-statuses]++
			}
			if highest.Load() > most || count[200] != served.Load() || count[200]+count[429] != 1001 || count[200] < most {
				t.Errorf("%d at a time, %d served, answers %v", highest.Load(), served.Load(), count)
			}
			if got := left(t, l)["slots"]; got != "20" {
				t.Errorf("%s slots are left", got)
			}
		})
	}
}

// Rules that count by status work together with slots.
func TestSlotsBesideStatuses(t *testing.T) {
	guesses := weir.Rule{ID: "guesses", By: []string{}, Statuses: []int{401}, Limits: per(10, 366*24*time.Hour)}
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		guesses string // left
	}{
		"one that counts": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(401) }, "9"},
		"another":         {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(200) }, "10"},
		"none":            {func(http.ResponseWriter, *http.Request) {}, "10"},
		"a stream":        {func(w http.ResponseWriter, _ *http.Request) { w.(http.Flusher).Flush() }, "10"},
		"a lost answer":   {func(_ http.ResponseWriter, r *http.Request) { httplimit.NoAnswer(r) }, "9"},
		"a panic":         {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(200); panic("boom") }, "9"},
	} {
		l := limiter(t, rules(slots(1), guesses))
		called(l, c.handler)
		if got := left(t, l); got["slots"] != "1" || got["guesses"] != c.guesses {
			t.Errorf("%s: left are %v", name, got)
		}
	}
}

// While the store can't be reached, this node counts slots by itself.
func TestSlotsOfTheNode(t *testing.T) {
	rule := slots(1)
	rule.OnStoreFailure = weir.FailLocal
	store := &outage{Store: memstore.New(memstore.Options{}), fails: []string{"slots"}}
	l := weir.NewLimiter(store, compile(t, rules(rule)), weir.Options{Local: memstore.New(memstore.Options{})})
	inside, goOn := make(chan struct{}, 1), make(chan struct{})
	h, done := handled(wrap(l, httplimit.Options{}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		inside <- struct{}{}
		<-goOn
	})))
	srv, client := serve(t, h)
	for range 3 {
		first := make(chan int)
		go func() { first <- statusOf(client, srv.URL) }()
		<-inside
		if resp := get(t, client, srv.URL); resp.StatusCode != 429 || resp.Header.Get("X-RateLimit-Policy") != "degraded" {
			t.Errorf("beside it: %s %v", resp.Status, resp.Header)
		}
		<-done
		goOn <- struct{}{}
		if got := <-first; got != 200 {
			t.Errorf("%d", got)
		}
		<-done
	}
}

// A client that disconnects while the store fails isn't served and keeps no slot.
func TestSlotsOfThoseWhoHaveLeft(t *testing.T) {
	store := &outage{Store: memstore.New(memstore.Options{}), fails: []string{"other"}}
	l := weir.NewLimiter(store, compile(t, rules(slots(1), weir.Rule{ID: "other", By: []string{}, Limits: per(1, time.Hour)})), weir.Options{})
	gone, leave := context.WithCancel(t.Context())
	leave()
	wrap(l, httplimit.Options{}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it is served") })).
		ServeHTTP(httptest.NewRecorder(), request("/").WithContext(gone))
	store.fails = nil
	if got := left(t, l)["slots"]; got != "1" {
		t.Errorf("%s slots are left", got)
	}
}

// failing is a store whose renewals fail.
type failing struct {
	*memstore.Store
	takes atomic.Int64
}

func (s *failing) Take(ctx context.Context, charges []counter.Charge, results []counter.Result) {
	if s.takes.Add(1) > 1 {
		for i := range results {
			results[i] = counter.Result{Err: errGone}
		}
		return
	}
	s.Store.Take(ctx, charges, results)
}

// The callback for a failed renewal runs while the handler runs, so both may use the request at the same time.
func TestRenewalsThatFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := weir.NewLimiter(&failing{Store: memstore.New(memstore.Options{})}, compile(t, rules(slots(1))), weir.Options{})
		var told atomic.Int64
		onError := func(r *http.Request, err error) {
			if !errors.Is(err, errGone) || r.Header.Get("X-Request-Id") != "17" || r.URL.Path != "/a" {
				t.Errorf("told of %v for %s %v", err, r.URL, r.Header)
			}
			told.Add(1)
		}
		wrap(l, httplimit.Options{OnError: onError}, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			for range 600 {
				r.Header.Set("X-Request-Id", "18")
				r.URL.Path = "/" + strings.TrimPrefix(r.URL.Path, "/")
				r.URL.Path += "b"
				time.Sleep(100 * time.Millisecond)
			}
		})).ServeHTTP(httptest.NewRecorder(), request("/a", "X-Request-Id", "17"))
		synctest.Wait()
		if n := told.Load(); n < 14 || n > 20 { // a renewal that fails is tried again after a third of the time between two
			t.Errorf("told %d times in a minute", n)
		}
	})
}

// sluggish is a store whose renewals take three seconds.
type sluggish struct {
	*memstore.Store
	takes atomic.Int64
}

func (s *sluggish) Take(ctx context.Context, charges []counter.Charge, results []counter.Result) {
	if s.takes.Add(1) == 2 {
		time.Sleep(3 * time.Second)
	}
	s.Store.Take(ctx, charges, results)
}

// A request that ends while its slot is being renewed has no slot afterward.
func TestRequestThatEndsDuringARenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := weir.NewLimiter(&sluggish{Store: memstore.New(memstore.Options{})}, compile(t, rules(slots(1))), weir.Options{})
		wrap(l, httplimit.Options{}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { time.Sleep(11 * time.Second) })).
			ServeHTTP(httptest.NewRecorder(), request("/"))
		time.Sleep(5 * time.Second)
		if got := left(t, l)["slots"]; got != "1" {
			t.Errorf("%s slots are left", got)
		}
	})
}
