// Command losses prints what leases lose where clients move between nodes. Four weir processes share a
// Redis, and 500 clients ask them: by a rule that is leased and, at the same moment and on the same
// node, by a strict one, as the control. Both are held against one exact limiter, which decides the same
// requests in this process. It fails if leases lose a thousandth or more.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/server/internal/cputime"
	"golang.org/x/sync/errgroup"
)

const (
	target = 0.001                 // may be lost
	tick   = 10 * time.Millisecond // requests that are due within one are sent together
)

// arm is one of the rules that decide each request.
type arm int

const (
	leased arm = iota
	strict
	arms
)

func (a arm) String() string { return [...]string{"leased", "strict"}[a] }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	weir := flag.String("weir", "bin/weir", "the binary to run")
	duration := flag.Duration("duration", 2*time.Minute, "how long each load is made")
	only := flag.Int("only", 0, "make only this load, from 1 to 5")
	seed := flag.Uint64("seed", 1, "of the requests")
	flag.Parse()
	if *only < 0 || *only > len(loads) || *duration < time.Second {
		fmt.Fprintf(os.Stderr, "losses: -only must be 1 to %d, and -duration at least 1s\n", len(loads))
		os.Exit(2)
	}
	var all []*measurement
	for i := range loads {
		if *only != 0 && *only != i+1 {
			continue
		}
		fmt.Fprintf(os.Stderr, "%s: %s\n", loads[i].name, *duration)
		m, err := measure(ctx, *weir, &loads[i], *duration, *seed)
		if err != nil {
			fmt.Fprintln(os.Stderr, "losses:", err)
			os.Exit(2)
		}
		all = append(all, m)
	}
	if !write(os.Stdout, all) {
		os.Exit(1)
	}
}

// measurement is what a load showed.
type measurement struct {
	load           *load
	exact          int64
	arms           [arms]outcome
	exactStretches stretches
	took           stretches
	clock          float64    // by which part Redis' clock differed from ours, at most
	cores          [3]float64 // that nodes, Redis and clients used
}

// outcome is what became of the requests by one rule.
type outcome struct {
	admitted int64
	timing   float64 // the parts of the error, of what the exact limiter admits
	sampling float64
	stretches
}

// stretches are how long something took: of a hundred the longest but one, and the longest.
type stretches struct{ p99, longest time.Duration }

func measure(ctx context.Context, weir string, l *load, duration time.Duration, seed uint64) (m *measurement, err error) {
	dir, err := os.MkdirTemp("", "losses")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if err := writeRules(dir, l); err != nil {
		return nil, err
	}
	redis, err := redistest.Start(redistest.Options{})
	if err != nil {
		return nil, err
	}
	defer redis.Close()
	nodes, err := startNodes(ctx, weir, dir, redis.Addr)
	defer func() {
		for _, n := range nodes {
			n.stop()
		}
	}()
	if err != nil {
		return nil, err
	}
	all := l.requests(duration, seed)
	before, err := readClock(ctx, redis)
	if err != nil {
		return nil, err
	}
	own := cputime.Used()
	begun := time.Now()
	if err := send(ctx, nodes, all, begun); err != nil {
		return nil, err
	}
	elapsed := time.Since(begun).Seconds()
	m = &measurement{load: l}
	m.cores[2] = (cputime.Used() - own).Seconds() / elapsed
	after, err := readClock(ctx, redis)
	if err != nil {
		return nil, err
	}
	m.clock = after.drift(before)
	cpu, err := redis.CPU(ctx)
	if err != nil {
		return nil, err
	}
	m.cores[1] = cpu.Seconds() / elapsed
	for _, n := range nodes {
		m.cores[0] += n.stop().Seconds() / elapsed
	}
	nodes = nil
	return m, m.judge(all)
}

// send sends requests when they are due, together with the others of that tick and node, and waits for the answers.
func send(ctx context.Context, nodes []*node, all []request, begun time.Time) error {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	defer client.CloseIdleConnections()
	group, ctx := errgroup.WithContext(ctx)
	for len(all) > 0 {
		due := all[0].at.Truncate(tick) + tick
		select {
		case <-time.After(time.Until(begun.Add(due))):
		case <-ctx.Done():
			return group.Wait()
		}
		sent := time.Since(begun)
		batches := make([][]*request, len(nodes))
		for len(all) > 0 && all[0].at < due {
			r := &all[0]
			r.at = sent
			batches[r.node] = append(batches[r.node], r)
			all = all[1:]
		}
		for i, batch := range batches {
			for a := range arms {
				if len(batch) > 0 {
					group.Go(func() error { return nodes[i].ask(ctx, client, a, batch, begun) })
				}
			}
		}
	}
	return group.Wait()
}

// judge compares what was admitted with what an exact limiter admits.
func (m *measurement) judge(all []request) error {
	exact, err := m.load.exact(all, func(r *request) time.Duration { return r.at })
	if err != nil {
		return err
	}
	m.exact = total(all, exact)
	m.exactStretches = refusedFor(all, exact)
	took := make([]time.Duration, 0, arms*arm(len(all)))
	for a := range arms {
		o := &m.arms[a]
		late, err := m.load.exact(all, func(r *request) time.Duration { return r.answers[a].at })
		if err != nil {
			return err
		}
		o.timing = math.Abs(float64(total(all, late)-m.exact)) / float64(m.exact)
		admitted := make([]bool, len(all))
		var lost [keys]float64
		for i := range all {
			r := &all[i]
			admitted[i] = r.answers[a].admitted
			took = append(took, r.answers[a].at-r.at)
			if exact[i] && r.counts {
				lost[r.key]++
			}
			if admitted[i] && r.counts {
				lost[r.key]--
			}
		}
		o.admitted = total(all, admitted)
		o.sampling = 2 * deviation(lost[:]) * math.Sqrt(keys) / float64(m.exact)
		o.stretches = refusedFor(all, admitted)
	}
	m.took = longest(took)
	return nil
}

