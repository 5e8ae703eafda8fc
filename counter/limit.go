package counter

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"time"
)

// Algorithm says how a limit counts.
type Algorithm uint8

const (
	// TokenBucket holds up to Burst tokens and refills at a steady rate. In any time T it admits at most Burst + rate·T. It is
	// the right choice for most limits.
	TokenBucket Algorithm = iota
	// LeakyBucket admits the same, but a change of the limit keeps what the client has used instead of what it has left.
	LeakyBucket
	// LeakyQueue is a leaky bucket that spaces requests evenly: an allowed decision says how long the request has to wait.
	LeakyQueue
	// FixedWindow counts within windows aligned to the Unix epoch. It is easy to explain, but admits up to twice its limit
	// around the edge between two windows.
	FixedWindow
	// SlidingLog is exact over any window, because it remembers every admission within the last window.
	SlidingLog
	// SlidingCounter is nearly as exact as SlidingLog in constant memory. It estimates the last window from two counts.
	SlidingCounter
	// Concurrency counts requests in flight. Each request takes a slot and releases it when it ends. A slot that isn't renewed
	// in time becomes free again. See [Hold].
	Concurrency
)

var algorithmNames = [...]string{"token_bucket", "leaky_bucket", "leaky_queue", "fixed_window", "sliding_window_log", "sliding_window_counter", "concurrency"}

// String returns the algorithm's name in rule files. There, a leaky_queue is written as a leaky_bucket with mode: queue.
func (a Algorithm) String() string {
	if int(a) < len(algorithmNames) {
		return algorithmNames[a]
	}
	return "algorithm(" + strconv.Itoa(int(a)) + ")"
}

// Bounds of a limit's numbers and of amounts. They keep every intermediate value of the arithmetic below 2^53, so that Go's
// integers and Lua's doubles agree.
const (
	MaxTokens = 9_000_000_000     // the largest count, burst or cost
	MaxAmount = MaxTokens * micro // the largest amount of a request, and the largest limit on an amount
)

const (
	maxPairCount = 1<<31 - 1 // the largest count of a sliding counter, which keeps two counts
	maxLogCount  = 1_000_000 // the largest count of a sliding log, which keeps an entry for each admission
	maxSlots     = 100_000   // the largest count of a concurrency limit, which keeps an entry for each slot
	minWindow    = time.Millisecond
	maxWindow    = 366 * 24 * time.Hour
	maxFill      = 10 * 366 * 24 * time.Hour
	maxExact     = 1 << 53
)

// Limit is an algorithm with its numbers: 100 per minute, burst 20.
type Limit struct {
	Algorithm Algorithm
	// Count is how many tokens a Window admits. Clients see it as the limit.
	Count int64
	// Window is the time that Count is for. For Concurrency, it is how long a slot lasts without renewal.
	Window time.Duration
	// Calendar makes the windows of a FixedWindow calendar days, weeks or months. Window is then the unit's usual length.
	Calendar Calendar
	// Decimal limits count amounts, and charges to them are in millionths. See [github.com/weirhq/weir.Rule.Amount].
	Decimal bool
	// Fraction is added to the Count of a Decimal limit. It is less than 1.
	Fraction Amount
	// Burst is the capacity of a bucket, or the length of a queue. 0 means Count.
	Burst int64
	// Refill is a bucket's rate in tokens per second. 0 means Count per Window.
	Refill float64
	// MaxDelay is the longest wait in a LeakyQueue. Requests that would wait longer are refused. 0 means that only Burst limits
	// it.
	MaxDelay time.Duration
}

// PerSecond returns a token bucket of n tokens a second.
func PerSecond(n int64) Limit { return Limit{Count: n, Window: time.Second} }

// PerMinute returns a token bucket of n tokens a minute.
func PerMinute(n int64) Limit { return Limit{Count: n, Window: time.Minute} }

// PerHour returns a token bucket of n tokens an hour.
func PerHour(n int64) Limit { return Limit{Count: n, Window: time.Hour} }

func (l Limit) isBucket() bool { return l.Algorithm <= LeakyQueue }

