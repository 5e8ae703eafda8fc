package metrics

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// histogram is a metric that is both a classic histogram and a native one. The classic buckets end at powers of two of a
// second, and so do those of a native histogram with schema 0, whose bucket i ends at 2^i seconds: one count serves both.
type histogram struct {
	desc    *prometheus.Desc
	label   *dto.LabelPair
	sum     time.Duration
	buckets []uint64 // the last but one ends at 2^last s, and the last has what is above
	last    int
}

var _ prometheus.Metric = (*histogram)(nil)

func (h *histogram) Desc() *prometheus.Desc { return h.desc }

// Write is for the registerer. What is above all classic buckets is in the next native one.
func (h *histogram) Write(out *dto.Metric) error {
	first := h.last - len(h.buckets) + 2
	x := &dto.Histogram{
		SampleSum: new(h.sum.Seconds()), Schema: new(int32(0)),
		ZeroThreshold: new(prometheus.DefNativeHistogramZeroThreshold), ZeroCount: new(uint64(0)),
		PositiveSpan: []*dto.BucketSpan{{Offset: new(int32(first)), Length: new(uint32(len(h.buckets)))}},
	}
	count, before := uint64(0), uint64(0)
	for i, n := range h.buckets {
		count += n
		x.PositiveDelta = append(x.PositiveDelta, int64(n)-int64(before))
		before = n
		if i < len(h.buckets)-1 {
			x.Bucket = append(x.Bucket, &dto.Bucket{UpperBound: new(math.Ldexp(1, first+i)), CumulativeCount: new(count)})
		}
	}
	x.SampleCount = &count
	out.Histogram, out.Label = x, []*dto.LabelPair{h.label}
	return nil
}

// times counts how long decisions took at one edge.
type times struct {
	sum     atomic.Int64 // ns
	buckets [-firstTime + 2]atomic.Uint64
}

// firstTime is the exponent of the first bucket: it ends at 2^-23 s, or 119 ns. The last but one ends at 1 s.
const firstTime = -23

func (t *times) observe(took time.Duration) {
	_, exponent := math.Frexp(took.Seconds())
	t.buckets[min(max(0, exponent-firstTime), len(t.buckets)-1)].Add(1)
	t.sum.Add(int64(took))
}

// collect shows the times of an edge, if it has any.
func (t *times) collect(ch chan<- prometheus.Metric, edge string) {
	h := &histogram{desc: checkDuration, label: &dto.LabelPair{Name: new("edge"), Value: &edge}, sum: time.Duration(t.sum.Load())}
	for i := range t.buckets {
		h.buckets = append(h.buckets, t.buckets[i].Load())
	}
	if h.sum > 0 {
		ch <- h
	}
}
