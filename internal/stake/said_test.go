package stake

import (
	"testing"
	"time"

	"github.com/weirhq/weir"
)

var (
	rate   = weir.PerSecond(100)
	window = weir.Limit{Algorithm: weir.FixedWindow, Count: 100, Window: time.Minute}
)

// TestAsksThatComeLate, or twice, are answered, and lend nothing more.
func TestAsksThatComeLate(t *testing.T) {
	for _, l := range []weir.Limit{rate, window} {
		p, s, home := policy(t, l), Share{Own: 5, Rate: 50}, Share{Own: 90, Rate: 900}
		k, us := &Stake{}, &Stake{}
		k.Take(p, s, start, 5)
		a := k.Ask(p, s, start, "us", 10)
		b := k.Ask(p, s, start+1000, "us", 10)
		first := us.Hear(p, home, start+1000, "eu", b)
		if first.Late || first.Lent.Given < 10 {
			t.Fatalf("%v: %+v, lent %+v", l.Algorithm, first, first.Lent)
		}
		for name, m := range map[string]*Message{"the same again": b, "one that was sent before": a} {
			if got := us.Hear(p, home, start+2000, "eu", m); !got.Late || got.Lent.Given != first.Lent.Given || got.Short {
				t.Errorf("%v: %s: %+v, lent %+v after %+v", l.Algorithm, name, got, got.Lent, first.Lent)
			}
		}
		if got := us.Hear(p, home, start+3000, "eu", k.Ask(p, s, start+3000, "us", 10)); got.Late || got.Lent.Given <= first.Lent.Given {
			t.Errorf("%v: a new one: %+v, lent %+v", l.Algorithm, got, got.Lent)
		}
	}
}

// TestLateAnswersBringTokens, if another node's ask has moved them. They say nothing of when to ask again.
func TestLateAnswersBringTokens(t *testing.T) {
	p, s := policy(t, rate), Share{Own: 5, Rate: 50}
	k := &Stake{}
	k.Take(p, s, start, 5)
	ask := k.Ask(p, s, start, "us", 10)
	k.Unheard("us", start)
	answer := &Message{Late: true, Retry: 1, For: 10, Lent: &Loan{ID: start, Given: 7, Sent: start}}
	if n := k.Heard(p, s, start+1000, "us", ask, answer); n != 7 || k.Rests("us", start+1000) != 249_000 || k.Held["us"].Again != 0 {
		t.Errorf("it brought %d; us rests for %d µs, and has more at %d", n, k.Rests("us", start+1000), k.Held["us"].Again)
	}
}

// TestWhatLendersSayOfThemselves: that they had less than half, or that they need the rest.
func TestWhatLendersSayOfThemselves(t *testing.T) {
	p, s, home := policy(t, rate), Share{Own: 5, Rate: 50}, Share{Own: 90, Rate: 900}
	for _, c := range []struct {
		used, asked, need int64 // the lender's own clients have used some, and more was asked for
		short, busy       bool
	}{
		{used: 0, need: 20},
		{used: 80, need: 20, busy: true},
		{used: 81, need: 20, short: true, busy: true},
		{used: 90, need: 1, short: true, busy: true},
		{used: 40, asked: 90, need: 20, busy: true},
	} {
		k, us := &Stake{}, &Stake{}
		us.Take(p, home, start, c.used)
		us.note(p, start, c.asked)
		answer := us.Hear(p, home, start, "eu", k.Ask(p, s, start, "us", c.need))
		if answer.Short != c.short || answer.Busy != c.busy {
			t.Errorf("%+v: short %v, busy %v; lent %+v", c, answer.Short, answer.Busy, answer.Lent)
		}
	}
}

// TestDeadRegions: what was lent to them is here again, what was borrowed of them is another's now, and should one of them ask, it hears
// that it has nothing.
func TestDeadRegions(t *testing.T) {
	for _, l := range []weir.Limit{rate, window} {
		p, home := policy(t, l), Share{Own: 90, Rate: 900}
		dead := home
		dead.Gone = []string{"eu"}

		us, eu := lendAll(t, p, home, start)
		if us.settle(p, dead, start); us.capacity(p, dead) != 90*scale(p) || len(us.Borrowers()) > 0 || !isBucket(p) && us.left(p, dead, start) != 90 {
			t.Errorf("%v: us has %d of 90", l.Algorithm, us.left(p, dead, start)/scale(p))
		}
		ask := eu.Ask(p, Share{}, start+1000, "us", 10)
		answer := us.Hear(p, dead, start+1000, "eu", ask)
		if len(us.Lent) > 0 || !answer.Void {
			t.Errorf("%v: a dead region is answered: %+v", l.Algorithm, answer)
		}
		if n := eu.Heard(p, Share{}, start+1000, "us", ask, answer); n != 0 || eu.left(p, Share{}, start+1000) != 0 {
			t.Errorf("%v: it has %d left", l.Algorithm, eu.left(p, Share{}, start+1000)/scale(p))
		}
		left := us.left(p, dead, start+1000)
		if answer := us.Hear(p, dead, start+1000, "eu", (&Stake{}).Ask(p, Share{}, start+1000, "us", 10)); us.left(p, dead, start+1000) != left || len(us.Lent) > 0 || !answer.Void {
			t.Errorf("%v: a dead region borrows anew: %+v", l.Algorithm, answer)
		}

		// The other way round: eu is the lender, and us has 85 of it.
		_, us = lendAll(t, p, Share{Own: 85, Rate: 850}, start)
		us.Held["eu"] = us.Held["us"]
		delete(us.Held, "us")
		own := Share{Own: 5, Rate: 50, Gone: []string{"eu"}}
		if us.settle(p, own, start); us.left(p, own, start) > 5*scale(p) || us.capacity(p, own) != 5*scale(p) {
			t.Errorf("%v: us has %d of the 5 that it owns", l.Algorithm, us.left(p, own, start)/scale(p))
		}
	}
}

