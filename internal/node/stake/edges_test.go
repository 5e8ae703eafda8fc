package stake

import (
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
)

// TestOldReceipts checks that tokens that were taken before the limit's numbers changed come back as they are, and
// don't refill at the new rate.
func TestOldReceipts(t *testing.T) {
	old := policy(t, counter.Limit{Count: 100, Window: time.Second, Burst: 100})
	p := policy(t, counter.Limit{Count: 100, Window: 24 * time.Hour, Burst: 100})
	s := Share{Own: 90, Rate: 900}
	k := &Stake{}
	k.Take(p, s, start, 90)
	now := start + 60*second
	k.GiveBack(old, s, now, 1, start)
	if k.left(p, s, now) > 2*second {
		t.Errorf("one token came back, and %d are there", k.left(p, s, now)/second)
	}
}

// TestGarbage checks that invalid data in a store, or from another region, doesn't make a node panic.
func TestGarbage(t *testing.T) {
	for _, l := range []counter.Limit{{Algorithm: counter.LeakyQueue, Count: 100, Window: time.Second, MaxDelay: time.Second}, {Algorithm: counter.SlidingLog, Count: 100, Window: time.Second}, {Algorithm: counter.Concurrency, Count: 100, Window: time.Minute}} {
		func() {
			defer func() {
				if r := recover(); r != nil {
					t.Errorf("%v: %v", l.Algorithm, r)
				}
			}()
			p, err := counter.NewPolicy("p", l)
			if err != nil {
				t.Fatal(err)
			}
			(&Stake{}).Hear(p, Share{Own: 50}, start, "eu", &Message{Need: 1, Want: 1, Held: &Loan{ID: 1, Sent: 1}})
		}()
	}
	for _, text := range []string{`{"o":{"eu":null}}`, `{"h":{"eu":null}}`, `{"h":{"eu":{"i":1,"v":-70,"n":-9223372036854775808}}}`, `{"t":1,"o":{"eu":null}}`, `{"t":5,"l":9223372036854775807}`, `null`} {
		for _, p := range []*counter.Policy{policy(t, counter.PerSecond(100)), policy(t, counter.Limit{Algorithm: counter.FixedWindow, Count: 100, Window: time.Minute})} {
			func() {
				defer func() {
					if r := recover(); r != nil {
						t.Errorf("%s: %v", text, r)
					}
				}()
				k := Decode([]byte(text))
				if rests := k.Rests("eu", start); rests != 0 {
					t.Errorf("%s: it rests for %d µs", text, rests)
				}
				k.Take(p, Share{Own: 50, Rate: 500}, start, 1)
				k.Hear(p, Share{Own: 50, Rate: 500}, start, "eu", &Message{Window: k.Time, Need: 1, Want: 1, Held: &Loan{ID: 1, Sent: 1}})
				ask := k.Ask(p, Share{Own: 50, Rate: 500}, start, "eu", 1)
				k.Heard(p, Share{Own: 50, Rate: 500}, start, "eu", ask, &Message{Window: k.Time})
				k.TTL(p, Share{Own: 50, Rate: 500}, start)
				k.Encode()
			}()
		}
	}
}

func TestSlidingReset(t *testing.T) {
	p := policy(t, counter.Limit{Algorithm: counter.SlidingCounter, Count: 100, Window: time.Minute})
	s := Share{Own: 100}
	k := &Stake{}
	k.Take(p, s, start, 60)
	a := k.Report(p, s, start+second, 1, true).ResetAfter
	st, _ := p.Try(counter.State{}, start, 60)
	b := p.Report(st, start+second, 1, counter.Taken).ResetAfter
	if a != b {
		t.Errorf("ResetAfter of a stake that is all there is: %v, of the limit alone: %v", a, b)
	}
}

