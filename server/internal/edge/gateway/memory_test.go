//go:build !race

// This runs without the race detector, which uses memory of its own.

package gateway

import (
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/weirhq/weir"
)

// While 20 MB are transferred in each direction, the client, the gateway and the upstream together allocate far less
// than that.
func TestMemoryOfLargeBodies(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		up, received := startWarehouse(t)
		d := start(t, setup{upstream: up.URL, tls: h2})
		carry(t, d, received) // fill the pools
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		carry(t, d, received)
		runtime.ReadMemStats(&after)
		grown := after.TotalAlloc - before.TotalAlloc
		t.Logf("HTTP/2 %t: %d KB allocated", h2, grown>>10)
		// Buffering either body once would exceed this bound.
		if grown > big/2 {
			t.Errorf("HTTP/2 %t: %d MB allocated for 40 MB that passed", h2, grown>>20)
		}
	}
}

// The gateway reads the usage of a stream of 256 MB without keeping the stream: neither the heap nor the allocations
// grow with it.
func TestMemoryOfMeteredStreams(t *testing.T) {
	const long = 256 << 20
	event := "data: {\"choices\":[{\"delta\":{\"content\":\"" + strings.Repeat("word ", 6000) + "\"}}]}\n\n"
	for _, h2 := range []bool{false, true} {
		l := limiterOf(t, weir.Options{}, daily("tokens", 10_000_000))
		up := startUpstream(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.Header().Set("Content-Type", "text/event-stream")
			for n := 0; n < long && r.URL.Path == "/v1/chat/completions"; n += len(event) {
				if _, err := io.WriteString(w, event); err != nil {
					t.Error(err)
					return
				}
			}
			io.WriteString(w, "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":2,\"completion_tokens\":1000000,\"total_tokens\":1000002}}\n\ndata: [DONE]\n\n")
		})
		handled := make(chan struct{}, 2)
		d := start(t, setup{upstream: up.URL, limiter: l, tls: h2, handled: handled})
		d.ask(t, "/short", chat) // fill the pools
		await(t, handled, "the end at the gateway")
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		req := d.request(t, "POST", "/v1/chat/completions", strings.NewReader(strings.Replace(chat, "{", `{"stream": true, `, 1)))
		req.Header.Set("Content-Type", "application/json")
		res, err := d.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		n, err := io.Copy(io.Discard, res.Body)
		res.Body.Close()
		await(t, handled, "the end at the gateway")
		runtime.ReadMemStats(&after)
		grown := after.TotalAlloc - before.TotalAlloc
		t.Logf("HTTP/2 %t: %d KB allocated for %d MB", h2, grown>>10, n>>20)
		if err != nil || n < long || grown > 16<<20 {
			t.Errorf("HTTP/2 %t: %d MB allocated for %d MB, %v", h2, grown>>20, n>>20, err)
		}
		if got := left(t, l)["tokens"]; got != "7999996" {
			t.Errorf("HTTP/2 %t: %s tokens left, want 7999996", h2, got)
		}
	}
}
