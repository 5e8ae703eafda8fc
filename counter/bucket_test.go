package counter

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestTokenBucketAdmitsBurstPlusRate(t *testing.T) {
	t.Run("100 a minute is a token each 600 ms", func(t *testing.T) {
		play(t, PerMinute(100), []row{
			{at: 0, peek: 1, ok: true, left: 100},
			{at: 0, take: 100, ok: true, left: 0, reset: minute},
			{at: 0, take: 1, retry: 600 * msec, reset: minute},
			{at: 600*msec - 1, take: 1, retry: 1, reset: 59*sec + 400*msec + 1},
			{at: 600 * msec, peek: 1, ok: true, left: 1, reset: 59*sec + 400*msec},
			{at: 600 * msec, take: 1, ok: true, left: 0, reset: minute},
			{at: 600 * msec, take: 5, retry: 3 * sec, reset: minute},
			{at: 600 * msec, take: 100, retry: minute, reset: minute},
			{at: 600 * msec, take: 101, retry: never, reset: minute},
			{at: 30*sec + 600*msec, take: 50, ok: true, left: 0, reset: minute},
			{at: hour, peek: 100, ok: true, left: 100},
			{at: hour, peek: 101, left: 100, retry: never},
		})
	})
	t.Run("capacity and rate are two knobs", func(t *testing.T) {
		play(t, Limit{Count: 100, Window: time.Minute, Burst: 20}, []row{
			{at: 0, take: 21, left: 20, retry: never},
			{at: 0, take: 20, ok: true, left: 0, reset: 12 * sec},
			{at: 3 * sec, take: 5, ok: true, left: 0, reset: 12 * sec},
			{at: 3 * sec, take: 20, retry: 12 * sec, reset: 12 * sec},
			{at: hour, take: 1, ok: true, left: 19, reset: 600 * msec},
		})
	})
	t.Run("refill_rate is literal", func(t *testing.T) {
		play(t, Limit{Count: 100, Window: time.Minute, Burst: 100, Refill: 1.67}, []row{
			{at: 0, take: 100, ok: true, left: 0, reset: 59_880_240}, // 100 ÷ 1.67 = 59.8802395… s
			{at: 0, take: 1, retry: 598_803, reset: 59_880_240},      // 1 ÷ 1.67 = 0.5988023… s
			{at: 598_802, take: 1, retry: 1, reset: 59_281_438},
			{at: 598_803, take: 1, ok: true, left: 0, reset: 59_880_239}, // a millionth is left over
		})
	})
	t.Run("polling costs nothing", func(t *testing.T) {
		rows := []row{{at: 0, take: 100, ok: true, reset: minute}}
		for at := int64(1); at < 600_000; at += 7_919 {
			rows = append(rows, row{at: at, take: 1, retry: 600_000 - at, reset: minute - at})
		}
		play(t, PerMinute(100), append(rows, row{at: 600_000, take: 1, ok: true, reset: minute}))
	})
	t.Run("a clock that runs backwards mints nothing and freezes nobody", func(t *testing.T) {
		play(t, PerMinute(100), []row{
			{at: hour, take: 100, ok: true, left: 0, reset: minute},
			{at: 0, take: 1, retry: 600 * msec, reset: minute},
			{at: 600*msec - 1, take: 1, retry: 1, reset: minute - 600*msec + 1},
			{at: 600 * msec, take: 1, ok: true, left: 0, reset: minute},
			{at: 0, take: 1, retry: 600 * msec, reset: minute},
		})
	})
}

