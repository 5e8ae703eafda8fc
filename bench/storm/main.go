// Command storm sends a gateway ten times as many requests as it admits, from clients that don't back off. It prints how
// much that slows down well-behaved clients, and how much CPU time admitted, refused and dropped requests cost the
// gateway. The gateway has its own core; run this command on another core, as make bench-storm does.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"time"

	"github.com/weirhq/weir/server/bench/internal/command"
	"github.com/weirhq/weir/server/bench/internal/compare"
	"github.com/weirhq/weir/server/bench/internal/node"
	"github.com/weirhq/weir/server/bench/internal/rawhttp"
	"github.com/weirhq/weir/server/bench/internal/report"
	"github.com/weirhq/weir/server/internal/load"
)

// The rule "drops" closes the connections of an address after a hundred refusals in a row.
const rules = `rules:
  - {id: refuses, by: [ip], match: {endpoint: /refused}, limit: 1/hour}
  - {id: drops, by: [ip], match: {endpoint: /dropped}, limit: 1/hour, abuse: {drop_after: 100}}
  - {id: api, by: [api_key], match: {endpoint: /api}, limit: 1000000/second}
`

const (
	calmRate  = 300  // requests per second
	stormRate = 3000 // requests per second
)

// clients send requests at a steady rate from one address.
type clients struct {
	path, from string
	rate       float64
	status     int // the expected status of responses; 0 means that the connection is closed without one
}

var (
	wellBehaved = clients{"/api", "127.0.0.1", calmRate, http.StatusOK}
	admitted    = clients{"/api", "127.0.0.1", stormRate, http.StatusOK}
	refused     = clients{"/refused", "127.0.0.2", stormRate, http.StatusTooManyRequests}
	dropped     = clients{"/dropped", "127.0.0.3", stormRate, 0}
)

// scenario is a set of clients that send requests at the same time.
type scenario struct {
	name    string
	clients []clients
	floor   bool // use a server that closes every connection at once, instead of a gateway
}

const (
	alone     = "alone, 300/s"
	admission = "admitted and proxied"
	refusal   = "refused, 429"
	drop      = "an attempt of an address that is dropped, with its connection"
)

// The scenarios in besides measure the latency of well-behaved clients while other clients also send requests. The
// scenarios in costs measure the server's CPU time per request with only one kind of client.
var (
	besides = []scenario{
		{name: alone, clients: []clients{wellBehaved}},
		{name: "with 3,000/s that are refused", clients: []clients{wellBehaved, refused}},
		{name: "with 3,000/s that are dropped", clients: []clients{wellBehaved, dropped}},
	}
	costs = []scenario{
		{name: admission, clients: []clients{admitted}},
		{name: refusal, clients: []clients{refused}},
		{name: drop, clients: []clients{dropped}},
		{name: "the same at a Go program that closes every connection and does nothing else", clients: []clients{dropped}, floor: true},
	}
)

var (
	core     = flag.String("core", "0", "core of the gateway, as taskset takes it")
	duration = flag.Duration("duration", 5*time.Second, "how long to make each load")
	rounds   = flag.Int("rounds", 3, "how often to make each load")
)

func main() {
	node.ServeFloor(closeAll)
	command.Main(run)
}

func run(r *command.Run) (ok bool) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "served") }))
	defer upstream.Close()
	gateway := node.Start(r, node.Options{Rules: rules, Core: *core, Listen: "--gateway",
		Flags: []string{"--upstream", upstream.URL, "--admin", "127.0.0.1:0", "--log-level", "error"}})
	floor := node.StartFloor(r, *core)

	latency, cpu := &compare.Table{Workload: "well-behaved clients"}, &compare.Table{Workload: "the gateway's CPU for each request"}
	for range *rounds {
		for n, t := range []*compare.Table{latency, cpu} {
			for i, s := range [][]scenario{besides, costs}[n] {
				r.Logf("%s", s.name)
				server := gateway
				if s.floor {
					server = floor
				}
				if len(t.Rows) == i {
					t.Rows = append(t.Rows, &compare.Row{Name: s.name})
				}
				t.Add(i, s.measure(r, server))
			}
		}
	}
	latency.Print(r.Out, "", compare.Median("p50 ms", compare.P50, 3), compare.Median("p99 ms", compare.P99, 3),
		compare.Ratio("p99 × alone", latency.Row(alone), compare.P99))
	base := cpu.Row(admission)
	cpu.Print(r.Out, "", compare.Median("µs", compare.ServerCPU, 1), compare.Ratio("× admitted", base, compare.ServerCPU))
	var targets []report.Target
	for _, s := range besides[1:] {
		targets = append(targets, report.Target{Name: "p99 " + s.name + " / " + alone, Bound: 2, Got: latency.Row(s.name).Ratio(latency.Row(alone), compare.P99).Median})
	}
	targets = append(targets,
		report.Target{Name: "CPU of a refusal / an admission", Bound: 0.5, Got: cpu.Row(refusal).Ratio(base, compare.ServerCPU).Median},
		report.Target{Name: "CPU of a dropped connection / an admission", Bound: 0.25, Got: cpu.Row(drop).Ratio(base, compare.ServerCPU).Median})
	report.PrintTargets(r.Out, targets)
	fmt.Fprintln(r.Out, "\nOpen loop, without TLS; latency counts from when a request was due.")
	return true
}

// closeAll closes every connection in the same way as the gateway closes those that it drops. No server can drop
// connections for less CPU time.
func closeAll(l net.Listener) error {
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		_ = c.(*net.TCPConn).SetLinger(0)
		_ = c.Close()
	}
}

// measure sends the load of all clients at the same time, and returns the results of the first clients.
func (s *scenario) measure(r *command.Run, server *node.Process) compare.Sample {
	var group sync.WaitGroup
	samples, errs := make([]compare.Sample, len(s.clients)), make([]error, len(s.clients))
	for i, c := range s.clients {
		plan := load.Plan{Duration: *duration, Warmup: time.Second, Workers: 64, Rate: c.rate, Keys: 1, StoreCPU: server.CPU}
		group.Go(func() {
			t := c.target(server.Addr)
			defer t.Close()
			samples[i], errs[i] = compare.Measure(r, plan, t)
		})
	}
	group.Wait()
	command.Check(errors.Join(errs...))
	for _, s := range samples[1:] {
		samples[0].Errors += s.Unexpected()
	}
	return samples[0]
}

// target returns a target for the clients' requests. A response with the expected status counts as allowed.
func (c clients) target(addr string) *rawhttp.Target {
	request := fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-Key: well-behaved\r\nContent-Length: 0\r\n\r\n", c.path)
	return &rawhttp.Target{
		Addr: addr, From: net.ParseIP(c.from), Fresh: c.status == 0,
		Request: func(uint32) []byte { return request },
		Outcome: func(_ uint32, a rawhttp.Answer, err error) load.Answer {
			switch {
			case a.Status == c.status:
				return load.Answer{Outcome: load.Allowed}
			case err != nil:
				return load.Answer{Outcome: load.Failed, Err: err}
			}
			return load.Answer{Outcome: load.Other, Status: uint16(a.Status)}
		},
	}
}
