package httplimit_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/memstore"
)

func TestPerUser(t *testing.T) {
	store := memstore.New(memstore.Options{})
	user := func(r *http.Request) string { return r.Header.Get("X-User") }
	handler := httplimit.PerUser(weir.PerHour(2), user, weir.WithBurst(1), weir.WithStore(store, "api")).Wrap(http.NotFoundHandler())
	for _, c := range []struct {
		user, addr string
		want       int
	}{
		{"ada", "203.0.113.7:1", 404}, {"ada", "203.0.113.8:1", 429}, // whatever address a user comes from
		{"bob", "203.0.113.7:1", 404},
		{"", "203.0.113.7:1", 404}, {"", "203.0.113.7:2", 429}, {"", "203.0.113.8:1", 404}, // by address
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.RemoteAddr = c.addr
		r.Header.Set("X-User", c.user)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if w.Code != c.want {
			t.Errorf("user %q from %s: status %d, want %d", c.user, c.addr, w.Code, c.want)
		}
		if got, want := w.Header().Get("RateLimit-Policy"), `"api";q=2;w=3600`; got != want {
			t.Errorf("RateLimit-Policy is %q, want %q", got, want)
		}
	}
	if got := store.Stats().Counters; got != 4 {
		t.Errorf("the store has %d counters, want 4", got)
	}
}