// S11: a raised limit keeps the tokens a client had, and refills at the new rate at once.
func TestTokenBucketKeepsItsTokensWhenTheRuleChanges(t *testing.T) {
	low, high, lowest := PerMinute(100), PerMinute(500), PerMinute(10)
	t.Run("raised", func(t *testing.T) {
		play(t, low, []row{
			{at: 0, take: 60, ok: true, left: 40, reset: 36 * sec},
			{at: 0, rule: &high, peek: 1, ok: true, left: 40, reset: 460 * 120 * msec},
			{at: 0, take: 41, left: 40, retry: 120 * msec, reset: 460 * 120 * msec},
			{at: 0, take: 40, ok: true, left: 0, reset: minute},
			{at: 120 * msec, take: 1, ok: true, left: 0, reset: minute},
			{at: 120 * msec, take: 500, retry: minute, reset: minute},
		})
	})
	t.Run("an untouched counter is whole", func(t *testing.T) {
		play(t, low, []row{{at: 0, rule: &high, take: 500, ok: true, left: 0, reset: minute}})
	})
	t.Run("lowered clamps", func(t *testing.T) {
		play(t, low, []row{
			{at: 0, take: 20, ok: true, left: 80, reset: 12 * sec},
			{at: 0, rule: &lowest, peek: 11, left: 10, retry: never},
			{at: 0, take: 4, ok: true, left: 6, reset: 24 * sec},
			{at: 0, rule: &low, left: 6, reset: 94 * 600 * msec},
		})
	})
	t.Run("lowered and raised again before anyone came", func(t *testing.T) {
		play(t, low, []row{
			{at: 0, take: 20, ok: true, left: 80, reset: 12 * sec},
			{at: 0, rule: &lowest, left: 10},
			{at: 0, rule: &low, left: 80, reset: 12 * sec},
		})
	})
}

func TestBucketTakesTokensBack(t *testing.T) {
	t.Run("never above its capacity", func(t *testing.T) {
		play(t, PerMinute(100), []row{
			{at: 0, take: 50, ok: true, left: 50, reset: 30 * sec},
			{at: 0, back: 20, of: 0, left: 70, reset: 18 * sec},
			{at: 6 * sec, back: 20, of: 0, left: 100},
			{at: 6 * sec, take: 1, ok: true, left: 99, reset: 600 * msec},
			{at: 6 * sec, back: 1 << 62, of: 3, left: 100},
		})
	})
	t.Run("a queue's place is free again", func(t *testing.T) {
		play(t, Limit{Algorithm: LeakyQueue, Count: 10, Window: time.Second, Burst: 2}, []row{
			{at: 0, take: 1, ok: true, left: 1, reset: 100 * msec},
			{at: 0, take: 1, ok: true, left: 0, reset: 200 * msec, delays: 100 * msec},
			{at: 0, take: 1, retry: 100 * msec, reset: 200 * msec},
			{at: 0, back: 1, of: 1, take: 1, ok: true, left: 0, reset: 200 * msec, delays: 100 * msec},
		})
	})
	t.Run("nothing to give back to", func(t *testing.T) {
		p := policyOf(t, PerMinute(100))
		if got := p.Return(State{}, midnight, 5, midnight); got != (State{}) {
			t.Errorf("an untouched counter became %+v", got)
		}
	})
}

func TestLeakyBucketMetersAndDrains(t *testing.T) {
	play(t, Limit{Algorithm: LeakyBucket, Count: 10, Window: time.Second, Burst: 5}, []row{
		{at: 0, take: 6, left: 5, retry: never},
		{at: 0, take: 5, ok: true, left: 0, reset: 500 * msec},
		{at: 0, take: 1, retry: 100 * msec, reset: 500 * msec},
		{at: 100*msec - 1, take: 1, retry: 1, reset: 400*msec + 1},
		{at: 100 * msec, take: 1, ok: true, left: 0, reset: 500 * msec},
		{at: 400 * msec, peek: 4, left: 3, retry: 100 * msec, reset: 200 * msec},
		{at: 400 * msec, take: 2, ok: true, left: 1, reset: 400 * msec},
		{at: 800 * msec, peek: 5, ok: true, left: 5},
		{at: 0, take: 2, left: 1, retry: 100 * msec, reset: 400 * msec}, // a clock that ran backwards
	})
}

// A leaky bucket keeps its water when its rule changes: a raised limit adds room at once, and a lowered
// limit removes room.
func TestLeakyBucketKeepsItsWaterWhenTheRuleChanges(t *testing.T) {
	leaky := func(n int64) *Limit { return &Limit{Algorithm: LeakyBucket, Count: n, Window: time.Minute} }
	play(t, *leaky(100), []row{
		{at: 0, take: 60, ok: true, left: 40, reset: 36 * sec},
		{at: 0, rule: leaky(500), peek: 440, ok: true, left: 440, reset: 60 * 120 * msec},
		{at: 0, rule: leaky(50), peek: 1, left: 0, retry: 11 * 1200 * msec, reset: 60 * 1200 * msec},
		{at: 11*1200*msec - 1, take: 1, left: 0, retry: 1, reset: 49*1200*msec + 1},
		{at: 11 * 1200 * msec, take: 1, ok: true, left: 0, reset: 60 * sec},
	})
}

