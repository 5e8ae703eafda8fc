package counter

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Calendar makes fixed windows of a calendar's days, weeks or months, whatever their length. The zero value is none: windows
// are then aligned to the Unix epoch.
type Calendar struct {
	Unit CalendarUnit
	// Day is the day of the month on which months begin, 1 to 31. A month that lacks it begins on its last day. 0 means 1.
	Day int
	// Weekday is the day on which weeks begin. The zero value is Sunday, as in package time.
	Weekday time.Weekday
	// Zone names the time zone in which days begin, as IANA does: Europe/Berlin. "" means UTC.
	Zone string
}

// CalendarUnit is what a calendar window is.
type CalendarUnit uint8

// The zero CalendarUnit is none.
const (
	NoUnit CalendarUnit = iota
	Day
	Week
	Month
)

var unitNames = [...]string{"none", "day", "week", "month"}

func (u CalendarUnit) String() string { return unitNames[u] }

// length is the usual length of a unit, of a month the greatest. Where clocks are changed, windows are up to some hours longer.
func (u CalendarUnit) length() time.Duration {
	const day = 24 * time.Hour
	return [...]time.Duration{0, day, 7 * day, 31 * day}[u]
}

// check reports the first thing that is wrong with a calendar, as a [Problem].
func (c Calendar) check() error {
	switch {
	case int(c.Unit) >= len(unitNames):
		return limitErrorf("calendar", "there is no such unit")
	case c.Day != 0 && c.Unit != Month:
		return limitErrorf("calendar.day", "is the day on which months begin, and this is a %s", c.Unit)
	case c.Day < 0 || c.Day > 31:
		return limitErrorf("calendar.day", "must be from 1 to 31, got %d", c.Day)
	case c.Weekday < time.Sunday || c.Weekday > time.Saturday:
		return limitErrorf("calendar.weekday", "must be a day of the week")
	case c.Weekday != time.Sunday && c.Unit != Week:
		return limitErrorf("calendar.weekday", "is the day on which weeks begin, and this is a %s", c.Unit)
	case c.Zone == "Local":
		return limitErrorf("calendar.tz", "must be the same on every node: name a zone such as Europe/Berlin")
	}
	if _, err := location(c.Zone); err != nil {
		return limitErrorf("calendar.tz", "there is no time zone %q: write one such as Europe/Berlin", c.Zone)
	}
	return nil
}

// name tells calendars apart in the identity of a counter.
func (c Calendar) name() string {
	return fmt.Sprintf("calendar %s %d %d %s", c.Unit, max(c.Day, 1), c.Weekday, c.Zone)
}

// calendar finds the edges of a Calendar's windows, and remembers those that were asked for last.
type calendar struct {
	Calendar
	zone  *time.Location
	last  atomic.Pointer[[2]int64]
	edges atomic.Pointer[[3]int64]
}

// locations are the zones that rules have named: each takes some kilobytes, and a document may have a calendar for every key.
var locations sync.Map

func location(name string) (*time.Location, error) {
	if known, ok := locations.Load(name); ok {
		return known.(*time.Location), nil
	}
	zone, err := time.LoadLocation(name)
	if err == nil {
		locations.Store(name, zone)
	}
	return zone, err
}

func newCalendar(c Calendar) *calendar {
	zone, err := location(c.Zone)
	if err != nil {
		zone = time.UTC // check has seen it
	}
	return &calendar{Calendar: c, zone: zone}
}

// window is when the window of a moment begins, and when the next one does, in µs.
func (c *calendar) window(now int64) (start, end int64) {
	if w := c.last.Load(); w != nil && now >= w[0] && now < w[1] {
		return w[0], w[1]
	}
	t := time.UnixMicro(now).In(c.zone)
	y, m, d := t.Date()
	switch c.Unit {
	case Week:
		d -= (int(t.Weekday()) - int(c.Weekday) + 7) % 7
	case Month:
		d = c.day(y, m)
	}
	// Steps go from date to date, as the calendar has them: the moment at which one begins may lie on the next, if it was skipped.
	date := time.Date(y, m, d, 0, 0, 0, 0, time.UTC)
	if c.midnight(date).UnixMicro() > now { // this month's day is still to come
		date = c.step(date, -1)
	}
	next := c.step(date, 1)
	if c.midnight(next).UnixMicro() <= now { // clocks were set back over midnight when it had passed: it counts once
		date, next = next, c.step(next, 1)
	}
	from, to := c.midnight(date), c.midnight(next)
	start, end = max(1, from.UnixMicro()), to.UnixMicro() // 0 is untouched, also in 1970
	if now >= start && now < end {
		c.last.Store(&[2]int64{start, end})
	}
	return start, end
}

