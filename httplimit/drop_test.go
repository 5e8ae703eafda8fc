package httplimit_test

import (
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/cooldown"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/memstore"
)

// A client that is refused too often in a row loses its connection. With HTTP/2 it loses only its stream, and other streams of
// the connection continue.
func TestDropped(t *testing.T) {
	rs, err := weir.Compile(weir.Rules{Rules: []weir.Rule{{
		ID: "api", Limits: []weir.Limit{weir.PerHour(1)},
		Abuse: &counter.Abuse{Refusals: 1000, Window: 60e9, Cooldown: 60e9, Grow: 2, Most: 60e9, DropAfter: 3},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, h2 := range []bool{false, true} {
		l := weir.NewLimiter(memstore.New(memstore.Options{}), rs, weir.Options{Guard: cooldown.New(cooldown.Options{})})
		m := httplimit.New(l, httplimit.Options{})
		s := httptest.NewUnstartedServer(m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "served") })))
		s.EnableHTTP2 = h2
		s.StartTLS()
		defer s.Close()
		transport := s.Client().Transport.(*http.Transport)
		transport.TLSClientConfig = &tls.Config{RootCAs: transport.TLSClientConfig.RootCAs, NextProtos: map[bool][]string{true: {"h2"}, false: {"http/1.1"}}[h2]}
		get := func(key string) (int, error) {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL, http.NoBody) // the client would repeat a GET by itself
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("X-API-Key", key)
			res, err := s.Client().Do(req)
			if err != nil {
				return 0, err
			}
			defer res.Body.Close()
			if (res.ProtoMajor == 2) != h2 {
				t.Fatalf("%s", res.Proto)
			}
			_, err = io.Copy(io.Discard, res.Body)
			return res.StatusCode, err
		}
		for i, want := range []int{200, 429, 429, 429, 0, 0} {
			status, err := get("bad")
			if status != want || (err != nil) != (want == 0) {
				t.Errorf("HTTP/2 %v, request %d: %d, %v, want %d", h2, i, status, err, want)
			}
			if want == 0 && h2 && errors.Is(err, io.EOF) {
				t.Errorf("the connection was closed: %v", err)
			}
		}
		if status, err := get("good"); status != 200 || err != nil {
			t.Errorf("HTTP/2 %v, another client: %d, %v", h2, status, err)
		}
	}
}

// A trusted proxy always gets a response. If its connections were closed, it would consider the server dead, and all its
// clients would suffer.
func TestProxiesArentDropped(t *testing.T) {
	rs, err := weir.Compile(weir.Rules{Rules: []weir.Rule{{
		ID: "api", By: []string{"ip"}, Limits: []weir.Limit{weir.PerHour(1)},
		Abuse: &counter.Abuse{Refusals: 1000, Window: 60e9, Cooldown: 60e9, Grow: 2, Most: 60e9, DropAfter: 3},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	l := weir.NewLimiter(memstore.New(memstore.Options{}), rs, weir.Options{Guard: cooldown.New(cooldown.Options{})})
	m := httplimit.New(l, httplimit.Options{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}})
	h := m.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for i := range 20 {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.RemoteAddr = "10.0.0.1:1234"
		r.Header.Set("X-Forwarded-For", "203.0.113.7")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if (w.Code == http.StatusTooManyRequests) != (i > 0) {
			t.Fatalf("request %d: %d", i, w.Code)
		}
	}
}
