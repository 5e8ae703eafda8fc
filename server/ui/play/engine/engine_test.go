package engine

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/memstore"
	"pgregory.net/rapid"
)

const second = int64(time.Second / time.Microsecond)

func start(t testing.TB, n Numbers) *Engine {
	t.Helper()
	e, err := New(n)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

var ten = Numbers{Limit: 10, Window: 10_000}

// counts returns the counts of the lanes, in order.
func counts(f Frame) (admitted, refused, delayed [6]int) {
	for i, l := range f.Lanes {
		admitted[i], refused[i], delayed[i] = l.Admitted, l.Refused, l.Delayed
	}
	return admitted, refused, delayed
}

func TestDemonstrations(t *testing.T) {
	for _, c := range []struct {
		id                         string
		admitted, refused, delayed [6]int // token bucket, leaky bucket, leaky queue, fixed window, sliding counter, sliding log
		text                       string
	}{
		{
			"edge", [6]int{10, 10, 10, 20, 10, 10}, [6]int{10, 10, 10, 0, 10, 10}, [6]int{2: 9},
			"The fixed window admitted 20 requests within 0.8 s, twice its limit of 10 in 10 s, because at the edge its count went back to 0; the sliding log, which has no edge, admitted 10.",
		},
		{
			"weight", [6]int{19, 19, 19, 20, 15, 10}, [6]int{2, 2, 2, 1, 6, 11}, [6]int{2: 18},
			"Halfway through the second window, 50 % of the 10 requests before its edge still count: 10 × 50 % + 5 = 10 of 10, so the counter has admitted 5 since the edge; the log, which knows each request's moment, 0.",
		},
		{
			"burst", [6]int{15, 15, 15, 10, 10, 10}, [6]int{15, 15, 15, 20, 20, 20}, [6]int{2: 14},
			"The full bucket admitted 10 of 20 requests at once, and then 5 of 10, because a token comes back every 1 s; the fixed window admitted 0 of those.",
		},
		{
			"queue", [6]int{10, 10, 10, 10, 10, 10}, [6]int{}, [6]int{2: 9},
			"Of 10 requests within 0.1 s the queue admitted 10 and let them go one every 1 s, so the last one waited 8.9 s; the token bucket let 10 pass at once.",
		},
	} {
		t.Run(c.id, func(t *testing.T) {
			e := start(t, ten)
			d, err := e.Show(c.id)
			if err != nil {
				t.Fatal(err)
			}
			if f := e.Advance(int64(d.From)); f.Done || f.Text == "" {
				t.Errorf("at its beginning: %v %q", f.Done, f.Text)
			}
			f := e.Advance(int64(d.Until))
			admitted, refused, delayed := counts(f)
			if admitted != c.admitted || refused != c.refused || delayed != c.delayed {
				t.Errorf("admitted %v refused %v delayed %v, want %v %v %v", admitted, refused, delayed, c.admitted, c.refused, c.delayed)
			}
			if !f.Done || f.Text != c.text {
				t.Errorf("done %v, text\n%s\nwant\n%s", f.Done, f.Text, c.text)
			}
			if later := e.Advance(int64(d.Until) + 30*second); later.Text != c.text {
				t.Errorf("later it says %q", later.Text)
			}
			if again := e.Advance(int64(d.From)); again.Done {
				t.Error("after going back, the demonstration is still over")
			}
		})
	}
}

// Whatever its numbers, a fixed window admits exactly twice its limit around its edge, and a sliding log never more
// than its limit.
func TestTheEdgeAdmitsTwice(t *testing.T) {
	for _, n := range []Numbers{{Limit: 1, Window: 100}, {Limit: 7, Window: 3000, Burst: 2}, {Limit: 1000, Window: 60_000}, {Limit: 100, Window: 24 * 3600_000}} {
		e := start(t, n)
		d, err := e.Show("edge")
		if err != nil {
			t.Fatal(err)
		}
		f := e.Advance(int64(d.Until))
		fixed, log := f.Lanes[3], f.Lanes[5]
		if int64(fixed.Admitted) != 2*n.Limit || int64(fixed.Peak) != 2*n.Limit || int64(log.Admitted) != n.Limit || int64(log.Peak) != n.Limit {
			t.Errorf("%+v: fixed window %+v, log %+v", n, fixed.Counts, log.Counts)
		}
		for i, l := range f.Lanes {
			if int64(l.Sent) != 2*n.Limit {
				t.Errorf("%+v: lane %d was sent %d", n, i, l.Sent)
			}
		}
	}
}

func TestPeakIsOfOneWindow(t *testing.T) {
	e := start(t, ten)
	_ = e.Send(10, 0)
	e.Advance(10 * second)
	_ = e.Send(9, 0)
	f := e.Advance(10 * second)
	// Requests that are one window apart aren't within one window. A queue's requests count when they are let go.
	for i, want := range []int{10, 10, 10, 10, 10, 10} {
		if got := f.Lanes[i].Peak; got != want {
			t.Errorf("%s: peak %d, want %d", e.lanes[i].policy.Name, got, want)
		}
	}
	if f := e.Advance(0); f.Lanes[2].Peak != 1 || f.Lanes[2].Waiting != 9 {
		t.Errorf("a queue that has just got 10: %+v", f.Lanes[2].Counts)
	}
}

// act does something that a user could do.
func act(t *rapid.T, e *Engine) {
	switch rapid.IntRange(0, 9).Draw(t, "act") {
	case 0, 1, 2:
		_ = e.Send(rapid.IntRange(1, 30).Draw(t, "count"), rapid.Int64Range(0, 5000).Draw(t, "over"))
	case 3:
		kind := rapid.SampledFrom([]string{"steady", "poisson", "onoff", "boundary"}).Draw(t, "kind")
		_ = e.Pattern(kind, rapid.Float64Range(0.1, 5).Draw(t, "rate"))
	case 4:
		e.Stop()
	case 5:
		e.Step()
	case 6:
		e.Back()
	default:
		e.Advance(rapid.Int64Range(0, 40*second).Draw(t, "to"))
	}
}

var someNumbers = rapid.Custom(func(t *rapid.T) Numbers {
	return Numbers{
		Limit:    rapid.Int64Range(1, 20).Draw(t, "limit"),
		Window:   rapid.Int64Range(100, 20_000).Draw(t, "window"),
		Burst:    rapid.Int64Range(0, 20).Draw(t, "burst"),
		MaxDelay: rapid.Int64Range(0, 20_000).Draw(t, "max delay"),
	}
})

// Going back in time leads to the same states as replaying up to that time.
func TestRewindingIsReplaying(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := someNumbers.Draw(t, "numbers")
		e, err := New(n)
		if err != nil {
			t.Fatal(err)
		}
		for range rapid.IntRange(1, 12).Draw(t, "acts") {
			act(t, e)
		}
		at := e.at
		e.fresh = true
		want := e.Advance(at)
		e.Advance(at + rapid.Int64Range(0, 30*second).Draw(t, "on"))
		e.Advance(rapid.Int64Range(0, at).Draw(t, "back"))
		e.fresh = true
		got := e.Advance(at)
		if a, b := fmt.Sprint(want), fmt.Sprint(got); a != b {
			t.Fatalf("then\n%s\nagain\n%s", a, b)
		}
	})
}

