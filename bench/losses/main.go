// Command losses prints what leases lose while clients move between nodes. Four weir processes share a Redis, and 500
// clients send them requests. Each request is decided twice at the same moment on the same node: by a rule that is leased
// and, as the control, by a strict one. Both are compared with one exact limiter, which decides the same requests in this
// process. The command fails if leases lose a thousandth or more.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"time"

	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/server/bench/internal/command"
	"github.com/weirhq/weir/server/bench/internal/node"
	"github.com/weirhq/weir/server/bench/internal/report"
)

// maxLost is the share of admissions that leases must stay below.
const maxLost = 0.001

// rule is one of the rules that decide each request.
type rule int

const (
	leased rule = iota
	strict
	rules
)

func (r rule) String() string { return [...]string{"leased", "strict"}[r] }

func main() { command.Main("losses", run) }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (ok bool, err error) {
	f := flag.NewFlagSet("losses", flag.ContinueOnError)
	weir := f.String("weir", "bin/weir", "the weir binary to run")
	duration := f.Duration("duration", 2*time.Minute, "how long to make each load")
	only := f.Int("only", 0, "make only this load, from 1 to 5")
	seed := f.Uint64("seed", 1, "seed of the random requests")
	if err := f.Parse(args); err != nil {
		return false, err
	}
	if *only < 0 || *only > len(loads) || *duration < time.Second {
		return false, fmt.Errorf("-only must be from 1 to %d, and -duration at least 1s", len(loads))
	}
	var all []*measurement
	for i := range loads {
		if *only != 0 && *only != i+1 {
			continue
		}
		fmt.Fprintf(stderr, "%s: %s\n", loads[i].name, *duration)
		m, err := measure(ctx, *weir, &loads[i], *duration, *seed)
		if err != nil {
			return false, err
		}
		all = append(all, m)
	}
	return print(stdout, all), nil
}

// measurement is what came of a workload.
type measurement struct {
	workload      *workload
	exact         int64 // requests that the exact limiter admits
	exactRefusals durations
	rules         [rules]outcome
	answers       durations  // from when a request was sent until it was answered
	clock         float64    // the share by which Redis' clock differed from ours, at most
	cores         [3]float64 // that nodes, Redis and clients used
}

// outcome is what one rule did with the requests.
type outcome struct {
	admitted int64
	refusals durations // from a client's refusal to its next admission
	// The parts of the error, as shares of what the exact limiter admits.
	timing, sampling float64
}

// durations are the 99th percentile and the longest of some times.
type durations struct{ p99, longest time.Duration }

func measure(ctx context.Context, weir string, w *workload, duration time.Duration, seed uint64) (*measurement, error) {
	redis, err := redistest.Start(redistest.Options{})
	if err != nil {
		return nil, err
	}
	defer redis.Close()
	var all []*node.Process
	for range nodes {
		n, err := node.Start(ctx, node.Options{Binary: weir, Rules: w.ruleFile(), Store: "redis://" + redis.Addr,
			Flags: []string{"--store-timeout", "10s", "--log-level", "error"}}) // a late answer must not be let pass
		if err != nil {
			return nil, err
		}
		defer n.Stop()
		all = append(all, n)
	}
	t := &target{nodes: all, requests: w.requests(duration, seed)}
	before, err := readClock(ctx, redis)
	if err != nil {
		return nil, err
	}
	spent, err := t.make(ctx, duration)
	if err != nil {
		return nil, err
	}
	m := &measurement{workload: w}
	after, err := readClock(ctx, redis)
	if err != nil {
		return nil, err
	}
	m.clock = after.drift(before)
	redisCPU, err := redis.CPU(ctx)
	if err != nil {
		return nil, err
	}
	m.cores[1], m.cores[2] = redisCPU.Seconds()/spent.Seconds, spent.CPUSeconds/spent.Seconds
	for _, n := range all {
		used, err := n.CPU()
		if err != nil {
			return nil, err
		}
		m.cores[0] += used.Seconds() / spent.Seconds
	}
	return m, m.compare(t.requests)
}

