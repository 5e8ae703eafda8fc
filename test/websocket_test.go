package test

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/memstore"
)

// WebSockets work behind middleware that passes the server's own writer to the handler, that watches the response's
// status, or that must know when the connection ends.
func TestWebSocketsBehindTheMiddleware(t *testing.T) {
	t.Parallel()
	const year = 366 * 24 * time.Hour
	ten := []weir.Limit{{Count: 10, Window: year}}
	for name, rules := range map[string][]weir.Rule{
		"settled":   {{ID: "s", By: []string{}, Limits: ten}},
		"unsettled": {{ID: "s", By: []string{}, Statuses: []int{1, 2, 3, 4, 5}, Limits: ten}},
		"in flight": {
			{ID: "slots", By: []string{}, Algorithm: weir.Concurrency, Limits: []weir.Limit{{Count: 1000}}},
			{ID: "s", By: []string{}, Limits: ten},
		},
	} {
		t.Run(name, func(t *testing.T) {
			rs, err := weir.Compile(weir.Rules{Rules: rules})
			if err != nil {
				t.Fatal(err)
			}
			limit := httplimit.New(weir.NewLimiter(memstore.New(memstore.Options{}), rs, weir.Options{}), httplimit.Options{})
			srv := httptest.NewServer(limit.Wrap(shouting(t)))
			defer srv.Close()
			for i := range 10 {
				c, resp, err := websocket.Dial(t.Context(), srv.URL, &websocket.DialOptions{HTTPClient: srv.Client()})
				if err != nil {
					t.Fatal(err)
				}
				if got, want := resp.Header.Get("X-RateLimit-Remaining"), fmt.Sprint(9-i); got != want {
					t.Errorf("%s remaining, want %s", got, want)
				}
				for _, word := range []string{"weir", "dam"} {
					if err := c.Write(t.Context(), websocket.MessageText, []byte(word)); err != nil {
						t.Fatal(err)
					}
					if _, got, err := c.Read(t.Context()); err != nil || string(got) != strings.ToUpper(word) {
						t.Fatalf("%s, %v", got, err)
					}
				}
				if err := c.Close(websocket.StatusNormalClosure, ""); err != nil {
					t.Error(err)
				}
			}
			_, resp, err := websocket.Dial(t.Context(), srv.URL, &websocket.DialOptions{HTTPClient: srv.Client()})
			if err == nil || resp.StatusCode != 429 || resp.Header.Get("Retry-After") == "" {
				t.Errorf("an eleventh: %v", err)
			}
		})
	}
}

// shouting is a WebSocket server that echoes messages in capitals.
func shouting(t *testing.T) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer c.CloseNow()
		for {
			kind, text, err := c.Read(r.Context())
			if err != nil {
				return
			}
			if err := c.Write(r.Context(), kind, bytes.ToUpper(text)); err != nil {
				t.Error(err)
				return
			}
		}
	})
}
