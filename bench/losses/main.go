// Command losses measures how many requests leases refuse wrongly while clients move between nodes. Four weir processes
// share a Redis, and 500 clients send them requests. Each request is decided twice at the same time on the same node: by
// a rule with leases, and by a strict rule, for which Redis alone counts exactly. The command fails if leases lose a
// thousandth of the admissions or more.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/weirhq/weir/client"
	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/server/bench/internal/command"
	"github.com/weirhq/weir/server/bench/internal/node"
	"github.com/weirhq/weir/server/bench/internal/report"
)

// maxLost is the largest share of admissions that leases may lose.
const maxLost = 0.001

// rule is the index of one of the rules that decide each request.
type rule int

const (
	leased rule = iota
	strict
	rules
)

func (r rule) String() string { return [...]string{"leased", "strict"}[r] }

var (
	duration = flag.Duration("duration", 2*time.Minute, "how long to make each load")
	only     = flag.Int("only", 0, "make only this load, from 1 to 5")
	seed     = flag.Uint64("seed", 1, "seed of the random requests")
)

func main() { command.Main(run) }

func run(r *command.Run) (ok bool) {
	if *only < 0 || *only > len(loads) || *duration < time.Second {
		r.Fatal("-only must be from 1 to ", len(loads), ", and -duration at least 1s")
	}
	ok = true
	rows := [][]string{{"load", "strict", "leases", "lost", "error", "refused for: strict", "leases", "answered in", ""}}
	for i := range loads {
		if *only != 0 && *only != i+1 {
			continue
		}
		w := &loads[i]
		r.Logf("%s: %s", w.name, *duration)
		all := w.requests(*duration, *seed)
		r.Part(w.name, func(r *command.Run) { send(r, w, all) })
		row, passes := compare(all)
		rows, ok = append(rows, append([]string{w.name}, row...)), ok && passes
	}
	report.Align(r.Out, rows)
	fmt.Fprintf(r.Out, explanation, 100*maxLost, keys)
	return ok
}

const explanation = `
strict, leases: the requests that each rule admitted. lost: the share of strict's admissions that leases refused; below
zero, what they admitted beyond. Leases pass below %.1f%% plus the error, which is twice the standard error of what the %d
clients lost, who are independent of each other.
refused for: how long clients were refused, from a refused request to the next one admitted: p99, longest.
answered in: from when a request was sent until its answer arrived: p99, longest.
`

// late is the longest that sending may lag behind the schedule.
const late = time.Second

// send starts four nodes, and sends every request at its scheduled time to its node, once for each rule. It waits for
// the decisions and records them.
func send(r *command.Run, w *workload, all []request) {
	redis := redistest.New(r, redistest.Options{})
	var clients [nodes][rules]*client.Client
	for i := range clients {
		n := node.Start(r, node.Options{Rules: w.ruleFile(), Store: "redis://" + redis.Addr,
			Flags: []string{"--store-timeout", "10s", "--log-level", "error"}}) // with a long timeout, slow answers from Redis don't let requests pass
		for by := range clients[i] {
			clients[i][by] = command.Must(client.New(client.Options{URL: "http://" + n.Addr, Timeout: time.Minute}))
			r.Cleanup(clients[i][by].Close)
		}
	}
	ctx, stop := context.WithCancelCause(r)
	defer stop(nil)
	begun := time.Now()
	var group sync.WaitGroup
	for i := range all {
		q := &all[i]
		time.Sleep(time.Until(begun.Add(q.at)))
		if time.Since(begun) > q.at+late {
			stop(errors.New("requests were not sent in time"))
		}
		if ctx.Err() != nil {
			break
		}
		q.at = time.Since(begun)
		for by := range rules {
			group.Go(func() {
				d, err := clients[q.node][by].Check(ctx, &client.Request{Key: fmt.Sprint("k", q.key), Path: "/" + by.String(), Cost: q.cost})
				if err == nil && (d.Degraded || d.Rule != by.String()) {
					err = fmt.Errorf("a check was not decided by the store and the rule %s: %+v", by, d)
				}
				if err != nil {
					stop(err)
				}
				q.answers[by] = answer{at: time.Since(begun), admitted: d.Allowed}
			})
		}
	}
	group.Wait()
	command.Check(context.Cause(ctx))
}

// compare returns one row of the table, about what the rules admitted. ok reports whether leases lost few enough
// admissions.
func compare(all []request) (row []string, ok bool) {
	var admitted [rules]int64
	var lost [keys]float64 // admissions that leases lost, for each client
	var answers []time.Duration
	for i := range all {
		r := &all[i]
		for by, a := range r.answers {
			answers = append(answers, a.at-r.at)
			switch {
			case !a.admitted || !r.counts:
				continue
			case rule(by) == leased:
				lost[r.key]--
			default:
				lost[r.key]++
			}
			admitted[by]++
		}
	}
	exact := float64(admitted[strict])
	share, off := (exact-float64(admitted[leased]))/exact, 2*deviation(lost[:])*math.Sqrt(keys)/exact
	verdict := "PASS"
	switch {
	case off > maxLost:
		verdict = "FAIL: too coarse to tell"
	case share >= maxLost+off:
		verdict = "FAIL"
	}
	return []string{fmt.Sprint(admitted[strict]), fmt.Sprint(admitted[leased]), report.Percent(share, 3), "±" + report.Number(100*off, 3),
		longest(refusals(all, strict)), longest(refusals(all, leased)), longest(answers), verdict}, verdict == "PASS"
}

// deviation returns the standard deviation.
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

// refusals returns how long clients waited from a refusal until the rule admitted them again.
func refusals(all []request, by rule) (waits []time.Duration) {
	var since [keys]time.Duration
	for i := range all {
		r := &all[i]
		switch admitted := r.answers[by].admitted; {
		case !admitted && since[r.key] == 0:
			since[r.key] = r.at
		case admitted && since[r.key] != 0:
			waits = append(waits, r.at-since[r.key])
			since[r.key] = 0
		}
	}
	return waits
}

// longest formats the 99th percentile and the maximum of some times.
func longest(all []time.Duration) string {
	if len(all) == 0 {
		return "–"
	}
	slices.Sort(all)
	return fmt.Sprint(all[len(all)*99/100].Round(time.Millisecond), ", ", all[len(all)-1].Round(time.Millisecond))
}
