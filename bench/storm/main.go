// Command storm sends a gateway ten times the requests that it admits, from clients that don't back off, and prints how
// much slower that makes well-behaved clients, and what an admitted, a refused and a dropped request cost the gateway's
// processor. The gateway has a core of its own; run this command on another core, as make bench-storm does.
package main

import (
	"context"
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
	"github.com/weirhq/weir/server/bench/internal/node"
	"github.com/weirhq/weir/server/bench/internal/rawhttp"
	"github.com/weirhq/weir/server/bench/internal/report"
	"github.com/weirhq/weir/server/internal/load"
)

// The rule "drops" drops the connections of an address once it was refused a hundred times in a row.
const rules = `rules:
  - {id: refuses, by: [ip], match: {endpoint: /refused}, limit: 1/hour}
  - {id: drops, by: [ip], match: {endpoint: /dropped}, limit: 1/hour, abuse: {drop_after: 100}}
  - {id: api, by: [api_key], match: {endpoint: /api}, limit: 1000000/second}
`

const (
	calmRate  = 300  // requests a second
	stormRate = 3000 // likewise
)

// clients send requests at a steady rate from one address.
type clients struct {
	path, from string
	rate       float64
	status     int // of every answer; 0 means that the connection is closed
}

var (
	wellBehaved = clients{"/api", "127.0.0.1", calmRate, http.StatusOK}
	admitted    = clients{"/api", "127.0.0.1", stormRate, http.StatusOK}
	refused     = clients{"/refused", "127.0.0.2", stormRate, http.StatusTooManyRequests}
	dropped     = clients{"/dropped", "127.0.0.3", stormRate, 0}
)

// scenario is who sends requests at the same time, and what came of it in each round.
type scenario struct {
	name    string
	clients []clients
	floor   bool // the server is one that closes every connection at once
	// The p50 and p99 are latencies of the first clients, in ms. The CPU is the server's for each request of the last ones, in µs: as
	// many as seconds per million.
	p50, p99, cpu []float64
	unexpected    int64 // answers
}

func main() {
	node.ServeFloor(closeAll)
	command.Main("storm", run)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (ok bool, err error) {
	f := flag.NewFlagSet("storm", flag.ContinueOnError)
	weir := f.String("weir", "bin/weir", "the weir binary to run")
	core := f.String("core", "0", "core of the gateway, as taskset takes it")
	duration := f.Duration("duration", 5*time.Second, "how long to make each load")
	rounds := f.Int("rounds", 3, "how often to make each load; medians are printed")
	if err := f.Parse(args); err != nil {
		return false, err
	}
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "served") }))
	defer upstream.Close()
	gateway, err := node.Start(ctx, node.Options{Binary: *weir, Rules: rules, Core: *core, Listen: "--gateway",
		Flags: []string{"--upstream", upstream.URL, "--admin", "127.0.0.1:0", "--log-level", "error"}})
	if err != nil {
		return false, err
	}
	defer gateway.Stop()
	floor, err := node.StartFloor(ctx, *core)
	if err != nil {
		return false, err
	}
	defer floor.Stop()

	dropFloor := &scenario{name: "the same at a Go program that closes every connection and does nothing else", clients: []clients{dropped}, floor: true}
	alone := &scenario{name: "alone, 300/s", clients: []clients{wellBehaved}}
	admission := &scenario{name: "admitted and proxied", clients: []clients{admitted}}
	refusal := &scenario{name: "refused, 429", clients: []clients{refused}}
	drop := &scenario{name: "an attempt of an address that is dropped, with its connection", clients: []clients{dropped}}
	besideRefused := &scenario{name: "with 3,000/s that are refused", clients: []clients{wellBehaved, refused}}
	besideDropped := &scenario{name: "with 3,000/s that are dropped", clients: []clients{wellBehaved, dropped}}
	for range *rounds {
		for _, s := range []*scenario{dropFloor, alone, admission, refusal, drop, besideRefused, besideDropped} {
			fmt.Fprintln(stderr, s.name)
			server := gateway
			if s.floor {
				server = floor
			}
			if err := s.measure(ctx, server, *duration); err != nil {
				return false, err
			}
		}
	}

	rows := [][]string{{"well-behaved clients", "p50 ms", "p99 ms", "p99 × alone", "target", "unexpected answers"}}
	for _, s := range []*scenario{alone, besideRefused, besideDropped} {
		p99 := report.SpreadOf(s.p99).Median
		rows = append(rows, []string{s.name, report.Number(report.SpreadOf(s.p50).Median, 3), report.Number(p99, 3),
			report.Number(p99/report.SpreadOf(alone.p99).Median, 2), "< 2", fmt.Sprint(s.unexpected)})
	}
	report.Align(stdout, rows)
	fmt.Fprintln(stdout)
	rows = [][]string{{"the gateway's CPU for each request", "µs", "× admitted", "target", "unexpected answers"}}
	targets := map[*scenario]string{refusal: "≤ 0.5", drop: "≤ 0.25"}
	for _, s := range []*scenario{admission, refusal, drop, dropFloor} {
		cpu := report.SpreadOf(s.cpu).Median
		rows = append(rows, []string{s.name, report.Number(cpu, 1), report.Number(cpu/report.SpreadOf(admission.cpu).Median, 2),
			targets[s], fmt.Sprint(s.unexpected)})
	}
	report.Align(stdout, rows)
	fmt.Fprintf(stdout, "\nOpen loop, without TLS; latency counts from when a request was due. Medians of %d rounds.\n", *rounds)
	return true, nil
}

// closeAll closes every connection as the gateway does with those of an address that it drops. That is the least that
// dropping can cost.
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

// measure makes the load of all clients at the same time, for one round.
func (s *scenario) measure(ctx context.Context, server *node.Process, duration time.Duration) error {
	var group sync.WaitGroup
	reports, errs := make([]*load.Report, len(s.clients)), make([]error, len(s.clients))
	for i, c := range s.clients {
		plan := load.Plan{Duration: duration, Warmup: time.Second, Workers: 64, Rate: c.rate, Keys: 1}
		if i == len(s.clients)-1 {
			plan.StoreCPU = server.CPU
		}
		group.Go(func() {
			t := c.target(server.Addr)
			defer t.Close()
			reports[i], errs[i] = load.Run(ctx, plan, t, nil)
		})
	}
	group.Wait()
	if err := errors.Join(append(errs, ctx.Err())...); err != nil {
		return err
	}
	first, last := reports[0], reports[len(reports)-1]
	s.p50 = append(s.p50, 1e3*first.Latency.P50.Seconds())
	s.p99 = append(s.p99, 1e3*first.Latency.P99.Seconds())
	s.cpu = append(s.cpu, last.StoreCPU.PerMillion)
	for _, r := range reports {
		s.unexpected += r.Other + r.Errors
	}
	return nil
}

// target sends the clients' requests. An answer counts as allowed if it is the one that is expected.
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
