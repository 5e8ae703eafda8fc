//go:build !race

// This runs without the race detector, which causes allocations of its own.

package checkapi_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/server/internal/edge/checkapi"
)

// TestAllocsPerRequest checks that a request allocates one string for all its texts, and six times for the headers.
func TestAllocsPerRequest(t *testing.T) {
	h := checkapi.New(benchLimiter(t), nil, checkapi.Options{})
	attributes := strings.Replace(benchBody, `"user"`, `"header:X-Tenant": "t", "region": "eu", "user"`, 1)
	for _, c := range []struct {
		name, path, body string
		most             float64
	}{
		{"check", "/v1/check", benchBody, 7},
		{"check with attributes", "/v1/check", attributes, 8},
		{"take", "/v1/take", `{"key": "job:42", "limit": "100000000/second", "burst": 1000000000, "algorithm": "leaky_bucket"}`, 8},
		// One for each check, and one for the Content-Length of the batch.
		{"batch of 100", "/v1/checks", batchOf(strings.TrimSuffix(strings.Repeat(benchBody+",", 100), ",")), 102},
		// The refused request has no path and no attributes, but X-RateLimit-Rule and a message.
		{"refusal", "/v1/take", `{"key": "other", "limit": "1/day", "burst": 1, "cost": 2}`, 6},
	} {
		s := newSink(c.path, []byte(c.body))
		s.serve(h) // the buffers grow once
		if got := testing.AllocsPerRun(1000, func() { s.serve(h) }); got > c.most {
			t.Errorf("%s: %v allocations, want at most %v", c.name, got, c.most)
		}
	}
}

// TestAllocsOfAShedRequest checks that a request that is shed allocates less than a check. Otherwise shedding would
// help little.
func TestAllocsOfAShedRequest(t *testing.T) {
	entered, goOn := make(chan struct{}), make(chan struct{})
	set, err := weir.Compile(weir.Rules{Rules: []weir.Rule{{ID: "a", Limits: perHour(1000)}}})
	if err != nil {
		t.Fatal(err)
	}
	l := weir.NewLimiter(newStore(), set, weir.Options{Observe: func(o *weir.Observation) {
		if o.Decision.Reason != weir.ReasonOverloaded {
			close(entered)
			<-goOn
		}
	}})
	h := checkapi.New(l, nil, checkapi.Options{MaxInFlight: 1})
	go newSink("/v1/check", []byte(benchBody)).serve(h)
	<-entered
	defer close(goOn)
	s := newSink("/v1/check", []byte(benchBody))
	gone, leave := context.WithCancel(t.Context())
	leave() // so that the request doesn't wait
	s.r = s.r.WithContext(gone)
	s.serve(h)
	got := testing.AllocsPerRun(1000, func() { s.serve(h) })
	t.Logf("%v allocations", got)
	if got >= 7 || s.status != http.StatusServiceUnavailable {
		t.Errorf("%v allocations, of a check 7 (status %d)", got, s.status)
	}
}
