package counter

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const dayLong = 24 * time.Hour

func TestParseLimit(t *testing.T) {
	for _, tt := range []struct {
		in     string
		count  int64
		window time.Duration
		out    string // as String has it, if not as in
	}{
		{"100/minute", 100, time.Minute, ""},
		{"20/second", 20, time.Second, ""},
		{"5000/hour", 5000, time.Hour, ""},
		{"1000/day", 1000, dayLong, ""},
		{"5/15m", 5, 15 * time.Minute, ""},
		{"3/250ms", 3, 250 * time.Millisecond, ""},
		{"7/90s", 7, 90 * time.Second, ""},
		{"7/1m30s", 7, 90 * time.Second, "7/90s"},
		{"10/1.5s", 10, 1500 * time.Millisecond, "10/1500ms"},
		{"20 per second", 20, time.Second, "20/second"},
		{"20 per 2 seconds", 20, 2 * time.Second, "20/2s"},
		{" 1_000_000 / week ", 1_000_000, 7 * dayLong, "1000000/7d"},
		{"1/60s", 1, time.Minute, "1/minute"},
		{"1/24h", 1, dayLong, "1/day"},
		// ParseLimit accepts numbers out of range, because Validate knows the field and reports them.
		{"0/minute", 0, time.Minute, ""},
		{"-1/minute", -1, time.Minute, ""},
	} {
		l, err := ParseLimit(tt.in)
		if want := (Limit{Count: tt.count, Window: tt.window}); err != nil || l != want {
			t.Errorf("ParseLimit(%q) = %+v, %v, want %+v", tt.in, l, err, want)
			continue
		}
		if tt.out == "" {
			tt.out = tt.in
		}
		if l.String() != tt.out {
			t.Errorf("ParseLimit(%q) is shown as %q, want %q", tt.in, l, tt.out)
		}
	}
	for _, tt := range []struct{ in, want string }{
		{"", "a count and a window"},
		{"100", "a count and a window"},
		{"100 a minute", "a count and a window"},
		{"/minute", "whole number"},
		{"1e3/minute", "whole number"},
		{"1,000/minute", "whole number"},
		{"1.000/minute", `"1.000/minute" may be 1 or 1000: write "1/minute", or "1000/minute"`},
		{"10.000 per day", `write "10/day", or "10000/day"`},
		{"99999999999999999999/minute", "whole number"},
		{"100/", "must be a time"},
		{"100/fortnight", "must be a time"},
		{"100/minute/second", "must be a time"},
	} {
		if l, err := ParseLimit(tt.in); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("ParseLimit(%q) = %+v, %v, want an error with %q", tt.in, l, err, tt.want)
		}
	}
}

func TestParseWindow(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want time.Duration
	}{
		{"millisecond", time.Millisecond}, {"ms", time.Millisecond}, {"10ms", 10 * time.Millisecond}, {"10 milliseconds", 10 * time.Millisecond},
		{"second", time.Second}, {"s", time.Second}, {"sec", time.Second}, {"90s", 90 * time.Second}, {"30 secs", 30 * time.Second},
		{"minute", time.Minute}, {"m", time.Minute}, {"min", time.Minute}, {"15m", 15 * time.Minute}, {"15 mins", 15 * time.Minute}, {"15 Minutes", 15 * time.Minute},
		{"hour", time.Hour}, {"h", time.Hour}, {"12h", 12 * time.Hour}, {"2 hours", 2 * time.Hour},
		{"day", dayLong}, {"d", dayLong}, {"7d", 7 * dayLong}, {"2 days", 2 * dayLong},
		{"week", 7 * dayLong}, {"w", 7 * dayLong}, {"2w", 14 * dayLong}, {"52 weeks", 364 * dayLong},
		{"1h30m", 90 * time.Minute}, {"1.5h", 90 * time.Minute}, {"1500us", 1500 * time.Microsecond},
		// Validate reports windows that are too short or too long.
		{"0s", 0}, {"0", 0}, {"-5m", -5 * time.Minute}, {"100000d", 100_000 * dayLong},
	} {
		if got, err := ParseWindow(tt.in); err != nil || got != tt.want {
			t.Errorf("ParseWindow(%q) = %v, %v, want %v", tt.in, got, err, tt.want)
		}
	}
	for _, tt := range []struct{ in, want string }{
		{"", "must be a time"}, {"5", "must be a time"}, {"minutely", "must be a time"}, {"5 5m", "must be a time"},
		{"month", "must be a time"}, {"m5", "must be a time"}, {"5mss", "must be a time"},
		{"M", `"M" may be minutes or months: write m or minute`}, {"15M", "minutes or months"}, {"15 M", "minutes or months"}, {"1h30M", "must be a time"},
		{"106752d", "too long"}, {"99999999999999999999s", "too long"},
	} {
		if got, err := ParseWindow(tt.in); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("ParseWindow(%q) = %v, %v, want an error with %q", tt.in, got, err, tt.want)
		}
	}
}