// Window is when the window of a moment begins, and when the next one does, of a FixedWindow. Other algorithms have no windows,
// and the times are zero.
func (p *Policy) Window(at time.Time) (start, end time.Time) {
	if p.Limit.Algorithm != FixedWindow {
		return start, end
	}
	from := p.roll(State{}, at.UnixMicro()).Time
	return time.UnixMicro(from).UTC(), time.UnixMicro(p.windowEnd(from)).UTC()
}

// Edges are what a store needs that counts by a calendar elsewhere, and by a clock that may be up to a minute behind this
// moment, µs: when the window of a minute ago begins, when the next one does, and when the one behind that.
func (p *Policy) Edges(now int64) [3]int64 {
	c := p.calendar
	now = max(1, now-60*micro)
	if e := c.edges.Load(); e != nil && now >= e[0] && now < e[1] {
		return *e
	}
	start, next := c.window(now)
	_, end := c.window(next)
	e := [3]int64{start, next, end}
	c.edges.Store(&e)
	return e
}

// roll is [Policy.roll] for the calendar's windows. A clock that ran backwards over an edge stays in the window that it had
// reached, so that crossing the edge twice mints nothing; one that ran back further counts in the window that it is then.
func (c *calendar) roll(s State, now int64) State {
	start, end := c.window(now)
	switch {
	case s.Time == 0 || s.Time < start:
		return State{Time: start}
	case s.Time > end:
		s.Time = start
	}
	return s
}

// step is the date on which the window before or behind that of a date begins.
func (c *calendar) step(date time.Time, by int) time.Time {
	y, m, d := date.Date()
	switch c.Unit {
	case Week:
		d += 7 * by
	case Month:
		y, m, _ = time.Date(y, m+time.Month(by), 1, 0, 0, 0, 0, time.UTC).Date()
		d = c.day(y, m)
	default:
		d += by
	}
	return time.Date(y, m, d, 0, 0, 0, 0, time.UTC)
}

// day is the day on which windows begin in a month.
func (c *calendar) day(y int, m time.Month) int {
	last := time.Date(y, m+1, 0, 0, 0, 0, 0, time.UTC).Day()
	return min(max(c.Day, 1), last)
}

// midnight is the first moment of a date, which is given as 0:00 UTC, or of the next if it was skipped. Where clocks are
// changed around midnight, 0:00 may come twice, or not at all.
func (c *calendar) midnight(utc time.Time) time.Time {
	// The offsets in force a day before and a day after: 0:00 under either may be the one.
	_, before := utc.Add(-24 * time.Hour).In(c.zone).Zone()
	_, after := utc.Add(24 * time.Hour).In(c.zone).Zone()
	first := utc.Add(-time.Duration(max(before, after)) * time.Second).In(c.zone)
	if sooner(first, utc) { // it is still the day before
		first = utc.Add(-time.Duration(min(before, after)) * time.Second).In(c.zone)
	}
	if change, _ := first.ZoneBounds(); !change.IsZero() && change.Before(first) && !sooner(change.In(c.zone), utc) && first.Sub(change) < 24*time.Hour {
		if just := change.Add(-time.Microsecond).In(c.zone); sooner(just, utc) {
			return change.In(c.zone) // clocks skipped 0:00, and the date began when they did
		}
	}
	return first
}

// sooner reports whether the date of a moment, where it is, comes before another date.
func sooner(t, date time.Time) bool {
	y, m, d := t.Date()
	return time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Before(date)
}
