package load

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// WriteText writes the report as text for people.
func (r *Report) WriteText(w io.Writer) error {
	t := &table{tw: tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)}
	t.row("target", r.Target)
	t.row("load", r.loadText())
	t.row("clients", r.clientsText())
	t.row("measured", r.timeText())
	t.row("")
	t.row("checks", Thousands(r.Checks), perSecond(r.PerSecond)+"/s")
	t.part("allowed", r.Allowed, r.Checks)
	t.part("refused", r.Refused, r.Checks)
	if r.Other > 0 {
		t.part("other", r.Other, r.Checks)
	}
	t.part("degraded", r.Degraded, r.Checks)
	t.part("errors", r.Errors, r.Checks+r.Errors, r.faultsText())
	if len(r.Statuses) > 0 {
		t.row("statuses", r.statusesText())
	}
	if r.Unfinished > 0 {
		t.row("unfinished", Thousands(r.Unfinished))
	}
	latency := "latency"
	if o := r.OpenLoop; o != nil {
		latency = "from due"
		t.part("late", o.Late, o.Due)
		t.part("dropped", o.Dropped, o.Due)
	}
	t.row("")
	if r.Latency != (Quantiles{}) {
		t.row("", "p50", "p90", "p99", "p99.9", "max")
		t.times(latency, r.Latency)
		if o := r.OpenLoop; o != nil {
			t.times("from sent", o.Service)
		}
		t.row("")
	}
	if r.CPUPerMillion > 0 {
		t.row("CPU", fmt.Sprintf("%.3g s per million checks, in this process", r.CPUPerMillion))
	}
	if c := r.StoreCPU; c != nil {
		t.row("store CPU", cmp.Or(c.Unknown, fmt.Sprintf("%.3g s per million checks, in the store's server", c.PerMillion)))
	}
	if c := r.StoreCalls; c != nil {
		t.row("store calls", fmt.Sprintf("%.3g per check", c.PerCheck))
	}
	if l := r.Leases; l != nil {
		share := "none"
		if l.Local > 0 {
			share = percent(l.Local, l.Local+l.Asked)
		}
		t.row("leases", fmt.Sprintf("%s of charges decided without the store; %.3g charges per check sent to it", share, l.AskedPerCheck))
	}
	if r.TimedOneIn > 1 {
		t.row("timed", fmt.Sprintf("1 check in %d", r.TimedOneIn))
	}
	switch v := r.Verdict; {
	case v == nil:
	case v.OK:
		t.row("verdict", "ok")
	default:
		t.row("verdict", "missed: "+strings.Join(v.Missed, "; "))
	}
	return t.tw.Flush()
}

func (r *Report) loadText() string {
	if r.Loop == "closed" {
		return fmt.Sprintf("closed loop, %d at a time", r.Concurrency)
	}
	how := "evenly spaced"
	if r.Poisson {
		how = "at random"
	}
	return fmt.Sprintf("open loop, %s/s %s, at most %d in flight", perSecond(r.Rate), how, r.Concurrency)
}

func (r *Report) clientsText() string {
	s := Thousands(int64(r.Keys)) + " keys"
	switch {
	case r.Distribution == Hot || r.Keys == 1:
		return "one key"
	case r.Distribution == Zipf:
		return s + fmt.Sprintf(", zipf %v", r.Exponent)
	}
	return s + ", uniform"
}

func (r *Report) timeText() string {
	s := short(seconds(r.Seconds))
	if r.Warmup > 0 {
		s += " after " + short(seconds(r.Warmup)) + " of warm-up"
	}
	if r.Interrupted {
		s += ", interrupted"
	}
	return s
}

func (r *Report) statusesText() string {
	var parts []string
	for _, status := range slices.Sorted(maps.Keys(r.Statuses)) {
		parts = append(parts, strings.TrimSpace(fmt.Sprintf("%s × %d %s", Thousands(r.Statuses[status]), status, http.StatusText(status))))
	}
	return strings.Join(parts, ", ")
}

func (r *Report) faultsText() string {
	var parts []string
	for _, f := range r.Faults[:min(len(r.Faults), 3)] {
		parts = append(parts, fmt.Sprintf("%s × %s", Thousands(f.Count), f.Text))
	}
	return strings.Join(parts, ", ")
}

// table writes rows with aligned columns.
type table struct{ tw *tabwriter.Writer }

func (t *table) row(cells ...string) { fmt.Fprintln(t.tw, strings.Join(cells, "\t")) }

func (t *table) part(name string, n, of int64, more ...string) {
	cells := []string{name, Thousands(n)}
	if n > 0 && of > 0 {
		cells = append(cells, percent(n, of))
		cells = append(cells, more...)
	}
	t.row(cells...)
}

func (t *table) times(name string, q Quantiles) {
	t.row(name, short(q.P50), short(q.P90), short(q.P99), short(q.P999), short(q.Max))
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// percent formats a percentage. It shows 100 % only for all, and 0 % only for none.
func percent(n, of int64) string {
	p := 100 * float64(n) / float64(of)
	switch {
	case n == of:
		return "100%"
	case p > 99.99:
		return ">99.99%"
	case p < 0.01:
		return "<0.01%"
	}
	return strconv.FormatFloat(p, 'f', 2, 64) + "%"
}

// short formats a time with three significant digits.
func short(d time.Duration) string {
	unit := time.Duration(1)
	for d >= 1000*unit {
		unit *= 10
	}
	return d.Round(unit).String()
}

func perSecond(x float64) string {
	if x < 100 {
		return strconv.FormatFloat(x, 'g', 3, 64)
	}
	return Thousands(int64(x + 0.5))
}

// Thousands formats a number with a comma after every three digits.
func Thousands(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// lineInterval is how often a Meter writes a line if the output isn't a terminal.
const lineInterval = 5 * time.Second

// Meter shows the progress of a run. On a terminal it updates one line, and elsewhere it writes a line now and then.
type Meter struct {
	W        io.Writer
	Terminal bool
	drawn    int      // width of the line that is on the screen
	told     Progress // the last progress that was shown
}

// Show displays the progress.
func (m *Meter) Show(p Progress) {
	if p.Phase != m.told.Phase {
		m.told = Progress{Phase: p.Phase}
	}
	if !m.Terminal && p.Elapsed-m.told.Elapsed < lineInterval {
		return
	}
	text := m.text(p)
	m.told = p
	if m.Terminal {
		m.draw(text)
	} else {
		fmt.Fprintln(m.W, text)
	}
}

// Done erases the line on the screen.
func (m *Meter) Done() {
	if m.drawn > 0 {
		m.draw("")
		fmt.Fprint(m.W, "\r")
	}
}

// draw replaces the line on the screen. It adds spaces, to erase the rest of a longer line.
func (m *Meter) draw(text string) {
	fmt.Fprintf(m.W, "\r%-*s", m.drawn, text)
	m.drawn = len(text)
}

func (m *Meter) text(p Progress) string {
	elapsed := p.Elapsed.Round(100 * time.Millisecond)
	switch p.Phase {
	case Warming:
		return fmt.Sprintf("warming up, %s of %s", elapsed, p.Total)
	case Finishing:
		return "waiting for answers"
	}
	s := fmt.Sprintf("%s of %s", elapsed, p.Total.Round(100*time.Millisecond))
	if d := p.Elapsed - m.told.Elapsed; d > 0 {
		s += ", " + perSecond(float64(p.Answered-m.told.Answered)/d.Seconds()) + " checks/s"
	}
	if p.Failed > 0 {
		s += ", " + Thousands(p.Failed) + " errors"
	}
	return s
}
