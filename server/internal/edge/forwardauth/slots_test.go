package forwardauth_test

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/server/internal/edge/forwardauth"
)

// Slots expire, because no gateway reports the end of a request. Each gateway asks a second time while the first
// request is in flight.
func TestSlotsEndByThemselves(t *testing.T) {
	set, err := weir.Compile(weir.Rules{Rules: []weir.Rule{{
		ID: "flight", By: []string{"ip"}, Algorithm: weir.Concurrency, SlotTTL: 10 * time.Second, Limits: []weir.Limit{{Count: 1}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	overGRPC := way{path: "over gRPC", refused: 429}
	for _, g := range append(ways[:len(ways):len(ways)], overGRPC) {
		synctest.Test(t, func(t *testing.T) {
			h := forwardauth.New(weir.NewLimiter(memstore.New(memstore.Options{}), set, weir.Options{}), forwardauth.Options{})
			w := &world{Handler: h}
			ask := func() (status int, header http.Header, body string) {
				if g.path == overGRPC.path {
					a, _ := h.Envoy(t.Context(), local, &http.Request{Method: "POST", RequestURI: "/login", Host: "x", RemoteAddr: "203.0.113.7", Header: http.Header{}})
					return a.Status, a.Head, a.Body.String()
				}
				res := w.ask(local, g.method, g.target, g.control...)
				return res.Code, res.Header(), res.Body.String()
			}
			for range 3 {
				if status, header, _ := ask(); status != 200 {
					t.Errorf("%s: %d %v", g.path, status, header)
				}
				time.Sleep(9 * time.Second)
				if status, _, body := ask(); status != g.refused || !strings.Contains(body, "Limit of 1 request at a time exceeded") {
					t.Errorf("%s: beside it %d %s", g.path, status, body)
				}
				time.Sleep(time.Second)
			}
		})
	}
}