// Max returns the largest cost that the limit can ever admit at once, in whole tokens.
func (l Limit) Max() int64 {
	if l.Burst > 0 {
		return l.Burst
	}
	return l.Count
}

// Capacity is like Max, but includes the Fraction of a limit on an amount.
func (l Limit) Capacity() Amount {
	if l.Burst > 0 {
		return Amount(l.Burst * micro)
	}
	return l.Amount()
}

// Amount returns Count plus Fraction.
func (l Limit) Amount() Amount { return Amount(l.Count*micro) + l.Fraction }

// String returns the limit as rule files write it: "100/minute", "5/15m", "20 in flight".
func (l Limit) String() string {
	switch count := l.Amount().String(); {
	case l.Algorithm == Concurrency:
		return count + " in flight"
	case l.Calendar.Unit != NoUnit:
		return count + "/" + l.Calendar.Unit.String()
	default:
		return count + "/" + windowName(l.Window)
	}
}

// Period returns a short name of the limit's window: 1s, 15m, month.
func (l Limit) Period() string {
	if l.Calendar.Unit != NoUnit {
		return l.Calendar.Unit.String()
	}
	return shortWindow(l.Window)
}

var units = []struct{ letters, word string }{{"d", "day"}, {"h", "hour"}, {"m", "minute"}, {"s", "second"}, {"ms", ""}}

// shortWindow returns the shortest exact name of a window: 1s, 15m, 90s, 250ms.
func shortWindow(d time.Duration) string {
	for _, u := range units {
		if unit := windowUnits[u.letters]; d >= unit && d%unit == 0 {
			return strconv.FormatInt(int64(d/unit), 10) + u.letters
		}
	}
	return d.String()
}

func windowName(d time.Duration) string {
	for _, u := range units {
		if u.word != "" && d == windowUnits[u.word] {
			return u.word
		}
	}
	return shortWindow(d)
}

// ParseLimit reads "100/minute", "5/15m", "20 per second", and "50/month", which counts calendar months.
func ParseLimit(s string) (Limit, error) {
	count, window, ok := strings.Cut(s, "/")
	if !ok {
		count, window, ok = strings.Cut(s, " per ")
	}
	if !ok {
		return Limit{}, fmt.Errorf(`must be a count and a window such as "100/minute" or "5/15m", got %q`, s)
	}
	var l Limit
	count = strings.TrimSpace(count)
	n, err := strconv.ParseInt(strings.ReplaceAll(count, "_", ""), 10, 64)
	if err != nil {
		a, err := ParseAmount(strings.ReplaceAll(count, "_", ""))
		if err != nil {
			return Limit{}, fmt.Errorf("the count must be a whole number, got %q", count)
		}
		l.Fraction, n = a%micro, int64(a/micro)
		if whole, rest, _ := strings.Cut(count, "."); rest == "000" && len(whole) <= 3 {
			return Limit{}, fmt.Errorf(`%q may be %s or %s000: write "%s/%s", or "%s000/%s"`, s, whole, whole, whole, strings.TrimSpace(window), whole, strings.TrimSpace(window))
		}
	}
	l.Count = n
	window = strings.TrimSpace(window)
	if number, ok := strings.CutSuffix(window, "M"); ok {
		switch number = strings.TrimSpace(number); number {
		case "", "1":
			return Limit{}, fmt.Errorf(`%q may be per minute or per month: write "%s/minute", or "%s/month"`, s, count, count)
		}
		return Limit{}, fmt.Errorf(`%q may be minutes or months: write "%s/%sm", or days for months, such as "%s/90d"`, s, count, number, count)
	}
	if m := strings.ToLower(window); m == "month" || m == "1 month" {
		l.Calendar.Unit, l.Window = Month, Month.length()
		return l, nil
	}
	l.Window, err = ParseWindow(window)
	return l, err
}

