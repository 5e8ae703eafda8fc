package stake

import (
	"testing"
	"time"

	"github.com/weirhq/weir"
)

// TestOldReceipts: tokens that were taken under other numbers come back without refilling by those.
func TestOldReceipts(t *testing.T) {
	old := policy(t, weir.Limit{Count: 100, Window: time.Second, Burst: 100})
	p := policy(t, weir.Limit{Count: 100, Window: 24 * time.Hour, Burst: 100})
	s := Share{Own: 90, Rate: 900}
	k := &Stake{}
	k.Take(p, s, start, 90)
	now := start + 60*second
	k.GiveBack(old, s, now, 1, start)
	if k.left(p, s, now) > 2*second {
		t.Errorf("one token came back, and %d are there", k.left(p, s, now)/second)
	}
}

// TestGarbage in a store, or from another region, makes no node fall over.
func TestGarbage(t *testing.T) {
	for _, l := range []weir.Limit{{Algorithm: weir.LeakyQueue, Count: 100, Window: time.Second, MaxDelay: time.Second}, {Algorithm: weir.SlidingLog, Count: 100, Window: time.Second}, {Algorithm: weir.Concurrency, Count: 100, Window: time.Minute}} {
		func() {
			defer func() {
				if r := recover(); r != nil {
					t.Errorf("%v: %v", l.Algorithm, r)
				}
			}()
			p, err := weir.NewPolicy("p", l)
			if err != nil {
				t.Fatal(err)
			}
			(&Stake{}).Hear(p, Share{Own: 50}, start, "eu", &Message{Need: 1, Want: 1, Held: &Loan{ID: 1, Sent: 1}})
		}()
	}
	for _, text := range []string{`{"o":{"eu":null}}`, `{"h":{"eu":null}}`, `{"t":1,"o":{"eu":null}}`, `{"t":5,"l":9223372036854775807}`, `null`} {
		for _, p := range []*weir.Policy{policy(t, weir.PerSecond(100)), policy(t, weir.Limit{Algorithm: weir.FixedWindow, Count: 100, Window: time.Minute})} {
			func() {
				defer func() {
					if r := recover(); r != nil {
						t.Errorf("%s: %v", text, r)
					}
				}()
				k := Decode([]byte(text))
				k.Take(p, Share{Own: 50, Rate: 500}, start, 1)
				k.Hear(p, Share{Own: 50, Rate: 500}, start, "eu", &Message{Window: k.Time, Need: 1, Want: 1, Held: &Loan{ID: 1, Sent: 1}})
				k.Ask(p, Share{Own: 50, Rate: 500}, start, "eu", 1)
				k.TTL(p, Share{Own: 50, Rate: 500}, start)
				k.Encode()
			}()
		}
	}
}

func TestSlidingReset(t *testing.T) {
	p := policy(t, weir.Limit{Algorithm: weir.SlidingCounter, Count: 100, Window: time.Minute})
	s := Share{Own: 100}
	k := &Stake{}
	k.Take(p, s, start, 60)
	a := k.Report(p, s, start+second, 1, true).ResetAfter
	st, _ := p.Try(weir.State{}, start, 60)
	b := p.Report(st, start+second, 1, weir.Taken).ResetAfter
	if a != b {
		t.Errorf("ResetAfter of a stake that is all there is: %v, of the limit alone: %v", a, b)
	}
}

// TestOverdraw: however much more than reserved is settled, the level doesn't wrap.
func TestOverdraw(t *testing.T) {
	p, s := policy(t, weir.Limit{Count: 100, Window: time.Second, Burst: 100}), Share{Own: 90, Rate: 900}
	k := &Stake{}
	for i := range 3000 {
		k.GiveBack(p, s, start, -9_000_000_000, start)
		if k.Level > 0 {
			t.Errorf("after %d settlements the level is %d", i+1, k.Level)
			break
		}
	}
	k = &Stake{}
	k.GiveBack(p, s, start, -9_300_000_000_000, start)
	if k.Fits(p, s, start, 1) || k.Level > 0 {
		t.Errorf("the level is %d", k.Level)
	}
}
