package httplimit_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"runtime"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
)

// hijack takes over a connection.
func hijack(t *testing.T, w http.ResponseWriter) net.Conn {
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		t.Error(err)
		return nil
	}
	_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
	_ = rw.Flush()
	return conn
}

// A request whose connection was hijacked keeps its slot until the connection is closed, in the handler or long after it.
func TestSlotsOfHijackedConnections(t *testing.T) {
	for _, within := range []bool{true, false} {
		l := limiter(t, rules(slots(1), weir.Rule{ID: "guesses", By: []string{}, Statuses: []int{401}, Limits: per(10, 366*24*time.Hour)}))
		conns, goOn := make(chan net.Conn, 1), make(chan struct{})
		h, done := handled(wrap(l, httplimit.Options{}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			conn := hijack(t, w)
			conns <- conn
			if within {
				<-goOn
				conn.Close()
				if got := left(t, l); got["slots"] != "1" || got["guesses"] != "10" {
					t.Errorf("closed in the handler: left are %v", got)
				}
			}
		})))
		srv, client := serve(t, h)
		ours, err := net.Dial("tcp", srv.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer ours.Close()
		if resp, _ := raw(t, ours, "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"); resp.StatusCode != 101 {
			t.Fatal(resp.Status)
		}
		conn := <-conns
		if !within {
			<-done
		}
		if got := get(t, client, srv.URL).StatusCode; got != 429 {
			t.Errorf("beside it: %d", got)
		}
		<-done
		if within {
			close(goOn)
			<-done
		} else {
			conn.Close()
			conn.Close()
		}
		if got := left(t, l); got["slots"] != "1" || got["guesses"] != "10" {
			t.Errorf("in the handler %t: left are %v", within, got)
		}
		if _, err := io.ReadAll(ours); err != nil {
			t.Error(err)
		}
	}
}

// If a handler hijacks a connection and forgets it, the slot is released eventually.
func TestSlotsOfForgottenConnections(t *testing.T) {
	l := limiter(t, rules(slots(1)))
	h, done := handled(wrap(l, httplimit.Options{}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { hijack(t, w) })))
	srv, _ := serve(t, h)
	ours, err := net.Dial("tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	raw(t, ours, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	<-done
	for deadline := time.Now().Add(20 * time.Second); left(t, l)["slots"] != "1"; runtime.GC() { // less than a slot lasts
		if time.Now().After(deadline) {
			t.Fatal("the slot is kept")
		}
	}
}

// A hijacked connection keeps its abilities. For example, a reverse proxy closes one direction at a time.
func TestHijackedConnectionsCloseByHalves(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn := hijack(t, w)
		defer conn.Close()
		_, _ = io.WriteString(conn, "bye")
		_ = conn.(*net.TCPConn).CloseWrite()
		got, err := io.ReadAll(conn) // the other direction is still open
		if err != nil || string(got) != "and good night" {
			t.Errorf("the upstream got %q, %v", got, err)
		}
	}))
	defer up.Close()
	to, err := url.Parse(up.URL)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	proxy := &httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }}
	l := limiter(t, rules(slots(1)))
	h, done := handled(wrap(l, httplimit.Options{}, proxy))
	srv, _ := serve(t, h)
	conn, err := net.Dial("tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
	in := bufio.NewReader(conn)
	if resp, err := http.ReadResponse(in, nil); err != nil || resp.StatusCode != 101 {
		t.Fatal(resp, err)
	}
	if got, err := io.ReadAll(in); err != nil || string(got) != "bye" {
		t.Fatalf("%q, %v", got, err)
	}
	if got := left(t, l)["slots"]; got != "0" {
		t.Errorf("half closed: %s slots are left", got)
	}
	_, _ = io.WriteString(conn, "and good night")
	_ = conn.(*net.TCPConn).CloseWrite()
	<-done
	if got := left(t, l)["slots"]; got != "1" {
		t.Errorf("%s slots are left", got)
	}
}
