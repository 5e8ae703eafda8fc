package gateway

import (
	"net/http"
	"slices"
	"strings"
	"testing"
)

// Browsers send the console's session cookie to every port of its host. The gateway removes it, and leaves all other
// cookies unchanged.
func TestUpstreamsGetNoSessionOfTheConsole(t *testing.T) {
	up := startUpstream(t, nil)
	d := start(t, setup{upstream: up.URL})
	for _, c := range []struct{ sent, want []string }{
		{[]string{"weir_session_8082=secret"}, nil},
		{[]string{"weir_session=secret"}, nil},
		{[]string{"weir_session_8082=secret; weir_session_9082=secret"}, nil},
		{[]string{"a=1; weir_session_8082=secret; b=2"}, []string{"a=1; b=2"}},
		{[]string{"weir_session_8082=secret; a=1"}, []string{"a=1"}},
		{[]string{"a=1; weir_session_8082=secret"}, []string{"a=1"}},
		{[]string{`a="x y";weir_session_8082=secret;  b ; =c;;d==` + "\t"}, []string{`a="x y";  b ; =c;;d==`}},
		{[]string{"weir_session_8082=secret", "a=1", " weir_session =secret; b=2"}, []string{"a=1", "b=2"}},
		{[]string{"weir_session_8082"}, nil},
		{[]string{"a=weir_session_8082; my_weir_session=mine;  Weir_session=mine"}, []string{"a=weir_session_8082; my_weir_session=mine;  Weir_session=mine"}},
		{[]string{`a=1;b="2";c`, "d=4"}, []string{`a=1;b="2";c`, "d=4"}},
		{nil, nil},
	} {
		text := "GET / HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n"
		for i, line := range c.sent {
			text += []string{"Cookie", "cookie"}[i%2] + ": " + line + "\r\n"
		}
		if a := d.raw(t, text+"\r\n"); a.StatusCode != http.StatusOK {
			t.Fatalf("%q: %s", c.sent, a.Status)
		}
		if got := up.last(t).Header["Cookie"]; !slices.Equal(got, c.want) {
			t.Errorf("of %q the upstream got %q, want %q", c.sent, got, c.want)
		}
	}
}

// Over HTTP/2, a client may send each cookie in a header of its own, and the gateway may forward them that way.
func TestUpstreamsGetNoSessionOverHTTP2(t *testing.T) {
	up := startUpstream(t, nil)
	d := start(t, setup{upstream: up.URL, tls: true})
	req := d.request(t, http.MethodGet, "/", nil)
	req.Header["Cookie"] = []string{"a=1; weir_session_8082=secret", "b=2", "weir_session=secret"}
	if a := d.do(t, req); a.StatusCode != http.StatusOK || a.ProtoMajor != 2 {
		t.Fatalf("%s %s", a.Proto, a.Status)
	}
	if got := strings.Join(up.last(t).Header["Cookie"], "; "); got != "a=1; b=2" {
		t.Errorf("the upstream got %q", got)
	}
}

// The session cookie is also removed from a WebSocket's first request.
func TestWebSocketsCarryNoSession(t *testing.T) {
	up := startUpstream(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })
	d := start(t, setup{upstream: up.URL})
	d.raw(t, "GET / HTTP/1.1\r\nHost: shop.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nCookie: a=1; weir_session_8082=secret\r\n\r\n")
	if h := up.last(t).Header; h.Get("Upgrade") != "websocket" || h.Get("Cookie") != "a=1" {
		t.Errorf("%v", h)
	}
}