var windowUnits = map[string]time.Duration{
	"ms": time.Millisecond, "millisecond": time.Millisecond,
	"s": time.Second, "sec": time.Second, "second": time.Second,
	"m": time.Minute, "min": time.Minute, "minute": time.Minute,
	"h": time.Hour, "hour": time.Hour,
	"d": 24 * time.Hour, "day": 24 * time.Hour,
	"w": 7 * 24 * time.Hour, "week": 7 * 24 * time.Hour,
}

// ParseWindow reads a length of time: "minute", "15m", "90s", "1h30m", "2 days".
func ParseWindow(s string) (time.Duration, error) {
	name := strings.TrimLeft(s, "0123456789")
	number := s[:len(s)-len(name)]
	name = strings.TrimSpace(name)
	if name == "M" {
		return 0, fmt.Errorf(`%q may be minutes or months: write m or minute for minutes, and days for months, such as 30d`, s)
	}
	name = strings.ToLower(name)
	unit, ok := windowUnits[name]
	if !ok && len(name) > 3 {
		unit, ok = windowUnits[strings.TrimSuffix(name, "s")]
	}
	if ok {
		n := int64(1)
		if number != "" {
			var err error
			if n, err = strconv.ParseInt(number, 10, 64); err != nil || n > int64(math.MaxInt64/unit) {
				return 0, fmt.Errorf("the time %q is too long: at most %s", s, shortWindow(maxWindow))
			}
		}
		return time.Duration(n) * unit, nil
	}
	if d, err := time.ParseDuration(s); err == nil {
		return d, nil
	}
	if strings.TrimSuffix(name, "s") == "month" {
		return 0, fmt.Errorf("must be a time such as 30d, got %q, which has no fixed length; a limit such as 50/month is the calendar's", s)
	}
	return 0, fmt.Errorf(`must be a time such as second, minute, hour, day, 15m or 1h30m, got %q`, s)
}

// Problem is a fault in a rule document or in a single limit, and where it is.
type Problem struct {
	// Path leads to the fault, such as rules[2].match.endpoint.
	Path string
	// Text says what is wrong, and what to write instead.
	Text string
}

func (p Problem) Error() string { return p.Path + ": " + p.Text }

// Problems is the error of a rule document. It lists all of the document's faults.
type Problems []Problem

func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.Error()
	}
	return strings.Join(lines, "\n")
}

// fault keeps the first thing that is wrong with a limit, as a [Problem]. Its path is the field's name in rule files: limit,
// window, burst, refill_rate, max_delay.
type fault struct{ error }

func (f *fault) when(wrong bool, field, format string, args ...any) {
	if wrong && f.error == nil {
		f.error = Problem{field, fmt.Sprintf(format, args...)}
	}
}

// Validate reports the first thing that makes the limit impossible, as a [Problem].
func (l Limit) Validate() error {
	var f fault
	f.when(int(l.Algorithm) >= len(algorithmNames), "algorithm", "%s does not exist", l.Algorithm)
	f.when(l.Fraction != 0 && !l.Decimal, "limit", "must be a whole number, got %s: only amounts have fractions", l.Amount())
	f.when(l.Fraction < 0 || l.Fraction >= micro, "limit", "its fraction must be less than 1, got %s", l.Fraction)
	f.when(l.Decimal && l.Algorithm != TokenBucket && l.Algorithm != LeakyBucket && l.Algorithm != FixedWindow, "algorithm",
		"%s counts requests, not amounts: use token_bucket, leaky_bucket or fixed_window", l.Algorithm)
	if l.Calendar != (Calendar{}) {
		l.validateCalendar(&f)
	}
	highest := int64(MaxTokens)
	switch l.Algorithm {
	case SlidingCounter:
		highest = maxPairCount
	case SlidingLog:
		highest = maxLogCount
	case Concurrency:
		highest = maxSlots
	}
	f.when(l.Count < 1 && l.Fraction == 0, "limit", "must be at least 1, got %d", l.Count)
	f.when(l.Count < 0, "limit", "must not be negative, got %d", l.Count)
	f.when(l.Count > highest, "limit", "must be at most %d for %s, got %d", highest, l.Algorithm, l.Count)
	f.when(l.Window < minWindow, "window", "must be at least %s, got %s", minWindow, l.Window)
	f.when(l.Window > maxWindow, "window", "must be at most %s, got %s", shortWindow(maxWindow), shortWindow(l.Window))
	f.when(l.Window%time.Microsecond != 0, "window", "must be whole microseconds, got %s", l.Window)
	f.when(l.Burst < 0, "burst", "must be at least 1, got %d", l.Burst)
	f.when(l.Burst > MaxTokens, "burst", "must be at most %d, got %d", int64(MaxTokens), l.Burst)
	f.when(l.MaxDelay < 0 || l.MaxDelay%time.Microsecond != 0, "max_delay",
		"must be whole microseconds and not negative, got %s", l.MaxDelay)
	f.when(l.MaxDelay > 0 && l.Algorithm != LeakyQueue, "max_delay", "only a leaky_bucket with mode: queue delays requests")
	if !l.isBucket() {
		f.when(l.Burst > 0, "burst", "%s has no burst: it admits its limit within a window", l.Algorithm)
		f.when(l.Refill != 0, "refill_rate", "%s does not refill: give a limit and a window", l.Algorithm)
		return f.error
	}
	positive := l.Refill >= 0 && !math.IsInf(l.Refill, 0)
	f.when(!positive, "refill_rate", "must be more than 0 tokens per second, got %v", l.Refill)
	if f.error == nil {
		_, err := l.rate()
		f.when(err != nil, "refill_rate", "%v", err)
	}
	return f.error
}

