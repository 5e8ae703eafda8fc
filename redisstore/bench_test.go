package redisstore

import (
	"testing"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/redistest"
)

// BenchmarkTake measures one caller's charges. make bench-redis compares the store with the bare script call.
func BenchmarkTake(b *testing.B) {
	s := open(b, Options{URL: "redis://" + redistest.New(b, redistest.Options{}).Addr, Timeout: DefaultTimeout})
	charges, results := []counter.Charge{charge1(policy(b, "p", counter.TokenBucket, 1_000_000, year), "s")}, make([]counter.Result, 1)
	b.ReportAllocs()
	for b.Loop() {
		s.Take(b.Context(), charges, results)
	}
	if results[0].Err != nil {
		b.Fatal(results[0].Err)
	}
}

// TestAllocations checks that a call with one act allocates little beyond what the client keeps.
func TestAllocations(t *testing.T) {
	s := open(t, Options{URL: "redis://" + redistest.New(t, redistest.Options{}).Addr})
	charges, results := []counter.Charge{charge1(policy(t, "p", counter.TokenBucket, 1_000_000, year), "s")}, make([]counter.Result, 1)
	const most = 10 * slowness // the race detector allocates, too
	if n := testing.AllocsPerRun(500, func() { s.Take(t.Context(), charges, results) }); n > most {
		t.Errorf("%v allocations, want at most %d", n, most)
	}
	if results[0].Err != nil {
		t.Fatal(results[0].Err)
	}
}
