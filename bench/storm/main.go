// Storm sends a gateway ten times what it admits, from clients that don't wait, and prints what that does to those that
// do; and what an admitted, a refused and a dropped request cost the gateway's processor. The gateway has a core of its
// own: run this on another one, as make bench-storm does.
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
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"
)

// rules: clients at 127.0.0.1 are good, and those at other addresses bad. The second rule drops what it has refused a hundred
// times in a row.
const rules = `rules:
  - {id: refuses, by: [ip], match: {endpoint: /refused}, limit: 1/hour}
  - {id: drops, by: [ip], match: {endpoint: /dropped}, limit: 1/hour, abuse: {drop_after: 100}}
  - {id: api, by: [api_key], match: {endpoint: /api}, limit: 1000000/second}
`

const (
	good = 300  // requests a second
	bad  = 3000 // likewise
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	weir := flag.String("weir", "bin/weir", "the binary to run")
	core := flag.String("core", "0", "core of the gateway, as taskset takes it")
	duration := flag.Duration("duration", 5*time.Second, "how long each load is made")
	rounds := flag.Int("rounds", 3, "how often all are made; the middle one of each counts")
	floor := flag.String("floor", "", "be, at this address, a server that closes every connection at once: the least that dropping can cost")
	flag.Parse()
	if *floor != "" {
		fmt.Fprintln(os.Stderr, "storm:", closeAll(*floor))
		os.Exit(2)
	}
	if err := run(ctx, *weir, *core, *duration, *rounds, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "storm:", err)
		os.Exit(2)
	}
}

// figures are those of one load.
type figures struct {
	p50, p99 time.Duration // of the good ones
	cpu      float64       // µs of the gateway for each request of what was measured
	odd      int           // answers that weren't expected
}

func run(ctx context.Context, weir, core string, duration time.Duration, rounds int, stdout io.Writer) error {
	upstream, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	served := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "served") }), ReadHeaderTimeout: time.Minute}
	go func() { _ = served.Serve(upstream) }()
	defer served.Close()
	g, err := start(ctx, weir, core, upstream.Addr().String())
	if err != nil {
		return err
	}
	defer g.stop()
	bare, err := startFloor(ctx, core)
	if err != nil {
		return err
	}
	defer bare.stop()
	calm, storm, dropped := map[string][]figures{}, []figures{}, []figures{}
	for range rounds {
		for _, s := range []struct {
			name string
			load []*source
		}{
			{"floor", []*source{{path: "/dropped", from: "127.0.0.3", rate: bad, want: 0, fresh: true}}},
			{"alone", []*source{{path: "/api", from: "127.0.0.1", rate: good, want: 200}}},
			{"admitted", []*source{{path: "/api", from: "127.0.0.1", rate: bad, want: 200}}},
			{"refused", []*source{{path: "/refused", from: "127.0.0.2", rate: bad, want: 429}}},
			{"dropped", []*source{{path: "/dropped", from: "127.0.0.3", rate: bad, want: 0, fresh: true}}},
			{"storm", []*source{{path: "/api", from: "127.0.0.1", rate: good, want: 200}, {path: "/refused", from: "127.0.0.2", rate: bad, want: 429}}},
			{"storm, dropped", []*source{{path: "/api", from: "127.0.0.1", rate: good, want: 200}, {path: "/dropped", from: "127.0.0.3", rate: bad, want: 0, fresh: true}}},
		} {
			fmt.Fprintln(os.Stderr, s.name)
			of := g
			if s.name == "floor" {
				of = bare
			}
			f, err := of.measure(ctx, s.load, duration)
			if err != nil {
				return err
			}
			switch s.name {
			case "storm":
				storm = append(storm, f)
			case "storm, dropped":
				dropped = append(dropped, f)
			default:
				calm[s.name] = append(calm[s.name], f)
			}
		}
	}
	print(stdout, calm, storm, dropped)
	return nil
}

func print(stdout io.Writer, calm map[string][]figures, storm, dropped []figures) {
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "well-behaved clients\tp50\tp99\tof calm\tasked\todd answers\t")
	base := middle(calm["alone"])
	for _, row := range []struct {
		name string
		f    figures
	}{{"alone, " + strconv.Itoa(good) + "/s", base}, {"with " + strconv.Itoa(bad) + "/s that are refused", middle(storm)}, {"with " + strconv.Itoa(bad) + "/s that are dropped", middle(dropped)}} {
		fmt.Fprintf(table, "%s\t%s\t%s\t%.2f\t< 2\t%d\t\n", row.name, row.f.p50.Round(time.Microsecond), row.f.p99.Round(time.Microsecond), float64(row.f.p99)/float64(base.p99), row.f.odd)
	}
	_ = table.Flush() // stdout is what it is
	fmt.Fprintln(stdout)
	fmt.Fprintln(table, "the gateway's CPU for each request\tµs\tof admitted\tasked\todd answers\t")
	admitted := middle(calm["admitted"])
	for _, row := range []struct{ name, text, asked string }{
		{"admitted", "admitted and proxied", ""}, {"refused", "refused, 429", "≤ 0.5"}, {"dropped", "an attempt of an address that is dropped, with its connection", "≤ 0.25"},
		{"floor", "the same at a Go program that closes every connection and does nothing else", ""},
	} {
		f := middle(calm[row.name])
		fmt.Fprintf(table, "%s\t%.1f\t%.2f\t%s\t%d\t\n", row.text, f.cpu, f.cpu/admitted.cpu, row.asked, f.odd)
	}
	_ = table.Flush() // likewise
	fmt.Fprintf(stdout, "\nOpen loop, without TLS; latency from when a request was due. The middle of %d rounds.\n", len(storm))
}

