package decisionlog

import (
	"io"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/metrics"
	"github.com/weirhq/weir/server/internal/cputime"
)

// BenchmarkFlood measures the log's share of the CPU while 200,000 requests a second are refused, compared with the
// same flood without a log. Both alternate every second, and lines go to a file.
func BenchmarkFlood(b *testing.B) {
	const rate, step = 200_000, time.Millisecond
	log, err := Open(filepath.Join(b.TempDir(), "decisions.log"), Options{})
	if err != nil {
		b.Fatal(err)
	}
	rules, err := weir.Compile(weir.Rules{Rules: []weir.Rule{orders}})
	if err != nil {
		b.Fatal(err)
	}
	m := metrics.New(prometheus.NewRegistry())
	without := weir.NewLimiter(memstore.New(memstore.Options{}), rules, weir.Options{Observe: m.Observe})
	with := weir.NewLimiter(memstore.New(memstore.Options{}), rules, weir.Options{Observe: func(o *weir.Observation) {
		m.Observe(o)
		log.Observe(o)
	}})
	req := &weir.Request{APIKey: "sk_prod_00000000", Method: "GET", Path: "/v1/orders/1"}
	var used [2][]float64 // share of a core
	for b.Loop() {
		for i, l := range []*weir.Limiter{without, with} {
			began, cpu := time.Now(), cputime.Used()
			for done := 0; done < rate; {
				for due := int(min(time.Since(began), time.Second) * rate / time.Second); done < due; done++ {
					_, _ = l.Check(b.Context(), req)
				}
				time.Sleep(step)
			}
			used[i] = append(used[i], float64(cputime.Used()-cpu)/float64(time.Since(began)))
		}
	}
	for i := range used {
		slices.Sort(used[i])
	}
	median := len(used[0]) / 2
	b.ReportMetric(100*used[0][median], "%core-without")
	b.ReportMetric(100*used[1][median], "%core-with")
	b.ReportMetric(100*(used[1][median]-used[0][median]), "%core-log")
	if err := log.Close(time.Minute); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkLeftOut measures a decision that gets no line.
func BenchmarkLeftOut(b *testing.B) {
	log := start(io.Discard, "", Options{})
	o := &weir.Observation{Request: &weir.Request{}, Decision: &weir.Decision{Rule: "orders", Reason: weir.ReasonLimited}}
	b.ReportAllocs()
	for b.Loop() {
		log.left.Store(0)
		log.Observe(o)
	}
	if err := log.Close(time.Minute); err != nil {
		b.Fatal(err)
	}
}
