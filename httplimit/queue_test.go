package httplimit_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/memstore"
)

// queue returns a limiter that admits one request a second. Two more may wait.
func queue(t testing.TB) *weir.Limiter {
	return limiter(t, rules(weir.Rule{ID: "q", Algorithm: weir.LeakyQueue, By: []string{}, Limits: []weir.Limit{{Count: 60, Window: time.Minute, Burst: 3}}}))
}

// visits returns a handler that records when it is called.
func visits() (http.Handler, chan time.Time) {
	at := make(chan time.Time, 100)
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		at <- time.Now()
		_, _ = io.WriteString(w, "ok")
	}), at
}

func send(t testing.TB, conn net.Conn, request string) {
	t.Helper()
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
}

const (
	plainGet  = "GET / HTTP/1.1\r\nHost: example.com\r\n\r\n"
	shortPost = "POST / HTTP/1.1\r\nHost: example.com\r\nContent-Length: 5\r\n\r\nhello"
)

func answered(t testing.TB, conn net.Conn) int {
	t.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

func TestDelaysAreWaitedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, at := visits()
		network := servePipes(t, wrap(queue(t), httplimit.Options{}, h))
		begin := time.Now()
		conns := []net.Conn{network.dial(t), network.dial(t), network.dial(t)}
		for _, c := range conns {
			send(t, c, plainGet)
			synctest.Wait() // until it is in the queue
		}
		if resp, _ := raw(t, network.dial(t), plainGet); resp.StatusCode != 429 || resp.Header.Get("Retry-After") == "" {
			t.Errorf("a fourth: %d", resp.StatusCode)
		}
		for i, c := range conns {
			if got := answered(t, c); got != 200 {
				t.Errorf("request %d: %d", i, got)
			}
			if got := (<-at).Sub(begin); got != time.Duration(i)*time.Second {
				t.Errorf("request %d had its turn after %s", i, got)
			}
		}
	})
}

// A client that disconnects while it waits frees its place, and the handler is never called, with or without a body.
func TestHangingUpFreesThePlace(t *testing.T) {
	for name, request := range map[string]string{"GET": plainGet, "POST": shortPost, "half a POST": shortPost[:len(shortPost)-2]} {
		t.Run(name, func(t *testing.T) { hangUp(t, request) })
	}
}

func hangUp(t *testing.T, request string) {
	synctest.Test(t, func(t *testing.T) {
		h, at := visits()
		network := servePipes(t, wrap(queue(t), httplimit.Options{}, h))
		begin := time.Now()
		first, second, third := network.dial(t), network.dial(t), network.dial(t)
		for _, c := range []net.Conn{first, second} {
			send(t, c, plainGet)
			synctest.Wait()
		}
		send(t, third, request)
		synctest.Wait()
		third.Close()
		synctest.Wait() // until the server has noticed
		fourth := network.dial(t)
		send(t, fourth, plainGet)
		for i, c := range []net.Conn{first, second, fourth} {
			if got := answered(t, c); got != 200 {
				t.Errorf("request %d: %d", i, got)
			}
			if got := (<-at).Sub(begin); got != time.Duration(i)*time.Second {
				t.Errorf("request %d had its turn after %s", i, got)
			}
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(at) != 0 {
			t.Error("the client that hung up had its turn")
		}
	})
}

// bodies is a handler that responds with the body it received.
var bodies = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(r.Body)
	fmt.Fprintf(w, "%s, timed out: %t", text, errors.Is(err, os.ErrDeadlineExceeded))
})

