// Overload gives a node ten times the load at which it does best, and prints what is left of its goodput and of its
// limits. The node has a core of its own: run this on another one, as make overload does.
//
// More connections cost a Go server something, whatever it does: their buffers and stacks don't fit the core's cache. So
// the same loads are made on a handler that does nothing, and a node is measured by what that keeps of its own peak.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/server/internal/load"
)

const (
	keys     = 1000
	limit    = 10 // of each key; a stage has keys of its own
	promised = 0.9
	exact    = 0.01
)

// rules fail open, so that whatever the store doesn't decide shows among what is allowed.
const rules = "rules:\n  - id: overload\n    algorithm: fixed_window\n    limit: 10/day\n"

// stage is one kind of load.
type stage struct {
	name        string
	connections int
	rate        float64 // 0: closed loop
	over        bool    // it is ten times too much
	report      *load.Report
	floor       *load.Report // of a handler that does nothing
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	weir := flag.String("weir", "bin/weir", "the binary to run")
	core := flag.String("core", "0", "core of the node, as taskset takes it")
	duration := flag.Duration("duration", 5*time.Second, "how long each load is made")
	bare := flag.String("bare", "", "serve a handler that does nothing at this address, and nothing else")
	flag.Parse()
	if *bare != "" {
		stop() // a signal ends it
		fmt.Fprintln(os.Stderr, "overload:", http.ListenAndServe(*bare, http.HandlerFunc(doNothing)))
		os.Exit(2)
	}
	ok, err := run(ctx, *weir, *core, *duration, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "overload:", err)
		os.Exit(2)
	}
	if !ok {
		os.Exit(1)
	}
}

func run(ctx context.Context, weir, core string, duration time.Duration, stdout io.Writer) (ok bool, err error) {
	redis, err := redistest.Start(redistest.Options{})
	if err != nil {
		return false, err
	}
	defer redis.Close()
	n, err := startNode(ctx, weir, core, redis.Addr)
	if err != nil {
		return false, err
	}
	defer n.stop()
	floor, err := startBare(ctx, core)
	if err != nil {
		return false, err
	}
	defer floor.stop()

	stages := []*stage{{name: "peak", connections: 64}, {name: "peak", connections: 500}}
	best, peak := stages[0], 0.0
	for _, s := range stages {
		if err := s.run(ctx, n.addr, floor.addr, duration); err != nil {
			return false, err
		}
		if g := s.goodput(); g > peak {
			best, peak = s, g
		}
	}
	overloads := []*stage{
		{name: "ten times the connections", connections: 10 * best.connections, over: true},
		{name: "8,000 connections", connections: 8000, over: true},
		{name: "ten times the rate", connections: 5000, rate: 10 * peak, over: true},
	}
	for _, s := range overloads {
		if err := s.run(ctx, n.addr, floor.addr, duration); err != nil {
			return false, err
		}
	}
	return judge(stdout, append(stages, overloads...), peak), nil
}