// compare compares what the rules admitted with what an exact limiter admits.
func (m *measurement) compare(all []request) error {
	exact, err := m.workload.exact(all, func(r *request) time.Duration { return r.at })
	if err != nil {
		return err
	}
	m.exact = total(all, exact)
	m.exactRefusals = refusals(all, exact)
	var answers []time.Duration
	for by := range rules {
		o := &m.rules[by]
		late, err := m.workload.exact(all, func(r *request) time.Duration { return r.answers[by].at })
		if err != nil {
			return err
		}
		o.timing = math.Abs(float64(total(all, late)-m.exact)) / float64(m.exact)
		admitted := make([]bool, len(all))
		var lost [keys]float64
		for i := range all {
			r := &all[i]
			admitted[i] = r.answers[by].admitted
			answers = append(answers, r.answers[by].at-r.at)
			if exact[i] && r.counts {
				lost[r.key]++
			}
			if admitted[i] && r.counts {
				lost[r.key]--
			}
		}
		o.admitted = total(all, admitted)
		o.sampling = 2 * deviation(lost[:]) * math.Sqrt(keys) / float64(m.exact)
		o.refusals = refusals(all, admitted)
	}
	m.answers = summarize(answers)
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

// refusals tells how long clients waited from a refusal until they were admitted again.
func refusals(all []request, admitted []bool) durations {
	var since [keys]time.Duration
	var waits []time.Duration
	for i := range all {
		r := &all[i]
		switch {
		case !admitted[i] && since[r.key] == 0:
			since[r.key] = r.at
		case admitted[i] && since[r.key] != 0:
			waits = append(waits, r.at-since[r.key])
			since[r.key] = 0
		}
	}
	return summarize(waits)
}

func summarize(all []time.Duration) durations {
	if len(all) == 0 {
		return durations{}
	}
	slices.Sort(all)
	return durations{all[len(all)*99/100], all[len(all)-1]}
}

// reading is Redis' clock and ours at the same moment.
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

// drift is the largest share by which Redis' clock can have been faster or slower than ours since an earlier reading.
func (r reading) drift(before reading) float64 {
	ours := r.ours.Sub(before.ours)
	off := (r.redis.Sub(before.redis) - ours).Abs() + r.error + before.error
	return off.Seconds() / ours.Seconds()
}

// print shows both tables, and reports whether leases lose little enough.
func print(w io.Writer, all []*measurement) (ok bool) {
	ok = true
	rows := [][]string{{"load", "exact", "leases", "lost", "error", "strict", "lost", "error", ""}}
	for _, m := range all {
		row := []string{m.workload.name, fmt.Sprint(m.exact)}
		verdict := "PASS"
		for r := range rules {
			lost, off := m.lost(r)
			row = append(row, fmt.Sprint(m.rules[r].admitted), report.Percent(lost, 3), "±"+report.Number(100*off, 3))
			switch {
			case off > maxLost:
				verdict, ok = "FAIL: too coarse to tell", false
			case r == leased && lost >= maxLost+off:
				verdict, ok = "FAIL", false
			case r == strict && math.Abs(lost) > maxLost+off:
				verdict, ok = "FAIL: so does strict, which is exact", false
			}
		}
		rows = append(rows, append(row, verdict))
	}
	report.Align(w, rows)
	fmt.Fprintln(w)
	rows = [][]string{{"load", "refused for: exact", "leases", "strict", "answered in", "of the error: timing", "sampling", "clock", "cores: nodes", "Redis", "clients"}}
	for _, m := range all {
		row := []string{m.workload.name}
		for _, t := range []durations{m.exactRefusals, m.rules[leased].refusals, m.rules[strict].refusals, m.answers} {
			row = append(row, fmt.Sprint(t.p99.Round(time.Millisecond), ", ", t.longest.Round(time.Millisecond)))
		}
		o := &m.rules[leased]
		for _, part := range []float64{o.timing, o.sampling, m.clock} {
			row = append(row, report.Number(100*part, 3))
		}
		for _, cores := range m.cores {
			row = append(row, report.Number(cores, 2))
		}
		rows = append(rows, row)
	}
	report.Align(w, rows)
	fmt.Fprintf(w, explanation, 100*maxLost, keys, runtime.NumCPU())
	return ok
}

// lost is the share of the exact limiter's admissions that a rule didn't admit, and the error of that share.
func (m *measurement) lost(by rule) (share, off float64) {
	o := &m.rules[by]
	return float64(m.exact-o.admitted) / float64(m.exact), o.timing + o.sampling + m.clock
}

const explanation = `
exact: the requests that one limiter admits at the moments when they were sent. lost: the share of those that leases, or
strict, did not admit; below zero, what they admitted beyond. Leases pass below %.1f%% plus the error, which is the sum of
  timing: Redis decides at some moment between sending and answer. This is how much the exact count changes if the limiter
    decides when the answers arrive, including requests in flight when the load ends.
  sampling: twice the standard error of what the %d clients lost, who are independent of each other.
  clock: how much faster or slower Redis' clock was than ours during the load, plus half a round trip for each of its
    two readings.
refused for: how long clients were refused, from a refused request to the next one admitted: p99, longest.
answered in: from when a request was sent until its answer arrived: p99, longest. cores: processor time divided by the
load's duration, of %d.
`