// The handler gets the whole body in order, whenever the request's turn comes between its parts. The time in the queue doesn't
// count toward the server's own read deadline.
func TestBodiesInTheQueue(t *testing.T) {
	long := strings.Repeat("0123456789abcdef", 8<<10)
	for _, c := range []struct {
		name, head, early, late string
		pause                   time.Duration // between the parts
		want                    string
	}{
		{"at once", "Content-Length: 5", "hello", "", 0, "hello, timed out: false"},
		{"in parts, before the turn", "Content-Length: 5", "hel", "lo", time.Second, "hello, timed out: false"},
		{"in parts, around the turn", "Content-Length: 5", "hel", "lo", 31 * time.Second, "hello, timed out: false"},
		{"after the turn", "Content-Length: 5", "", "hello", 31 * time.Second, "hello, timed out: false"},
		{"too late", "Content-Length: 5", "hel", "lo", 50 * time.Second, "hel, timed out: true"},
		{"too long to be read ahead", "Content-Length: 131072", long[:70_000], long[70_000:], 31 * time.Second, long + ", timed out: false"},
		{"of unknown length", "Transfer-Encoding: chunked", "3\r\nhel\r\n", "2\r\nlo\r\n0\r\n\r\n", 31 * time.Second, "hello, timed out: false"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limiter(t, rules(weir.Rule{ID: "q", Algorithm: weir.LeakyQueue, By: []string{}, Limits: per(2, time.Minute)}))
				limited := wrap(l, httplimit.Options{}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					bodies(w, r)
					time.Sleep(time.Minute) // the client is still there, and no deadline says otherwise
					if err := r.Context().Err(); err != nil && c.name != "too late" {
						t.Error(err)
					}
				}))
				network := servePipes(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.ContentLength == 5 { // others are the handler's alone
						_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(5 * time.Second))
					}
					limited.ServeHTTP(w, r)
				}))
				if d, err := l.Check(t.Context(), &weir.Request{}); err != nil || !d.Allowed { // the next waits for 30 s
					t.Fatal(d, err)
				}
				conn := network.dial(t)
				done := make(chan struct{})
				go func() {
					defer close(done)
					_, _ = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: example.com\r\n"+c.head+"\r\n\r\n"+c.early)
					time.Sleep(c.pause)
					_, _ = io.WriteString(conn, c.late) // it may be closed by then
				}()
				resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err != nil {
					t.Fatal(err)
				}
				body, err := io.ReadAll(resp.Body)
				if got := string(body); err != nil || resp.StatusCode != 200 || got != c.want {
					t.Errorf("%d %.100s, %v", resp.StatusCode, got, err)
				}
				conn.Close()
				<-done
			})
		})
	}
}

// A request whose deadline expires in the queue gets a response even if its body doesn't arrive.
func TestDeadlineInTheQueueWithHalfABody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := queue(t)
		limited := wrap(l, httplimit.Options{}, ok)
		network := servePipes(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ctx, cancel := context.WithCancel(r.Context())
			defer time.AfterFunc(time.Second/2, cancel).Stop()
			limited.ServeHTTP(w, r.WithContext(ctx))
		}))
		if _, err := l.Check(t.Context(), &weir.Request{}); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		conn := network.dial(t)
		if resp, body := raw(t, conn, shortPost[:len(shortPost)-2]); resp.StatusCode != 503 || !strings.Contains(body, "QUEUE_TIMEOUT") || time.Since(begin) != time.Second/2 {
			t.Errorf("%d %s after %s", resp.StatusCode, body, time.Since(begin))
		}
	})
}

// On a real network, the server has to notice by itself that a client has disconnected.
func TestHangingUpOnARealNetwork(t *testing.T) {
	for name, start := range protocols {
		for _, body := range []string{"", "hello"} {
			t.Run(name+" "+body, func(t *testing.T) { hangUpOnARealNetwork(t, start, body) })
		}
	}
}

func hangUpOnARealNetwork(t *testing.T, start func(testing.TB, http.Handler) (*httptest.Server, *http.Client), body string) {
	l := limiter(t, rules(weir.Rule{ID: "q", Algorithm: weir.LeakyQueue, By: []string{}, MaxDelay: 366 * 24 * time.Hour, Limits: per(2, 366*24*time.Hour)}))
	entered, left := make(chan struct{}, 2), make(chan struct{}, 2)
	limited := wrap(l, httplimit.Options{}, ok)
	srv, client := start(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		entered <- struct{}{}
		limited.ServeHTTP(w, r)
		left <- struct{}{}
	}))
	get(t, client, srv.URL)
	<-entered
	<-left
	for range 3 { // each would wait for half a year, and there is place for one
		ctx, hangUp := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, srv.URL, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			if resp, err := client.Do(req); err == nil {
				resp.Body.Close()
				t.Errorf("a request that hung up was answered: %d", resp.StatusCode)
			}
		}()
		<-entered
		hangUp()
		<-left
		<-done
	}
	if d, err := l.Check(t.Context(), &weir.Request{Peek: true}); err != nil || !d.Allowed || d.Remaining != 1 {
		t.Errorf("places are still taken: %+v, %v", d, err)
	}
}