// ParseLimit reads what String writes.
func TestLimitReadsWhatItShows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pick := rapidPicker(t)
		unit := []time.Duration{time.Microsecond, time.Millisecond, time.Second, time.Minute, time.Hour, dayLong}[pick(0, 5)]
		want := Limit{Count: pick(1, MaxTokens), Window: unit * time.Duration(pick(1, int64(maxWindow/unit)))}
		if got, err := ParseLimit(want.String()); err != nil || got != want {
			t.Fatalf("%q reads as %+v, %v, want %+v", want, got, err, want)
		}
	})
}

func TestValidateNamesTheField(t *testing.T) {
	ok := func(change func(*Limit)) Limit {
		l := Limit{Count: 100, Window: time.Minute}
		change(&l)
		return l
	}
	for _, tt := range []struct {
		name  string
		limit Limit
		want  string // the beginning of the error, or "" for none
	}{
		{"as usual", ok(func(*Limit) {}), ""},
		{"no such algorithm", ok(func(l *Limit) { l.Algorithm = 17 }), "algorithm: algorithm(17) does not exist"},
		{"nothing at all", Limit{}, "limit: must be at least 1, got 0"},
		{"refuses everything", ok(func(l *Limit) { l.Count = 0 }), "limit: must be at least 1, got 0"},
		{"negative", ok(func(l *Limit) { l.Count = -3 }), "limit: must be at least 1, got -3"},
		{"the largest", ok(func(l *Limit) { l.Count = MaxTokens }), ""},
		{"larger", ok(func(l *Limit) { l.Count = MaxTokens + 1 }), "limit: must be at most 9000000000 for token_bucket"},
		{"the largest counter", *slidingCounter(maxPairCount, time.Minute), ""},
		{"a larger counter", *slidingCounter(maxPairCount+1, time.Minute), "limit: must be at most 2147483647 for sliding_window_counter"},
		{"the largest log", *slidingLog(maxLogCount, time.Minute), ""},
		{"a larger log", *slidingLog(maxLogCount+1, time.Minute), "limit: must be at most 1000000 for sliding_window_log"},
		{"the shortest window", ok(func(l *Limit) { l.Window = time.Millisecond }), ""},
		{"shorter", ok(func(l *Limit) { l.Window = time.Millisecond - 1 }), "window: must be at least 1ms"},
		{"no window", ok(func(l *Limit) { l.Window = 0 }), "window: must be at least 1ms, got 0s"},
		{"the longest window", ok(func(l *Limit) { l.Window = 366 * dayLong }), ""},
		{"longer", ok(func(l *Limit) { l.Window = 367 * dayLong }), "window: must be at most 366d, got 367d"},
		{"nanoseconds", ok(func(l *Limit) { l.Window = time.Second + 1 }), "window: must be whole microseconds"},
		{"negative burst", ok(func(l *Limit) { l.Burst = -1 }), "burst: must be at least 1, got -1"},
		{"the largest burst", ok(func(l *Limit) { l.Burst, l.Refill = MaxTokens, 1000 }), ""},
		{"a larger burst", ok(func(l *Limit) { l.Burst = MaxTokens + 1 }), "burst: must be at most 9000000000"},
		{"a burst of a window", ok(func(l *Limit) { l.Algorithm, l.Burst = FixedWindow, 5 }), "burst: fixed_window has no burst"},
		{"a refill of a log", ok(func(l *Limit) { l.Algorithm, l.Refill = SlidingLog, 5 }), "refill_rate: sliding_window_log does not refill"},
		{"literal refill", ok(func(l *Limit) { l.Refill = 1.67 }), ""},
		{"negative refill", ok(func(l *Limit) { l.Refill = -1 }), "refill_rate: must be more than 0"},
		{"refill NaN", ok(func(l *Limit) { l.Refill = math.NaN() }), "refill_rate: must be more than 0"},
		{"refill infinite", ok(func(l *Limit) { l.Refill = math.Inf(1) }), "refill_rate: must be more than 0"},
		{"refill too fast", ok(func(l *Limit) { l.Refill = 1e16 }), "refill_rate: 1e+16 tokens per second is out of range"},
		{"refill too slow", ok(func(l *Limit) { l.Refill = 1e-8 }), "refill_rate: the bucket would take more than ten years to fill"},
		{"ten years to fill", ok(func(l *Limit) { l.Window, l.Burst = dayLong, 366_000 }), ""},
		{"more than ten years to fill", ok(func(l *Limit) { l.Window, l.Burst = dayLong, 366_001 }), "refill_rate: the bucket would take more than ten years to fill"},
		{"a queue's longest wait", ok(func(l *Limit) { l.Algorithm, l.MaxDelay = LeakyQueue, time.Second }), ""},
		{"a negative wait", ok(func(l *Limit) { l.Algorithm, l.MaxDelay = LeakyQueue, -1 }), "max_delay: must be whole microseconds and not negative"},
		{"a meter doesn't wait", ok(func(l *Limit) { l.Algorithm, l.MaxDelay = LeakyBucket, time.Second }), "max_delay: only a leaky_bucket with mode: queue"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.limit.Validate()
			if _, newErr := NewPolicy("x", tt.limit); (err == nil) != (newErr == nil) {
				t.Errorf("NewPolicy says %v, Validate %v", newErr, err)
			}
			if err == nil {
				if tt.want != "" {
					t.Errorf("valid, want %q", tt.want)
				}
				return
			}
			var le Problem
			if tt.want == "" || !strings.HasPrefix(err.Error(), tt.want) || !errors.As(err, &le) {
				t.Errorf("%T %q, want %q", err, err, tt.want)
			}
		})
	}
}

