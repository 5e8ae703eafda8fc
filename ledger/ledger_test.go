package ledger_test

import (
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/ledger"
)

const (
	micro  = 1_000_000             // of a token
	second = int64(1_000_000)      // µs
	start  = 1_773_500_966_535_897 // µs
)

func policy(t testing.TB, l counter.Limit) *counter.Policy {
	t.Helper()
	p, err := counter.NewPolicy("p", l)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func perSecond(a counter.Algorithm, n int64) counter.Limit {
	return counter.Limit{Algorithm: a, Count: n, Window: time.Second}
}

func perMinute(a counter.Algorithm, n int64) counter.Limit {
	return counter.Limit{Algorithm: a, Count: n, Window: time.Minute}
}

func ask(n, waiting, want int64) *ledger.Ask {
	return &ledger.Ask{Charge: counter.Charge{N: n}, Waiting: waiting, Want: want}
}

func unspent(n, interval int64) *ledger.Unspent { return &ledger.Unspent{N: n, Interval: interval} }

// left returns how many tokens can be taken, and checks that refusals agree.
func left(t testing.TB, a ledger.Account, p *counter.Policy, now int64) int64 {
	t.Helper()
	n := int64(0)
	for n <= p.Limit.Max() {
		if _, _, ok := a.Lend(p, now, 0, ask(n+1, 0, 0)); !ok {
			break
		}
		n++
	}
	var r counter.Result
	if a.Report(p, &r, now, 1, counter.Fits); r.Remaining != n {
		t.Fatalf("%d tokens may be taken, and %d are reported: %+v", n, r.Remaining, a)
	}
	return n
}

// takes charges an account again and again for one node, and fails if a charge is refused.
func takes(t testing.TB, a ledger.Account, p *counter.Policy, now *int64, each int64, node uint32, times int, q *ledger.Ask) (ledger.Account, int64) {
	t.Helper()
	lent, ok := int64(0), false
	for range times {
		*now += each
		if a, lent, ok = a.Lend(p, *now, node, q); !ok {
			t.Fatalf("refused: %+v", a)
		}
	}
	return a, lent
}

func TestLends(t *testing.T) {
	for _, c := range []struct {
		a    counter.Algorithm
		want bool
	}{
		{counter.TokenBucket, true}, {counter.LeakyBucket, true}, {counter.FixedWindow, true}, {counter.SlidingCounter, true},
		{counter.LeakyQueue, false}, {counter.SlidingLog, false}, {counter.Concurrency, false},
	} {
		p := policy(t, perMinute(c.a, 10))
		if got := ledger.Lends(p); got != c.want {
			t.Errorf("%s: %v", c.a, got)
		}
		if p = p.With(func(d *counter.Definition) { d.Strict = true }); ledger.Lends(p) {
			t.Errorf("%s: a strict policy lends", c.a)
		}
	}
	for _, a := range []counter.Algorithm{counter.TokenBucket, counter.LeakyBucket, counter.FixedWindow} {
		if ledger.Lends(policy(t, counter.Limit{Algorithm: a, Count: 10, Window: time.Minute, Decimal: true})) {
			t.Errorf("%s: an amount is lent", a)
		}
	}
}

func TestIntervals(t *testing.T) {
	for _, c := range []struct {
		limit    counter.Limit
		interval time.Duration
		most     int64
	}{
		{counter.Limit{Count: 45, Window: time.Second}, 45 * time.Millisecond, 1},                              // two tokens refill in it
		{counter.Limit{Count: 400, Window: 9 * time.Second}, 45 * time.Millisecond, 2},                         // just two
		{counter.Limit{Count: 44, Window: time.Second}, 500 * time.Millisecond, 1},                             // not quite
		{counter.Limit{Count: 100, Window: 10 * time.Second}, 1250 * time.Millisecond, 8},                      // an eighth of the time to fill
		{counter.Limit{Count: 100, Window: time.Minute}, 5 * time.Second, 8},                                   // and 5 s at most
		{counter.Limit{Count: 600, Window: time.Minute}, 5 * time.Second, 50},                                  // what refills in it
		{counter.Limit{Count: 600, Burst: 40, Window: time.Minute}, 500 * time.Millisecond, 1},                 // an eighth above 32
		{counter.Limit{Count: 600, Burst: 32, Window: time.Minute}, 500 * time.Millisecond, 0},                 // nothing below
		{counter.Limit{Count: 600, Burst: 10, Window: time.Minute}, 500 * time.Millisecond, 0},                 //
		{counter.Limit{Algorithm: counter.FixedWindow, Count: 1, Window: time.Hour}, 45 * time.Millisecond, 0}, // windows lend for moments
	} {
		p := policy(t, c.limit)
		if got := ledger.Interval(p); got != c.interval {
			t.Errorf("%+v: an interval of %v, want %v", c.limit, got, c.interval)
		}
		if c.limit.Algorithm <= counter.LeakyBucket {
			if got := ledger.Most(p); got != c.most {
				t.Errorf("%+v: at most %d out, want %d", c.limit, got, c.most)
			}
		}
	}
}

// A quick bucket lends to every node that asks: everything that requests wait for, and then at most three quarters of what is
// left.
func TestQuickBucketsLend(t *testing.T) {
	for _, algorithm := range []counter.Algorithm{counter.TokenBucket, counter.LeakyBucket} {
		p := policy(t, perSecond(algorithm, 100))
		for _, c := range []struct{ n, waiting, want, lent int64 }{
			{1, 0, 0, 0}, {1, 0, 10, 10}, {1, 5, 10, 15}, {20, 0, 60, 60}, {20, 0, 61, 60}, {20, 0, 1000, 60},
			{20, 40, 1000, 70}, {20, 80, 0, 80}, {20, 81, 0, 80}, {20, 1000, 1000, 80}, {100, 10, 10, 0}, {1, -5, -5, 0},
		} {
			a, lent, ok := ledger.Account{}.Lend(p, start, 7, ask(c.n, c.waiting, c.want))
			if !ok || lent != c.lent || a.Lent != [2]int64{c.lent, 0} {
				t.Errorf("%s: of 100, %d with %d waiting and %d wanted: lent %d, %v, %+v", algorithm, c.n, c.waiting, c.want, lent, ok, a)
			}
			if got := left(t, a, p, start); got != 100-c.n-c.lent {
				t.Errorf("%s: %+v: %d left", algorithm, c, got)
			}
			if (a.Since != 0) != (c.lent > 0) {
				t.Errorf("%s: %+v: intervals since %d", algorithm, c, a.Since)
			}
		}
		b := ledger.Account{}
		if a, lent, ok := b.Lend(p, start, 7, ask(101, 5, 5)); ok || lent != 0 || a != b {
			t.Errorf("%s: 101 of 100: %+v, %d, %v", algorithm, a, lent, ok)
		}
	}
}

// Lent tokens count for two intervals. Meanwhile the bucket refills to no more than its capacity minus those tokens, plus the
// refill of 90 ms.
func TestWhatIsOutKeepsTheLevelDown(t *testing.T) {
	p := policy(t, perSecond(counter.TokenBucket, 100))
	a, _, _ := ledger.Account{}.Lend(p, start, 1, ask(1, 50, 0)) // 49 left, 50 out
	for _, c := range []struct{ after, left int64 }{
		{0, 49}, {20_000, 51}, {44_999, 53}, {45_000, 53}, {89_999, 57}, // refilled so far
		{100_000, 59}, {200_000, 69}, {600_000, 100},
	} {
		if got := left(t, a, p, start+c.after); got != c.left {
			t.Errorf("after %d µs: %d left, want %d", c.after, got, c.left)
		}
	}
	// A bucket that was full before can't be full while tokens are lent.
	full, _, _ := ledger.Account{}.Lend(p, start, 1, ask(1, 10, 0)) // 89 left, 10 out
	for _, c := range []struct{ after, left int64 }{{10_000, 90}, {89_999, 97}, {90_000, 98}, {100_000, 99}, {110_001, 100}} {
		if got := left(t, full, p, start+c.after); got != c.left {
			t.Errorf("beside 10: after %d µs: %d left, want %d", c.after, got, c.left)
		}
	}
	var r counter.Result
	if full.Report(p, &r, start, 1, counter.Taken); r.ResetAfter != 110*time.Millisecond {
		t.Errorf("full again after %v", r.ResetAfter)
	}
	// If many tokens are lent, refilling stops.
	most, _, _ := ledger.Account{}.Lend(p, start, 1, ask(1, 99, 0)) // 0 left, 99 out
	if got := left(t, most, p, start+80_000); got != 8 {
		t.Errorf("beside 99: %d left", got)
	}
	// Tokens lent in either interval count.
	slow := policy(t, perMinute(counter.TokenBucket, 600)) // intervals of 5 s, in which 50 refill
	both, _, _ := ledger.Account{}.Lend(slow, start, 1, ask(1, 20, 0))
	both, _, _ = both.Lend(slow, start+6*second, 1, ask(1, 30, 0))
	for _, c := range []struct{ after, left int64 }{{6, 549}, {9, 550}, {11, 560}, {14, 570}, {16, 580}, {18, 600}} {
		if got := left(t, both, slow, start+c.after*second); got != c.left {
			t.Errorf("beside 20 and 30: after %d s: %d left, want %d; %+v", c.after, got, c.left, both)
		}
	}
}

// A refusal says when a cost fits, and a report says when the bucket is full, to the µs, even while tokens are lent.
func TestRefusalsSayWhen(t *testing.T) {
	for _, limit := range []counter.Limit{perSecond(counter.TokenBucket, 100), perSecond(counter.LeakyBucket, 70), perMinute(counter.TokenBucket, 600), {Count: 3000, Burst: 50, Window: time.Second}} {
		p := policy(t, limit)
		for _, waiting := range []int64{0, 1, 10, 40} {
			a, _, _ := ledger.Account{}.Lend(p, start, 1, ask(1, waiting, 0))
			a, _, _ = a.Lend(p, start+50_000, 1, ask(5, waiting/2, 0))
			now := int64(start + 51_234)
			for n := int64(1); n <= p.Limit.Max(); n++ {
				if _, _, ok := a.Lend(p, now, 1, ask(n, 0, 0)); ok {
					continue
				}
				var r counter.Result
				a.Report(p, &r, now, n, counter.Refused)
				if _, _, ok := a.Lend(p, now+r.RetryAfter.Microseconds(), 1, ask(n, 0, 0)); !ok {
					t.Fatalf("%s, %d waiting: %d refused after %v", limit, waiting, n, r.RetryAfter)
				}
				if _, _, ok := a.Lend(p, now+r.RetryAfter.Microseconds()-1, 1, ask(n, 0, 0)); ok {
					t.Fatalf("%s, %d waiting: %d admitted before %v", limit, waiting, n, r.RetryAfter)
				}
			}
			var r counter.Result
			a.Report(p, &r, now, 1, counter.Taken)
			for early, full := range []bool{true, false} {
				if _, _, ok := a.Lend(p, now+r.ResetAfter.Microseconds()-int64(early), 1, ask(p.Limit.Max(), 0, 0)); ok != full {
					t.Errorf("%s, %d waiting: full after %v, and %d µs earlier: %v", limit, waiting, r.ResetAfter, early, ok)
				}
			}
			if a.Report(p, &r, now, p.Limit.Max()+1, counter.Refused); r.RetryAfter != counter.Never {
				t.Errorf("what never fits fits after %v", r.RetryAfter)
			}
		}
	}
}

func TestTakeBack(t *testing.T) {
	p := policy(t, perSecond(counter.TokenBucket, 100))
	a, _, _ := ledger.Account{}.Lend(p, start, 1, ask(60, 20, 0)) // 20 left, 20 out
	_, name := a.Lease(p, start, 1)
	for _, c := range []struct {
		what     string
		n        int64
		after    int64
		interval int64
		left     int64
		out      [2]int64
	}{
		{"at once", 20, 0, name, 40, [2]int64{0, 0}},
		{"a part", 5, 0, name, 25, [2]int64{15, 0}},
		{"more than was lent", 30, 0, name, 40, [2]int64{0, 0}},
		{"nothing", 0, 0, name, 20, [2]int64{20, 0}},
		{"nothing, later", 0, 20_000, name, 22, [2]int64{20, 0}},
		{"less than nothing", -5, 0, name, 20, [2]int64{20, 0}},
		{"of another interval", 20, 0, name - 45_000, 20, [2]int64{20, 0}},
		{"of an interval to come", 20, 0, name + 45_000, 20, [2]int64{20, 0}},
		{"in the next interval", 20, 45_000, name, 44, [2]int64{0, 0}},
		{"a part of it then", 5, 50_000, name, 30, [2]int64{0, 15}},
		{"just before it is void", 20, 89_999, name, 48, [2]int64{0, 0}},
		{"when it is void", 20, 90_000, name, 29, [2]int64{20, 0}},
		{"long after", 20, 5 * second, name, 100, [2]int64{20, 0}},
	} {
		b := a.TakeBack(p, start+c.after, 2, unspent(c.n, c.interval))
		if got := left(t, b, p, start+c.after); got != c.left || b.Lent != c.out {
			t.Errorf("%s: %d left, want %d; %+v", c.what, got, c.left, b)
		}
		if void := b.Lent == a.Lent; void && b != a {
			t.Errorf("%s: nothing came back, and the account changed: %+v", c.what, b)
		}
		if (b.Since == 0) != (b.Lent == [2]int64{}) {
			t.Errorf("%s: intervals since %d", c.what, b.Since)
		}
	}
	b := a.TakeBack(p, start, 1, unspent(15, name)).TakeBack(p, start, 1, unspent(15, name))
	if got := left(t, b, p, start); got != 40 {
		t.Errorf("15 of 20 came back twice: %d left", got)
	}
	if b := (ledger.Account{}).TakeBack(p, start, 1, unspent(5, 0)); b != (ledger.Account{}) {
		t.Errorf("an untouched account: %+v", b)
	}
	// Returned tokens never fill a bucket beyond its capacity.
	full, _, _ := ledger.Account{}.Lend(p, start, 1, ask(1, 20, 0))
	if b := full.TakeBack(p, start+44_000, 1, unspent(20, start)); p.Level(b.State, start+44_000) != 100*micro {
		t.Errorf("level %d", p.Level(b.State, start+44_000))
	}
}

// Tokens lent in one interval and in the next are told apart.
func TestIntervalsRoll(t *testing.T) {
	p := policy(t, perSecond(counter.TokenBucket, 100))
	a, _, _ := ledger.Account{}.Lend(p, start, 1, ask(1, 5, 0))
	for _, c := range []struct {
		after int64
		lent  [2]int64
	}{{44_999, [2]int64{8, 0}}, {45_000, [2]int64{3, 5}}, {89_999, [2]int64{3, 5}}, {90_000, [2]int64{3, 0}}, {500_000, [2]int64{3, 0}}} {
		if b, _, _ := a.Lend(p, start+c.after, 1, ask(1, 3, 0)); b.Lent != c.lent {
			t.Errorf("after %d µs: %+v", c.after, b)
		}
	}
	if b, _, _ := a.Lend(p, start+90_000, 1, ask(1, 0, 0)); b.Since != 0 {
		t.Errorf("nothing is out, and intervals go on: %+v", b)
	}
}

// A lease ends with the interval after the one in which it was granted.
func TestLeaseTimes(t *testing.T) {
	quick := policy(t, perSecond(counter.TokenBucket, 100))
	a, _, _ := ledger.Account{}.Lend(quick, start, 1, ask(1, 5, 0))
	for _, c := range []struct{ after, ends, name int64 }{{0, 90_000, start}, {44_999, 45_001, start}, {45_000, 90_000, start + 45_000}} {
		length, name := a.Lease(quick, start+c.after, 1)
		if length.Microseconds() != c.ends || name != c.name {
			t.Errorf("after %d µs: %v, %d", c.after, length, name-start)
		}
	}
	window := policy(t, perMinute(counter.FixedWindow, 100))
	w, _, _ := ledger.Account{}.Lend(window, start, 1, ask(1, 1, 0))
	begun := int64(start - start%(60*second))
	if length, name := w.Lease(window, start, 1); length != 90*time.Millisecond || name != begun {
		t.Errorf("a window's lease: %v, %d", length, name)
	}
	if length, _ := w.Lease(window, begun+60*second-5_000, 1); length != 5*time.Millisecond {
		t.Errorf("a lease 5 ms before its window ends: %v", length)
	}
	month := policy(t, counter.Limit{Algorithm: counter.FixedWindow, Count: 100, Window: 31 * 24 * time.Hour, Calendar: counter.Calendar{Unit: counter.Month}})
	begins, ends := time.Date(2026, 2, 1, 0, 0, 0, 0, time.UTC).UnixMicro(), time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC).UnixMicro()
	m, _, _ := ledger.Account{}.Lend(month, ends-5_000, 1, ask(1, 1, 0))
	if length, name := m.Lease(month, ends-5_000, 1); length != 5*time.Millisecond || name != begins {
		t.Errorf("a lease 5 ms before a month of 28 days ends: %v, %d", length, name)
	}
}