// A request whose deadline expires while its client is still connected gets an error response, not an empty 200.
func TestDeadlineInTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, at := visits()
		limited := wrap(queue(t), httplimit.Options{}, h)
		do := func() *httptest.ResponseRecorder {
			ctx, cancel := context.WithCancel(t.Context())
			defer time.AfterFunc(time.Second/2, cancel).Stop()
			w := httptest.NewRecorder()
			limited.ServeHTTP(w, request("/").WithContext(ctx))
			return w
		}
		do()
		begin := time.Now()
		w := do()
		if w.Code != 503 || w.Header().Get("Retry-After") != "1" || time.Since(begin) != time.Second/2 {
			t.Errorf("%d after %s: %v", w.Code, time.Since(begin), w.Header())
		}
		// A deadline is known in advance. A request that can't meet it is refused at once, and takes no place in the queue.
		late, cancel := context.WithTimeout(t.Context(), time.Second/2-time.Millisecond)
		defer cancel()
		begin = time.Now()
		again := httptest.NewRecorder()
		if limited.ServeHTTP(again, request("/").WithContext(late)); again.Code != 503 || again.Body.String() != w.Body.String() || !time.Now().Equal(begin) {
			t.Errorf("%d after %s: %s", again.Code, time.Since(begin), again.Body)
		}
		want := `{"error":{"code":"QUEUE_TIMEOUT","message":"The request ran out of time while it waited for its turn","details":{"rule":"q","retry_after_seconds":1}}}` + "\n"
		if got := w.Body.String(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		if len(at) != 1 {
			t.Errorf("%d handlers were called", len(at))
		}
	})
}

// forgetful is a store whose GiveBack fails.
type forgetful struct{ *memstore.Store }

func (forgetful) GiveBack(context.Context, counter.Once, time.Duration, []counter.Return) error {
	return errGone
}

func TestErrorsOfGivingBackAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rs := compile(t, rules(
			weir.Rule{ID: "q", Match: weir.Match{Endpoint: "/q"}, Algorithm: weir.LeakyQueue, Limits: per(60, time.Minute)},
			weir.Rule{ID: "s", Match: weir.Match{Endpoint: "/s"}, Statuses: []int{401}, Limits: per(9, time.Minute)}))
		l := weir.NewLimiter(forgetful{memstore.New(memstore.Options{})}, rs, weir.Options{})
		var told atomic.Int64
		limited := wrap(l, httplimit.Options{OnError: func(_ *http.Request, err error) {
			if err == errGone {
				told.Add(1)
			}
		}}, ok)
		limited.ServeHTTP(httptest.NewRecorder(), request("/s"))
		if told.Load() != 1 {
			t.Error("an error of settling wasn't told")
		}
		limited.ServeHTTP(httptest.NewRecorder(), request("/q"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		limited.ServeHTTP(httptest.NewRecorder(), request("/q").WithContext(ctx))
		if told.Load() != 2 {
			t.Error("an error of leaving the queue wasn't told")
		}
	})
}

// crowd returns a limiter with a queue for each client, so that no queue is ever full.
func crowd(t testing.TB) *weir.Limiter {
	rule := func(id string) weir.Rule {
		return weir.Rule{ID: id, Match: weir.Match{Endpoint: "/" + id}, Algorithm: weir.LeakyQueue, Limits: per(6, time.Minute)} // a turn every 10 s
	}
	return limiter(t, rules(rule("a"), rule("b")))
}

