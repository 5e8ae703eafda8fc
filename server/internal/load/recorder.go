package load

import (
	"errors"
	"net"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// counts has the number of requests for each outcome, and the numbers of degraded and late requests.
type counts [late + 1]int64

const (
	degraded = outcomes + iota
	late     // in an open loop, sent too long after the request was due
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

// sent returns how many requests were sent.
func (c *counts) sent() int64 { return c.answered() + c.failed() + c[Unfinished] }

// longest is the upper bound of histograms. The maximum is kept separately, and may be larger.
const longest = time.Hour

// histogram records times with three significant digits.
type histogram struct {
	hdr *hdrhistogram.Histogram
	max time.Duration
}

func newHistogram() histogram { return histogram{hdr: hdrhistogram.New(1, int64(longest), 3)} }

func (h *histogram) record(d time.Duration) {
	h.max = max(h.max, d)
	_ = h.hdr.RecordValue(int64(min(max(d, 0), longest))) // can't fail: the value is within the bounds
}

func (h *histogram) merge(o *histogram) {
	h.max = max(h.max, o.max)
	h.hdr.Merge(o.hdr)
}

// quantile returns the time that the given percentage of the recorded times don't exceed.
func (h *histogram) quantile(percent float64) time.Duration {
	return min(time.Duration(h.hdr.ValueAtPercentile(percent)), h.max)
}

// maxRecorders bounds the memory for histograms. If there are more workers than that, several workers share a recorder.
const maxRecorders = 32

// recorder records the answers of one or a few workers.
type recorder struct {
	mu       sync.Mutex // guards the fields below
	counts   counts
	latency  histogram // time since a request was due or, in a closed loop, sent
	service  histogram // time since a request was sent; only in an open loop
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

// maxFaults is how many different errors are counted separately.
const maxFaults = 16

// note records the status or the error of an answer.
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

// faultText returns the text of an error without the local port, which differs in every error.
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