// TestWhenLendersHaveMore: what a lender said counts for as much as it was asked for, from when its answer came, and isn't passed on.
func TestWhenLendersHaveMore(t *testing.T) {
	p := policy(t, weir.Limit{Count: 60, Window: time.Minute, Burst: 100})
	s := Share{Own: 5, Rate: 50} // one in 20 s
	k := &Stake{}
	k.Take(p, s, start, 5)
	ask := k.Ask(p, s, start, "us", 2)
	now := start + 150_000
	k.Heard(p, s, now, "us", ask, &Message{Busy: true, Retry: 3 * second, For: 2, Lent: &Loan{ID: start, Sent: start}})
	own := func(n int64) time.Duration { return time.Duration(n)*20*time.Second - 150*time.Millisecond }
	ap := &Stake{}
	answer := k.Hear(p, s, now, "ap", ap.Ask(p, s, now, "eu", 2))
	if answer.Retry != own(2).Microseconds() || answer.For != 2 {
		t.Errorf("it tells another region that it has %d in %d µs", answer.For, answer.Retry)
	}
	if answer := k.Hear(p, s, now, "ap", ap.Ask(p, s, now+1, "eu", 0)); answer.Retry != 0 || answer.For != 0 {
		t.Errorf("nobody waits: %+v", answer)
	}
	for _, c := range []struct {
		at, n int64
		after time.Duration
	}{
		{now, 1, 3 * time.Second},
		{now, 2, 3 * time.Second},
		{now, 3, own(3)}, // it has said nothing of so much
		{now + second, 2, 2 * time.Second},
		{now + 3*second, 2, own(2) - 3*time.Second}, // others may have taken it
	} {
		if r := k.Report(p, s, c.at, c.n, false); r.RetryAfter != c.after {
			t.Errorf("%d at %d µs: retry after %v, want %v", c.n, c.at-now, r.RetryAfter, c.after)
		}
	}
}

// TestWhenWindowsHaveMore: a sliding counter tells others what it tells its own clients.
func TestWhenWindowsHaveMore(t *testing.T) {
	p, s := policy(t, weir.Limit{Algorithm: weir.SlidingCounter, Count: 100, Window: time.Minute}), Share{Own: 90}
	us := &Stake{Time: start, Prev: 80, Level: 30}
	now := start + 15*second
	eu := &Stake{}
	ask := eu.Ask(p, Share{Own: 5}, now, "us", 60)
	if got, want := us.Hear(p, s, now, "eu", ask).Retry, us.Report(p, s, now, 60, false).RetryAfter.Microseconds(); got != want || got <= 15*second {
		t.Errorf("retry after %d µs, and its own clients after %d", got, want)
	}
}

// TestWhenToAskAgain: one that gave what requests waited for may be asked at once, though it needs the rest. For what nobody waits yet, it
// isn't. One in another window will be there soon.
func TestWhenToAskAgain(t *testing.T) {
	p, s := policy(t, rate), Share{Own: 5, Rate: 50}
	for _, c := range []struct {
		name        string
		need, given int64
		window      int64
		rests       int64
		little      bool
	}{
		{"enough for those who wait", 2, 2, 0, 0, false},
		{"less than they wait for", 2, 1, 0, busyWait, true},
		{"little, and nobody waits", 0, 2, 0, busyWait, true},
		{"nothing", 2, 0, 0, shortWait, true},
		{"another window", 2, 0, start, shortWait, true},
	} {
		k := &Stake{}
		k.Take(p, s, start, 5)
		k.note(p, start, 90) // far more is wanted
		ask := k.Ask(p, s, start, "us", c.need)
		answer := &Message{Window: c.window, Busy: true, Lent: &Loan{ID: start, Given: c.given, Sent: start}}
		if k.Heard(p, s, start, "us", ask, answer); k.Rests("us", start) != c.rests || k.HadLittle("us") != c.little {
			t.Errorf("%s: it rests for %d µs, had little: %v", c.name, k.Rests("us", start), k.HadLittle("us"))
		}
		if vain := k.Held["us"].Vain; (vain == 1) != (c.rests > 0 && c.window == 0) {
			t.Errorf("%s: it was asked in vain %d times", c.name, vain)
		}
		if k.Take(p, s, start+second, 1); k.HadLittle("us") != c.little {
			t.Errorf("%s: it had little: %v, after it has rested", c.name, k.HadLittle("us"))
		}
	}
}