// A slow bucket lends to a node that has been alone for twelve asks and two intervals, and that asks for few tokens.
func TestSlowBucketsLendToWhoIsAlone(t *testing.T) {
	p := policy(t, perMinute(counter.TokenBucket, 600)) // intervals of 5 s, at most 50 out
	alone := func() (ledger.Account, int64) {
		now := int64(start)
		a, lent := takes(t, ledger.Account{}, p, &now, second, 1, 12, ask(1, 0, 20))
		if lent != 0 {
			t.Fatalf("lent %d too early: %+v", lent, a)
		}
		return a, now + second
	}
	a, now := alone()
	if _, lent, _ := a.Lend(p, now, 1, ask(1, 0, 20)); lent != 20 {
		t.Fatalf("alone for twelve seconds, and lent %d: %+v", lent, a)
	}
	for _, c := range []struct {
		what string
		node uint32
		ask  *ledger.Ask
		lent int64
	}{
		{"another node", 2, ask(1, 0, 20), 0},
		{"nobody", 0, ask(1, 0, 20), 0},
		{"more than may be out", 1, ask(1, 0, 1000), 50},
		{"no wish", 1, ask(1, 0, 0), 0},
		{"a large cost", 1, ask(38, 0, 20), 0},
		{"just not a large cost", 1, ask(37, 0, 20), 20},
		{"others wait", 1, ask(1, 3, 20), 23},
		{"many others wait", 1, ask(1, 45, 20), 50},
		{"another node, where others wait", 2, ask(1, 3, 20), 3},
	} {
		b, lent, ok := a.Lend(p, now, c.node, c.ask)
		if !ok || lent != c.lent {
			t.Errorf("%s: lent %d, want %d: %+v", c.what, lent, c.lent, b)
		}
		// A node that isn't alone starts over, and tokens lent to others stay lent.
		if still := b.Node == 1 && b.Streak == 12; still != (c.node == 1 && c.ask.N <= 37 && c.ask.Want > 0) {
			t.Errorf("%s: who is alone? %+v", c.what, b)
		}
	}
	// Tokens that are already lent count.
	some, _, _ := a.Lend(p, now, 1, ask(1, 0, 20))
	if _, lent, _ := some.Lend(p, now+1, 1, ask(1, 0, 1000)); lent != 30 {
		t.Errorf("beside 20: lent %d", lent)
	}
	// Claims tell accounts apart by their time, so two asks in one microsecond end a node's streak.
	if b, lent, _ := some.Lend(p, now, 1, ask(1, 0, 1000)); lent != 0 || b.Node != 0 {
		t.Errorf("in the same microsecond: lent %d: %+v", lent, b)
	}
	// A bucket that is less than half full lends nothing.
	for spent, want := range map[int64]int64{250: 20, 299: 20, 301: 0, 310: 0} {
		low := a
		low.State = p.AtLevel((600-spent)*micro, now-1)
		if _, lent, ok := low.Lend(p, now, 1, ask(1, 0, 20)); !ok || lent != want {
			t.Errorf("%d spent: lent %d, want %d", spent, lent, want)
		}
	}
	// A 16th of the bucket's capacity doesn't count as a large cost yet.
	even := policy(t, perMinute(counter.TokenBucket, 640))
	at := int64(start)
	if b, lent := takes(t, ledger.Account{}, even, &at, 5*second, 1, 13, ask(40, 0, 20)); lent != 20 {
		t.Errorf("lent %d beside a cost of 40: %+v", lent, b)
	}
	// Twelve asks within two intervals aren't enough, nor are a few asks within many intervals.
	now = start
	if b, lent := takes(t, ledger.Account{}, p, &now, second/2, 1, 20, ask(1, 0, 20)); lent != 0 {
		t.Errorf("lent %d within two intervals: %+v", lent, b)
	}
	now = start
	if b, lent := takes(t, ledger.Account{}, p, &now, 3*second, 1, 12, ask(1, 0, 20)); lent != 0 {
		t.Errorf("lent %d to the twelfth ask: %+v", lent, b)
	}
	now = start
	if b, lent := takes(t, ledger.Account{}, p, &now, 3*second, 1, 13, ask(1, 0, 20)); lent == 0 {
		t.Errorf("nothing lent to the thirteenth ask in 36 s: %+v", b)
	}
	// The lease of the node that is alone lasts as long as the intervals. Another node's is short.
	if length, _ := a.Lease(p, a.Since+12*second, 1); length != 8*time.Second {
		t.Errorf("a lease of %v", length)
	}
	if length, _ := a.Lease(p, a.Since+12*second, 2); length != 90*time.Millisecond {
		t.Errorf("another node's lease: %v", length)
	}
	if length, _ := a.Lease(p, a.Since+12*second, 0); length != 90*time.Millisecond {
		t.Errorf("nobody's lease: %v", length)
	}
}

