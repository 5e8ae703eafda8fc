package weir

import (
	"fmt"
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
	if _, err := time.LoadLocation(c.Zone); err != nil {
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
	zone *time.Location
	last atomic.Pointer[[2]int64]
}

func newCalendar(c Calendar) *calendar {
	zone, err := time.LoadLocation(c.Zone)
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
	from := c.midnight(y, m, d)
	if from.UnixMicro() > now { // this month's day is still to come, or clocks were changed at midnight
		from = c.step(y, m, d, -1)
	}
	y, m, d = from.Date()
	to := c.step(y, m, d, 1)
	start, end = max(1, from.UnixMicro()), to.UnixMicro() // 0 is untouched, also in 1970
	if now >= start && now < end {
		c.last.Store(&[2]int64{start, end})
	}
	return start, end
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

// step is when the window before or behind that of a date begins.
func (c *calendar) step(y int, m time.Month, d, by int) time.Time {
	switch c.Unit {
	case Week:
		return c.midnight(y, m, d+7*by)
	case Month:
		first := time.Date(y, m+time.Month(by), 1, 0, 0, 0, 0, time.UTC)
		return c.midnight(first.Year(), first.Month(), c.day(first.Year(), first.Month()))
	}
	return c.midnight(y, m, d+by)
}

// day is the day on which windows begin in a month.
func (c *calendar) day(y int, m time.Month) int {
	last := time.Date(y, m+1, 0, 0, 0, 0, 0, time.UTC).Day()
	return min(max(c.Day, 1), last)
}

// midnight is the first moment of a date. Where clocks are changed around midnight, 0:00 may come twice, or not at all.
func (c *calendar) midnight(y int, m time.Month, d int) time.Time {
	utc := time.Date(y, m, d, 0, 0, 0, 0, time.UTC)
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