func TestLeakyQueueDelaysWhatItAdmits(t *testing.T) {
	queue := Limit{Algorithm: LeakyQueue, Count: 10, Window: time.Second, Burst: 5}
	t.Run("each waits for those in front", func(t *testing.T) {
		play(t, queue, []row{
			{at: 0, peek: 1, ok: true, left: 5},
			{at: 0, take: 1, ok: true, left: 4, reset: 100 * msec},
			{at: 0, take: 1, ok: true, left: 3, reset: 200 * msec, delays: 100 * msec},
			{at: 0, take: 2, ok: true, left: 1, reset: 400 * msec, delays: 200 * msec},
			{at: 0, peek: 1, ok: true, left: 1, reset: 400 * msec, delays: 400 * msec},
			{at: 0, take: 1, ok: true, left: 0, reset: 500 * msec, delays: 400 * msec},
			{at: 0, take: 1, retry: 100 * msec, reset: 500 * msec},
			{at: 150 * msec, take: 1, ok: true, left: 0, reset: 450 * msec, delays: 350 * msec},
			{at: sec, take: 1, ok: true, left: 4, reset: 100 * msec},
		})
	})
	t.Run("and no longer than max_delay", func(t *testing.T) {
		queue := queue
		queue.MaxDelay = 250 * time.Millisecond
		play(t, queue, []row{
			{at: 0, take: 1, ok: true, left: 4, reset: 100 * msec},
			{at: 0, take: 1, ok: true, left: 3, reset: 200 * msec, delays: 100 * msec},
			{at: 0, take: 1, ok: true, left: 2, reset: 300 * msec, delays: 200 * msec},
			{at: 0, take: 1, retry: 50 * msec, reset: 300 * msec}, // there is room, but nobody may wait for it
			{at: 0, take: 3, left: 2, retry: 100 * msec, reset: 300 * msec},
			{at: 0, take: 6, left: 2, retry: never, reset: 300 * msec},
			{at: 50*msec - 1, take: 1, retry: 1, reset: 250*msec + 1},
			{at: 50 * msec, take: 1, ok: true, left: 1, reset: 350 * msec, delays: 250 * msec},
		})
	})
}

// A queue spaces departures evenly: after each request it waits at least as long as that request costs.
func TestLeakyQueueSpacesDepartures(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pick := rapidPicker(t)
		g := newGauge(policyOf(t, pickLimit(LeakyQueue, trialWindows[pick(0, 9)], pick)))
		now, free := midnight, int64(0)
		for range pick(2, 40) {
			n := pick(1, min(3, g.p.Limit.Max()))
			now += floorMul(pick(0, 3*micro), g.p.rate.den, g.p.rate.num)
			r := g.take(now, n)
			if !r.Allowed {
				continue
			}
			leaves := now + r.Delay.Microseconds()
			if leaves < free {
				t.Fatalf("%+v: leaves %d µs too early", g.p.Limit, free-leaves)
			}
			if d := g.p.Limit.MaxDelay; d > 0 && r.Delay > d {
				t.Fatalf("%+v: waits %v", g.p.Limit, r.Delay)
			}
			free = leaves + floorMul(n*micro, g.p.rate.den, g.p.rate.num)
		}
	})
}

// S1: 500 requests within a second against 100 a minute. The first request finds 100 tokens and starts the
// refill of one token every 600 ms, so exactly one more token arrives within the second. (It is a few dozen
// microseconds late, because each of the 100 admissions lost less than a millionth of a token to rounding.)
// All other requests are refused with a true retry time.
func TestBurstOfFiveHundredAgainstAHundredAMinute(t *testing.T) {
	g := newGauge(policyOf(t, PerMinute(100)))
	admitted := 0
	for i := range int64(500) {
		now := midnight + i*2*msec
		r := g.take(now, 1)
		if r.Allowed {
			admitted++
			if late := now-midnight > 198*msec; late && (now-midnight < 600*msec || now-midnight > 602*msec) {
				t.Errorf("the token of the second came at %d µs", now-midnight)
			}
			continue
		}
		retry := r.RetryAfter.Microseconds()
		if g.fits(now+retry-1, 1) || !g.fits(now+retry, 1) {
			t.Fatalf("request %d: retry after %d µs isn't the first moment that it fits", i, retry)
		}
	}
	if admitted != 101 {
		t.Errorf("admitted %d, want 101", admitted)
	}
}

