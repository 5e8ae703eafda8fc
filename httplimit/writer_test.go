package httplimit_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
)

// eachWay runs a test with three limiters: one that passes the server's own writer to the handler, one that has to watch the
// response's status, and one that has to know when the response ends.
func eachWay(t *testing.T, test func(t *testing.T, l *weir.Limiter)) {
	t.Run("settled", func(t *testing.T) {
		test(t, limiter(t, rules(weir.Rule{ID: "s", By: []string{}, Limits: per(10, 366*24*time.Hour)})))
	})
	t.Run("unsettled", func(t *testing.T) { test(t, counting(t, 1, 2, 3, 4, 5)) })
	t.Run("in flight", func(t *testing.T) {
		test(t, limiter(t, rules(slots(1000), weir.Rule{ID: "s", By: []string{}, Limits: per(10, 366*24*time.Hour)})))
	})
}

// serveHTTP2 is serve over TLS, with HTTP/2.
func serveHTTP2(t testing.TB, h http.Handler) (*httptest.Server, *http.Client) {
	s := httptest.NewUnstartedServer(h)
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	return s, s.Client()
}

var protocols = map[string]func(testing.TB, http.Handler) (*httptest.Server, *http.Client){"HTTP/1.1": serve, "HTTP/2": serveHTTP2}

// abilities lists the optional interfaces that a writer implements.
func abilities(w http.ResponseWriter) string {
	_, flush := w.(http.Flusher)
	_, flushError := w.(interface{ FlushError() error })
	_, hijack := w.(http.Hijacker)
	_, push := w.(http.Pusher)
	_, readFrom := w.(io.ReaderFrom)
	_, stringWriter := w.(io.StringWriter)
	_, deadline := w.(interface{ SetReadDeadline(time.Time) error })
	_, duplex := w.(interface{ EnableFullDuplex() error })
	return fmt.Sprint("flush ", flush, flushError, " hijack ", hijack, " push ", push, " readFrom ", readFrom,
		" string ", stringWriter, " deadline ", deadline, " duplex ", duplex)
}

func TestWriterKeepsItsAbilities(t *testing.T) {
	eachWay(t, func(t *testing.T, l *weir.Limiter) {
		var bare, behind string
		limited := wrap(l, httplimit.Options{}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { behind = abilities(w) }))
		both := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			bare = abilities(w)
			limited.ServeHTTP(w, r)
		})
		one, client := serve(t, both)
		if get(t, client, one.URL); bare != behind || !strings.Contains(bare, "hijack true") {
			t.Errorf("HTTP/1.1\nbare   %s\nbehind %s", bare, behind)
		}
		two, client := serveHTTP2(t, both)
		if resp := get(t, client, two.URL); resp.ProtoMajor != 2 || bare != behind || !strings.Contains(bare, "push true") {
			t.Errorf("HTTP/%d\nbare   %s\nbehind %s", resp.ProtoMajor, bare, behind)
		}
	})
}

// events returns a handler that sends a server-sent event for each value from the channel.
func events(more <-chan string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.(http.Flusher).Flush()
		for data := range more {
			_, _ = fmt.Fprintf(w, "data: %s\n\n", data)
			w.(http.Flusher).Flush()
		}
	})
}

func TestServerSentEvents(t *testing.T) {
	for name, start := range protocols {
		t.Run(name, func(t *testing.T) {
			eachWay(t, func(t *testing.T, l *weir.Limiter) {
				more := make(chan string)
				srv, client := start(t, wrap(l, httplimit.Options{}, events(more)))
				resp, err := client.Get(srv.URL)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				if resp.Header.Get("X-RateLimit-Remaining") != "9" {
					t.Errorf("headers %v", resp.Header)
				}
				lines := bufio.NewReader(resp.Body)
				for _, data := range []string{"one", "two", "three"} { // the next is only sent once this one has arrived
					more <- data
					for _, want := range []string{"data: " + data + "\n", "\n"} {
						if got, err := lines.ReadString('\n'); err != nil || got != want {
							t.Fatalf("%q, %v", got, err)
						}
					}
				}
				close(more)
				if _, err := lines.ReadByte(); err != io.EOF {
					t.Errorf("the end: %v", err)
				}
			})
		})
	}
}

