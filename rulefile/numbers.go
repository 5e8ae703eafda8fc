package rulefile

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
)

// scope is what a rule says about all its numbers, which are the counts, windows and bursts of its limits.
type scope struct {
	algorithm counter.Algorithm
	// named means that the rule names its algorithm. If it doesn't, calendar windows are fixed windows, and other
	// limits are buckets.
	named bool
	// unsure means that the rule's algorithm is wrong, so that its numbers must not be blamed.
	unsure bool
	// decimal means that the rule counts an amount.
	decimal bool
	// calendar means that the rule says when days, weeks and months begin.
	calendar bool
	// shared means that the numbers are a tier's, and that rules say what they count, and how.
	shared bool
	// window is that of the rule's params, for overrides that leave it out.
	window time.Duration
	// inList means that the numbers are one of several limits.
	inList bool
	// borrows means that the rule may leave out the limit, which then comes from another configuration.
	borrows bool
	// override means that the numbers are those of one key, which can expire.
	override bool
}

// forget keeps the numbers of a rule with a wrong algorithm from being blamed for it.
func (s *scope) forget() {
	s.algorithm, s.named, s.decimal, s.unsure = weir.TokenBucket, false, true, true
}

var numberFields = fieldSet{
	of:    "a limit",
	names: []string{"limit", "burst", "limits", "capacity", "refill_rate", "window"},
	wrong: map[string]string{"rate": `write limit: 100/minute`, "params": "write its fields here", "expires": "only an override expires"},
}

var overrideFields = fieldSet{
	of:    "an override",
	names: append(slices.Clone(numberFields.names), "expires"),
	wrong: map[string]string{
		"rate": `write limit: 100/minute`, "params": "write its fields here",
		"expires_in": "write when it ends, expires: 2026-01-31T12:00:00Z", "expiry": `write "expires"`, "until": `write "expires"`, "ttl": `write "expires"`,
	},
}

var itemFields = fieldSet{
	of:    "one of the limits",
	names: []string{"limit", "burst", "capacity", "refill_rate", "window"},
	wrong: map[string]string{"limits": "write a single limit, such as 100/minute"},
}

var paramFields = fieldSet{
	of:    "params",
	names: []string{"capacity", "refill_rate", "window", "limit"},
	wrong: map[string]string{"burst": `write "capacity", which is the burst`, "limits": "write limits: [20/second, 5000/hour] in place of params"},
}

// maxLimits is how many limits one rule may have. Each of them costs every request a counter.
const maxLimits = 16

// numbers reads limits in any of the forms that tiers, overrides and candidates can have:
//
//	100/minute
//	{limit: 100/minute, burst: 20}
//	{limits: [20/second, 5000/hour]}
//	{capacity: 100, refill_rate: 1.67, window: 60}
//	{limit: 100, window: 60}
func (d *decoder) numbers(v value, s scope) []weir.Limit {
	if !d.given(v) {
		return nil
	}
	switch v.kind {
	case scalar:
		return d.limit(v, map[string]value{"limit": v}, s)
	case sequence:
		p := d.fail(v, "must be a limit such as 100/minute, or fields such as {limit: 100/minute, burst: 20}, got a list")
		if !s.inList {
			p.Hint = "write {limits: […]} for several limits"
		}
		return nil
	}
	before := len(d.list)
	set := &numberFields
	if s.inList {
		set = &itemFields
	} else if s.override {
		set = &overrideFields
	}
	f := d.fields(v, set)
	if list, ok := f["limits"]; ok {
		for _, other := range numberFields.names {
			if o, ok := f[other]; ok && other != "limits" {
				d.fail(o, "can't stand beside limits: write it inside, [{limit: 20/second, burst: 5}, 5000/hour]")
			}
		}
		return d.limits(list, s)
	}
	if len(d.list) > before {
		return nil // a missing field may be the misspelled one
	}
	return d.limit(v, f, s)
}