func judge(stdout io.Writer, stages []*stage, peak float64) (ok bool) {
	ok = true
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "load\tloop\tconnections\tgoodput\tof peak\tfloor\tof peak\tallowed\tdegraded\tshed\terrors\tp50\tp99\t")
	floorPeak := 0.0
	for _, s := range stages {
		if !s.over {
			floorPeak = max(floorPeak, s.floorGoodput())
		}
	}
	for _, s := range stages {
		r := s.report
		loop := "closed"
		if s.rate > 0 {
			loop = fmt.Sprintf("open, %.0f/s", s.rate)
		}
		verdict := "PASS"
		off := float64(r.Allowed)/(keys*limit) - 1
		enough := r.Allowed+r.Refused >= 4*keys*limit // for every key to be used up
		kept, floorKept := s.goodput()/peak, s.floorGoodput()/floorPeak
		if s.over && kept < promised*min(1, floorKept) || off > exact || off < -exact && enough {
			verdict, ok = "FAIL", false
		}
		fmt.Fprintf(table, "%s\t%s\t%d\t%.0f/s\t%.0f%%\t%.0f/s\t%.0f%%\t%d of %d\t%d\t%d\t%d\t%s\t%s\t%s\n", s.name, loop, s.connections,
			s.goodput(), 100*kept, s.floorGoodput(), 100*floorKept, r.Allowed, keys*limit, r.Degraded, r.Other, r.Errors, r.Latency.P50.Round(time.Millisecond/10), r.Latency.P99.Round(time.Millisecond/10), verdict)
	}
	_ = table.Flush() // stdout is what it is
	fmt.Fprint(stdout, `
goodput: checks decided by the store, or from what it said. It passes at nine tenths of what the floor, a handler that
does nothing, keeps of its own peak under the same load. allowed: of what the limits admit, to 1%. shed: 503.
Latency is from when a check was due or, in a closed loop, sent.
`)
	return ok
}

// run makes the load.
func (s *stage) run(ctx context.Context, addr, floor string, duration time.Duration) error {
	fmt.Fprintf(os.Stderr, "%s: %d connections\n", s.name, s.connections)
	for _, on := range []struct {
		addr   string
		report **load.Report
	}{{addr, &s.report}, {floor, &s.floor}} {
		t := newTarget(on.addr)
		var err error
		*on.report, err = load.Run(ctx, load.Plan{Duration: duration, Workers: s.connections, Rate: s.rate, Keys: keys}, t, nil)
		t.close()
		if err = errors.Join(err, ctx.Err()); err != nil {
			return err
		}
	}
	return nil
}

// goodput is how many checks a second were decided, and not by a failure mode.
func (s *stage) goodput() float64 {
	return float64(s.report.Allowed+s.report.Refused-s.report.Degraded) / s.report.Seconds
}

// floorGoodput is how many requests a second a handler that does nothing answered.
func (s *stage) floorGoodput() float64 { return float64(s.floor.Allowed) / s.floor.Seconds }

// doNothing reads a check, and allows it.
func doNothing(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, `{"allowed":true}`)
}

// startBare serves doNothing, on the node's core.
func startBare(ctx context.Context, core string) (*node, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return start(ctx, "", func(addr string) []string { return []string{"-c", core, self, "-bare", addr} })
}

// node is a weir that serves, or the floor.
type node struct {
	addr string
	cmd  *exec.Cmd
	dir  string
}

func startNode(ctx context.Context, weir, core, redis string) (*node, error) {
	dir, err := os.MkdirTemp("", "overload")
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "rules.yaml")
	if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
		return nil, err
	}
	return start(ctx, dir, func(addr string) []string {
		return []string{"-c", core, weir, "serve", "--store", "redis://" + redis,
			"--rules", file, "--http", addr, "--grpc", "", "--admin", "", "--log-format", "json", "--log-level", "warn"}
	})
}

// start runs a server under taskset, and waits until it answers.
func start(ctx context.Context, dir string, args func(addr string) []string) (*node, error) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	n := &node{addr: lis.Addr().String(), dir: dir}
	lis.Close()
	n.cmd = exec.CommandContext(ctx, "taskset", args(n.addr)...)
	n.cmd.Stderr = os.Stderr
	if err := n.cmd.Start(); err != nil {
		return nil, err
	}
	ready, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	err = redistest.Until(ready, func(ctx context.Context) error {
		res, err := http.Get("http://" + n.addr + "/readyz")
		if err == nil {
			res.Body.Close()
		}
		return err
	})
	if err != nil {
		n.stop()
	}
	return n, err
}

func (n *node) stop() {
	_ = n.cmd.Process.Signal(syscall.SIGTERM)
	_ = n.cmd.Wait() // it may have ended by itself
	if n.dir != "" {
		_ = os.RemoveAll(n.dir)
	}
}
