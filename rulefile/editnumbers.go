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
	"github.com/weirhq/weir/internal/lint"
)

// numbersChange is a parsed Numbers. Zero fields change nothing.
type numbersChange struct {
	weir.Limit // a count, a window and a burst
	expires    time.Time
	// inherits means that numbers without a window have the window of the rule's params.
	inherits bool
}

func (n Numbers) parse() (c numbersChange, err error) {
	switch {
	case n.Limit == "" && n.Capacity == 0:
		return c, errors.New(`there is nothing to set: give a limit such as "500/minute", or a capacity`)
	case n.Capacity < 0:
		return c, fmt.Errorf("capacity: must be at least 1, got %d", n.Capacity)
	case n.Limit != "":
		if c.Limit, err = parseLimit(n.Limit); err != nil {
			return c, fmt.Errorf("limit: %w", err)
		}
	}
	c.Burst = n.Capacity
	if !n.Expires.IsZero() { // rounded up to a whole second, so that an override never expires too early
		c.expires = n.Expires.UTC().Add(time.Second - 1).Truncate(time.Second)
	}
	return c, nil
}

// parseLimit reads "500", "12.50" or "500/minute".
func parseLimit(s string) (l weir.Limit, err error) {
	if number, ok := parseNumber(s); ok {
		a, err := counter.ParseAmount(s)
		if number < 1 && number == math.Trunc(number) {
			err = fmt.Errorf("must be at least 1, got %s", s)
		}
		l.Count, l.Fraction = wholeAndRest(a)
		return l, err
	}
	l, err = weir.ParseLimit(s)
	switch {
	case err != nil:
	case l.Count < 0 || l.Amount() == 0:
		err = fmt.Errorf("must be at least 1, got %d", l.Count)
	case l.Count > counter.MaxTokens:
		err = fmt.Errorf("must be at most %d, got %d", int64(counter.MaxTokens), l.Count)
	}
	return l, err
}

// fits returns an error if the limit can't take the change: concurrency limits have neither a window nor a
// burst.
func (c numbersChange) fits(a counter.Algorithm) error {
	switch {
	case a != weir.Concurrency:
	case c.Window > 0:
		return errors.New("counts requests in flight: give a number such as 50, without a time")
	case c.Burst > 0:
		return errors.New("counts requests in flight, and has no burst: give a limit such as 50")
	}
	return nil
}

// fresh returns the limit of a new override. It takes from the rule what the change leaves out.
func (c numbersChange) fresh(r *weir.Rule) (weir.Limit, error) {
	var own weir.Limit
	if len(r.Limits) == 1 {
		own = r.Limits[0]
	}
	if r.Algorithm == weir.Concurrency {
		if err := c.fits(r.Algorithm); err != nil {
			return own, fmt.Errorf("limit: the rule %q %w", r.ID, err)
		}
		return c.apply(weir.Limit{Algorithm: weir.Concurrency}), nil
	}
	has := "several limits, and no single one"
	if len(r.Limits) == 0 {
		has = "no limit of its own"
	}
	switch {
	case c.Amount() > 0 && c.Window == 0 && own.Window == 0:
		return own, fmt.Errorf(`limit: needs a window, as in "%s/minute": the rule %q has %s to take it from`, c.Amount(), r.ID, has)
	case c.Amount() == 0 && own.Amount() == 0:
		return own, fmt.Errorf(`needs a limit such as "500/minute" beside the capacity: the rule %q has %s to take it from`, r.ID, has)
	case c.Amount() == 0 && own.Refill > 0:
		return weir.Limit{Count: c.Burst, Burst: c.Burst, Refill: own.Refill, Window: own.Window}, nil
	case c.Amount() == 0:
		own.Burst = c.Burst
		return own, nil
	}
	return c.apply(weir.Limit{Window: own.Window, Calendar: own.Calendar}), nil
}

