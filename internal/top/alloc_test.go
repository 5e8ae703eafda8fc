//go:build !race

// The race detector allocates by itself, and takes a minute for millions of decisions. So these run without it.

package top_test

import (
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/top"
)

// TestAMillionKeys: memory is bounded, whatever clients send, and who is hot among them still shows.
func TestAMillionKeys(t *testing.T) {
	before := heap()
	run(t, top.Options{}, func(b *bed) {
		b.limiter.SetRules(nil) // every request is refused, and memstore holds none of them
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
			c := b.answer(top.Query{Refused: refused}).Clients
			if len(c) == 0 || c[0].Client != "s…" {
				t.Fatalf("the hot key isn't the first: %+v", c)
			}
			sum := 0.
			for _, n := range c[0].History.Requests {
				sum += float64(n)
			}
			if off, most := 20_000-sum, 10*(c[0].PlusMinus+c[0].LowBy)+20; off < -most || off > most {
				t.Errorf("the hot key has sent 20,000 requests, and is said to have sent %.0f: %+v", sum, c[0])
			}
		}
		runtime.KeepAlive(b.top)
	})
}

// TestAHotKeyInAFlood: far above what is looked at one by one, the hottest key's rate is right within a few percent.
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
