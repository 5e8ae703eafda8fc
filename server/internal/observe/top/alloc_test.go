//go:build !race

// These run without the race detector, which causes allocations of its own, and needs a minute for millions of
// decisions.

package top_test

import (
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/server/internal/observe/top"
)

// TestAMillionKeys checks that memory is bounded, whatever clients send, and that hot clients still show.
func TestAMillionKeys(t *testing.T) {
	before := heap()
	run(t, top.Options{}, func(b *bed) {
		b.limiter.SetRules(nil) // every request is refused, so memstore holds no counters
		long := strings.Repeat("x", 16<<10)
		for i := range 1_000_000 {
			key := fmt.Sprint("sk_", i)
			if i%100 == 0 {
				key = long + key
			}
			b.check(weir.Request{APIKey: key, User: key})
			if i%50 == 0 {
				b.check(weir.Request{APIKey: "sk_hot"})
			}
			if i%100 == 0 {
				time.Sleep(time.Millisecond) // 100,000 a second
			}
		}
		time.Sleep(top.Slot)
		if grown := heap() - before; grown > 8<<20 {
			t.Errorf("a million keys take %d KiB", grown>>10)
		}
		for _, refused := range []bool{false, true} {
			got := b.answer(top.Query{Refused: refused})
			c := got.Clients
			if len(c) == 0 || c[0].Client != "s…" {
				t.Fatalf("the hot key isn't the first: %+v", c)
			}
			sum := 0.
			for _, n := range c[0].History.Requests {
				sum += float64(n)
			}
			if off, most := 20_000-sum, 10*(c[0].PlusMinus+got.MissingBelow)+20; off < -most || off > most {
				t.Errorf("the hot key has sent 20,000 requests, and is said to have sent %.0f: %+v", sum, c[0])
			}
		}
		runtime.KeepAlive(b.top)
	})
}

// TestTheHourIsBounded checks that 10,000 rules with a million keys take no more memory than their bound, and that the
// busiest keys are known.
func TestTheHourIsBounded(t *testing.T) {
	rules := make([]weir.Rule, 10_000)
	for i := range rules {
		rules[i] = weir.Rule{ID: fmt.Sprint("r", i), Limits: []weir.Limit{weir.PerSecond(1)}, Match: weir.Match{Endpoint: fmt.Sprint("/p", i)}}
	}
	rs, err := weir.Compile(weir.Rules{Rules: rules})
	if err != nil {
		t.Fatal(err)
	}
	before := heap()
	o := top.Options{Rules: func() *weir.RuleSet { return rs }}
	synctest.Test(t, func(t *testing.T) {
		known := top.New(o)
		ctx := t.Context()
		go func() { _ = known.Run(ctx) }()
		l := weir.NewLimiter(memstore.New(memstore.Options{MemoryCap: 1 << 20}), rs, weir.Options{Observe: known.Observe})
		hot, key := &weir.Request{APIKey: "sk_hot", Path: "/p17"}, make([]byte, 0, 64)
		for i := range 1_000_000 {
			key = fmt.Appendf(key[:0], "sk_prod_0123456789abcdef_%08d", i)
			if _, err := l.Check(ctx, &weir.Request{APIKey: string(key), Path: rules[i%len(rules)].Match.Endpoint}); err != nil {
				t.Fatal(err)
			}
			if i%1000 == 0 {
				_, _ = l.Check(ctx, hot)
			}
			if i%500 == 0 {
				time.Sleep(time.Second) // half an hour in all
			}
		}
		time.Sleep(time.Second)
		hour := top.NewCluster(known, "n1", nil, nil)
		all := must(hour.Rules(ctx))
		grown := heap() - before
		t.Logf("%d KiB, of which the hour says that it has %d", grown>>10, all.Bytes>>10)
		if grown > 64<<20 || all.Bytes < 20<<20 || int64(all.Bytes) > grown+8<<20 || len(all.Rules) != len(rules) {
			t.Errorf("%d rules take %d KiB, and are said to take %d", len(all.Rules), grown>>10, all.Bytes>>10)
		}
		keys := 0
		for _, r := range all.Rules {
			keys += r.Keys
		}
		if keys < 50_000 {
			t.Errorf("only %d keys are remembered", keys)
		}
		r := must(hour.Rule(ctx, top.Query{Rule: "r17", K: 1}))
		if c := r.Clients[0]; c.Requests != 1000 || r.Requests != 1100 || r.Coverage < 0.9 || r.Coverage >= 1 {
			t.Errorf("the busiest key has %d of the rule's %d requests, and the coverage is %v", c.Requests, r.Requests, r.Coverage)
		}
		runtime.KeepAlive(known)
	})
}

// TestAHotKeyInAFlood checks that the rate of the hottest key is right within a few percent, even in a flood of which
// only a sample is counted.
func TestAHotKeyInAFlood(t *testing.T) {
	run(t, top.Options{}, func(b *bed) {
		hot := weir.Request{APIKey: "hot"}
		others := make([]weir.Request, 500)
		for i := range others {
			others[i].APIKey = fmt.Sprint("sk_", i)
		}
		const perMS = 200 // requests, 10 of them from the hot key
		for ms := range 14_000 {
			for i := range perMS {
				if i%20 == 0 {
					b.check(hot)
				} else {
					b.check(others[(ms*perMS+i*7)%len(others)])
				}
			}
			time.Sleep(time.Millisecond)
		}
		got := b.answer(top.Query{})
		c := got.Clients[0]
		if oneIn := got.Nodes[0].SampledOneIn; oneIn < 2 || oneIn > 64 {
			t.Errorf("one in %v was looked at", oneIn)
		}
		if off := math.Abs(b.top.Hottest() - 10_000); off > 500 || off > 2*c.PlusMinus {
			t.Errorf("the hottest key has 10,000 requests a second, and is said to have %v ± %v", b.top.Hottest(), c.PlusMinus)
		}
		time.Sleep(12 * time.Second)
		b.check(hot)
		time.Sleep(top.Slot)
		if oneIn := b.answer(top.Query{}).Nodes[0].SampledOneIn; oneIn != 1 {
			t.Errorf("after the flood one in %v is looked at", oneIn)
		}
		if got := must(top.NewCluster(b.top, "n1", nil, nil).Rule(b.t.Context(), top.Query{Rule: "api", K: 1})); got.Nodes[0].SampledOneIn < 2 || got.Coverage == 1 {
			t.Errorf("of the hour, which the flood is in, one in %v was looked at: %v of it is known", got.Nodes[0].SampledOneIn, got.Coverage)
		}
		time.Sleep(time.Hour)
		b.check(hot)
		time.Sleep(top.Slot)
		if got := must(top.NewCluster(b.top, "n1", nil, nil).Rule(b.t.Context(), top.Query{Rule: "api", K: 1})); got.Nodes[0].SampledOneIn != 1 || got.Coverage != 1 {
			t.Errorf("an hour later one in %v: %v of it is known", got.Nodes[0].SampledOneIn, got.Coverage)
		}
	})
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestAllocsPerDecisionAreNone(t *testing.T) {
	b := newBed(t, top.Options{})
	ctx := t.Context()
	go func() { _ = b.top.Run(ctx) }()
	req := &weir.Request{APIKey: strings.Repeat("long", 100)}
	if got := testing.AllocsPerRun(50_000, func() { _, _ = b.limiter.Check(ctx, req) }); got != 0 {
		t.Errorf("%v allocations a check", got)
	}
}