// The engine decides like an independent Limiter, and the states that it draws are the store's.
func TestTheEngineDecidesLikeALimiter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := someNumbers.Draw(t, "numbers")
		e, err := New(n)
		if err != nil {
			t.Fatal(err)
		}
		for range rapid.IntRange(1, 12).Draw(t, "acts") {
			act(t, e)
		}
		e.fresh = true
		f := e.Advance(e.at)
		for i, l := range e.lanes {
			limit := l.policy.Limit
			rule := weir.Rule{ID: "one", By: []string{}, Algorithm: limit.Algorithm, Limits: []weir.Limit{limit}}
			if limit.Algorithm == weir.LeakyQueue { // rules with a queue always have a longest delay
				rule.MaxDelay = cmp.Or(limit.MaxDelay, time.Hour)
			}
			rules, err := weir.Compile(weir.Rules{Rules: []weir.Rule{rule}})
			if err != nil {
				t.Fatal(err)
			}
			now := time.UnixMicro(e.begin)
			clock := func() time.Time { return now }
			lim := weir.NewLimiter(memstore.New(memstore.Options{Now: clock}), rules, weir.Options{Now: clock})
			var last weir.Decision
			for j, at := range f.Arrivals {
				now = time.UnixMicro(e.begin + int64(at))
				if last, err = lim.Check(context.Background(), &weir.Request{}); err != nil {
					t.Fatal(err)
				}
				mark := f.Lanes[i].Marks[3*j:]
				if want := verdictOf(last.Allowed, true, last.Delay); verdict(mark[1]) != want || mark[2] != float64(last.Delay.Microseconds()) {
					t.Fatalf("%s: request %d at %v is %v, the limiter says %v after %v", l.policy.Name, j, at, mark[:3], want, last.Delay)
				}
			}
			if len(f.Arrivals) == 0 {
				continue
			}
			now = time.UnixMicro(e.begin + e.at)
			peek, err := lim.Check(context.Background(), &weir.Request{Peek: true})
			if err != nil {
				t.Fatal(err)
			}
			r := l.report(e.begin + e.at)
			if r.Allowed != peek.Allowed || r.Remaining != peek.Remaining || r.ResetAfter != peek.ResetAfter || r.Delay != peek.Delay {
				t.Fatalf("%s: drawn %+v, the store has %+v", l.policy.Name, r, peek)
			}
		}
	})
}