// middle takes the median of each figure.
func middle(all []figures) (f figures) {
	at := func(of func(figures) float64) float64 {
		var list []float64
		for _, f := range all {
			list = append(list, of(f))
		}
		slices.Sort(list)
		return list[len(list)/2]
	}
	f.p50 = time.Duration(at(func(f figures) float64 { return float64(f.p50) }))
	f.p99 = time.Duration(at(func(f figures) float64 { return float64(f.p99) }))
	f.cpu = at(func(f figures) float64 { return f.cpu })
	for _, one := range all {
		f.odd += one.odd
	}
	return f
}

// gateway is a weir that serves.
type gateway struct {
	addr string
	cmd  *exec.Cmd
	dir  string
}

func start(ctx context.Context, weir, core, upstream string) (*gateway, error) {
	dir, err := os.MkdirTemp("", "storm")
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "rules.yaml")
	if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
		return nil, err
	}
	return launch(ctx, dir, core, func(addr string) []string {
		return []string{weir, "serve", "--rules", file, "--gateway", addr, "--upstream", "http://" + upstream,
			"--http", "", "--grpc", "", "--admin", "127.0.0.1:0", "--log-level", "error"}
	})
}

// startFloor starts this program again, to close connections.
func startFloor(ctx context.Context, core string) (*gateway, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "storm")
	if err != nil {
		return nil, err
	}
	return launch(ctx, dir, core, func(addr string) []string { return []string{self, "-floor", addr} })
}

// closeAll closes every connection, as the gateway does those of an address that it drops.
func closeAll(addr string) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		_ = c.(*net.TCPConn).SetLinger(0)
		_ = c.Close()
	}
}

// launch starts a server on the given core, and waits until it listens.
func launch(ctx context.Context, dir, core string, args func(addr string) []string) (*gateway, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	g := &gateway{addr: l.Addr().String(), dir: dir}
	l.Close()
	g.cmd = exec.CommandContext(ctx, "taskset", append([]string{"-c", core}, args(g.addr)...)...)
	g.cmd.Stderr = os.Stderr
	g.cmd.Cancel = func() error { return g.cmd.Process.Signal(syscall.SIGTERM) }
	if err := g.cmd.Start(); err != nil {
		return nil, err
	}
	for {
		c, err := net.Dial("tcp", g.addr)
		if err == nil {
			return g, c.Close()
		}
		select {
		case <-ctx.Done():
			g.stop()
			return nil, errors.Join(err, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (g *gateway) stop() {
	_ = g.cmd.Process.Signal(syscall.SIGTERM)
	_ = g.cmd.Wait() // it was told to end
	os.RemoveAll(g.dir)
}

// used is the processor time of the gateway so far.
func (g *gateway) used() (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", g.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	user, err1 := strconv.Atoi(fields[11])
	system, err2 := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond, errors.Join(err1, err2)
}

// measure makes a load. The first source's latencies count, and the processor time is shared by the last one's requests.
func (g *gateway) measure(ctx context.Context, load []*source, duration time.Duration) (f figures, err error) {
	warm, cancel := context.WithTimeout(ctx, time.Second)
	for _, s := range load {
		s.prepare(g.addr)
	}
	all(load, func(s *source) { s.send(warm) })
	cancel()
	for _, s := range load {
		s.times, s.odd, s.sent = nil, 0, 0
	}
	before, err := g.used()
	if err != nil {
		return f, err
	}
	timed, cancel := context.WithTimeout(ctx, duration)
	defer cancel()
	all(load, func(s *source) { s.send(timed) })
	after, err := g.used()
	if err = errors.Join(err, ctx.Err()); err != nil {
		return f, err
	}
	first, last := load[0], load[len(load)-1]
	slices.Sort(first.times)
	f.p50, f.p99 = first.times[len(first.times)/2], first.times[len(first.times)*99/100]
	f.cpu = float64((after - before).Microseconds()) / float64(max(1, last.sent))
	for _, s := range load {
		f.odd += s.odd
		s.client.CloseIdleConnections()
	}
	return f, nil
}

func all(load []*source, do func(*source)) {
	var wg sync.WaitGroup
	for _, s := range load {
		wg.Go(func() { do(s) })
	}
	wg.Wait()
}

// source is clients at one address.
type source struct {
	path, from string
	rate       int
	want       int  // status; 0 means that the connection is closed
	fresh      bool // each request has a connection of its own
	client     *http.Client
	url        string

	mu    sync.Mutex
	times []time.Duration
	odd   int
	sent  int
}

func (s *source) prepare(addr string) {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(s.from)}, Timeout: 10 * time.Second}
	s.client = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DialContext: dialer.DialContext, MaxIdleConnsPerHost: 1000, DisableKeepAlives: s.fresh}}
	s.url = "http://" + addr + s.path
}

// send makes requests at the source's rate, whether or not those before have been answered.
func (s *source) send(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	begun := time.Now()
	for i := 0; ; i++ {
		due := begun.Add(time.Duration(i) * time.Second / time.Duration(s.rate))
		if wait := time.Until(due); wait > 0 {
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
		}
		if ctx.Err() != nil {
			return
		}
		wg.Go(func() { s.ask(due) })
	}
}

func (s *source) ask(due time.Time) {
	status := 0
	req, err := http.NewRequest(http.MethodPost, s.url, http.NoBody) // which is never repeated
	if err == nil {
		req.Header.Set("X-API-Key", "well-behaved")
		var res *http.Response
		if res, err = s.client.Do(req); err == nil {
			_, _ = io.Copy(io.Discard, res.Body) // its status says it all
			res.Body.Close()
			status = res.StatusCode
		}
	}
	took := time.Since(due)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent++
	s.times = append(s.times, took)
	if status != s.want {
		s.odd++
	}
}
