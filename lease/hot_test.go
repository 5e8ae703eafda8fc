package lease

import (
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"

	"github.com/weirhq/weir"
)

// A check of a counter that isn't in the cache waits for the memory of its set, and for two lines of its holding.
func TestLinesOfTheCache(t *testing.T) {
	const line = 64
	var x holding
	if n := unsafe.Sizeof(set{}); n != line {
		t.Errorf("a set has %d bytes", n)
	}
	if n := unsafe.Sizeof(x); n != 4*line {
		t.Errorf("a holding has %d bytes", n)
	}
	if first, last := unsafe.Offsetof(x.ripe), unsafe.Offsetof(x.fullUntil); first < line || last >= 2*line {
		t.Errorf("what a check that spends looks at lies from %d to %d", first, last)
	}
}

// TestTheTableFindsWhatIsThere, and nothing else, though hashes look alike.
func TestTheTableFindsWhatIsThere(t *testing.T) {
	var places table
	places.init(64 * ways)
	rng := rand.New(rand.NewPCG(1, 2))
	there := map[uint64]*holding{}
	for range 100_000 {
		h := rng.Uint64N(1000)<<54 | rng.Uint64N(3) // zero is the byte of an empty place
		switch x := places.find(h); {
		case x != there[h]:
			t.Fatalf("%x: found %p, there is %p", h, x, there[h])
		case x != nil && rng.IntN(4) == 0:
			places.remove(x)
			delete(there, h)
		case x == nil:
			now, gone := places.add(&holding{hash: h})
			if there[h] = now; gone != nil {
				delete(there, gone.hash)
			}
		}
	}
	n := 0
	places.all(func(x *holding) {
		if n++; there[x.hash] != x {
			t.Errorf("%x is in the table", x.hash)
		}
	})
	if n != len(there) || n < 32*ways {
		t.Errorf("%d are in the table, %d should be", n, len(there))
	}
}

// closing asks for a counter until refusals take no lock.
func closing(t *testing.T, s *Store, p *weir.Policy) (x *holding) {
	t.Helper()
	for range 10_000 {
		take(s, charge(p, "s", 1))
		time.Sleep(time.Millisecond)
		if x = s.table.find(s.hash(&weir.Counter{Policy: p, Subject: []byte("s")})); x != nil && x.noneUntil.Load() > s.now() {
			return x
		}
	}
	t.Fatal("it was never refused without the lock")
	return nil
}

// TestWhoIsRefusedOftenTakesNoLock: nobody waits for anybody to be told what is known.
func TestWhoIsRefusedOftenTakesNoLock(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *Store, f *far) {
		p := perMinute(t, 100)
		closing(t, s, p)
		one, two := take(s, charge(p, "s", 1))[0], take(s, charge(p, "s", 2))[0]
		if wait := two.RetryAfter - one.RetryAfter; two.Allowed || wait < 599*time.Millisecond || wait > 601*time.Millisecond {
			t.Errorf("two tokens: %+v, one: %+v", two, one)
		}
		x := closing(t, s, p)
		x.mu.Lock()
		left := x.retryAfter(s.now())
		for i := range 1000 {
			r := take(s, charge(p, "s", 1))[0]
			if wait := left - time.Duration(i)*time.Microsecond; r.Allowed || r.Remaining != 0 || r.RetryAfter != wait || r.ResetAfter < 50*time.Second {
				t.Fatalf("%+v, the next is there in %v", r, wait)
			}
			time.Sleep(time.Microsecond)
		}
		x.unlock()
	})
}

// TestWhatIsThereAgainIsSpent: what came back, or was never known to be refused, isn't refused.
func TestWhatIsThereAgainIsSpent(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *Store, f *far) {
		p := perMinute(t, 100)
		for name, change := range map[string]func(x *holding){
			"tokens came back":  func(x *holding) { x.held, x.ripe, x.until = 1, 0, s.now()+int64(time.Second) },
			"one has ripened":   func(x *holding) { x.held, x.ripe, x.until = 1, s.now(), s.now()+int64(time.Second) },
			"all was forgotten": func(x *holding) { x.forget() },
		} {
			closing(t, s, p)
			if err := f.Reset(t.Context(), []weir.Counter{charge(p, "s", 1).Counter}); err != nil {
				t.Fatal(err)
			}
			if take(s, charge(p, "s", 1))[0].Allowed {
				t.Fatalf("%s: allowed before", name)
			}
			s.withHolding(&weir.Counter{Policy: p, Subject: []byte("s")}, change)
			if r := take(s, charge(p, "s", 1))[0]; !r.Allowed {
				t.Errorf("%s: %+v", name, r)
			}
		}
		closing(t, s, p)
		asks := f.asks.Load()
		if take(s, charge(perMinute(t, 1000), "s", 1)); f.asks.Load() == asks {
			t.Error("the limit was raised, and the store wasn't asked")
		}
	})
}

// TestSamplesTellTheRate of a counter of which not every refusal is counted, however many are admitted in between.
func TestSamplesTellTheRate(t *testing.T) {
	for name, c := range map[string]struct {
		limit weir.Limit
		every time.Duration
	}{
		"hardly any": {weir.Limit{Count: 100, Window: time.Minute}, time.Millisecond},
		"an eighth":  {weir.Limit{Count: 30, Window: time.Second}, 4 * time.Millisecond},
		"a half":     {weir.Limit{Count: 200, Window: time.Second}, 2500 * time.Microsecond},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Options{}, func(t *testing.T, s *Store, f *far) {
				p, err := weir.NewPolicy("p", c.limit)
				if err != nil {
					t.Fatal(err)
				}
				x := closing(t, s, p)
				var sum, before float64
				rounds := 0
				for i := range 40_000 {
					take(s, charge(p, "s", 1))
					time.Sleep(c.every)
					if i > 10_000 {
						x.mu.Lock()
						sum += x.every
						before += float64(x.before)
						rounds++
						x.mu.Unlock()
					}
				}
				if mean, want := before/float64(rounds), float64(rateWindow)/float64(c.every); fast(p.Terms()) && (mean < 0.9*want || mean > 1.1*want) {
					t.Errorf("%.1f come in a window, not %.1f", mean, want)
				}
				if mean := sum / float64(rounds); mean < 0.75*float64(c.every) || mean > 1.33*float64(c.every) {
					t.Errorf("it comes every %v, and is said to every %v", c.every, time.Duration(mean))
				}
			})
		})
	}
}
