package faults

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/weirhq/weir/server/bench/internal/report"
)

// result is what clients saw during a fault.
type result struct {
	scenario          scenario
	answers, degraded int64            // degraded ones were decided without Redis
	statuses          map[int]int64    // how often each was seen
	wrong             map[string]int64 // what must not happen, and how often it did
	slowest           time.Duration    // the longest time from when a check was due until it was answered
	// before, most and after are numbers of goroutines under load: before the fault, the most during it, and after it.
	before, most, after int
	// noticed is the time from the fault, or from the node's start if the fault came first, to the first degraded answer.
	noticed time.Duration
	// lost is how long the load takes to make as many charges as were counted and then forgotten.
	lost time.Duration
	// exact is the time until limits were exact again and no answer degraded. It counts from when Redis was back or,
	// with a failover, from the fault.
	exact time.Duration
}

// bounds are the limits of what a result may show.
type bounds struct {
	slowest  time.Duration // time until an answer
	factor   int           // by which the number of goroutines may grow
	serving  time.Duration // until a node that starts without Redis answers
	exact    time.Duration // since Redis is back
	failover time.Duration // until limits are exact, since the fault
	lost     time.Duration // charges that a planned failover may lose, as the time that the load takes to make them
}

// judge returns everything that is wrong with a result.
func (b *bounds) judge(r *result) []string {
	var wrong []string
	is := func(bad bool, format string, args ...any) {
		if bad {
			wrong = append(wrong, fmt.Sprintf(format, args...))
		}
	}
	for _, what := range slices.Sorted(maps.Keys(r.wrong)) {
		is(true, "%s (%d times)", what, r.wrong[what])
	}
	is(!r.scenario.unseen && r.degraded == 0, "the fault went unnoticed")
	is(r.statuses[429] == 0, "nobody was limited")
	is(r.slowest >= b.slowest, "slowest answer: %s", r.slowest)
	is(r.most >= b.factor*r.before, "goroutines: %d became %d", r.before, r.most)
	is(r.after >= b.factor*r.before, "goroutines: %d remained of %d", r.after, r.before)
	is(r.scenario.early && r.noticed >= b.serving, "serving after %s", r.noticed)
	is(r.scenario.planned && r.lost >= b.lost, "charges of %s were lost", r.lost)
	most := b.exact
	if r.scenario.failover {
		most = b.failover
	}
	is(r.exact >= most, "exact after %s", r.exact)
	return wrong
}

// heading names the cells of a [result.row].
var heading = []string{"fault", "checks", "degraded", "noticed", "exact again", "lost", "slowest", "goroutines", "200", "429", "503", "others", ""}

const legend = `
noticed: time from the fault to the first degraded answer. exact again: time until the last degraded answer, and until
limits were exact, from when Redis was back or, where Sentinels or a Cluster replace a primary, from the fault. lost: how
long the load takes to make the charges that were answered as counted and that no server has any more. slowest: from when
a check was due. goroutines: before, at most, after. others: the share of the cores that other processes used;
with more than a tenth, a FAIL may be theirs.
`

// row is a line of the table. others is the share of CPU time that other processes used.
func (r *result) row(others float64, passed bool) []string {
	verdict := "PASS"
	if !passed {
		verdict = "FAIL"
	}
	return []string{r.scenario.name, fmt.Sprint(r.answers), fmt.Sprint(r.degraded),
		short(r.noticed), short(r.exact), short(r.lost), short(r.slowest), fmt.Sprintf("%d → %d → %d", r.before, r.most, r.after),
		fmt.Sprint(r.statuses[200]), fmt.Sprint(r.statuses[429]), fmt.Sprint(r.statuses[503]), report.Percent(others, 0), verdict}
}

func short(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}
