package httplimit_test

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
)

// counting returns a limiter that charges only requests whose response has one of these statuses.
func counting(t testing.TB, statuses ...int) *weir.Limiter {
	return limiter(t, rules(weir.Rule{ID: "s", By: []string{}, Statuses: statuses, Limits: per(10, 366*24*time.Hour)}))
}

// charged returns how many requests have been charged.
func charged(t testing.TB, l *weir.Limiter) int64 {
	t.Helper()
	d, err := l.Check(t.Context(), &weir.Request{Peek: true})
	if err != nil {
		t.Fatal(err)
	}
	return 10 - d.Remaining
}

// called calls a handler behind the limiter once, and returns the value it panics with.
func called(l *weir.Limiter, h http.HandlerFunc) (panicked any) {
	defer func() { panicked = recover() }()
	wrap(l, httplimit.Options{}, h).ServeHTTP(httptest.NewRecorder(), request("/"))
	return nil
}

func TestChargingByStatus(t *testing.T) {
	boom := errors.New("boom")
	for _, c := range []struct {
		name    string
		handler http.HandlerFunc
		status  int // as which it counts; 0: as any
		panics  any
	}{
		{"a status", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(401) }, 401, nil},
		{"an error", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusForbidden) }, 403, nil},
		{"an implicit 200 by writing", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("x")) }, 200, nil},
		{"an implicit 200 by writing a string", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "x") }, 200, nil},
		{"an implicit 200 by doing nothing", func(http.ResponseWriter, *http.Request) {}, 200, nil},
		{"an implicit 200 by flushing", func(w http.ResponseWriter, _ *http.Request) { w.(http.Flusher).Flush() }, 200, nil},
		{"the first of two", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(401); w.WriteHeader(200) }, 401, nil},
		{"too late", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("x")); w.WriteHeader(401) }, 200, nil},
		{"a panic", func(http.ResponseWriter, *http.Request) { panic(boom) }, 0, boom},
		{"an abort", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, 0, http.ErrAbortHandler},
		{"a panic in the midst of a 200", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("x")); panic(boom) }, 0, boom},
		{"a panic after an error", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(401); panic(boom) }, 0, boom},
	} {
		for _, status := range []int{200, 401, 403, 500} {
			l, want := counting(t, status), int64(0)
			if status == c.status || c.status == 0 {
				want = 1
			}
			if got := called(l, c.handler); got != c.panics {
				t.Errorf("%s: panicked with %v, want %v", c.name, got, c.panics)
			}
			if got := charged(t, l); got != want {
				t.Errorf("%s, where %d counts: charged %d, want %d", c.name, status, got, want)
			}
		}
	}
}

// Informational responses, which only a real server sends, don't count as the response.
func TestInformationalAnswers(t *testing.T) {
	l := counting(t, 1, 401)
	srv, client := serve(t, wrap(l, httplimit.Options{}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusProcessing)
		if r.URL.Path == "/login" {
			w.WriteHeader(401)
		}
	})))
	if got := get(t, client, srv.URL).StatusCode; got != 200 || charged(t, l) != 0 {
		t.Errorf("%d, charged %d", got, charged(t, l))
	}
	if got := get(t, client, srv.URL+"/login").StatusCode; got != 401 || charged(t, l) != 1 {
		t.Errorf("%d, charged %d", got, charged(t, l))
	}
}

// An invalid status makes net/http panic, so there is no response.
func TestStatusThatCannotBe(t *testing.T) {
	for _, status := range []int{0, 42, 1000} {
		l := counting(t, 401)
		if called(l, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }) == nil || charged(t, l) != 1 {
			t.Errorf("status %d: charged %d", status, charged(t, l))
		}
	}
}

// Parallel guesses can't slip through before the first response.
func TestParallelGuesses(t *testing.T) {
	l := counting(t, 401)
	release := make(chan struct{})
	srv, client := serve(t, wrap(l, httplimit.Options{}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		<-release
		w.WriteHeader(401)
	})))
	statuses := make(chan int, 30)
	for range 30 {
		go func() { statuses <- statusOf(client, srv.URL) }()
	}
	for i := range 20 {
		if got := <-statuses; got != 429 {
			t.Errorf("answer %d while ten are under way: %d", i, got)
		}
	}
	close(release)
	for range 10 {
		if got := <-statuses; got != 401 {
			t.Errorf("a guess: %d", got)
		}
	}
	if got := get(t, client, srv.URL).StatusCode; got != 429 {
		t.Errorf("an eleventh guess: %d", got)
	}
}

