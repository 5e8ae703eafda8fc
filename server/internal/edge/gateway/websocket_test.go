package gateway

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/coder/websocket"
	"github.com/weirhq/weir"
)

// echoing returns a WebSocket server that echoes messages, and sends on done when it ends.
func echoing(t *testing.T, done chan<- error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-RateLimit-Limit", "7")
		if r.Header.Get("Upgrade") == "" {
			return
		}
		conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.CloseNow()
		for {
			kind, p, err := conn.Read(r.Context())
			if err != nil {
				done <- err
				return
			}
			if err := conn.Write(r.Context(), kind, p); err != nil {
				done <- err
				return
			}
		}
	}
}

func dialWebSocket(t *testing.T, d *door) (*websocket.Conn, *http.Response, error) {
	t.Helper()
	return websocket.Dial(t.Context(), "ws"+strings.TrimPrefix(d.URL, "http")+"/chat", &websocket.DialOptions{HTTPClient: d.client})
}

func TestWebSocket(t *testing.T) {
	done := make(chan error, 1)
	up := startUpstream(t, echoing(t, done))
	// The rule counts by status, so that every wrapper of the ResponseWriter must support hijacking.
	rule := few("chat", "/chat", 1)
	rule.Statuses = []int{101}
	d := start(t, setup{upstream: up.URL, limiter: limiterOf(t, weir.Options{}, rule)})
	conn, res, err := dialWebSocket(t, d)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	if got := res.Header.Values("X-RateLimit-Limit"); len(got) != 1 || got[0] != "1" {
		t.Errorf("X-RateLimit-Limit: %q", got)
	}
	for i := range 10 {
		text := fmt.Sprint("message ", i, strings.Repeat(".", 1000*i))
		if err := conn.Write(t.Context(), websocket.MessageText, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if _, got, err := conn.Read(t.Context()); err != nil || string(got) != text {
			t.Fatalf("%q, %v", got, err)
		}
	}
	if _, res, err := dialWebSocket(t, d); err == nil || res == nil || res.StatusCode != 429 {
		t.Errorf("a second WebSocket: %v, %v", res, err)
	}
	if err := conn.Close(websocket.StatusNormalClosure, "bye"); err != nil {
		t.Error(err)
	}
	if err := await(t, done, "the upstream's end"); websocket.CloseStatus(err) != websocket.StatusNormalClosure {
		t.Error(err)
	}
	if d.log.loud() {
		t.Error(d.log)
	}
}

// A draining server sets Connection: close in every response, but not when it switches protocols, where Connection has
// another use.
func TestWebSocketWhileDraining(t *testing.T) {
	done := make(chan error, 1)
	up := startUpstream(t, echoing(t, done))
	d := start(t, setup{upstream: up.URL, header: http.Header{"Connection": {"close"}}})
	conn, _, err := dialWebSocket(t, d)
	if err != nil {
		t.Fatal(err)
	}
	conn.CloseNow()
	await(t, done, "the upstream's end")
	for _, target := range []*door{d, start(t, setup{upstream: nowhere(t), header: http.Header{"Connection": {"close"}}})} {
		if a := target.get(t, "/no/websocket"); !a.Close {
			t.Errorf("%s: the connection is kept", a.Status)
		}
	}
}

// The gateway doesn't forward upgrades to protocols that carry requests, because those requests would bypass the
// limiter.
func TestOtherUpgradesAreNotOffered(t *testing.T) {
	up := startUpstream(t, nil)
	d := start(t, setup{upstream: up.URL})
	for _, protocol := range []string{"h2c", "H2C", "TLS/1.3", "HTTP/2.0", "websocket, h2c", "h2c, websocket"} {
		a := d.raw(t, "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, close\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\nUpgrade: "+protocol+"\r\n\r\n")
		got := up.last(t).Header
		if a.StatusCode != 200 || got.Get("Upgrade") != "" || got.Get("Connection") != "" || got.Get("HTTP2-Settings") != "" {
			t.Errorf("%s: %s; the upstream got %v", protocol, a.Status, got)
		}
	}
}

// If a client vanishes, the gateway closes the connection to the upstream.
func TestWebSocketHangUp(t *testing.T) {
	done := make(chan error, 1)
	up := startUpstream(t, echoing(t, done))
	d := start(t, setup{upstream: up.URL})
	conn, _, err := dialWebSocket(t, d)
	if err != nil {
		t.Fatal(err)
	}
	conn.CloseNow()
	if err := await(t, done, "the upstream's end"); err == nil {
		t.Error("no error")
	}
	if d.log.loud() {
		t.Error(d.log)
	}
}

// Close ends WebSockets, which a server's Shutdown ignores.
func TestCloseEndsWebSockets(t *testing.T) {
	done := make(chan error, 1)
	up := startUpstream(t, echoing(t, done))
	d := start(t, setup{upstream: up.URL})
	conn, _, err := dialWebSocket(t, d)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	if err := conn.Write(t.Context(), websocket.MessageText, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, got, err := conn.Read(t.Context()); err != nil || string(got) != "hello" {
		t.Fatalf("%q, %v", got, err)
	}
	if err := d.Config.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.gateway.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, _, err := conn.Read(ctx); err == nil || ctx.Err() != nil {
		t.Errorf("after Close: %v", err)
	}
	await(t, done, "the upstream's end")
}
