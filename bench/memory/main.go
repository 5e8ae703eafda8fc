// Command memory floods a node with new keys and addresses over HTTP, each of which is used only once, and prints how
// much memory the whole process takes. It fails if the process takes more than the memory cap allows;
// docs/guides/sizing.md explains how much that is. It reads /proc, so it needs Linux.
package main

import (
	"context"
	"flag"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir/server/bench/internal/command"
	"github.com/weirhq/weir/server/bench/internal/node"
	"github.com/weirhq/weir/server/bench/internal/rawhttp"
	"github.com/weirhq/weir/server/internal/load"
)

const rules = `rules:
  - {id: quota, limit: 100/hour}
  - {id: address, by: [ip], limit: 10000/hour}
`

// maxBeyondCap is how many MiB a node may use in addition to its memory cap: 64 for the program and garbage, and 64 for
// statistics of the last hour.
const maxBeyondCap = 64 + 64

var (
	limit   = flag.Int("cap", 128, "the node's --memory-cap, in MiB")
	keys    = flag.Int("keys", 5_000_000, "how many different keys to send")
	singles = flag.Int("singles", 100_000, "how many of the keys to send in a request of their own, which makes the most garbage")
)

func main() { command.Main(run) }

func run(r *command.Run) (ok bool) {
	n := node.Start(r, node.Options{Rules: rules,
		Flags: []string{"--memory-cap", fmt.Sprint(*limit, "MiB"), "--admin", "127.0.0.1:0", "--log-level", "error"}})
	idle, begun := n.PeakMemory(), time.Now()
	flood(r, n.Addr, 0, *keys-*singles, 1000, 4)
	flood(r, n.Addr, *keys-*singles, *keys, 1, 64)
	peak := n.PeakMemory()
	beyond := peak - *limit
	fmt.Fprintf(r.Out, "cap %d MiB, %d keys in %.0f s: %d MiB resident at first, %d MiB at most, %+d MiB beyond the cap (at most %d)\n",
		*limit, *keys, time.Since(begun).Seconds(), idle, peak, beyond, maxBeyondCap)
	if beyond > maxBeyondCap {
		fmt.Fprintln(r.Out, "FAIL the flood took more memory than the node may use")
	}
	return beyond <= maxBeyondCap
}

// flood sends checks of the keys numbered from one number up to another, in requests of batch checks each, over the
// given number of connections.
func flood(r *command.Run, addr string, from, to, batch, connections int) {
	flooding, stop := context.WithCancel(r)
	defer stop()
	next := new(atomic.Int64)
	next.Store(int64(from))
	t := &rawhttp.Target{Addr: addr, Request: func(uint32) []byte {
		first := int(next.Add(int64(batch))) - batch
		if first+batch >= to {
			stop() // requests in flight still get responses
		}
		return request(first, min(first+batch, max(to, first+1)))
	}}
	defer t.Close()
	report := command.Must(load.Run(flooding, load.Plan{Duration: load.MaxDuration, Workers: connections, Keys: 1}, t, nil))
	command.Check(r.Err())
	for status, n := range report.Statuses {
		if status >= 400 && status != 429 && status != 503 {
			r.Fatal(n, " requests were answered with ", status)
		}
	}
	if len(report.Faults) > 0 {
		r.Fatal(report.Errors, " requests failed: ", report.Faults[0].Text)
	}
}

// request returns the request that checks the keys from first up to last. For a single key it uses /v1/check, and for
// more a batch.
func request(first, last int) []byte {
	checks := make([]string, 0, last-first)
	for k := first; k < last; k++ {
		checks = append(checks, fmt.Sprintf(`{"key": "sk_%d", "path": "/", "ip": "10.%d.%d.%d"}`, k, k>>16&7, k>>8&255, k&255))
	}
	if len(checks) == 1 {
		return rawhttp.Post("/v1/check", checks[0])
	}
	return rawhttp.Post("/v1/checks", `{"checks": [`+strings.Join(checks, ",")+`]}`)
}