// A streamed response is settled as soon as its status is known, not when it ends.
func TestStreamsAreSettledAtOnce(t *testing.T) {
	l := counting(t, 5)
	streaming, stop := make(chan struct{}), make(chan struct{})
	srv, client := serve(t, wrap(l, httplimit.Options{}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, "data: 1\n\n")
		if err := http.NewResponseController(w).Flush(); err != nil {
			t.Error(err)
		}
		close(streaming)
		<-stop
	})))
	done := make(chan int)
	go func() { done <- statusOf(client, srv.URL) }()
	<-streaming
	if got := charged(t, l); got != 0 {
		t.Errorf("a stream that began with 200 holds %d", got)
	}
	close(stop)
	if got := <-done; got != 200 {
		t.Errorf("answered with %d", got)
	}
	if got := charged(t, l); got != 0 {
		t.Errorf("it was charged %d in the end", got)
	}
}

// A login attempt whose body breaks off after the credentials still counts, whatever the handler or a proxy then responds.
func TestBrokenBodiesCount(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
	defer up.Close()
	to, err := url.Parse(up.URL)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	for name, h := range map[string]http.Handler{
		"a handler": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				http.Error(w, "what?", http.StatusBadRequest)
			}
		}),
		"a proxy": &httputil.ReverseProxy{Transport: transport, ErrorLog: log.New(io.Discard, "", 0), Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }},
	} {
		l := counting(t, 401)
		srv, client := serve(t, wrap(l, httplimit.Options{}, h))
		conn, err := net.Dial("tcp", srv.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		resp, _ := raw(t, conn, "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nrubbish\r\n")
		if got := charged(t, l); got != 1 {
			t.Errorf("%s: a broken body got %d and was charged %d", name, resp.StatusCode, got)
		}
		if got := get(t, client, srv.URL).StatusCode; got != 200 {
			t.Errorf("%s: a good request got %d", name, got)
		}
		resp, err = client.Post(srv.URL, "text/plain", strings.NewReader("hello"))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		srv.Close()
		if got := charged(t, l); resp.StatusCode != 200 || got != 1 {
			t.Errorf("%s: a good body got %d; all were charged %d", name, resp.StatusCode, got)
		}
	}
}

// Behind a rule that counts by status, a handler still sees http.NoBody for a request without a body. Otherwise a proxy would
// forward a body.
func TestNoBodyStaysNone(t *testing.T) {
	for name, body := range map[string]io.ReadCloser{"none": nil, "NoBody": http.NoBody} {
		r := request("/")
		r.Body = body
		h := wrap(counting(t, 401), httplimit.Options{}, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if r.Body != body {
				t.Errorf("%s: the handler sees a %T", name, r.Body)
			}
		}))
		h.ServeHTTP(httptest.NewRecorder(), r)
	}
}

// Once the response has begun, its status is known. It doesn't matter if the request's body breaks off later, because services
// may respond before an upload ends.
func TestBodiesThatBreakBehindTheAnswer(t *testing.T) {
	l := counting(t, 401)
	srv, _ := serve(t, wrap(l, httplimit.Options{}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusNoContent)
		if _, err := io.Copy(io.Discard, r.Body); err == nil {
			t.Error("the body is whole")
		}
	})))
	conn, err := net.Dial("tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	resp, _ := raw(t, conn, "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nrubbish\r\n")
	if got := charged(t, l); resp.StatusCode != 204 || got != 0 {
		t.Errorf("got %d and was charged %d", resp.StatusCode, got)
	}
}

// A custom proxy can report that there was no response.
func TestNoAnswer(t *testing.T) {
	l := counting(t, 401)
	h := wrap(l, httplimit.Options{}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		httplimit.NoAnswer(r)
		w.WriteHeader(http.StatusBadGateway)
		w.(http.Flusher).Flush()
	}))
	h.ServeHTTP(httptest.NewRecorder(), request("/"))
	if got := charged(t, l); got != 1 {
		t.Errorf("charged %d", got)
	}
	httplimit.NoAnswer(request("/")) // without a limiter it does nothing
}

// A reverse proxy behind the limiter aborts its response if the upstream's response breaks off.
func TestUpstreamThatBreaksOff(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, "a part")
	}))
	defer upstream.Close()
	to, err := url.Parse(upstream.URL)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	proxy := &httputil.ReverseProxy{Transport: transport, ErrorLog: log.New(io.Discard, "", 0), Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }}
	l := counting(t, 500)
	srv, client := serve(t, wrap(l, httplimit.Options{}, proxy))
	resp, err := client.Get(srv.URL)
	if err == nil {
		_, err = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "EOF") {
		t.Errorf("the client saw %v", err)
	}
	srv.Close()
	if got := charged(t, l); got != 1 {
		t.Errorf("charged %d", got)
	}
}