func TestRatesAreExact(t *testing.T) {
	for _, tt := range []struct {
		limit Limit
		want  rate // tokens per second
	}{
		{PerMinute(100), rate{5, 3}},
		{PerMinute(7), rate{7, 60}},
		{PerSecond(1), rate{1, 1}},
		{Limit{Count: 1000, Window: 24 * time.Hour}, rate{5, 432}},
		{Limit{Count: 5, Window: 15 * time.Minute}, rate{1, 180}},
		{Limit{Count: 1, Window: 366 * 24 * time.Hour}, rate{1, 31_622_400}},
		{Limit{Count: 1_000_003, Window: 86_399 * time.Second}, rate{1_000_003, 86_399}},
		{Limit{Count: 3, Window: 250 * time.Millisecond}, rate{12, 1}},
		{Limit{Count: 7, Window: 1_000_001 * time.Microsecond}, rate{7_000_000, 1_000_001}},
		{Limit{Count: MaxTokens, Window: time.Millisecond}, rate{1000 * MaxTokens, 1}},
		{Limit{Count: 100, Window: time.Minute, Refill: 1.67}, rate{167, 100}},
		{Limit{Count: 100, Window: time.Minute, Refill: 16.67}, rate{1667, 100}},
		{Limit{Count: 100, Window: time.Minute, Refill: 0.1}, rate{1, 10}},
		{Limit{Count: 100, Window: time.Minute, Refill: 1e-3}, rate{1, 1000}},
		// A fraction with too many digits is rounded down.
		{Limit{Count: 100, Window: time.Minute, Refill: 1.0 / 3}, rate{33_333_333, 100_000_000}},
		{Limit{Count: MaxTokens - 1, Window: 31_622_399 * time.Second}, rate{1_423_041_939, 5_000_000}},
	} {
		p := policyOf(t, tt.limit)
		if p.rate != tt.want {
			t.Errorf("%v, refill %v: %+v, want %+v", tt.limit, tt.limit.Refill, p.rate, tt.want)
		}
		if p.rate.num >= maxExact/p.rate.den {
			t.Errorf("%v: %+v is too long for a double", tt.limit, p.rate)
		}
	}
}

// An idle bucket gains its count within a window, exact to a millionth. A greedy client that takes each
// token at its retry time loses less than one token in thousands to rounding.
func TestBucketGainsItsCountInAWindow(t *testing.T) {
	for _, tt := range []struct {
		limit   Limit
		windows int64
	}{
		{PerMinute(100), 24 * 60}, {PerMinute(7), 24 * 60}, {PerSecond(1000), 20},
		{Limit{Count: 1000, Window: 24 * time.Hour}, 10}, {Limit{Count: 13, Window: 7 * time.Minute}, 100},
	} {
		p := policyOf(t, tt.limit)
		if got := p.Level(State{Time: midnight, Level: 0}, midnight+p.window); got != tt.limit.Count*micro {
			t.Errorf("%v: %d millionths in a window", tt.limit, got)
		}
		g, now := newGauge(p), midnight
		g.take(now, tt.limit.Count)
		got, end, want := int64(0), now+tt.windows*p.window, tt.windows*tt.limit.Count
		for {
			r := g.take(now, 1)
			if r.Allowed {
				got++
				continue
			}
			if r.RetryAfter <= 0 {
				t.Fatalf("%v: refused, to retry after %v", tt.limit, r.RetryAfter)
			}
			if now += r.RetryAfter.Microseconds(); now > end {
				break
			}
		}
		if got > want || got < want-1 {
			t.Errorf("%v: a greedy client got %d in %d windows, want %d", tt.limit, got, tt.windows, want)
		}
	}
}
