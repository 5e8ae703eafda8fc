package metrics

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// histogram is both a classic histogram and a native one of schema 0. Native buckets end at powers of two, which are also
// bounds of the classic buckets, so one set of counts serves both.
type histogram struct {
	desc    *prometheus.Desc
	label   *dto.LabelPair
	sum     time.Duration
	bounds  []float64 // upper bounds of the classic buckets, in seconds
	buckets []uint64  // counts for each bound, and last the times above all bounds
}

var _ prometheus.Metric = (*histogram)(nil)

func (h *histogram) Desc() *prometheus.Desc { return h.desc }

// Write implements prometheus.Metric. Times above all classic buckets go to the native bucket after the last bound.
func (h *histogram) Write(out *dto.Metric) error {
	first, last := exponent(h.bounds[0]), exponent(h.bounds[len(h.bounds)-1])
	native := make([]int64, last-first+2)
	x := &dto.Histogram{
		SampleSum: new(h.sum.Seconds()), Schema: new(int32(0)),
		ZeroThreshold: new(prometheus.DefNativeHistogramZeroThreshold), ZeroCount: new(uint64(0)),
		PositiveSpan: []*dto.BucketSpan{{Offset: new(int32(first)), Length: new(uint32(len(native)))}},
	}
	count := uint64(0)
	for i, bound := range h.bounds {
		count += h.buckets[i]
		native[exponent(bound)-first] += int64(h.buckets[i])
		x.Bucket = append(x.Bucket, &dto.Bucket{UpperBound: &bound, CumulativeCount: new(count)})
	}
	above := h.buckets[len(h.bounds)]
	native[len(native)-1] = int64(above)
	count += above
	x.SampleCount = &count
	before := int64(0)
	for _, n := range native {
		x.PositiveDelta = append(x.PositiveDelta, n-before)
		before = n
	}
	out.Histogram, out.Label = x, []*dto.LabelPair{h.label}
	return nil
}

// exponent returns the exponent of the native bucket for a time: of the first power of two that isn't below it.
func exponent(seconds float64) int { return int(math.Ceil(math.Log2(seconds))) }

// times counts how long decisions took at one edge.
type times struct {
	sum     atomic.Int64 // ns
	buckets [-firstTime + 2]atomic.Uint64
}

// firstTime is the exponent of the first bucket, which ends at 2^-23 s (119 ns). The last bucket but one ends at 1 s.
const firstTime = -23

var timeBounds = func() (bounds []float64) {
	for e := firstTime; e <= 0; e++ {
		bounds = append(bounds, math.Ldexp(1, e))
	}
	return bounds
}()

func (t *times) observe(took time.Duration) {
	_, exponent := math.Frexp(took.Seconds())
	t.buckets[min(max(0, exponent-firstTime), len(t.buckets)-1)].Add(1)
	t.sum.Add(int64(took))
}

// collect shows the times of an edge, if there are any.
func (t *times) collect(ch chan<- prometheus.Metric, edge string) {
	h := &histogram{desc: checkDuration, label: &dto.LabelPair{Name: new("edge"), Value: &edge}, sum: time.Duration(t.sum.Load()), bounds: timeBounds}
	for i := range t.buckets {
		h.buckets = append(h.buckets, t.buckets[i].Load())
	}
	if h.sum > 0 {
		ch <- h
	}
}