func total(all []request, admitted []bool) (n int64) {
	for i := range all {
		if admitted[i] && all[i].counts {
			n++
		}
	}
	return n
}

// deviation is the standard deviation.
func deviation(xs []float64) float64 {
	mean, squares := 0.0, 0.0
	for _, x := range xs {
		mean += x / float64(len(xs))
	}
	for _, x := range xs {
		squares += (x - mean) * (x - mean)
	}
	return math.Sqrt(squares / float64(len(xs)-1))
}

// refusedFor tells how long clients waited from a refusal until they were admitted again, by when they asked.
func refusedFor(all []request, admitted []bool) stretches {
	var since [keys]time.Duration
	var lengths []time.Duration
	for i := range all {
		r := &all[i]
		switch {
		case !admitted[i] && since[r.key] == 0:
			since[r.key] = r.at
		case admitted[i] && since[r.key] != 0:
			lengths = append(lengths, r.at-since[r.key])
			since[r.key] = 0
		}
	}
	return longest(lengths)
}

func longest(lengths []time.Duration) (s stretches) {
	if len(lengths) > 0 {
		slices.Sort(lengths)
		s = stretches{lengths[len(lengths)*99/100], lengths[len(lengths)-1]}
	}
	return s
}

// reading is Redis' clock beside ours.
type reading struct {
	redis time.Time
	ours  time.Time
	error time.Duration // half a round trip
}

func readClock(ctx context.Context, redis *redistest.Server) (r reading, err error) {
	sent := time.Now()
	reply, err := redis.Do(ctx, "TIME")
	if err != nil {
		return r, err
	}
	r.error = time.Since(sent) / 2
	r.ours = sent.Add(r.error)
	var seconds, micros int64
	if parts, is := reply.([]any); !is || len(parts) != 2 {
		return r, fmt.Errorf("TIME says %v", reply)
	} else if _, err := fmt.Sscan(fmt.Sprint(parts[0], " ", parts[1]), &seconds, &micros); err != nil {
		return r, fmt.Errorf("TIME says %v: %w", reply, err)
	}
	r.redis = time.Unix(seconds, 1000*micros)
	return r, nil
}

// drift is by which part Redis' clock went faster or slower than ours, at most.
func (r reading) drift(before reading) float64 {
	ours := r.ours.Sub(before.ours)
	off := (r.redis.Sub(before.redis) - ours).Abs() + r.error + before.error
	return off.Seconds() / ours.Seconds()
}

// write prints the rows of both tables, and reports whether leases lose little enough.
func write(w io.Writer, all []*measurement) (ok bool) {
	ok = true
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "load\texact\tleases\tlost\terror\tstrict\tlost\terror\t")
	for _, m := range all {
		fmt.Fprintf(table, "%s\t%d\t", m.load.name, m.exact)
		verdict := "PASS"
		for a := range arms {
			o := &m.arms[a]
			lost, off := m.lost(a)
			fmt.Fprintf(table, "%d\t%.3f%%\t±%.3f\t", o.admitted, 100*lost, 100*off)
			switch {
			case off > target:
				verdict, ok = "FAIL: too coarse to tell", false
			case a == leased && lost >= target+off:
				verdict, ok = "FAIL", false
			case a == strict && math.Abs(lost) > target+off:
				verdict, ok = "FAIL: so does strict, which is exact", false
			}
		}
		fmt.Fprintf(table, "%s\n", verdict)
	}
	fmt.Fprintln(table)
	fmt.Fprintln(table, "load\trefused for: exact\tleases\tstrict\tanswered in\tof the error: timing\tsampling\tclock\tcores: nodes\tRedis\tclients\t")
	for _, m := range all {
		fmt.Fprintf(table, "%s\t", m.load.name)
		for _, s := range []stretches{m.exactStretches, m.arms[leased].stretches, m.arms[strict].stretches, m.took} {
			fmt.Fprintf(table, "%v, %v\t", s.p99.Round(time.Millisecond), s.longest.Round(time.Millisecond))
		}
		o := &m.arms[leased]
		fmt.Fprintf(table, "%.3f\t%.3f\t%.3f\t%.2f\t%.2f\t%.2f\t\n", 100*o.timing, 100*o.sampling, 100*m.clock, m.cores[0], m.cores[1], m.cores[2])
	}
	_ = table.Flush() // stdout is what it is
	fmt.Fprintf(w, explanation, 100*target, keys, runtime.NumCPU())
	return ok
}

// lost is which part of what the exact limiter admits an arm didn't, and the error of that.
func (m *measurement) lost(a arm) (part, off float64) {
	o := &m.arms[a]
	return float64(m.exact-o.admitted) / float64(m.exact), o.timing + o.sampling + m.clock
}

const explanation = `
exact: how many of the requests one limiter admits, at the moments when they were sent. lost: the part of that which
leases, or strict, did not admit; below zero is what they admitted beyond it. Leases pass below %.1f%% and the error, the sum of
  timing: Redis decides at some moment between sending and answer. This is by how much the exact count differs if the
    limiter decides when the answers come; what is under way when the load ends is in it.
  sampling: twice the standard error of what the %d clients lost, who are independent of each other.
  clock: by how much Redis' clock went faster or slower than ours while the load was made, with half a round trip for
    each of the two looks at it.
refused for: how long clients were refused, from a refused request to the next one admitted: p99, longest.
answered in: from when a request was due until its answer came: p99, longest. cores: processor time by the load's time, of %d.
`