func (d *decoder) limits(v value, s scope) []weir.Limit {
	items := d.items(v, "[20/second, 5000/hour]")
	if v.kind == sequence && len(items) == 0 {
		d.fail(v, "needs at least one limit such as 100/minute")
	}
	if len(items) > maxLimits {
		d.fail(v, "must be at most %d limits, got %d", maxLimits, len(items))
		return nil
	}
	if s.slots() {
		d.fail(v, "concurrency has one limit, how many requests may be in flight: write limit: 20")
		return nil
	}
	s.inList = true
	var limits []weir.Limit
	for _, item := range items {
		limits = append(limits, d.numbers(item, s)...)
	}
	return limits
}

// ownNumbers reads the numbers of the rule itself, and records the window of its params in the scope.
func (d *decoder) ownNumbers(f map[string]value, s *scope) []weir.Limit {
	var given []string
	for _, name := range []string{"limit", "limits", "params"} {
		if _, ok := f[name]; ok {
			given = append(given, name)
		}
	}
	limit, burst := f["limit"], f["burst"]
	switch {
	case len(given) > 1:
		d.fail(f[given[1]], "limit, limits and params exclude each other: keep %s", strings.Join(given, " or "))
	case s.borrows && len(given) == 0 && burst.node != nil:
		return []weir.Limit{{Burst: d.integer(burst)}}
	case limit.node != nil || len(given) == 0 && burst.node != nil:
		return d.limit(limit, map[string]value{"limit": limit, "burst": burst}, *s)
	case len(given) == 0:
	case burst.node != nil && given[0] == "limits":
		d.fail(burst, "belongs to one of the limits: [{limit: 20/second, burst: 5}, 5000/hour]")
	case burst.node != nil:
		d.fail(burst, "is the capacity, in params: keep one of them")
	case given[0] == "limits":
		return d.limits(f["limits"], *s)
	default:
		return d.params(f["params"], s)
	}
	return nil
}

func (d *decoder) params(v value, s *scope) []weir.Limit {
	before := len(d.list)
	f := d.fields(v, &paramFields)
	if len(d.list) > before {
		return nil
	}
	limits := d.limit(v, f, *s)
	if _, ok := f["window"]; ok && len(limits) == 1 {
		s.window = limits[0].Window
	}
	return limits
}

// limit makes one limit of the fields limit, burst, capacity, refill_rate and window, or returns nil if something
// is wrong with them. v is the value that has these fields.
func (d *decoder) limit(v value, f map[string]value, s scope) []weir.Limit {
	before := len(d.list)
	limit, burst, capacity, refill := f["limit"], f["burst"], f["capacity"], f["refill_rate"]
	for _, bucketOnly := range []string{"capacity", "refill_rate"} {
		if b, ok := f[bucketOnly]; ok && s.algorithm > weir.LeakyQueue {
			instead := "give a limit and a window"
			if s.slots() {
				instead = "write limit: 20, for how many requests may be in flight"
			}
			d.fail(b, "%s has no %s: %s", s.algorithm, bucketOnly, instead)
			return nil
		}
	}
	var l weir.Limit
	switch {
	case burst.node != nil && capacity.node != nil:
		d.fail(burst, "is another name for capacity: keep one of them")
	case limit.node != nil && refill.node != nil:
		d.fail(refill, "limit and refill_rate both say how fast the bucket refills: keep one of them")
	case limit.node != nil:
		if capacity.node != nil {
			burst = capacity
		}
		l = d.count(limit, f["window"], s)
		if l.Burst = d.burst(burst, l); l.Burst > 0 {
			d.checkBurst(burst, l, s)
		}
	case capacity.node != nil:
		limit, burst = capacity, capacity
		l = d.bucket(capacity, refill, f["window"], s)
	case refill.node != nil:
		d.fail(refill, "needs a capacity beside it: how many tokens the bucket holds")
	case burst.node != nil:
		d.fail(burst, "needs a limit beside it: limit: 100/minute")
	default:
		example := "{limit: 100/minute, burst: 20}"
		if strings.HasSuffix(v.path, "params") {
			example = "{capacity: 100, refill_rate: 1.67} or {limit: 100, window: 60}"
		}
		d.fail(v, "needs numbers such as %s", example)
	}
	if len(d.list) == before {
		d.validate(l, map[string]value{"limit": limit, "burst": burst, "refill_rate": refill, "window": f["window"]}, s)
	}
	if len(d.list) > before {
		return nil
	}
	return []weir.Limit{l}
}