// TestOverdraw checks that the level doesn't overflow, however much more is settled than was reserved.
func TestOverdraw(t *testing.T) {
	p, s := policy(t, counter.Limit{Count: 100, Window: time.Second, Burst: 100}), Share{Own: 90, Rate: 900}
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

// TestAskingAheadAgain checks that a lender that gave everything that was wanted can be asked again at once if requests
// wait, but only after a while to ask ahead.
func TestAskingAheadAgain(t *testing.T) {
	p, s, k := policy(t, counter.PerSecond(100)), Share{Own: 5, Rate: 50}, &Stake{}
	if !k.MayAskAhead("us", start) {
		t.Error("one that was never asked may not be asked")
	}
	k.Take(p, s, start, 5)
	ask := k.Ask(p, s, start, "us", 0)
	if brought := k.Heard(p, s, start, "us", ask, &Message{Lent: &Loan{ID: start, Given: ask.Want, Sent: start}}); brought != ask.Want || brought == 0 {
		t.Fatalf("the ask brought %d of %d", brought, ask.Want)
	}
	for after, may := range map[int64]bool{-second: true, 0: false, 399_999: false, 400_000: true} {
		if got := k.MayAskAhead("us", start+after); got != may || k.Rests("us", start+after) != 0 {
			t.Errorf("after %d µs: it may be asked ahead: %v; it rests for %d µs", after, got, k.Rests("us", start+after))
		}
	}
	if k.Unheard("us", start+second); k.MayAskAhead("us", start+second) {
		t.Error("one that rests may be asked ahead")
	}
}

// TestLendersRest checks how long a lender rests after its response. If it gave something, it sets the time itself. If
// it had nothing, the time grows with each attempt.
func TestLendersRest(t *testing.T) {
	p := policy(t, counter.PerSecond(100))
	s := Share{Own: 5, Rate: 50}
	k := &Stake{}
	now := start
	for i, c := range []struct {
		brings int64
		says   int64 // how long the lender wants not to be asked
		rests  int64
		little bool
	}{
		{brings: 10},
		{brings: 4, says: 1_150_000, rests: 1_000_000, little: true},
		{brings: 4, says: 1_150_000, rests: 1_000_000, little: true},
		{brings: 4},
		{rests: 250_000, little: true},
		{brings: 4, says: 1_150_000, rests: 1_000_000, little: true},
		{rests: 250_000, little: true},
		{rests: 500_000, little: true},
		{rests: 1_000_000, little: true},
		{rests: 2_000_000, little: true},
		{rests: 4_000_000, little: true},
		{rests: 4_000_000, little: true},
		{brings: 5},
		{rests: 250_000, little: true},
		{brings: 5},
	} {
		ask := k.Ask(p, s, now, "us", 20)
		now += 150_000
		if got := k.Heard(p, s, now, "us", ask, &Message{Rest: c.says, Lent: &Loan{ID: k.Held["us"].ID, Given: k.Held["us"].Given + c.brings, Sent: k.Held["us"].Sent}}); got != c.brings {
			t.Errorf("%d: %d came, not %d", i, got, c.brings)
		}
		if rests, little := k.Rests("us", now), k.HadLittle("us"); rests != c.rests || little != c.little {
			t.Errorf("%d: it rests for %d µs, had little: %v; not %d, %v", i, rests, little, c.rests, c.little)
		}
		if rests := k.Rests("us", now-10*second); rests != 0 {
			t.Errorf("%d: a clock that ran backwards makes it rest for %d µs", i, rests)
		}
		k.Take(p, s, now, min(c.brings, k.left(p, s, now)/scale(p)))
		now += max(1, c.rests)
	}
	// Another node asked first, so this ask brings nothing.
	ask := k.Ask(p, s, now, "us", 20)
	if k.Heard(p, s, now, "us", ask, &Message{Late: true, Lent: &Loan{ID: k.Held["us"].ID, Given: k.Held["us"].Given, Sent: k.Held["us"].Sent}}); k.Rests("us", now) != 0 {
		t.Error("a region rests that wasn't asked")
	}
	for _, rests := range []int64{250_000, 500_000} {
		if k.Unheard("us", now); k.Rests("us", now) != rests {
			t.Errorf("a region that doesn't answer rests for %d µs", k.Rests("us", now))
		}
	}
	if k.Unheard("ap", now); k.Rests("ap", now) != 0 || k.HadLittle("ap") {
		t.Error("a region that wasn't asked rests")
	}
}

// TestRetryTimesAfterARest checks that no client is told to retry before the lender has rested.
func TestRetryTimesAfterARest(t *testing.T) {
	p := policy(t, counter.Limit{Count: 60, Window: time.Minute, Burst: 100})
	s := Share{Own: 5, Rate: 50} // one token in 20 s
	k := &Stake{}
	now := start
	k.Take(p, s, now, 5)
	for i := range 6 {
		ask := k.Ask(p, s, now, "us", 1)
		now += 150_000
		l := k.Held["us"]
		k.Heard(p, s, now, "us", ask, &Message{Retry: 100_000, For: 1, Lent: &Loan{ID: l.ID, Given: l.Given, Sent: l.Sent}})
		rests, retry := k.Rests("us", now), k.Report(p, s, now, 1, false).RetryAfter.Microseconds()
		if retry < rests {
			t.Errorf("%d: retry after %d µs, and us rests for %d µs", i, retry, rests)
		}
		now += rests
	}
}

// TestAnswersThatOvertakeEachOther checks two asks whose responses arrive in reverse order. The lender gave tokens to
// both, so it doesn't rest because the first response to arrive already brought everything.
func TestAnswersThatOvertakeEachOther(t *testing.T) {
	p := policy(t, counter.PerSecond(100))
	s, home := Share{Own: 5, Rate: 50}, Share{Own: 90, Rate: 900}
	k, us := &Stake{}, &Stake{}
	k.Take(p, s, start, 5)
	a := k.Ask(p, s, start, "us", 10)
	b := k.Ask(p, s, start+1, "us", 10)
	answerA, answerB := us.Hear(p, home, start, "eu", a), us.Hear(p, home, start+1, "eu", b)
	now := start + 150_000
	if n := k.Heard(p, s, now, "us", b, answerB); n < 20 {
		t.Errorf("%d came", n)
	}
	k.Heard(p, s, now, "us", a, answerA)
	if rests := k.Rests("us", now); rests > 0 {
		t.Errorf("us gave %d, and rests for %d µs", answerA.Lent.Given, rests)
	}
}

// TestWindowsThatDiffer checks that if the lender's window starts 0.8 s after the borrower's, the lender lends soon
// after that.
func TestWindowsThatDiffer(t *testing.T) {
	p := policy(t, counter.Limit{Algorithm: counter.FixedWindow, Count: 100, Window: time.Minute})
	s, home := Share{Own: 5}, Share{Own: 90}
	begun := Begun(p, start) + 60*second
	k, us := &Stake{}, &Stake{}
	us.Take(p, home, begun-2*second, 1)
	now := begun
	k.Take(p, s, now, 5)
	for {
		ask := k.Ask(p, s, now, "us", 1)
		if k.Heard(p, s, now, "us", ask, us.Hear(p, home, now-800_000, "eu", ask)) > 0 {
			break
		}
		now += max(1, k.Rests("us", now))
	}
	if now > begun+1_100_000 {
		t.Errorf("us lends %d µs after its window has started", now-800_000-begun)
	}
}