// borrowed is an account of which node 1, which is alone, holds 20 of 600 tokens.
func borrowed(t testing.TB, p *counter.Policy) (ledger.Account, int64) {
	t.Helper()
	now := int64(start)
	a, _ := takes(t, ledger.Account{}, p, &now, second, 1, 12, ask(1, 0, 20))
	a, lent := takes(t, a, p, &now, second, 1, 1, ask(1, 0, 20))
	if lent != 20 {
		t.Fatalf("lent %d", lent)
	}
	return a, now
}

// A claim replaces the account only if nothing has happened since, and only for the node that is alone.
func TestClaims(t *testing.T) {
	for _, algorithm := range []counter.Algorithm{counter.TokenBucket, counter.LeakyBucket} {
		p := policy(t, perMinute(algorithm, 600))
		a, now := borrowed(t, p)
		later := now + 4*second
		// The node has spent all 20 tokens at once. Since then 40 could have refilled, but the store doesn't know that.
		truth := ledger.Claim{Base: a.Time, State: p.AtLevel(570*micro, now+second), Held: 0}
		for _, c := range []struct {
			what  string
			node  uint32
			claim ledger.Claim
			level int64 // in tokens
			held  int64
		}{
			{"no claim", 1, ledger.Claim{}, 580, 20},
			{"the truth", 1, truth, 600, 0},
			{"another node's", 2, truth, 580, 20},
			{"nobody's", 0, truth, 580, 20},
			{"of another time", 1, ledger.Claim{Base: a.Time - 1, State: truth.State}, 580, 20},
			{"some are held", 1, ledger.Claim{Base: a.Time, State: truth.State, Held: 7}, 593, 7},
			{"too much", 1, ledger.Claim{Base: a.Time, State: p.AtLevel(600*micro, later), Held: 20}, 580, 20},
			{"from the future", 1, ledger.Claim{Base: a.Time, State: p.AtLevel(500*micro, later+second)}, 500, 0},
			{"from the past", 1, ledger.Claim{Base: a.Time, State: p.AtLevel(500*micro, a.Time-10*second)}, 600, 0},
		} {
			// A refusal keeps a claim that holds, and changes nothing else.
			var r counter.Result
			q := ask(601, 0, 0)
			q.Claim = c.claim
			b, _, ok := a.Lend(p, later, c.node, q)
			b.Report(p, &r, later, 1, counter.Fits)
			slack := int64(1) // what refills in 90 ms
			if ok || r.Remaining < c.level || r.Remaining > c.level+slack || b.Lent[0]+b.Lent[1] != c.held {
				t.Errorf("%s, %s: %d left, want %d; %+v", algorithm, c.what, r.Remaining, c.level, b)
			}
			if rejected := c.held == 20 && c.what != "too much"; rejected && b != a {
				t.Errorf("%s, %s: changed the account: %+v", algorithm, c.what, b)
			}
			// An ask and a return see the same account.
			q = ask(1, 0, 0)
			q.Claim = c.claim
			d, _, ok := a.Lend(p, later, c.node, q)
			if got := p.Level(d.State, later) / micro; !ok || got < c.level-1 || got > c.level-1+slack {
				t.Errorf("%s, %s: an ask leaves %d of %d", algorithm, c.what, got, c.level)
			}
			_, name := a.Lease(p, now, 1)
			u := unspent(3, name)
			u.Claim = c.claim
			back := int64(3) // counted in the claim already, if it holds
			if c.claim.Base == a.Time && c.node == 1 {
				back = 0
			}
			e := a.TakeBack(p, later, c.node, u)
			if e.Report(p, &r, later, 1, counter.Fits); r.Remaining < c.level+back || r.Remaining > c.level+back+slack {
				t.Errorf("%s, %s: giving 3 back leaves %d, want %d", algorithm, c.what, r.Remaining, c.level+back)
			}
		}
		// A claim in the account's own microsecond doesn't hold, because other asks may have come in it.
		same := ask(601, 0, 0)
		same.Claim = ledger.Claim{Base: a.Time, State: truth.State}
		if b, _, _ := a.Lend(p, a.Time, 1, same); b != a {
			t.Errorf("%s: claimed in the same microsecond: %+v", algorithm, b)
		}
		// A refusal keeps a claim that holds.
		q := ask(601, 0, 0)
		q.Claim = truth
		if b, _, ok := a.Lend(p, later, 1, q); ok || b.Lent != [2]int64{} || b.Time != truth.State.Time {
			t.Errorf("%s: a refusal: %+v", algorithm, b)
		}
	}
}