// burst reads a bucket's capacity: a number, or a fraction of its limit.
func (d *decoder) burst(v value, l weir.Limit) int64 {
	if v.node == nil || v.kind != scalar || !strings.Contains(v.text, "/") {
		return d.integer(v)
	}
	part, ok := parsePart(v.text)
	if !ok {
		d.fail(v, "must be a whole number, or a part of the limit such as 1/6, got %q", v.text)
		return 0
	}
	return part.of(l)
}

// part is a fraction of a limit, below 1.
type part struct{ num, den int64 }

func parsePart(text string) (p part, ok bool) {
	num, den, _ := strings.Cut(text, "/")
	n, err := strconv.ParseUint(strings.TrimSpace(num), 10, 20)
	m, wrong := strconv.ParseUint(strings.TrimSpace(den), 10, 20)
	return part{int64(n), int64(m)}, err == nil && wrong == nil && n > 0 && n < m
}

// of returns that fraction of a limit in whole tokens, rounded down, but at least one.
func (p part) of(l weir.Limit) int64 { return max(1, l.Count*p.num/p.den) }

// checkBurst adds a problem if a limit that can't have a burst has one.
func (d *decoder) checkBurst(burst value, l weir.Limit, s scope) {
	switch {
	case s.unsure:
	case s.slots():
		d.fail(burst, "concurrency has no burst: its limit is how many requests may be in flight at once")
	case l.Calendar.Unit == counter.Month:
		d.fail(burst, "a month of the calendar has no burst: its limit may be taken at once; leave it out, or write 30d for that length of time")
	case s.calendar && (l.Window == 24*time.Hour || l.Window == 7*24*time.Hour):
		d.fail(burst, "the calendar's windows have no burst: their limit may be taken at once; leave it out, or the calendar")
	}
}

// slots reports whether the rule counts requests in flight.
func (s scope) slots() bool { return s.algorithm == weir.Concurrency }

// count reads a limit: "100/minute", or a number with a window as a field of its own.
func (d *decoder) count(limit, window value, s scope) weir.Limit {
	if !d.given(limit) {
		return weir.Limit{}
	}
	if s.slots() {
		return d.slotLimit(limit, window)
	}
	if limit.isNumber() {
		l := weir.Limit{Window: s.window}
		before := len(d.list)
		if s.decimal || s.shared {
			l.Count, l.Fraction = wholeAndRest(d.amount(limit))
		} else {
			l.Count = d.integer(limit)
		}
		switch {
		case window.node != nil:
			l.Window, _ = d.duration(window)
		case s.window == 0 && !s.unsure && len(d.list) == before:
			d.fail(limit, `must be a count and a window such as "100/minute" or "5/15m", got %s`, limit.text).Hint = d.guessCut(limit)
		}
		return l
	}
	if limit.kind != scalar {
		d.fail(limit, `must be a count and a window such as "100/minute" or "5/15m", got %s`, limit.describe())
		return weir.Limit{}
	}
	l, err := weir.ParseLimit(limit.text)
	count, unit, _ := strings.Cut(limit.text, "/")
	unit = strings.TrimSpace(unit)
	if err == nil && l.Fraction != 0 && !s.decimal && !s.shared {
		err = fmt.Errorf("must be a whole number, got %s: only amounts have fractions", l.Amount())
	}
	if err != nil {
		if _, wrong := counter.ParseAmount(strings.TrimSpace(count)); wrong != nil && s.decimal && strings.Contains(count, ".") {
			err = wrong
		}
		p := d.fail(limit, "%v", err)
		if _, err := counter.ParseWindow(unit); err != nil && unit != "month" {
			p.Hint = guessWindow(count+"/", unit)
		} else if number := guessCount(count); number != "" {
			p.Hint = fmt.Sprintf("did you mean %q?", number+"/"+unit)
		}
	} else if window.node != nil {
		d.fail(window, "the limit %q has a window already: keep one of them", limit.text)
	} else if l.Calendar.Unit == counter.Month && s.named && s.algorithm != weir.FixedWindow {
		d.fail(limit, "%s", noBudget(s.algorithm))
	}
	return l
}

