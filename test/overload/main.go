// Overload gives a node ten times the load at which it does best, and prints what is left of its goodput and of its
// limits. The node has a core of its own: run this on another one, as make overload does.
package main

import (
	"context"
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

	"github.com/weirhq/weir/internal/load"
	"github.com/weirhq/weir/internal/redistest"
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
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	weir := flag.String("weir", "bin/weir", "the binary to run")
	core := flag.String("core", "0", "core of the node, as taskset takes it")
	duration := flag.Duration("duration", 5*time.Second, "how long each load is made")
	flag.Parse()
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

	stages := []*stage{{name: "peak", connections: 64}, {name: "peak", connections: 500}}
	best, peak := stages[0], 0.0
	for _, s := range stages {
		if err := s.run(ctx, n.addr, duration); err != nil {
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
		if err := s.run(ctx, n.addr, duration); err != nil {
			return false, err
		}
	}
	return judge(stdout, append(stages, overloads...), peak), nil
}

func judge(stdout io.Writer, stages []*stage, peak float64) (ok bool) {
	ok = true
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "load\tloop\tconnections\tgoodput\tof peak\tallowed\tdegraded\tshed\terrors\tp50\tp99\t")
	for _, s := range stages {
		r := s.report
		loop := "closed"
		if s.rate > 0 {
			loop = fmt.Sprintf("open, %.0f/s", s.rate)
		}
		verdict := "PASS"
		off := float64(r.Allowed)/(keys*limit) - 1
		enough := r.Allowed+r.Refused >= 4*keys*limit // for every key to be used up
		if s.over && s.goodput() < promised*peak || off > exact || off < -exact && enough {
			verdict, ok = "FAIL", false
		}
		fmt.Fprintf(table, "%s\t%s\t%d\t%.0f/s\t%.0f%%\t%d of %d\t%d\t%d\t%d\t%s\t%s\t%s\n", s.name, loop, s.connections, s.goodput(), 100*s.goodput()/peak,
			r.Allowed, keys*limit, r.Degraded, r.Other, r.Errors, r.Latency.P50.Round(time.Millisecond/10), r.Latency.P99.Round(time.Millisecond/10), verdict)
	}
	_ = table.Flush() // stdout is what it is
	fmt.Fprint(stdout, `
goodput: checks decided by the store, or from what it said. allowed: of what the limits admit, to 1%. shed: 503.
Latency is from when a check was due or, in a closed loop, sent.
`)
	return ok
}

// run makes the load.
func (s *stage) run(ctx context.Context, addr string, duration time.Duration) error {
	fmt.Fprintf(os.Stderr, "%s: %d connections\n", s.name, s.connections)
	t := newTarget(addr)
	defer t.close()
	var err error
	s.report, err = load.Run(ctx, load.Plan{Duration: duration, Workers: s.connections, Rate: s.rate, Keys: keys}, t, nil)
	if err == nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	return err
}

// goodput is how many checks a second were decided, and not by a failure mode.
func (s *stage) goodput() float64 {
	return float64(s.report.Allowed+s.report.Refused-s.report.Degraded) / s.report.Seconds
}

// node is a weir that serves.
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
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	n := &node{addr: lis.Addr().String(), dir: dir}
	lis.Close()
	n.cmd = exec.CommandContext(ctx, "taskset", "-c", core, weir, "serve", "--store", "redis://"+redis,
		"--rules", file, "--http", n.addr, "--admin", "", "--log-format", "json", "--log-level", "warn")
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
	_ = os.RemoveAll(n.dir)
}
