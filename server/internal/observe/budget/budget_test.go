package budget_test

import (
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/server/internal/observe/budget"
)

var begin = time.Date(2026, 4, 1, 0, 0, 0, 0, time.UTC)

func TestForecast(t *testing.T) {
	const day = 24 * time.Hour
	for _, c := range []struct {
		name        string
		used, limit counter.Amount
		passed      time.Duration
		want        time.Duration // since the beginning, or zero if it doesn't run out
	}{
		{"half in a quarter of the time", counter.Whole(25), counter.Whole(50), 7 * day, 14 * day},
		{"a fraction of a cent at once", 1, counter.Whole(50), time.Nanosecond, 50_000_000 * time.Nanosecond},
		{"just in time", counter.Whole(15), counter.Whole(30), 15 * day, 0},
		{"a moment too soon", counter.Whole(15) + 1, counter.Whole(30), 15 * day, 30*day - 172_799_989},
		{"slowly", counter.Whole(1), counter.Whole(50), 7 * day, 0},
		{"nothing is used", 0, counter.Whole(50), 7 * day, 0},
		{"used up", counter.Whole(50), counter.Whole(50), 7 * day, 0},
		{"beyond it", counter.Whole(51), counter.Whole(50), 7 * day, 0},
		{"no time has passed", counter.Whole(1), counter.Whole(50), 0, 0},
		{"a clock behind the window", counter.Whole(1), counter.Whole(50), -time.Hour, 0},
		{"the largest numbers", counter.MaxAmount - 1, counter.MaxAmount, 29 * day, 29*day + 1},
		{"the largest of the smallest", 1, counter.MaxAmount, 29 * day, 0},
	} {
		u := budget.Use{Used: c.used, Limit: c.limit, Start: begin, End: begin.Add(30 * day)}
		at, ok := u.RunsOut(begin.Add(c.passed))
		if ok != (c.want != 0) {
			t.Errorf("%s: %v, %v", c.name, at, ok)
			continue
		}
		if off := at.Sub(begin.Add(c.want)); ok && (off > time.Microsecond || off < -time.Microsecond) {
			t.Errorf("%s: it runs out after %v, want %v", c.name, at.Sub(begin), c.want)
		}
	}
}

func policy(t *testing.T, amount string, l weir.Limit) *counter.Policy {
	t.Helper()
	l.Decimal = amount != ""
	p, err := counter.NewPolicy("spend", l)
	if err != nil {
		t.Fatal(err)
	}
	p = p.With(func(d *counter.Definition) { d.Amount = amount })
	return p
}

var month = weir.Limit{Algorithm: weir.FixedWindow, Count: 50, Window: 31 * 24 * time.Hour, Calendar: counter.Calendar{Unit: counter.Month, Day: 15, Zone: "Europe/Berlin"}}

func TestWhatABudgetIs(t *testing.T) {
	hour := weir.Limit{Algorithm: weir.FixedWindow, Count: 50, Window: time.Hour}
	for _, c := range []struct {
		amount string
		limit  weir.Limit
		want   bool
	}{
		{"", month, true}, {"usd", month, true}, {"usd", hour, true},
		{"", hour, false}, {"usd", weir.PerHour(50), false}, {"", weir.PerHour(50), false},
		{"", weir.Limit{Algorithm: weir.SlidingCounter, Count: 50, Window: time.Hour}, false},
	} {
		if got := budget.Watched(policy(t, c.amount, c.limit)); got != c.want {
			t.Errorf("%q, %s, %s: %v", c.amount, c.limit.Algorithm, c.limit, got)
		}
	}
}

// A decision belongs to the window in which it was made, even if that window is over when the decision is looked at.
func TestWindowOfADecision(t *testing.T) {
	p := policy(t, "", month)
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	march, april, may := time.Date(2026, 3, 15, 0, 0, 0, 0, berlin), time.Date(2026, 4, 15, 0, 0, 0, 0, berlin), time.Date(2026, 5, 15, 0, 0, 0, 0, berlin)
	for _, c := range []struct {
		decided, late time.Duration // decided: since the start of April's window; late: until the decision is looked at
		start, end    time.Time
	}{
		{-time.Millisecond, 0, march, april},
		{-time.Millisecond, 2 * time.Second, march, april}, // looked at when March's window is over
		{0, 0, april, may},
		{0, 2 * time.Second, april, may},
		{time.Hour, -2 * time.Hour, april, may}, // looked at by a clock that is behind
		{20 * 24 * time.Hour, 0, april, may},
	} {
		decided := april.Add(c.decided)
		status := weir.LimitStatus{Policy: p, ResetAfter: c.end.Sub(decided)}
		if u := budget.UseOf(&status, decided.Add(c.late)); !u.Start.Equal(c.start) || !u.End.Equal(c.end) {
			t.Errorf("%v after the edge, looked at %v later: from %v to %v", c.decided, c.late, u.Start, u.End)
		}
	}
}