// Between two points, the line that is drawn has the values that the core computes for that time.
func TestPointsAreTheCoresValues(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e, err := New(someNumbers.Draw(t, "numbers"))
		if err != nil {
			t.Fatal(err)
		}
		for range rapid.IntRange(1, 12).Draw(t, "acts") {
			act(t, e)
		}
		end := e.Advance(e.at + 30*second)
		e.fresh = true
		end = e.Advance(int64(end.At))
		for range 10 {
			at := rapid.Int64Range(0, int64(end.At)).Draw(t, "at")
			f := e.Advance(at)
			for i, l := range f.Lanes {
				value, base := interpolate(end.Lanes[i].Points, float64(at), end.Lanes[i].Value, end.Lanes[i].Base, end.At)
				if math.Abs(value-l.Value) > 1e-3 || math.Abs(base-l.Base) > 1e-3 {
					t.Fatalf("%s at %d: drawn as %v (%v), is %v (%v)", e.lanes[i].policy.Name, at, value, base, l.Value, l.Base)
				}
			}
		}
	})
}

func interpolate(points []float64, at, lastValue, lastBase, end float64) (value, base float64) {
	points = append(slices.Clone(points), end, lastValue, lastBase)
	for i := len(points) - 6; ; i -= 3 {
		if a, b := points[i:i+3], points[i+3:i+6]; a[0] <= at {
			part := 0.0
			if b[0] > a[0] {
				part = (at - a[0]) / (b[0] - a[0])
			}
			return a[1] + part*(b[1]-a[1]), a[2] + part*(b[2]-a[2])
		}
	}
}

func TestFramesAddUp(t *testing.T) {
	e := start(t, ten)
	if err := e.Pattern("poisson", 3); err != nil {
		t.Fatal(err)
	}
	var arrivals, marks, points []float64
	for at := int64(0); at <= 30*second; at += 16_667 {
		f := e.Advance(at)
		if f.Fresh != (at == 0) {
			t.Fatalf("at %d: fresh is %v", at, f.Fresh)
		}
		arrivals, marks, points = append(arrivals, f.Arrivals...), append(marks, f.Lanes[4].Marks...), append(points, f.Lanes[4].Points...)
	}
	e.fresh = true
	whole := e.Advance(e.at)
	if !slices.Equal(arrivals, whole.Arrivals) || !slices.Equal(marks, whole.Lanes[4].Marks) || !slices.Equal(points, whole.Lanes[4].Points) {
		t.Error("the frames together aren't the whole one")
	}
}

func TestPatterns(t *testing.T) {
	moments := func(kind string, rate float64, to int64) []float64 {
		e := start(t, ten)
		e.Advance(second)
		if err := e.Pattern(kind, rate); err != nil {
			t.Fatal(err)
		}
		e.Advance(to)
		e.fresh = true
		return e.Advance(to).Arrivals
	}
	if got := moments("steady", 2, 3*second); !slices.Equal(got, []float64{1e6, 1.5e6, 2e6, 2.5e6, 3e6}) {
		t.Errorf("steady: %v", got)
	}
	// On for 5 s, then off for 5 s.
	if got := moments("onoff", 1, 12*second); !slices.Equal(got, []float64{1e6, 2e6, 3e6, 4e6, 5e6, 11e6, 12e6}) {
		t.Errorf("onoff: %v", got)
	}
	got := moments("poisson", 10, 101*second)
	if n := len(got); n < 900 || n > 1100 {
		t.Errorf("poisson: %d in 100 s at 10/s", n)
	}
	if !slices.Equal(got, moments("poisson", 10, 101*second)) {
		t.Error("poisson: other arrivals the second time")
	}
	if got := moments("boundary", 0, 11*second); len(got) != 20 || got[0] != 9.6e6 || got[9] >= 10e6 || got[10] != 10e6 {
		t.Errorf("boundary: %v", got)
	}
	if got := moments("boundary", 0, 31*second); len(got) != 40 {
		t.Errorf("boundary: %d around two edges", len(got))
	}
}

