package memstore_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/storetest"
)

func TestContract(t *testing.T) {
	storetest.Run(t, func(_ storetest.TB, now func() time.Time) counter.Store {
		return memstore.New(memstore.Options{Now: now, MemoryCap: 64 << 20})
	})
}

func TestAllowTakesWhatTakeTakes(t *testing.T) {
	for _, algorithm := range []counter.Algorithm{counter.TokenBucket, counter.LeakyBucket, counter.FixedWindow, counter.SlidingLog, counter.SlidingCounter} {
		now, random := time.UnixMicro(1_700_000_000_000_000), rand.New(rand.NewPCG(1, uint64(algorithm)))
		options := memstore.Options{Now: func() time.Time { return now }}
		asked, allows := memstore.New(options), memstore.New(options)
		p, err := counter.NewPolicy("p", counter.Limit{Algorithm: algorithm, Count: 10, Window: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		refused := 0
		for i := range 2000 {
			now = now.Add(time.Duration(random.IntN(60)) * time.Millisecond)
			key, n := string(rune('a'+random.IntN(3))), 1+random.Int64N(3)
			var want [1]counter.Result
			asked.Take(t.Context(), []counter.Charge{{Counter: counter.Counter{Policy: p, Subject: []byte(key)}, N: n}}, want[:])
			if got := allows.Allow(p, key, n); got != want[0].Allowed {
				t.Fatalf("%s, request %d: %d tokens of %s: Allow %v, Take %v", algorithm, i, n, key, got, want[0].Allowed)
			}
			if !want[0].Allowed {
				refused++
			}
		}
		if refused < 100 || refused > 1900 {
			t.Errorf("%s: %d of 2000 requests were refused, want some of both", algorithm, refused)
		}
	}
}
