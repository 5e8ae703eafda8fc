package stake

import (
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
)

var (
	rate   = counter.PerSecond(100)
	window = counter.Limit{Algorithm: counter.FixedWindow, Count: 100, Window: time.Minute}
)

// TestAsksThatComeLate checks that asks that arrive late or twice get a response but lend nothing more.
func TestAsksThatComeLate(t *testing.T) {
	for _, l := range []counter.Limit{rate, window} {
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

// TestLateAnswersBringTokens checks that late responses bring tokens, and end the rest of a lender that seemed to have
// nothing. They don't change when to ask again, because newer responses may have set that.
func TestLateAnswersBringTokens(t *testing.T) {
	p, s := policy(t, rate), Share{Own: 5, Rate: 50}
	for _, c := range []struct {
		name        string
		given, rest int64
		next        int64 // set by a newer response
		want        int64 // rest that is left afterward
	}{
		{"tokens", 7, 0, 0, 0},
		{"nothing", 0, 0, 0, 249_000},
		{"and a rest", 7, 900_000, 0, 0},
		{"when there is one by a newer answer", 7, 0, 600_000, 599_000},
	} {
		k := &Stake{}
		k.Take(p, s, start, 5)
		ask := k.Ask(p, s, start, "us", 10)
		if k.Unheard("us", start); c.next > 0 {
			k.Held["us"].Vain, k.Held["us"].Next = 0, start+c.next
		}
		answer := &Message{Late: true, Retry: 1, For: 10, Rest: c.rest, Lent: &Loan{ID: start, Given: c.given, Sent: start}}
		if n := k.Heard(p, s, start+1000, "us", ask, answer); n != c.given || k.Rests("us", start+1000) != c.want || k.Held["us"].Again != 0 {
			t.Errorf("%s: it brought %d; us rests for %d µs, and has more at %d", c.name, n, k.Rests("us", start+1000), k.Held["us"].Again)
		}
	}
}

// TestReportsOfLenders checks what lenders report in a response: whether they had less than half of what was needed,
// and for how long they don't want to be asked.
func TestReportsOfLenders(t *testing.T) {
	slow := counter.Limit{Count: 60, Window: time.Minute, Burst: 100}
	window := counter.Limit{Algorithm: counter.FixedWindow, Count: 100, Window: time.Minute}
	for _, c := range []struct {
		name       string
		limit      counter.Limit
		own        int64 // the lender's share
		used       int64 // what the lender's clients have used of it
		asked      int64 // what the lender's clients ask for per second
		need, want int64
		short      bool
		rest       int64
	}{
		{"all that is wanted", rate, 90, 0, 0, 20, 20, false, 0},
		{"just what is wanted", rate, 10, 0, 0, 0, 5, false, 0},
		{"half of what requests wait for", rate, 90, 80, 0, 20, 20, false, 0},
		{"less than that", rate, 90, 81, 0, 20, 20, true, 0},
		{"it refills nearly as fast as it is wanted", rate, 90, 80, 0, 20, 112, false, 0},
		{"not fast enough", rate, 90, 80, 0, 20, 113, false, leastRest},
		{"its own clients need some of that", rate, 90, 80, 40, 20, 60, false, 0},
		{"and more", rate, 90, 80, 50, 20, 60, false, leastRest},
		{"it has little to give", rate, 5, 0, 0, 20, 100, true, 533_333},
		{"it has hardly any", rate, 5, 0, 4, 20, 60, true, 1_600_000},
		{"very little", slow, 90, 80, 0, 10, 100, false, longestRest},
		{"nothing but what its own clients need", rate, 90, 89, 90, 1, 20, false, longestRest},
		{"the same, and it has a quarter of what is wanted left", rate, 90, 80, 90, 1, 20, false, 0},
		{"next to nothing of what is wanted", slow, 90, 80, 0, 10, counter.MaxAmount, false, longestRest},
		{"it doesn't refill", rate, 0, 0, 0, 1, 2, true, longestRest},
		{"a window", window, 90, 85, 90, 20, 100, true, 0},
		{"a window of few", counter.Limit{Algorithm: counter.FixedWindow, Count: 50, Window: 30 * 24 * time.Hour}, 40, 39, 0, 2, 1000, false, 0},
	} {
		p := policy(t, c.limit)
		share := Share{Own: c.own, Rate: 10 * c.own}
		us := &Stake{}
		us.TakeAwaited(p, share, start, c.used)
		us.Asked, us.At = float64(c.asked), start
		eu := &Stake{Time: Begun(p, start)}
		ask := eu.Ask(p, Share{}, start, "us", c.need)
		ask.Want = c.want
		answer := us.Hear(p, share, start, "eu", ask)
		if answer.Short != c.short || answer.Rest != c.rest {
			t.Errorf("%s: short %v, rests for %d µs, want %v and %d; lent %+v", c.name, answer.Short, answer.Rest, c.short, c.rest, answer.Lent)
		}
	}
}

// TestAskersArentAskedAhead checks that a region that has just asked for tokens isn't asked ahead for a while, because
// it has too few itself. It may still be asked for requests that wait. A region that only reported on its loan may be
// asked ahead.
func TestAskersArentAskedAhead(t *testing.T) {
	p, s, home := policy(t, rate), Share{Own: 5, Rate: 50}, Share{Own: 90, Rate: 900}
	k, us := &Stake{}, &Stake{}
	told := k.Ask(p, s, start, "us", 0)
	if us.Hear(p, home, start, "eu", told); told.Want > 0 || !us.MayAskAhead("eu", start) {
		t.Errorf("%+v: it may not be asked", told)
	}
	for _, need := range []int64{0, 1} { // asking ahead, and asking for a request
		k.Take(p, s, start+need, 3)
		ask := k.Ask(p, s, start+1+need, "us", need)
		now := start + 10*second*need
		for _, at := range []int64{now, now + 700_000} { // the second time, the ask is an old one
			us.Hear(p, home, at, "eu", ask)
		}
		for after, may := range map[int64]bool{0: false, 999_999: false, 1_000_000: true, -4 * second: true} {
			if us.MayAskAhead("eu", now+after) != may || us.Rests("eu", now+after) != 0 || ask.Want == 0 {
				t.Errorf("%+v, after %d µs: it may be asked ahead: %v; it rests for %d µs", ask, after, !may, us.Rests("eu", now+after))
			}
		}
		if us.HadLittle("eu") {
			t.Error("eu counts as having little, but it wasn't asked")
		}
	}
}

// TestDemandEstimates checks the estimate of demand: a stream of requests is expected to continue at its rate. One or
// two requests, or many at the same moment, aren't a stream.
func TestDemandEstimates(t *testing.T) {
	for _, c := range []struct {
		name        string
		limit       counter.Limit
		every       int64 // µs
		n           int
		cost        int64
		least, most float64
	}{
		{"one request", rate, second, 1, 1, 1, 1},
		{"a large one", rate, second, 1, 60, 60, 60},
		{"three", rate, 100_000, 3, 10, 24, 30},
		{"20 at one moment", rate, 10, 20, 1, 19, 20},
		{"50/s for 0.1 s", rate, 20_000, 6, 1, 55, 63},
		{"50/s for 0.5 s", rate, 20_000, 26, 1, 50, 65},
		{"50/s for 5 s", rate, 20_000, 251, 1, 49, 52},
		{"300/s", rate, 3333, 1000, 1, 200, 200},
		{"1/s for 20 s", counter.PerMinute(100), second, 21, 1, 1, 1.6},
	} {
		p, k, now := policy(t, c.limit), &Stake{}, start
		for range c.n {
			k.note(p, now, c.cost)
			now += c.every
		}
		if d := k.demand(p, now-c.every); d < c.least || d > c.most {
			t.Errorf("%s: %v a second, want %v to %v", c.name, d, c.least, c.most)
		}
		if again := Decode(k.Encode()); again.Since != k.Since || again.Stream != k.Stream || again.Asked != k.Asked || again.At != k.At {
			t.Errorf("%s: a store makes %+v of %+v", c.name, again, k)
		}
	}
	p := policy(t, rate)
	for after, anew := range map[int64]bool{1_900_000: false, 2_100_000: true, -second: true} { // a pause, and a clock that runs backward
		k, now := &Stake{}, start
		for range 20 {
			k.note(p, now, 1)
			now += 10_000
		}
		now += after - 10_000
		if k.note(p, now, 1); (k.Since == now) != anew || (k.Stream == 1) != anew {
			t.Errorf("after %d µs, a new stream starts: %v", after, !anew)
		}
	}
	window := policy(t, counter.Limit{Algorithm: counter.FixedWindow, Count: 100, Window: time.Minute})
	k := &Stake{}
	for i := range int64(10) {
		k.Take(window, Share{Own: 100}, start+i*100_000, 1)
	}
	was := k.demand(window, start+second)
	if k.roll(window, start+61*second); k.Since != start || k.Stream != stream || was < 9 || k.Asked == 0 {
		t.Errorf("a new window forgets demand: %+v", k)
	}
	k = &Stake{}
	own := Share{Own: 5, Rate: 50}
	for i, low := range []bool{false, false, false, true} {
		if k.Take(p, own, start, 1); k.Low(p, own, start) != low {
			t.Errorf("Low is wrong after %d of 5", i+1)
		}
	}
}

// TestUnusedLoansGoBack checks that borrowed tokens without demand go back before the loan's term ends. Until then, the
// loan is renewed.
func TestUnusedLoansGoBack(t *testing.T) {
	p, s, home := policy(t, counter.Limit{Count: 100, Window: time.Hour, Burst: 100}), Share{Own: 5, Rate: 50}, Share{Own: 90, Rate: 900}
	k, us := &Stake{}, &Stake{}
	k.Take(p, s, start, 5)
	ask := k.Ask(p, s, start, "us", 60)
	k.Heard(p, s, start, "us", ask, us.Hear(p, home, start, "eu", ask))
	if out := k.Held["us"].out(); out < 60 {
		t.Fatalf("eu has borrowed %d", out)
	}
	k.Asked = 2000 // demand for more than it has, for two seconds
	for after, want := range map[int64]bool{second: false, 2 * second: false, 3_400_000: true, 7_100_000: true} {
		if to, borrowed := Decode(k.Encode()).Owed(p, s, start+after); (len(to) > 0) != want || !borrowed {
			t.Errorf("after %d µs: %v is owed something, borrowed: %v", after, to, borrowed)
		}
	}
	if before := string(k.Encode()); before != func() string { k.Owed(p, s, start+5*second); return string(k.Encode()) }() {
		t.Error("looking has changed something")
	}
	k.Asked = 0.5
	if to, _ := k.Owed(p, s, start+900_000); len(to) > 0 {
		t.Errorf("%v is owed something 0.9 s after a request", to)
	}
	if to, _ := k.Owed(p, s, start+1_100_000); len(to) != 1 {
		t.Error("unused tokens don't go back")
	}
	now := start + 1_100_000
	for _, left := range []int64{1, 0} { // one token is kept until there has been no demand for a while
		tell := k.Ask(p, s, now, "us", 0)
		k.Heard(p, s, now, "us", tell, us.Hear(p, home, now, "eu", tell))
		if out := k.Held["us"].out(); out != left {
			t.Errorf("%d µs after the last request %d are borrowed", now-start, out)
		}
		now = start + 7_100_000
	}
	if to, borrowed := k.Owed(p, s, now); len(to) > 0 || borrowed {
		t.Errorf("%v is owed something", to)
	}
	if n := us.left(p, home, now) / scale(p); n != 90 {
		t.Errorf("us has %d of 90", n)
	}
	window := policy(t, counter.Limit{Algorithm: counter.FixedWindow, Count: 100, Window: time.Hour})
	w := &Stake{Time: Begun(window, start), Held: map[string]*Loan{"us": {Given: 10, Sent: start}}}
	if to, borrowed := w.Owed(window, s, start+5*second); len(to) > 0 || borrowed {
		t.Error("loans of windows don't end: their owner asks for them")
	}
}

// TestOwnersGetBackWhatTheirRequestsNeed checks that an owner gets back what its requests need, even if the borrower
// has demand, too.
func TestOwnersGetBackWhatTheirRequestsNeed(t *testing.T) {
	for _, l := range []counter.Limit{rate, {Algorithm: counter.FixedWindow, Count: 100, Window: time.Minute}} {
		p, s, home := policy(t, l), Share{Own: 5, Rate: 50}, Share{Own: 90, Rate: 900}
		k, us := &Stake{}, &Stake{}
		k.Take(p, s, start, 5)
		ask := k.Ask(p, s, start, "us", 80)
		k.Heard(p, s, start, "us", ask, us.Hear(p, home, start, "eu", ask))
		k.note(p, start, 200) // the borrower wants more than there is
		us.Take(p, home, start, us.left(p, home, start)/scale(p))
		for _, need := range []int64{7, 1000} {
			had := k.Held["us"].out()
			ask := us.Ask(p, home, start+need, "eu", need)
			answer := k.Hear(p, s, start+need, "us", ask)
			if brought := us.Heard(p, home, start+need, "eu", ask, answer); need == 7 && (brought < 7 || us.Rests("eu", start+need) > 0) {
				t.Errorf("%v: %d came back of %d, and eu rests for %d µs", l.Algorithm, brought, had, us.Rests("eu", start+need))
			}
			if got := us.left(p, home, start+need) / scale(p); got < min(need, had) || got > min(need, had)+s.Own || answer.Short != (need > 500) {
				t.Errorf("%v: us needs %d of %d that eu has, and gets %d; short: %v", l.Algorithm, need, had, got, answer.Short)
			}
			us.TakeAwaited(p, home, start+need, min(need, had))
		}
	}
}

// TestRetryTimesAreForOneRequest checks that a retry time is for a single request, not for all requests that wait
// together.
func TestRetryTimesAreForOneRequest(t *testing.T) {
	p, s, home := policy(t, counter.PerMinute(60)), Share{Own: 5, Rate: 50}, Share{Own: 45, Rate: 900}
	us, eu := &Stake{}, &Stake{}
	us.Take(p, home, start, 45)
	ask := eu.Ask(p, s, start, "us", 90) // more than there will ever be
	for most, retry := range map[int64]int64{9: 10 * second, 0: -1} {
		ask.Most = most
		ask.Held.Sent++
		if answer := us.Hear(p, home, start, "eu", ask); answer.For != max(most, 90*(1-most/9)) || retry > 0 && answer.Retry != retry || retry < 0 && answer.Retry > 0 {
			t.Errorf("most %d: retry after %d µs, for %d", most, answer.Retry, answer.For)
		}
	}
}

// TestDeadRegions checks that what was lent to a dead region is back with its owner, and what was borrowed from one
// belongs to another region. If a dead region asks, the response says that it has nothing.
func TestDeadRegions(t *testing.T) {
	for _, l := range []counter.Limit{rate, window} {
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
			t.Errorf("%v: a dead region borrows again: %+v", l.Algorithm, answer)
		}

		// Now eu is the lender, and us has borrowed 85.
		_, us = lendAll(t, p, Share{Own: 85, Rate: 850}, start)
		us.Held["eu"] = us.Held["us"]
		delete(us.Held, "us")
		own := Share{Own: 5, Rate: 50, Gone: []string{"eu"}}
		if us.settle(p, own, start); us.left(p, own, start) > 5*scale(p) || us.capacity(p, own) != 5*scale(p) {
			t.Errorf("%v: us has %d of the 5 that it owns", l.Algorithm, us.left(p, own, start)/scale(p))
		}
	}
}

// TestRetryTimesOfLenders checks how a lender's retry time is used: only for the amount that was asked for, counted
// from the arrival of the response, and not passed on to other regions.
func TestRetryTimesOfLenders(t *testing.T) {
	p := policy(t, counter.Limit{Count: 60, Window: time.Minute, Burst: 100})
	s := Share{Own: 5, Rate: 50} // one token in 20 s
	k := &Stake{}
	k.Take(p, s, start, 5)
	ask := k.Ask(p, s, start, "us", 2)
	now := start + 150_000
	k.Heard(p, s, now, "us", ask, &Message{Retry: 3 * second, For: 2, Lent: &Loan{ID: start, Sent: start}})
	own := func(n int64) time.Duration { return time.Duration(n)*20*time.Second - 150*time.Millisecond }
	ap := &Stake{}
	answer := k.Hear(p, s, now, "ap", ap.Ask(p, s, now, "eu", 2))
	if answer.Retry != own(2).Microseconds() || answer.For != 2 {
		t.Errorf("eu tells ap that %d are available in %d µs", answer.For, answer.Retry)
	}
	if answer := k.Hear(p, s, now, "ap", ap.Ask(p, s, now+1, "eu", 0)); answer.Retry != 0 || answer.For != 0 {
		t.Errorf("no request waits: %+v", answer)
	}
	for _, c := range []struct {
		at, n int64
		after time.Duration
	}{
		{now, 1, 3 * time.Second},
		{now, 2, 3 * time.Second},
		{now, 3, own(3)}, // the lender gave no time for this many
		{now + second, 2, 2 * time.Second},
		{now + 3*second, 2, own(2) - 3*time.Second}, // other regions may have taken them
	} {
		if r := k.Report(p, s, c.at, c.n, false); r.RetryAfter != c.after {
			t.Errorf("%d at %d µs: retry after %v, want %v", c.n, c.at-now, r.RetryAfter, c.after)
		}
	}
}

// TestRetryTimesOfSlidingLenders checks that a sliding counter gives other regions the same retry time as its own
// clients.
func TestRetryTimesOfSlidingLenders(t *testing.T) {
	p, s := policy(t, counter.Limit{Algorithm: counter.SlidingCounter, Count: 100, Window: time.Minute}), Share{Own: 90}
	us := &Stake{Time: start, Prev: 80, Level: 30}
	now := start + 15*second
	eu := &Stake{}
	ask := eu.Ask(p, Share{Own: 5}, now, "us", 60)
	if got, want := us.Hear(p, s, now, "eu", ask).Retry, us.Report(p, s, now, 60, false).RetryAfter.Microseconds(); got != want || got <= 15*second {
		t.Errorf("retry after %d µs, and its own clients after %d", got, want)
	}
}

// TestWhenToAskAgain checks when a lender may be asked again. If it gave all that was wanted, or wasn't asked for
// tokens, that is at once. If it had too little, it sets the time. If it is in another window, it will soon be in the
// same one.
func TestWhenToAskAgain(t *testing.T) {
	p, s := policy(t, rate), Share{Own: 5, Rate: 50}
	for _, c := range []struct {
		name        string
		want, given int64
		rest        int64
		window      int64
		rests       int64
		vain        int
	}{
		{"all", 50, 50, 0, 0, 0, 0},
		{"some, and more soon", 50, 1, 0, 0, 0, 0},
		{"some", 50, 1, 600_000, 0, 450_000, 0},
		{"some, and its rest is over", 50, 1, 100_000, 0, 0, 0},
		{"nothing", 50, 0, 0, 0, shortWait, 1},
		{"nothing, and it says when", 50, 0, 600_000, 0, 450_000, 1},
		{"nothing, and it says too little", 50, 0, 300_000, 0, shortWait, 1},
		{"nothing was wanted", 0, 0, 0, 0, 0, 0},
		{"another window", 50, 0, 0, start, shortWait, 0},
	} {
		k := &Stake{}
		k.Take(p, s, start, 5)
		ask := k.Ask(p, s, start, "us", 0)
		ask.Want = c.want
		now := start + 150_000
		k.Heard(p, s, now, "us", ask, &Message{Window: c.window, Rest: c.rest, Lent: &Loan{ID: start, Given: c.given, Sent: start}})
		if rests, little := k.Rests("us", now), k.HadLittle("us"); rests != c.rests || little != (c.rests+c.rest > 0) {
			t.Errorf("%s: it rests for %d µs, had little: %v", c.name, rests, little)
		}
		if vain := k.Held["us"].Vain; vain != c.vain {
			t.Errorf("%s: it was asked in vain %d times", c.name, vain)
		}
	}
}
