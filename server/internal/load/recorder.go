package load

import (
	"errors"
	"net"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// counts says how many requests had which outcome, and how many of them were degraded or late.
type counts [late + 1]int64

const (
	degraded = outcomes + iota
	late     // open loop: sent after they were due
)

func (c *counts) add(a *Answer) {
	c[a.Outcome]++
	if a.Degraded {
		c[degraded]++
	}
}

func (c *counts) merge(o *counts) {
	for i, n := range o {
		c[i] += n
	}
}

func (c *counts) answered() int64 { return c[Allowed] + c[Refused] + c[Other] }

func (c *counts) failed() int64 { return c[Failed] + c[TimedOut] }

// sent is the number of requests that left this process.
func (c *counts) sent() int64 { return c.answered() + c.failed() + c[Unfinished] }

// longest is the upper end of histograms. The longest time itself is kept beside them.
const longest = time.Hour

// histogram holds times to three digits.
type histogram struct {
	hdr *hdrhistogram.Histogram
	max time.Duration
}

func newHistogram() histogram { return histogram{hdr: hdrhistogram.New(1, int64(longest), 3)} }

func (h *histogram) record(d time.Duration) {
	h.max = max(h.max, d)
	_ = h.hdr.RecordValue(int64(min(max(d, 0), longest))) // within the bounds, so there is no error
}

func (h *histogram) merge(o *histogram) {
	h.max = max(h.max, o.max)
	h.hdr.Merge(o.hdr)
}

// quantile is the time that so many percent of the recorded times do not exceed.
func (h *histogram) quantile(percent float64) time.Duration {
	return min(time.Duration(h.hdr.ValueAtPercentile(percent)), h.max)
}

// maxRecorders bounds the memory that histograms take. More workers share recorders.
const maxRecorders = 32

// recorder records the answers of one worker, or of a few.
type recorder struct {
	mu       sync.Mutex // guards what follows
	counts   counts
	latency  histogram // from the time a request was due or, in a closed loop, sent
	service  histogram // from the time it was sent; open loop only
	statuses map[int]int64
	faults   map[string]int64
}

func newRecorder(open bool) *recorder {
	t := &recorder{latency: newHistogram(), statuses: map[int]int64{}, faults: map[string]int64{}}
	if open {
		t.service = newHistogram()
	}
	return t
}

// maxFaults bounds how many kinds of errors are counted separately.
const maxFaults = 16

// note records the status and the error of an answer.
func (t *recorder) note(a *Answer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if a.Status != 0 {
		t.statuses[int(a.Status)]++
	}
	if a.Err != nil && a.Outcome != Unfinished {
		text := faultText(a.Err)
		if _, known := t.faults[text]; !known && len(t.faults) >= maxFaults {
			text = "other errors"
		}
		t.faults[text]++
	}
}

// faultText leaves out the local port, which differs in every error.
func faultText(err error) string {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Op + ": " + op.Err.Error()
	}
	return err.Error()
}

func (t *recorder) merge(o *recorder) {
	o.mu.Lock()
	defer o.mu.Unlock()
	t.counts.merge(&o.counts)
	t.latency.merge(&o.latency)
	if o.service.hdr != nil {
		t.service.merge(&o.service)
	}
	for status, n := range o.statuses {
		t.statuses[status] += n
	}
	for text, n := range o.faults {
		t.faults[text] += n
	}
}

func (t *recorder) snapshot() counts {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.counts
}
