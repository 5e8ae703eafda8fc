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
	// Answers is how many there were, Degraded of them without Redis.
	Answers, Degraded int64
	// Statuses is how often each was seen.
	Statuses map[int]int64
	// Wrong is what must not be, and how often it was.
	Wrong map[string]int64
	// Slowest is the longest time from when a check was due until it was answered.
	Slowest time.Duration
	// Before, Most and After are numbers of goroutines: under load, at most, and under load again.
	Before, Most, After int
	// Noticed is the time from the fault to the first degraded answer, or, if the fault
	// was there first, from the node's start to its first answer.
	Noticed time.Duration
	// Lost is how long the load took to make as many charges as were answered as counted, and then forgotten.
	Lost time.Duration
	// Exact is the time until every limit was exact again and no answer degraded: since
	// Redis was back, or of a failover since the fault.
	Exact time.Duration
}

// Bounds are what a result is held against.
type Bounds struct {
	Slowest  time.Duration // answer
	Factor   int           // by which goroutines may multiply
	Serving  time.Duration // until a node that starts without Redis answers
	Exact    time.Duration // since Redis is back
	Failover time.Duration // until limits are exact, since the fault
	Lost     time.Duration // charges of a planned failover, as the time that the load took to make them
}

// Judge returns what is wrong with a result: nothing, if all is well.
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
