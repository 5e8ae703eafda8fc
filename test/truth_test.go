package test

import (
	"fmt"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/weirhq/weir/internal/redistest"
)

// A client that has spent its day is told so by every node, however often it comes back, and two clients aren't
// told to come back at one moment. All fields agree.
func TestRetryTimesAreTrueThroughRedis(t *testing.T) {
	t.Parallel()
	rules := write(t, filepath.Join(t.TempDir(), "rules.yaml"), `
rules:
  - {id: daily, algorithm: fixed_window, limit: 3/day}
  - {id: slow, by: [org], limit: 3/day}
`)
	store := "redis://" + redistest.New(t, redistest.Options{}).Addr
	nodes := serveAll(t, 2, append(patient, "--rules", rules, "--store", store)...)
	reached(t, nodes...)
	jitters := map[int64]bool{} // s
	for client := range 8 {
		body := fmt.Sprintf(`{"key": "k%d", "ip": "192.0.2.%d", "attributes": {"org": "o%d"}}`, client, client, client)
		if n := allowed(t, nodes, 3, body); n != 3 {
			t.Fatalf("%d of 3 allowed", n)
		}
		for i := range 10 { // the first of a node asks Redis, others are refused from memory
			a := check(t, nodes[i%2], body)
			header, err := strconv.ParseInt(a.header.Get("Retry-After"), 10, 64)
			if err != nil || a.status != 429 {
				t.Fatalf("%d, Retry-After %q", a.status, a.header.Get("Retry-After"))
			}
			// The bucket's next token comes in a third of a day, the window ends somewhere in this one; the longer wait binds.
			if wait := a.RetryAfterMS; wait < 8*3600*1000-60_000 || wait > 24*3600*1000 {
				t.Errorf("refusal %d of a client: retry_after_ms %d", i+1, wait)
			}
			if jitter := header*1000 - a.RetryAfterMS; jitter < 0 || jitter > 31_000 {
				t.Errorf("refusal %d: Retry-After %d and retry_after_ms %d", i+1, header, a.RetryAfterMS)
			}
			jitters[(header*1000-a.RetryAfterMS)/1000] = true
		}
	}
	if len(jitters) < 4 {
		t.Errorf("eight clients are told to come back after nearly the same time: %v", jitters)
	}
}