// If a boundary burst can't reach the next edge in time, it waits for the one after.
func TestBoundaryBurstIsNeverInThePast(t *testing.T) {
	e := start(t, ten)
	e.Advance(10*second - 1000)
	if err := e.Pattern("boundary", 0); err != nil {
		t.Fatal(err)
	}
	if f := e.Advance(e.at); f.Coming[0] != 19.6e6 {
		t.Errorf("it begins at %v", f.Coming[0])
	}
}

func TestStopCancelsScheduledRequests(t *testing.T) {
	e := start(t, ten)
	_ = e.Pattern("steady", 1)
	e.Advance(3 * second)
	e.Stop()
	if f := e.Advance(10 * second); f.Lanes[0].Sent != 4 || len(f.Coming) != 0 {
		t.Errorf("%d sent, %d are coming", f.Lanes[0].Sent, len(f.Coming))
	}
}

// When the numbers change, the same arrivals are decided again.
func TestNumbersCanBeChangedWhileItRuns(t *testing.T) {
	e := start(t, ten)
	_ = e.Send(10, 0)
	e.Advance(second)
	if err := e.Compare(Numbers{Limit: 4, Window: 10_000}); err != nil {
		t.Fatal(err)
	}
	f := e.Advance(second)
	for i, l := range f.Lanes {
		if !f.Fresh || l.Admitted != 4 || l.Refused != 6 {
			t.Errorf("lane %d: %+v", i, l.Counts)
		}
	}
}

func TestStepsGoFromArrivalToArrival(t *testing.T) {
	e := start(t, ten)
	_ = e.Send(2, 2000)
	var at []float64
	for range 4 {
		at = append(at, e.Step().At)
	}
	// The steps are: the second request, the time when the bucket is full again after 2 s of refill, the edge of the
	// window, and the time when the first entry leaves the log.
	if want := []float64{1e6, 2e6, 10e6, 11e6}; !slices.Equal(at, want) {
		t.Errorf("steps to %v, want %v", at, want)
	}
	if f := e.Back(); f.At != 1e6 || f.Lanes[0].Sent != 2 {
		t.Errorf("back to %v", f.At)
	}
	if f := e.Back(); f.At != 0 || f.Lanes[0].Sent != 1 {
		t.Errorf("back to %v", f.At)
	}
}

func TestNumbersAndRequestsAreBounded(t *testing.T) {
	for _, n := range []Numbers{{}, {Limit: 1001, Window: 1000}, {Limit: 1, Window: 99}, {Limit: 1, Window: math.MaxInt64}, {Limit: 1, Window: 1000, Burst: -1}, {Limit: 1, Window: 1000, MaxDelay: -1}} {
		if _, err := New(n); err == nil {
			t.Errorf("%+v is accepted", n)
		}
	}
	e := start(t, ten)
	for _, err := range []error{
		e.Send(0, 0), e.Send(1001, 0), e.Send(1, -1), e.Pattern("steady", 0), e.Pattern("steady", math.NaN()), e.Pattern("steady", math.Inf(1)), e.Pattern("other", 1),
	} {
		if err == nil {
			t.Error("something impossible is accepted")
		}
	}
	_ = e.Pattern("steady", 1000)
	f := e.Advance(math.MaxInt64)
	if f.Lanes[0].Sent != MaxArrivals || f.Full == "" {
		t.Errorf("%d arrivals are kept, and it says %q", f.Lanes[0].Sent, f.Full)
	}
	if err := e.Send(1, 0); err == nil {
		t.Error("one more is accepted")
	}
	e.Clear()
	if err := e.Send(1, 0); err != nil {
		t.Errorf("after Clear: %v", err)
	}
}

// BenchmarkReplay measures going back in time, which replays everything. A page calls Advance 60 times a second.
func BenchmarkReplay(b *testing.B) {
	e := start(b, Numbers{Limit: 100, Window: 10_000})
	_ = e.Pattern("poisson", 20)
	e.Advance(100 * second)
	random := rand.New(rand.NewPCG(1, 2))
	for b.Loop() {
		e.Advance(random.Int64N(100 * second))
	}
}