// limitText formats the numbers of a new override.
func (e *editor) limitText(l weir.Limit, expires time.Time) string {
	fields := []pair{{"limit", e.scalar(l.String(), 0)}}
	switch {
	case l.Algorithm == weir.Concurrency:
		fields[0].value = l.Amount().String()
	case l.Refill > 0:
		fields = []pair{{"capacity", decimal(l.Burst)}, {"refill_rate", rateText(l.Refill)}, {"window", e.windowText(l.Window)}}
	case l.Burst > 0:
		fields = append(fields, pair{"burst", decimal(l.Burst)})
	}
	if !expires.IsZero() {
		fields = append(fields, pair{"expires", e.timeText(expires)})
	}
	if len(fields) == 1 && l.Algorithm != weir.Concurrency { // a concurrency limit stays a field: a number alone would say too little
		return fields[0].value
	}
	return e.flowMap(fields...)
}

func decimal(n int64) string { return strconv.FormatInt(n, 10) }

func rateText(r float64) string { return strconv.FormatFloat(r, 'f', -1, 64) }

// timeText formats a time. It needs no quotes in YAML, because no space follows its colons.
func (e *editor) timeText(t time.Time) string {
	s := t.Format(time.RFC3339)
	if e.json {
		return quoted(s)
	}
	return s
}

// windowText formats a window as a number of seconds, or as a time such as 250ms.
func (e *editor) windowText(w time.Duration) string {
	if w%time.Second == 0 {
		return decimal(int64(w / time.Second))
	}
	return e.scalar(windowName(weir.Limit{Count: 1, Window: w}), 0)
}

// windowName returns what a limit is over: minute, 15m, month.
func windowName(l weir.Limit) string {
	_, name, _ := strings.Cut(l.String(), "/")
	return name
}

// pick returns the index of the limit to change: the one that has the window of the change.
func (c numbersChange) pick(limits []weir.Limit) (int, error) {
	if len(limits) == 1 {
		return 0, nil
	}
	var windows []string
	for i, l := range limits {
		if c.Window == l.Window && c.Calendar.Unit == l.Calendar.Unit {
			return i, nil
		}
		windows = append(windows, windowName(l))
	}
	return 0, fmt.Errorf("has several limits, over %s: name the one to change, as in %q", strings.Join(windows, ", "), "500/"+windows[0])
}

// setNumbers changes the numbers of a tier or an override, in whatever form they are written, and returns
// the new limits. Only overrides can expire.
func (e *editor) setNumbers(v *node, limits []weir.Limit, c numbersChange, override bool) ([]weir.Limit, error) {
	if err := c.fits(limits[0].Algorithm); err != nil {
		return nil, err
	}
	if v.kind == scalar {
		l := c.apply(limits[0])
		if l.Burst == limits[0].Burst && c.expires.IsZero() {
			e.setCount(v, child{}, limits[0], l)
		} else {
			e.put(v, e.limitText(l, c.expires))
		}
		return []weir.Limit{l}, nil
	}
	if override {
		if err := e.setExpiry(v, c.expires); err != nil {
			return nil, err
		}
	}
	return e.setIn(v, limits, c)
}

// setIn changes numbers that are fields of a map, which is a rule, a tier or an override.
func (e *editor) setIn(m *node, limits []weir.Limit, c numbersChange) ([]weir.Limit, error) {
	if list, at := m.get("limits"); at >= 0 {
		i, err := c.pick(limits)
		if err != nil {
			return nil, err
		}
		changed, err := e.setNumbers(list.value.children[i].value, limits[i:i+1], c, false)
		if err != nil {
			return nil, err
		}
		return slices.Replace(limits, i, i+1, changed...), nil
	}
	burst := "burst"
	if params, at := m.get("params"); at >= 0 {
		m, burst = params.value, "capacity"
	}
	if _, at := m.get("limit"); at >= 0 {
		return []weir.Limit{e.setFields(m, burst, limits[0], c)}, nil
	}
	l, err := e.setBucket(m, limits[0], c)
	return []weir.Limit{l}, err
}

