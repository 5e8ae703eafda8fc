// Command overload sends a node ten times the load at which it performs best, and prints how much of its goodput remains
// and whether limits hold. The node has its own core; run this command on another core, as make overload does.
//
// More connections make any Go server slower, because buffers and stacks outgrow the core's cache. So the same load is
// also sent to a handler that does nothing, the floor. A node passes if the share of its peak goodput that remains is at
// least nine tenths of the floor's share.
package main

import (
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/server/bench/internal/command"
	"github.com/weirhq/weir/server/bench/internal/node"
	"github.com/weirhq/weir/server/bench/internal/rawhttp"
	"github.com/weirhq/weir/server/bench/internal/report"
	"github.com/weirhq/weir/server/internal/load"
)

const (
	keys      = 1000
	limit     = 10   // requests for each key; every load has its own keys
	keeps     = 0.9  // as a share of what the floor keeps
	tolerance = 0.01 // of the number of requests that the limits admit
)

// rules fail open, so that checks without the store show up as allowed.
const rules = "rules:\n  - id: overload\n    algorithm: fixed_window\n    limit: 10/day\n"

// measurement holds the results of one load that is sent to both the node and the floor.
type measurement struct {
	name        string
	connections int
	rate        float64 // requests per second; 0 means a closed loop
	overload    bool
	node, floor *load.Report
}

var (
	core     = flag.String("core", "0", "core of the node, as taskset takes it")
	duration = flag.Duration("duration", 5*time.Second, "how long to make each load")
)

func main() {
	node.ServeFloor(func(l net.Listener) error { return http.Serve(l, http.HandlerFunc(allow)) })
	command.Main(run)
}

func run(r *command.Run) (ok bool) {
	redis := redistest.New(r, redistest.Options{})
	n := node.Start(r, node.Options{Rules: rules, Store: "redis://" + redis.Addr, Core: *core})
	floor := node.StartFloor(r, *core)

	var all []*measurement
	measure := func(m *measurement) *measurement {
		r.Logf("%s: %d connections", m.name, m.connections)
		all = append(all, m)
		plan := load.Plan{Duration: *duration, Workers: m.connections, Rate: m.rate, Keys: keys}
		m.node = makeLoad(r, plan, n.Addr, len(all))
		m.floor = makeLoad(r, plan, floor.Addr, len(all))
		return m
	}
	best := measure(&measurement{name: "peak", connections: 64})
	if second := measure(&measurement{name: "peak", connections: 500}); goodput(second.node) > goodput(best.node) {
		best = second
	}
	if goodput(best.node) == 0 {
		r.Fatal("the store decided no check: statuses ", best.node.Statuses)
	}
	for _, m := range []*measurement{
		{name: "ten times the connections", connections: 10 * best.connections, overload: true},
		{name: "8,000 connections", connections: 8000, overload: true},
		{name: "ten times the rate", connections: 5000, rate: 10 * goodput(best.node), overload: true},
	} {
		measure(m)
	}
	return print(r.Out, all)
}

// makeLoad sends checks with keys that no other load uses.
func makeLoad(r *command.Run, plan load.Plan, addr string, number int) *load.Report {
	var requests [keys][]byte
	for n := range requests {
		requests[n] = rawhttp.Post("/v1/check", fmt.Sprintf(`{"key":"load%d-key%d","path":"/"}`, number, n))
	}
	t := &rawhttp.Target{Addr: addr, Request: func(n uint32) []byte { return requests[n] }}
	defer t.Close()
	made := command.Must(load.Run(r, plan, t, nil))
	command.Check(r.Err())
	return made
}

// goodput returns how many checks per second the store decided, either itself or through leases.
func goodput(r *load.Report) float64 { return float64(r.Allowed+r.Refused-r.Degraded) / r.Seconds }

// allow is the floor's handler: it reads a check and allows it.
func allow(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, `{"allowed":true}`)
}

// print prints a table, and reports whether the node passes for every load.
func print(w io.Writer, all []*measurement) (ok bool) {
	peak, floorPeak := 0.0, 0.0
	for _, m := range all {
		if !m.overload {
			peak, floorPeak = max(peak, goodput(m.node)), max(floorPeak, goodput(m.floor))
		}
	}
	ok = true
	rows := [][]string{{"load", "loop", "connections", "goodput", "of peak", "floor", "of peak", "allowed", "degraded", "shed", "errors", "p50 ms", "p99 ms", ""}}
	for _, m := range all {
		r := m.node
		loop := "closed"
		if m.rate > 0 {
			loop = fmt.Sprintf("open, %.0f/s", m.rate)
		}
		off := float64(r.Allowed)/(keys*limit) - 1
		everyKeySpent := r.Allowed+r.Refused >= 4*keys*limit
		kept, floorKept := goodput(r)/peak, goodput(m.floor)/floorPeak
		verdict := "PASS"
		if m.overload && kept < keeps*min(1, floorKept) || off > tolerance || off < -tolerance && everyKeySpent {
			verdict, ok = "FAIL", false
		}
		rows = append(rows, []string{m.name, loop, fmt.Sprint(m.connections),
			report.Number(goodput(r), 0) + "/s", report.Percent(kept, 0), report.Number(goodput(m.floor), 0) + "/s", report.Percent(floorKept, 0),
			fmt.Sprintf("%d of %d", r.Allowed, keys*limit), fmt.Sprint(r.Degraded), fmt.Sprint(r.Other), fmt.Sprint(r.Errors),
			report.Milliseconds(r.Latency.P50, 1), report.Milliseconds(r.Latency.P99, 1), verdict})
	}
	report.Align(w, rows)
	fmt.Fprint(w, `
goodput: checks that the store decided, or that were decided from what it had said. A node passes if it keeps nine tenths
of what the floor, a handler that does nothing, keeps of its own peak under the same load. allowed: must be what the limits
admit, to 1%. shed: answered with 503. Latency counts from when a check was due or, in a closed loop, sent.
`)
	return ok
}
