package ledger_test

import (
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/ledger"
)

// Windows lend a 64th of what is left, or what requests wait for, and take tokens back into the window that they came from.
func TestWindows(t *testing.T) {
	for _, algorithm := range []counter.Algorithm{counter.FixedWindow, counter.SlidingCounter} {
		p := policy(t, perMinute(algorithm, 641))
		for _, c := range []struct{ n, waiting, want, lent int64 }{
			{1, 0, 0, 0}, {1, 0, 9, 9}, {1, 0, 11, 10}, {1, 0, 1000, 10}, {1, 5, 0, 5}, {1, 5, 3, 8}, {1, 50, 0, 50}, {1, 50, 10, 50}, {600, 60, 0, 41}, {641, 5, 5, 0}, {1, -3, 0, 0},
		} {
			a, lent, ok := ledger.Account{}.Lend(p, start, 1, ask(c.n, c.waiting, c.want))
			if !ok || lent != c.lent || a.Level != c.n+c.lent || a.Lent != [2]int64{} {
				t.Errorf("%s: %+v: lent %d, %+v", algorithm, c, lent, a)
			}
			_, name := a.Lease(p, start, 1)
			if got := a.View(p, start, lent); got.Level != c.n {
				t.Errorf("%s: %+v: seen as %+v by who holds %d", algorithm, c, got, lent)
			}
			if b := a.TakeBack(p, start, 1, unspent(lent, name)); b.Level != c.n {
				t.Errorf("%s: %+v: after %d came back: %+v", algorithm, c, lent, b)
			}
			if b := a.Refund(p, start, 1, name); b.Level != c.n+lent-1 {
				t.Errorf("%s: %+v: after a refund: %+v", algorithm, c, b)
			}
			if b := a.TakeBack(p, start, 1, unspent(lent, name-60*second)); b.Level != c.n+c.lent {
				t.Errorf("%s: tokens of an older window came back: %+v", algorithm, b)
			}
		}
		if a, _, ok := (ledger.Account{}).Lend(p, start, 1, ask(642, 0, 0)); ok || a.Level != 0 {
			t.Errorf("%s: 642 of 641: %+v", algorithm, a)
		}
	}
}

// A node that holds tokens sees a bucket as if they had been given back.
func TestView(t *testing.T) {
	for _, algorithm := range []counter.Algorithm{counter.TokenBucket, counter.LeakyBucket} {
		p := policy(t, perSecond(algorithm, 100))
		a, lent, _ := ledger.Account{}.Lend(p, start, 1, ask(40, 20, 0)) // 40 left, 20 out
		if lent != 20 {
			t.Fatal(lent)
		}
		for _, c := range []struct{ after, held, level int64 }{{0, 20, 60}, {0, 5, 45}, {0, 0, 40}, {20_000, 20, 62}, {80_000, 20, 68}, {10 * second, 0, 100}} {
			now := start + c.after
			if got := p.Level(a.View(p, now, c.held), now) / micro; got != c.level {
				t.Errorf("%s: %+v: seen as %d", algorithm, c, got)
			}
		}
		if got := a.View(p, start+20_001, 5); got.Time != a.Time {
			t.Errorf("%s: nothing keeps the level down, and it is rounded: %+v", algorithm, got)
		}
		full, _, _ := ledger.Account{}.Lend(p, start, 1, ask(1, 20, 0))
		now := int64(start + 60_000)
		if got := p.Level(full.View(p, now, 20), now); got != 100*micro {
			t.Errorf("%s: a full bucket is seen as %d", algorithm, got)
		}
		// Lent tokens limit the level for the node that holds them, too.
		slow := policy(t, perMinute(algorithm, 600))
		b, _, _ := ledger.Account{}.Lend(slow, start, 1, ask(1, 20, 0))
		for held, level := range map[int64]int64{0: 580, 5: 585, 20: 600} {
			if got := slow.Level(b.View(slow, start+4*second, held), start+4*second); got/micro != level {
				t.Errorf("%s: beside 20, of which %d are held: seen as %d", algorithm, held, got)
			}
		}
		if got := (ledger.Account{}).View(p, start, 0); got != (counter.State{}) {
			t.Errorf("%s: an untouched account is seen as %+v", algorithm, got)
		}
	}
}

// A refund fills a bucket only as far as lent tokens allow.
func TestRefunds(t *testing.T) {
	for _, algorithm := range []counter.Algorithm{counter.TokenBucket, counter.LeakyBucket} {
		p := policy(t, perSecond(algorithm, 100))
		a, _, _ := ledger.Account{}.Lend(p, start, 1, ask(40, 20, 0)) // 40 left, 20 out
		for _, c := range []struct{ n, after, left int64 }{
			{10, 0, 50}, {49, 0, 89}, {60, 0, 89}, {1 << 62, 0, 89}, {0, 0, 40}, {10, 20_000, 52}, {10, 45_000, 54}, {60, 90_000, 100}, {5, 10 * second, 100},
		} {
			b := a.Refund(p, start+c.after, c.n, start)
			if got := left(t, b, p, start+c.after); got != c.left {
				t.Errorf("%s: %+v: %d left: %+v", algorithm, c, got, b)
			}
		}
		if b := (ledger.Account{}).Refund(p, start, 5, start); b != (ledger.Account{}) {
			t.Errorf("%s: an untouched account: %+v", algorithm, b)
		}
	}
}

// A clock that runs backwards creates no tokens and blocks no client.
func TestClockRunsBackwards(t *testing.T) {
	p := policy(t, perSecond(counter.TokenBucket, 100))
	a, _, _ := ledger.Account{}.Lend(p, start, 1, ask(60, 40, 0))
	before := int64(start) - 3600*second
	b, _, ok := a.Lend(p, before, 1, ask(1, 0, 0))
	if ok || b.Time != before || b.Since > before {
		t.Errorf("an hour earlier: %v, %+v", ok, b)
	}
	if got := left(t, b, p, before+second); got != 100 {
		t.Errorf("a second later: %d left", got)
	}
	if got := p.Level(a.View(p, before, 0), before); got != 0 {
		t.Errorf("seen as %d", got)
	}
	var r counter.Result
	if a.Report(p, &r, before, 1, counter.Refused); r.RetryAfter > 200*time.Millisecond || r.Remaining != 0 {
		t.Errorf("%+v", r)
	}
	if c := a.Refund(p, before, 5, start); left(t, c, p, before) != 5 {
		t.Errorf("after a refund: %+v", c)
	}
}

// If new numbers make intervals longer, tokens lent before still count.
func TestLentTokensOutliveNewNumbers(t *testing.T) {
	quick, slow := policy(t, perMinute(counter.TokenBucket, 6000)), policy(t, perMinute(counter.TokenBucket, 600))
	a, lent, ok := ledger.Account{}.Lend(quick, start, 1, ask(600, 0, 12))
	if !ok || lent != 12 {
		t.Fatalf("lent %d", lent)
	}
	a.State = slow.AtLevel(100*micro, start)
	_, name := a.Lease(quick, start, 1)
	b := a.TakeBack(slow, start+10_000, 1, unspent(12, name))
	if got := slow.Level(b.State, start+10_000) / micro; got != 112 || b.Lent != [2]int64{} {
		t.Errorf("12 given back to 100: %d, %+v", got, b)
	}
	if again := b.TakeBack(slow, start+10_000, 1, unspent(12, name)); again != b {
		t.Errorf("given back twice: %+v", again)
	}
	if late := a.TakeBack(slow, start+11*second, 1, unspent(12, name)); late != a {
		t.Errorf("given back after two intervals: %+v", late)
	}
}