func (e *editor) setExpiry(m *node, at time.Time) error {
	f, i := m.get("expires")
	switch {
	case i < 0 && at.IsZero():
	case i < 0:
		e.appendField(m, "expires", e.timeText(at))
	case at.IsZero():
		return e.remove(m, func(j int) bool { return i == j })
	default:
		if was, err := time.Parse(time.RFC3339, f.value.text); err != nil || !was.Equal(at) {
			e.setText(f.value, at.Format(time.RFC3339))
		}
	}
	return nil
}

// apply returns the limit after the change.
func (c numbersChange) apply(l weir.Limit) weir.Limit {
	if c.Amount() > 0 {
		l.Count, l.Fraction = c.Count, c.Fraction
	}
	if c.Window > 0 {
		l.Window, l.Calendar.Unit = c.Window, c.Calendar.Unit
	}
	if c.Burst > 0 && (l.Burst > 0 || counter.Whole(c.Burst) != l.Amount()) { // without a burst, the burst is the limit
		l.Burst = c.Burst
	}
	return l
}

// setFields changes a limit and the fields beside it. burst is the name that a new burst field gets.
func (e *editor) setFields(m *node, burst string, l weir.Limit, c numbersChange) weir.Limit {
	limit, at := m.get("limit")
	window, _ := m.get("window")
	changed := c.apply(l)
	e.setCount(limit.value, window, l, changed)
	f, i := m.get("burst")
	if i < 0 {
		f, i = m.get("capacity")
	}
	var p part
	isPart := false
	if i >= 0 {
		p, isPart = parsePart(f.value.text)
	}
	switch {
	case isPart && c.Burst == 0: // the burst is a part of the limit, and follows it
		changed.Burst = p.of(changed)
	case !isPart && changed.Burst == l.Burst:
	case i >= 0:
		e.put(f.value, decimal(changed.Burst))
	default:
		e.insertField(m, at, burst, decimal(changed.Burst))
	}
	return changed
}

// setCount writes a new limit over an old one. The window may be a field of its own.
func (e *editor) setCount(v *node, window child, old, l weir.Limit) {
	sameWindow := l.Window == old.Window && l.Calendar.Unit == old.Calendar.Unit
	if (value{v, ""}).isNumber() {
		if !sameWindow && window.value == nil {
			e.put(v, e.scalar(l.String(), 0)) // its window was that of the rule
			return
		}
		if l.Amount() != old.Amount() {
			e.put(v, l.Amount().String())
		}
		if !sameWindow {
			e.put(window.value, e.windowText(l.Window))
		}
		return
	}
	if sameWindow && l.Amount() == old.Amount() {
		return
	}
	text := l.String()
	if sameWindow {
		// Keep the form that people wrote: 100 per minute, 5/15m.
		for _, separator := range []string{"/", " per "} {
			if i := strings.Index(v.text, separator); i >= 0 {
				text = l.Amount().String() + v.text[i:]
				break
			}
		}
	}
	e.setText(v, text)
}

// setBucket changes a bucket that is described by its capacity and its refill rate. Its window is only shown
// to clients, and stays if it is written.
func (e *editor) setBucket(m *node, l weir.Limit, c numbersChange) (weir.Limit, error) {
	if c.Calendar.Unit != counter.NoUnit {
		return l, fmt.Errorf("is a bucket, and %s", noBudget(weir.TokenBucket))
	}
	rate := lint.PerSecond(l)
	if c.Amount() > 0 {
		rate = lint.PerSecond(c.apply(weir.Limit{Window: l.Window}))
	}
	capacity, at := m.get("capacity")
	if c.Burst > 0 && c.Burst != l.Count {
		l.Count, l.Burst = c.Burst, c.Burst
		e.put(capacity.value, decimal(c.Burst))
	}
	if rate != lint.PerSecond(l) {
		if refill, i := m.get("refill_rate"); i >= 0 {
			e.put(refill.value, rateText(rate))
		} else {
			e.insertField(m, at, "refill_rate", rateText(rate))
		}
		l.Refill = rate
	}
	if _, i := m.get("window"); i < 0 && !c.inherits {
		l.Window = fillTime(l.Count, l.Refill)
	}
	return l, nil
}