// A hijacked connection immediately counts as a response with status 101. A failed attempt to hijack doesn't.
func TestHijack(t *testing.T) {
	l := counting(t, 101)
	hijacked, stop := make(chan struct{}), make(chan struct{})
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			http.Error(w, err.Error(), http.StatusNotImplemented)
			return
		}
		defer conn.Close()
		_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		_ = rw.Flush()
		hijacked <- struct{}{}
		line, _ := rw.ReadString('\n')
		_, _ = rw.WriteString(line)
		_ = rw.Flush()
		<-stop
	})
	srv, _ := serve(t, wrap(l, httplimit.Options{}, handler))
	conn, err := net.Dial("tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	send(t, conn, "GET / HTTP/1.1\r\nHost: example.com\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nhello\n")
	<-hijacked
	if got := charged(t, l); got != 1 {
		t.Errorf("charged %d while the connection is open", got)
	}
	r := bufio.NewReader(conn)
	if resp, err := http.ReadResponse(r, nil); err != nil || resp.StatusCode != 101 {
		t.Fatal(resp, err)
	}
	if line, err := r.ReadString('\n'); err != nil || line != "hello\n" {
		t.Errorf("%q, %v", line, err)
	}
	close(stop)

	two, client := serveHTTP2(t, wrap(l, httplimit.Options{}, handler))
	if resp := get(t, client, two.URL); resp.StatusCode != http.StatusNotImplemented || charged(t, l) != 1 {
		t.Errorf("a failed attempt: %d, charged %d", resp.StatusCode, charged(t, l))
	}
}

func TestResponseController(t *testing.T) {
	eachWay(t, func(t *testing.T, l *weir.Limiter) {
		srv, client := serve(t, wrap(l, httplimit.Options{}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c := http.NewResponseController(w)
			for name, err := range map[string]error{
				"read deadline": c.SetReadDeadline(time.Time{}), "write deadline": c.SetWriteDeadline(time.Time{}),
				"full duplex": c.EnableFullDuplex(), "flush": c.Flush(),
			} {
				if err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
			if err := c.SetWriteDeadline(time.Unix(1, 0)); err != nil {
				t.Error(err)
			}
			_, _ = io.WriteString(w, "too late")
			if err := c.Flush(); err == nil {
				t.Error("a flush past the deadline has no error")
			}
		})))
		if resp, err := client.Get(srv.URL); err == nil {
			if _, err := io.ReadAll(resp.Body); err == nil {
				t.Error("the write deadline had no effect")
			}
			resp.Body.Close()
		}
	})
}

// Files are sent by the kernel, which requires that the server's own ReadFrom is called.
func TestReadFrom(t *testing.T) {
	content := bytes.Repeat([]byte("weir "), 100_000)
	eachWay(t, func(t *testing.T, l *weir.Limiter) {
		var direct bool
		limited := wrap(l, httplimit.Options{}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.ServeContent(w, r, "weir.txt", time.Time{}, bytes.NewReader(content))
		}))
		srv, client := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			limited.ServeHTTP(&readingFrom{w, w.(io.ReaderFrom), &direct}, r)
		}))
		resp, err := client.Get(srv.URL)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if got, err := io.ReadAll(resp.Body); err != nil || !bytes.Equal(got, content) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
		if !direct {
			t.Error("ReadFrom wasn't called")
		}
	})
}

type readingFrom struct {
	http.ResponseWriter
	from   io.ReaderFrom
	called *bool
}

func (w *readingFrom) ReadFrom(r io.Reader) (int64, error) {
	*w.called = true
	return w.from.ReadFrom(r)
}

// If nothing has to be watched, the handler gets the server's own writer.
func TestNoWrapperWithoutNeed(t *testing.T) {
	l := limiter(t, rules(weir.Rule{ID: "s", Limits: per(10, time.Hour)}))
	w := httptest.NewRecorder()
	var got http.ResponseWriter
	wrap(l, httplimit.Options{}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { got = w })).ServeHTTP(w, request("/"))
	if got != http.ResponseWriter(w) {
		t.Errorf("a %T", got)
	}
}

// A request that is canceled while its handler runs is still settled by its response. Without a response it stays charged, so
// that disconnecting isn't a way to guess for free.
func TestSettlingOutlivesTheRequest(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		want   int64
	}{"answered": {200, 0}, "failed": {401, 1}, "not answered": {0, 1}, "noted by a proxy": {499, 1}} {
		l := counting(t, 401)
		ctx, cancel := context.WithCancel(t.Context())
		wrap(l, httplimit.Options{}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			cancel()
			if c.status > 0 {
				w.WriteHeader(c.status)
			}
		})).ServeHTTP(httptest.NewRecorder(), request("/").WithContext(ctx))
		if got := charged(t, l); int64(got) != c.want {
			t.Errorf("%s: charged %d, want %d", name, got, c.want)
		}
	}
}