func (l Limit) validateCalendar(f *fault) {
	if l.Calendar.validate(f); f.error != nil {
		return
	}
	unit := l.Calendar.Unit
	usual := shortWindow(unit.length())
	f.when(l.Algorithm != FixedWindow, "limit", "a %s of the calendar is a fixed window, and a %s isn't: "+
		"write algorithm: fixed_window, or %s for that length of time", unit, l.Algorithm, usual)
	f.when(l.Window != unit.length(), "window",
		"must be %s, as long as a %s of the calendar, got %s", usual, unit, shortWindow(l.Window))
}

// rate is a bucket's refill in tokens per second (or millionths of a token per µs, which is the same number), as a fraction in
// lowest terms.
type rate struct{ num, den int64 }

func (l Limit) rate() (rate, error) {
	exact := new(big.Rat)
	if l.Refill == 0 {
		exact.SetFrac64(int64(l.Amount()), int64(l.Window/time.Microsecond))
	} else {
		// The shortest decimal that parses to this number is what the operator wrote: 1.67 is 167/100.
		exact.SetString(strconv.FormatFloat(l.Refill, 'g', -1, 64))
	}
	r, ok := nearestRate(exact)
	if !ok {
		perSecond, _ := exact.Float64()
		return rate{}, fmt.Errorf("%v tokens per second is out of range", perSecond)
	}
	fill := new(big.Rat).SetFrac64(int64(l.Capacity()), micro)
	fill.Quo(fill, exact)
	if fill.Cmp(big.NewRat(int64(maxFill/time.Second), 1)) > 0 {
		return rate{}, errors.New("the bucket would take more than ten years to fill")
	}
	return r, nil
}

// nearestRate returns the largest fraction up to exact whose numerator times denominator is less than 2^53. Counts over whole
// seconds are exact below that product. Otherwise the rate is lower by less than a thousandth.
func nearestRate(exact *big.Rat) (rate, bool) {
	fits := func(r *big.Rat) bool {
		p := new(big.Int).Mul(r.Num(), r.Denom())
		return p.IsInt64() && p.Int64() < maxExact
	}
	for r, scale := exact, int64(1_000_000_000_000_000); ; scale /= 10 {
		if fits(r) && r.Sign() > 0 {
			return rate{r.Num().Int64(), r.Denom().Int64()}, true
		}
		if scale == 0 {
			return rate{}, false
		}
		n := new(big.Int).Mul(exact.Num(), big.NewInt(scale))
		r = new(big.Rat).SetFrac(n.Div(n, exact.Denom()), big.NewInt(scale))
	}
}
