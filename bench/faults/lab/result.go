package faults

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// Result is what clients saw of a fault.
type Result struct {
	Scenario Scenario
	// Answers is the number of answers. Degraded of them were decided without Redis.
	Answers, Degraded int64
	// Statuses is how often each was seen.
	Statuses map[int]int64
	// Wrong lists what must not happen, and how often it did.
	Wrong map[string]int64
	// Slowest is the longest time from when a check was due until it was answered.
	Slowest time.Duration
	// Before, Most and After are numbers of goroutines: under load, the most during the fault, and under load afterwards.
	Before, Most, After int
	// Noticed is the time from the fault, or from the node's start if the fault came first, to the first degraded answer.
	Noticed time.Duration
	// Lost is how long the load takes to make as many charges as were counted and then forgotten.
	Lost time.Duration
	// Exact is the time until limits were exact again and no answer degraded. It counts from when Redis was back or,
	// with a failover, from the fault.
	Exact time.Duration
}

// Bounds are the limits of what a result may show.
type Bounds struct {
	Slowest  time.Duration // time until an answer
	Factor   int           // by which the number of goroutines may grow
	Serving  time.Duration // until a node that starts without Redis answers
	Exact    time.Duration // since Redis is back
	Failover time.Duration // until limits are exact, since the fault
	Lost     time.Duration // charges that a planned failover may lose, as the time that the load takes to make them
}

// Judge returns everything that is wrong with a result.
func (b *Bounds) Judge(r *Result) []string {
	var wrong []string
	is := func(bad bool, format string, args ...any) {
		if bad {
			wrong = append(wrong, fmt.Sprintf(format, args...))
		}
	}
	for _, what := range slices.Sorted(maps.Keys(r.Wrong)) {
		is(true, "%s (%d times)", what, r.Wrong[what])
	}
	is(!r.Scenario.unseen && r.Degraded == 0, "the fault went unnoticed")
	is(r.Statuses[429] == 0, "nobody was limited")
	is(r.Slowest >= b.Slowest, "slowest answer: %s", r.Slowest)
	is(r.Most >= b.Factor*r.Before, "goroutines: %d became %d", r.Before, r.Most)
	is(r.After >= b.Factor*r.Before, "goroutines: %d remained of %d", r.After, r.Before)
	is(r.Scenario.early && r.Noticed >= b.Serving, "serving after %s", r.Noticed)
	is(r.Scenario.planned && r.Lost >= b.Lost, "charges of %s were lost", r.Lost)
	most := b.Exact
	if r.Scenario.Failover {
		most = b.Failover
	}
	is(r.Exact >= most, "exact after %s", r.Exact)
	return wrong
}

func (r *Result) String() string {
	return fmt.Sprintf("%d checks %v, %d degraded, noticed after %s, exact after %s, charges of %s lost, slowest %s, goroutines %d → %d → %d",
		r.Answers, r.Statuses, r.Degraded, r.Noticed, r.Exact, r.Lost, r.Slowest, r.Before, r.Most, r.After)
}
