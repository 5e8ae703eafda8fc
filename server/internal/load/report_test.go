package load

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// measured returns a report of n times, from one millisecond to n.
func measured(n int) *Report {
	h := newHistogram()
	for i := range n {
		h.record(time.Duration(i+1) * time.Millisecond)
	}
	return &Report{Checks: int64(n), Seconds: 10, PerSecond: float64(n) / 10, TimedOneIn: 1, Latency: h.quantiles(), latency: h}
}

func TestQuantiles(t *testing.T) {
	q := measured(1000).Latency
	for _, c := range []struct{ got, want time.Duration }{
		{q.P50, 500 * time.Millisecond}, {q.P90, 900 * time.Millisecond}, {q.P99, 990 * time.Millisecond}, {q.P999, 999 * time.Millisecond},
	} {
		if !near(c.got, c.want) {
			t.Errorf("got %s, want %s", c.got, c.want)
		}
	}
	if q.Max != time.Second {
		t.Errorf("the longest is %s", q.Max)
	}
	h := newHistogram()
	h.record(2 * longest)
	h.record(-1)
	if q := h.quantiles(); q.Max != 2*longest || q.P50 != 0 {
		t.Errorf("got %+v", q)
	}
}

func TestVerdict(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Report)
		goal   Goal
		missed string // empty if the verdict is good
	}{
		{"reached", nil, Goal{MaxP99: time.Second, MinRate: 100}, ""},
		{"slow", nil, Goal{MaxP99: 900 * time.Millisecond}, "p99 is 990ms, more than 900ms"},
		{"few", nil, Goal{MinRate: 101}, "100 checks/s, fewer than 101"},
		{"both", nil, Goal{MaxP99: 1, MinRate: 1e6}, "p99 is 990ms, more than 1ns; 100 checks/s, fewer than 1,000,000"},
		{"a few errors", func(r *Report) { r.Errors = 5 }, Goal{MaxP99: 997 * time.Millisecond}, ""},
		{"errors at the edge", func(r *Report) { r.Errors = 8 }, Goal{MaxP99: 995 * time.Millisecond},
			"p99 is 998ms, more than 995ms, if requests that got no answer count"},
		{"errors", func(r *Report) { r.Errors = 20 }, Goal{MaxP99: time.Hour},
			"p99 is not known: 20 of 1,020 requests got no answer or were never sent"},
		{"timeouts are timed", func(r *Report) { r.Errors, r.Timeouts = 20, 20 }, Goal{MaxP99: time.Second}, ""},
		{"dropped", func(r *Report) { r.OpenLoop = &OpenLoop{Dropped: 1000} }, Goal{MaxP99: time.Hour},
			"p99 is not known: 1,000 of 2,000 requests got no answer or were never sent"},
	} {
		r := measured(1000)
		if c.change != nil {
			c.change(r)
		}
		r.Judge(c.goal)
		if got := strings.Join(r.Verdict.Missed, "; "); got != c.missed || r.Verdict.OK != (c.missed == "") {
			t.Errorf("%s: got %q, want %q", c.name, got, c.missed)
		}
	}
	r := measured(0)
	if r.Judge(Goal{}); r.Verdict != nil {
		t.Error("there is a verdict without a goal")
	}
	if r.Judge(Goal{MaxP99: time.Hour}); r.Verdict.OK {
		t.Error("a goal is met without measurements")
	}
}

func TestReportAsTextAndJSON(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := mustRun(t, Plan{Duration: 2 * time.Second, Warmup: time.Second, Rate: 1000, Workers: 10, Keys: 12345}, takes(5*time.Millisecond))
		r.CPUSeconds, r.CPUPerMillion = 0.5, 250
		r.Statuses = map[int]int64{200: 1999, 404: 1}
		r.Judge(Goal{MaxP99: time.Millisecond})
		var text bytes.Buffer
		if err := r.WriteText(&text); err != nil {
			t.Fatal(err)
		}
		const want = `target    a function
load      open loop, 1,000/s evenly spaced, at most 10 in flight
clients   12,345 keys, uniform
measured  2s after 1s of warm-up

checks    2,000  1,000/s
allowed   2,000  100%
refused   0
degraded  0
errors    0
statuses  1,999 × 200 OK, 1 × 404 Not Found
late      0
dropped   0

           p50  p90  p99  p99.9  max
from due   5ms  5ms  5ms  5ms    5ms
from sent  5ms  5ms  5ms  5ms    5ms

CPU      250 s per million checks, in this process
verdict  missed: p99 is 5ms, more than 1ms
`
		if text.String() != want {
			t.Errorf("got\n%s\nwant\n%s", text.String(), want)
		}

		b, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		var back Report
		if err := json.Unmarshal(b, &back); err != nil {
			t.Fatal(err)
		}
		if back.Latency != r.Latency || *back.OpenLoop != *r.OpenLoop || back.Checks != 2000 || back.Verdict.OK || back.Statuses[404] != 1 {
			t.Errorf("%s became %+v", b, back)
		}
	})
}

func TestNumbersForPeople(t *testing.T) {
	for got, want := range map[string]string{
		Thousands(0): "0", Thousands(999): "999", Thousands(1000): "1,000", Thousands(-1234567): "-1,234,567",
		short(0): "0s", short(379): "379ns", short(1234567): "1.23ms", short(12345678901): "12.3s",
		perSecond(0.5): "0.5", perSecond(99.96): "100", perSecond(1234.5): "1,235",
		percent(1, 1): "100%", percent(999_999, 1_000_000): ">99.99%", percent(1, 1_000_000): "<0.01%", percent(1, 3): "33.33%",
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
