package load

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"
)

// Report is the result of a run. In an open loop, the number of due requests is sent + dropped. The number of sent
// requests is answered + failed + unfinished.
type Report struct {
	Target string `json:"target"`
	// Nodes is how many limiters in this process shared a store, or 0 if the store wasn't shared.
	Nodes int `json:"nodes,omitempty"`
	// Loop is "closed" or "open".
	Loop        string `json:"loop"`
	Concurrency int    `json:"concurrency"`
	// Rate is how many requests were due per second, and Poisson reports whether they were due at random times. Both
	// are set only in an open loop.
	Rate         float64      `json:"rate,omitempty"`
	Poisson      bool         `json:"poisson,omitempty"`
	Keys         int          `json:"keys"`
	Distribution Distribution `json:"distribution"`
	Exponent     float64      `json:"zipf,omitempty"`
	Warmup       float64      `json:"warmup_seconds"`
	// Seconds is how long the measured time was. Interrupted reports that the run was stopped early.
	Seconds     float64 `json:"seconds"`
	Interrupted bool    `json:"interrupted"`

	// Checks is how many requests were answered.
	Checks    int64   `json:"checks"`
	PerSecond float64 `json:"checks_per_second"`
	Allowed   int64   `json:"allowed"`
	Refused   int64   `json:"refused"`
	// Other is the number of answers that neither allowed nor refused the request. They are counted by HTTP status.
	Other    int64 `json:"other"`
	Degraded int64 `json:"degraded"`
	// Errors is how many requests got no answer. Timeouts is how many of these timed out.
	Errors     int64 `json:"errors"`
	Timeouts   int64 `json:"timeouts"`
	Unfinished int64 `json:"unfinished"`
	// OpenLoop has the additional figures of an open loop.
	OpenLoop *OpenLoop `json:"open_loop,omitempty"`

	Statuses map[int]int64 `json:"statuses,omitempty"`
	Faults   []Fault       `json:"faults,omitempty"`

	// Latency is the time since a request was due or, in a closed loop, sent. It includes requests that timed out.
	Latency Quantiles `json:"latency_ns"`
	// TimedOneIn is n if one in n requests was timed.
	TimedOneIn int `json:"timed_one_in"`

	// CPUSeconds is the CPU time that this process used on all cores, or 0 if unknown.
	CPUSeconds    float64 `json:"cpu_seconds"`
	CPUPerMillion float64 `json:"cpu_seconds_per_million_checks"`

	// StoreCPU has the CPU time that the store's server used, and StoreCalls has the number of calls to it. They are
	// nil if there is no such server.
	StoreCPU   *StoreCPU   `json:"store_cpu,omitempty"`
	StoreCalls *StoreCalls `json:"store_calls,omitempty"`
	// Leases is set if nodes decide some charges by themselves.
	Leases *Leases `json:"leases,omitempty"`

	// Verdict is set if the run had a [Goal].
	Verdict *Verdict `json:"verdict,omitempty"`

	latency histogram
}

// OpenLoop has the figures that only an open loop has.
type OpenLoop struct {
	Due  int64 `json:"due"`
	Sent int64 `json:"sent"`
	// Late is the number of requests that were sent more than a millisecond after they were due, because all workers,
	// or this machine, were busy.
	Late int64 `json:"late"`
	// Dropped is the number of requests that were due but never sent, because the run ended before a worker was free.
	Dropped int64 `json:"dropped"`
	// Service is the time since requests were sent.
	Service Quantiles `json:"service_ns"`
}

// Quantiles are quantiles of times, in nanoseconds.
type Quantiles struct {
	P50  time.Duration `json:"p50"`
	P90  time.Duration `json:"p90"`
	P99  time.Duration `json:"p99"`
	P999 time.Duration `json:"p99_9"`
	Max  time.Duration `json:"max"`
}

func (h *histogram) quantiles() Quantiles {
	return Quantiles{h.quantile(50), h.quantile(90), h.quantile(99), h.quantile(99.9), h.max}
}

// Fault is a kind of error, and how often it occurred.
type Fault struct {
	Text  string `json:"text"`
	Count int64  `json:"count"`
}

func (r *run) report(t Target, measured, cpu time.Duration, interrupted bool) *Report {
	p := &r.plan
	sum := newRecorder(p.open())
	for _, t := range r.recorders {
		sum.merge(t)
	}
	c := &sum.counts
	out := &Report{
		Target: t.String(), Loop: "closed", Concurrency: p.Workers,
		Keys: p.Keys, Distribution: cmp.Or(p.Distribution, Uniform),
		Warmup: p.Warmup.Seconds(), Seconds: measured.Seconds(), Interrupted: interrupted,
		Checks: c.answered(), Allowed: c[Allowed], Refused: c[Refused], Other: c[Other],
		Degraded: c[degraded], Errors: c.failed(), Timeouts: c[TimedOut], Unfinished: c[Unfinished],
		Statuses: sum.statuses,
		Latency:  sum.latency.quantiles(), TimedOneIn: r.sample,
		CPUSeconds: cpu.Seconds(),
		latency:    sum.latency,
	}
	if p.Distribution == Zipf {
		out.Exponent = p.Exponent
	}
	if p.open() {
		dropped := r.pacer.dropped
		out.Loop, out.Rate, out.Poisson = "open", p.Rate, p.Poisson
		out.OpenLoop = &OpenLoop{
			Due: c.sent() + dropped, Sent: c.sent(), Late: c[late], Dropped: dropped,
			Service: sum.service.quantiles(),
		}
	}
	if measured > 0 {
		out.PerSecond = float64(out.Checks) / out.Seconds
	}
	if out.Checks > 0 {
		out.CPUPerMillion = out.CPUSeconds / float64(out.Checks) * 1e6
	}
	for text, n := range sum.faults {
		out.Faults = append(out.Faults, Fault{text, n})
	}
	slices.SortFunc(out.Faults, func(a, b Fault) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Text, b.Text))
	})
	return out
}