// A counter outlives its numbers: a changed limit continues with the old limit's count. Another window means
// another counter only for algorithms that read their state by the window.
func TestCounterOutlivesItsNumbers(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, a Algorithm) {
		id := func(name string, n int64, w time.Duration) uint64 {
			p, err := NewPolicy(name, Limit{Algorithm: a, Count: n, Window: w})
			if err != nil {
				t.Fatal(err)
			}
			return p.ID
		}
		was := id("orders", 100, time.Minute)
		if id("orders", 500, time.Minute) != was {
			t.Error("another limit is another counter")
		}
		if same := id("orders", 100, time.Hour) == was; same == (a == FixedWindow || a == SlidingCounter) {
			t.Errorf("another window is the same counter: %v", same)
		}
		if id("search", 100, time.Minute) == was {
			t.Error("another name is the same counter")
		}
	})
}

// After its Memory, an idle counter is full again, so a store may forget it.
func TestMemoryIsHowLongACounterMatters(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, a Algorithm) {
		rapid.Check(t, func(t *rapid.T) {
			pick := rapidPicker(t)
			p := policyOf(t, pickLimit(a, trialWindows[pick(0, int64(len(trialWindows)-1))], pick))
			g, now := newGauge(p), midnight+pick(0, p.window)
			for range pick(1, 4) {
				now += pick(0, p.window)
				g.take(now, pick(1, p.Limit.Max()))
			}
			if reset, latest := g.report(now, 1, Fits).ResetAfter, p.LatestReset(time.UnixMicro(now)); reset > latest {
				t.Fatalf("%+v: full again after %v, at the latest after %v", p.Limit, reset, latest)
			}
			if left := g.report(now+p.Memory().Microseconds(), 1, Fits).Remaining; left != p.Limit.Max() {
				t.Fatalf("%+v: after %v, %d of %d remain", p.Limit, p.Memory(), left, p.Limit.Max())
			}
		})
	})
}