// slotLimit reads how many requests may be in flight.
func (d *decoder) slotLimit(limit, window value) weir.Limit {
	if window.node != nil {
		d.fail(window, "concurrency isn't over a time: write slot_ttl in the rule, for how long a slot lasts that isn't renewed")
		return weir.Limit{}
	}
	if limit.kind == scalar && !limit.isNumber() {
		if l, err := weir.ParseLimit(limit.text); err == nil {
			d.fail(limit, "concurrency counts requests in flight, not over a time: write a number such as 20, got %q", limit.text).Hint = "did you mean " + l.Amount().String() + "?"
			return weir.Limit{}
		}
	}
	return weir.Limit{Algorithm: weir.Concurrency, Count: d.integer(limit)}
}

// wholeAndRest splits an amount into its whole part and its fraction.
func wholeAndRest(a counter.Amount) (int64, counter.Amount) {
	one := counter.Whole(1)
	return int64(a / one), a % one
}

// bucket reads a bucket from params: its capacity, and how many tokens it gains each second.
func (d *decoder) bucket(capacity, refill, window value, s scope) weir.Limit {
	n := d.integer(capacity)
	rate, ok := d.number(refill, "a number")
	if ok && !(rate > 0) {
		d.fail(refill, "must be more than 0 tokens per second, got %s", refill.text)
	}
	l := weir.Limit{Count: n, Burst: n, Refill: rate, Window: s.window}
	switch {
	case window.node != nil:
		l.Window, _ = d.duration(window)
	case refill.node == nil:
		d.fail(capacity, "needs a refill_rate beside it: how many tokens the bucket gains each second")
	case s.window == 0 && l.Refill > 0:
		l.Window = fillTime(n, l.Refill)
	}
	return l
}

// fillTime returns how long an empty bucket takes to fill, in whole seconds and at most a year. It is only shown to
// clients.
func fillTime(capacity int64, rate float64) time.Duration {
	const year = 365 * 24 * 60 * 60
	// Subtract a little, so that 3 tokens at 0.1 per second take 30 seconds in spite of rounding.
	seconds := math.Ceil(float64(capacity) / rate * (1 - 1e-12))
	return time.Duration(min(max(seconds, 1), year)) * time.Second
}

// validate has the limit check itself, and adds a problem at the field that is wrong.
func (d *decoder) validate(l weir.Limit, where map[string]value, s scope) {
	l.Algorithm, l.Decimal = s.algorithm, s.decimal || s.shared && l.Fraction != 0
	switch {
	case l.Calendar.Unit != counter.NoUnit:
		l.Algorithm = weir.FixedWindow
	case s.slots() || s.unsure && l.Window == 0:
		l.Window = time.Minute // any window will do
	}
	wrong, ok := errors.AsType[counter.Problem](l.Validate())
	if !ok {
		return
	}
	at, text := where[wrong.Path], wrong.Text
	if at.node == nil {
		// The fault is in a part of another field, or follows from several fields.
		at, text = where["limit"], wrong.Error()
	}
	d.fail(at, "%s", text)
}
