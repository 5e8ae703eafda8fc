package test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/ledger"
	"github.com/weirhq/weir/server/internal/edge/checkapi"
)

// limited is a limit under load, with the number of requests that it admitted and refused.
type limited struct {
	path     string
	capacity int64
	rate     float64 // per second
	admitted atomic.Int64
	refused  atomic.Int64
}

// most returns the most that a bucket on four nodes may admit in a given time: the bucket's own bound for that time
// plus one lease.
func (l *limited) most(elapsed time.Duration) int64 {
	return l.capacity + int64(l.rate*(elapsed+ledger.MaxLease).Seconds())
}

// Four nodes spend tokens that they borrow from one bucket, and one node is killed while it holds some. Those tokens
// are lost, but no token is admitted twice.
func TestLeasesHoldWhenANodeIsKilled(t *testing.T) {
	t.Parallel()
	quick := &limited{path: "/quick", capacity: 100, rate: 100}
	slow := &limited{path: "/slow", capacity: 300, rate: 300. / 86400}
	limits := []*limited{quick, slow}
	rules := write(t, filepath.Join(t.TempDir(), "rules.yaml"), `
rules:
  - {id: quick, match: {endpoint: /quick}, limit: 100/s}
  - {id: slow, match: {endpoint: /slow}, limit: 300/day}
`)
	store := "redis://" + redistest.New(t, redistest.Options{}).Addr
	nodes := serveAll(t, 4, append(patient, "--rules", rules, "--store", store)...)
	reached(t, nodes...)

	const clients = 32
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: clients}}
	defer client.CloseIdleConnections()
	var killed atomic.Bool
	var load sync.WaitGroup
	loading, stop := context.WithCancel(t.Context())
	defer load.Wait()
	defer stop()
	begun := time.Now()
	for range clients {
		load.Go(func() {
			for i := 0; loading.Err() == nil; i++ {
				at := rand.IntN(len(nodes))
				if at == 0 && killed.Load() {
					continue
				}
				// Requests to the killed node that get no response aren't counted, whatever it decided.
				if err := ask(client, nodes[at], limits[i%len(limits)]); err != nil && (at != 0 || !killed.Load()) {
					t.Errorf("node %d: %v", at, err)
				}
			}
		})
	}
	// The load runs for a second before and after the kill, or longer if a busy machine needs more time to reach the
	// limits.
	under := func(d time.Duration, enough func() bool) {
		begun := time.Now()
		until(t, func() error {
			if time.Since(begun) < d || !enough() {
				return errors.New("too early")
			}
			return nil
		})
	}
	under(time.Second, func() bool { return quick.admitted.Load() > quick.capacity/2 })
	killed.Store(true)
	if err := nodes[0].cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-nodes[0].exited
	under(time.Second, func() bool { return quick.admitted.Load() > quick.capacity && slow.refused.Load() > 0 })
	stop()
	load.Wait()
	elapsed := time.Since(begun)
	client.CloseIdleConnections()

	for _, l := range limits {
		t.Logf("%s: %d admitted, %d refused in %s; at most %d", l.path, l.admitted.Load(), l.refused.Load(), elapsed, l.most(elapsed))
		if got := l.admitted.Load(); got > l.most(elapsed) || got < l.capacity/2 {
			t.Errorf("%s: %d admitted in %s, which may be %d", l.path, got, elapsed, l.most(elapsed))
		}
	}
}

// ask sends one client's check and counts the result.
func ask(c *http.Client, n *node, l *limited) error {
	res, err := c.Post(n.HTTP+"/v1/check", "application/json", strings.NewReader(fmt.Sprintf(`{"key": "one", "path": %q}`, l.path)))
	if err != nil {
		return err
	}
	defer res.Body.Close()
	var d checkapi.CheckResponse
	text, err := io.ReadAll(res.Body)
	if err == nil {
		err = json.Unmarshal(text, &d)
	}
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w in %s", res.Status, err, text)
	case d.Degraded:
		return fmt.Errorf("%s: degraded: %s", res.Status, text)
	case d.Allowed:
		l.admitted.Add(1)
	default:
		l.refused.Add(1)
	}
	return nil
}