// Goal says what a run must reach. A field that is zero sets no goal.
type Goal struct {
	MaxP99  time.Duration
	MinRate float64
}

// Verdict says whether a run reached its goal and, if not, why.
type Verdict struct {
	OK     bool     `json:"ok"`
	Missed []string `json:"missed"`
}

// Judge sets the report's verdict, unless the goal is empty. Requests that failed or were never sent count as slower
// than any limit. Otherwise, a target would be rewarded for not answering.
func (r *Report) Judge(g Goal) {
	if g == (Goal{}) {
		return
	}
	v := &Verdict{Missed: []string{}}
	missed := func(format string, args ...any) { v.Missed = append(v.Missed, fmt.Sprintf(format, args...)) }
	if g.MaxP99 > 0 {
		timed := r.latency.hdr.TotalCount()
		lost := (r.Errors - r.Timeouts) / int64(r.TimedOneIn)
		if r.OpenLoop != nil {
			lost += r.OpenLoop.Dropped // in an open loop, every request is timed
		}
		percent := 99 * float64(timed+lost) / float64(max(timed, 1))
		switch {
		case timed == 0:
			missed("p99 is not known: nothing was measured")
		case r.Latency.P99 > g.MaxP99:
			missed("p99 is %s, more than %s", short(r.Latency.P99), g.MaxP99)
		case percent > 100:
			missed("p99 is not known: %s of %s requests got no answer or were never sent", Thousands(lost), Thousands(timed+lost))
		case r.latency.quantile(percent) > g.MaxP99:
			missed("p99 is %s, more than %s, if requests that got no answer count", short(r.latency.quantile(percent)), g.MaxP99)
		}
	}
	if g.MinRate > 0 && r.PerSecond < g.MinRate {
		missed("%s checks/s, fewer than %s", perSecond(r.PerSecond), perSecond(g.MinRate))
	}
	v.OK = len(v.Missed) == 0
	r.Verdict = v
}

// StoreCPU is the CPU time that the store's server used for the measured checks.
type StoreCPU struct {
	Seconds    float64 `json:"seconds"`
	PerMillion float64 `json:"seconds_per_million_checks"`
	// Unknown says why the time is unknown. It is "" if the time is known.
	Unknown string `json:"unknown,omitempty"`
}

// StoreCalls is the number of calls that nodes made to the store's server for the measured checks, including calls that
// gave tokens back.
type StoreCalls struct {
	Calls    int64   `json:"calls"`
	PerCheck float64 `json:"per_check"`
}

// Leases shows how the charges of the measured checks were decided.
type Leases struct {
	// Local is how many charges the nodes decided by themselves.
	Local      int64   `json:"local"`
	LocalShare float64 `json:"local_share"`
	// Asked is how many charges were sent to the store.
	Asked         int64   `json:"asked"`
	AskedPerCheck float64 `json:"asked_per_check"`
}

// storeReading has the totals of a store's server, and of the nodes that use it, at one moment.
type storeReading struct {
	cpu                 time.Duration
	cpuErr              error
	calls, local, asked uint64
}

// storePatience is how long to wait for the server's CPU time. Under load, the server may respond late.
const storePatience = 10 * time.Second

// readStore reads the totals of the store and the nodes. It does so even if ctx is done, because an interrupted run has
// a report, too.
func (p *Plan) readStore(ctx context.Context) *storeReading {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storePatience)
	defer cancel()
	r := new(storeReading)
	if p.Mark != nil {
		p.Mark()
	}
	if p.Leases != nil {
		r.local, r.asked = p.Leases()
	}
	if p.StoreCalls != nil {
		r.calls = p.StoreCalls()
	}
	if p.StoreCPU != nil {
		r.cpu, r.cpuErr = p.StoreCPU(ctx)
	}
	return r
}

// reportStore adds the differences between two readings to a report. begin is nil if nothing was measured.
func (p *Plan) reportStore(begin, end *storeReading, r *Report) {
	if begin == nil {
		return
	}
	per := func(x float64) float64 { return x / float64(max(r.Checks, 1)) }
	if p.Leases != nil {
		l := &Leases{Local: int64(end.local - begin.local), Asked: int64(end.asked - begin.asked)}
		l.LocalShare = float64(l.Local) / float64(max(l.Local+l.Asked, 1))
		l.AskedPerCheck = per(float64(l.Asked))
		r.Leases = l
	}
	if p.StoreCalls != nil {
		calls := int64(end.calls - begin.calls)
		r.StoreCalls = &StoreCalls{Calls: calls, PerCheck: per(float64(calls))}
	}
	if p.StoreCPU != nil {
		c := &StoreCPU{}
		if err := cmp.Or(begin.cpuErr, end.cpuErr); err != nil {
			c.Unknown = err.Error()
		} else {
			c.Seconds = (end.cpu - begin.cpu).Seconds()
			c.PerMillion = per(c.Seconds * 1e6)
		}
		r.StoreCPU = c
	}
}