// The number of waiting requests is bounded, however many queues clients create, and one rule may use half of it. A request that
// is refused for this reason takes nothing and is told when to retry. A client that leaves makes room.
func TestWaitingRoomIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := crowd(t)
		network := servePipes(t, wrap(l, httplimit.Options{MaxWaiting: 4}, ok))
		head := func(path, key string) string {
			return "GET " + path + " HTTP/1.1\r\nHost: x\r\nX-API-Key: " + key + "\r\n\r\n"
		}
		park := func(path, key string) net.Conn { // the second of a client's requests waits
			if resp, _ := raw(t, network.dial(t), head(path, key)); resp.StatusCode != 200 {
				t.Fatalf("%s of %s: %d", path, key, resp.StatusCode)
			}
			c := network.dial(t)
			send(t, c, head(path, key))
			synctest.Wait()
			return c
		}
		full := func(path, key string) {
			t.Helper()
			if resp, _ := raw(t, network.dial(t), head(path, key)); resp.StatusCode != 200 {
				t.Fatalf("who needn't wait: %d", resp.StatusCode)
			}
			for range 3 {
				resp, body := raw(t, network.dial(t), head(path, key))
				after := atoi(t, resp.Header.Get("Retry-After"))
				if resp.StatusCode != 503 || !strings.Contains(body, "QUEUE_FULL") || after < 10 || after > 12 {
					t.Errorf("%d after %d s: %s", resp.StatusCode, after, body)
				}
			}
			d, err := l.Check(t.Context(), &weir.Request{APIKey: key, Path: path, Peek: true})
			if err != nil || d.Remaining != 5 {
				t.Errorf("what was refused has taken something: %d left, %v", d.Remaining, err)
			}
		}
		first := park("/a", "1")
		park("/a", "2")
		full("/a", "3") // half of the places are taken
		park("/b", "1")
		park("/b", "2")
		full("/b", "3")
		first.Close()
		synctest.Wait()
		last := park("/a", "4")
		full("/a", "5")
		if got := answered(t, last); got != 200 {
			t.Errorf("whose turn came: %d", got)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		park("/a", "6") // all have had their turn
		park("/a", "7")
	})
}

// If a queue has no room, the refusal names the queue's rule, even if another limit has less left.
func TestFullQueueIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := weir.Rule{ID: "q", Algorithm: weir.LeakyQueue, Limits: per(6, time.Minute)}
		shadow := queue
		shadow.ID, shadow.Shadow = "shadow", true
		l := limiter(t, rules(weir.Rule{ID: "few", Limits: per(3, time.Hour)}, shadow, queue, weir.Rule{ID: "many", Limits: per(100, time.Hour)}))
		h := wrap(l, httplimit.Options{MaxWaiting: 1}, ok)
		for range 2 { // the second waits
			go askAs(h, "GET", "a")
			synctest.Wait()
		}
		if w := askAs(h, "GET", "b"); w.Code != 200 || !strings.HasPrefix(w.Header().Get("RateLimit"), `"few"`) {
			t.Errorf("who needn't wait: %d %v", w.Code, w.Header())
		}
		if w := askAs(h, "GET", "b"); w.Code != 503 || w.Header().Get("X-RateLimit-Rule") != "q" || !strings.Contains(w.Body.String(), `"code":"QUEUE_FULL"`) {
			t.Errorf("%d by %s: %s", w.Code, w.Header().Get("X-RateLimit-Rule"), w.Body)
		}
		time.Sleep(time.Minute)
	})
}

// In a queue without max_delay, requests wait for at most 30 s.
func TestMaxDelayHasADefault(t *testing.T) {
	l := crowd(t)
	for i := range 6 {
		d, err := l.Check(t.Context(), &weir.Request{APIKey: "k", Path: "/a"})
		if err != nil || d.Allowed != (i < 4) || d.Delay > 30*time.Second {
			t.Errorf("request %d: allowed %t, %s, %v", i, d.Allowed, d.Delay, err)
		}
	}
}
