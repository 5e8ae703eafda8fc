package counter

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Calendar makes a fixed window as long as a calendar day, week or month. The zero value means no calendar: windows then have a
// fixed length and are aligned to the Unix epoch.
type Calendar struct {
	Unit CalendarUnit
	// Day is the day on which a month's window begins, 1 to 31. A shorter month begins on its last day. 0 means 1.
	Day int
	// Weekday is the day on which weeks begin. The zero value is Sunday, as in package time.
	Weekday time.Weekday
	// Zone is the IANA name of the time zone in which days begin, such as Europe/Berlin. "" means UTC.
	Zone string
}

// CalendarUnit is the unit of a calendar window: a day, a week or a month.
type CalendarUnit uint8

// The zero CalendarUnit means no calendar.
const (
	NoUnit CalendarUnit = iota
	Day
	Week
	Month
)

var unitNames = [...]string{"none", "day", "week", "month"}

func (u CalendarUnit) String() string { return unitNames[u] }

// length returns the usual length of a unit; for a month, 31 days. A window in which clocks change may be some hours longer.
func (u CalendarUnit) length() time.Duration {
	const day = 24 * time.Hour
	return [...]time.Duration{0, day, 7 * day, 31 * day}[u]
}

// validate reports the first thing that is wrong with a calendar.
func (c Calendar) validate(f *fault) {
	f.when(int(c.Unit) >= len(unitNames), "calendar", "there is no such unit")
	f.when(c.Unit == NoUnit, "calendar", "is for limits over a day, a week or a month, such as 50/month")
	f.when(c.Day != 0 && c.Unit != Month, "calendar.day", "is the day on which months begin, and this is a %s", c.Unit)
	f.when(c.Day < 0 || c.Day > 31, "calendar.day", "must be from 1 to 31, got %d", c.Day)
	f.when(c.Weekday < time.Sunday || c.Weekday > time.Saturday, "calendar.weekday", "must be a day of the week")
	f.when(c.Weekday != time.Sunday && c.Unit != Week, "calendar.weekday",
		"is the day on which weeks begin, and this is a %s", c.Unit)
	f.when(c.Zone == "Local", "calendar.tz", "must be the same on every node: name a zone such as Europe/Berlin")
	_, err := location(c.Zone)
	f.when(err != nil, "calendar.tz", "there is no time zone %q: write one such as Europe/Berlin", c.Zone)
}

// name identifies the calendar in a counter's ID.
func (c Calendar) name() string {
	return fmt.Sprintf("calendar %s %d %d %s", c.Unit, max(c.Day, 1), c.Weekday, c.Zone)
}

// calendar computes where a Calendar's windows begin. It caches the starts of the latest window and of the next two, in µs.
type calendar struct {
	Calendar
	zone *time.Location
	last atomic.Pointer[[3]int64]
}

// locations caches the time zones that rules name. Each takes some kilobytes.
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
	zone, _ := location(c.Zone) // validate has already checked that the zone exists
	return &calendar{Calendar: c, zone: zone}
}

// window returns when the window that contains now began, and when the next one begins, in µs.
func (c *calendar) window(now int64) (start, end int64) {
	if e := c.last.Load(); e != nil && now >= e[1] && now < e[2] {
		return e[1], e[2]
	}
	e := c.edges(now)
	return e[0], e[1]
}

// edges returns when the window that contains now began, and when the next two begin.
func (c *calendar) edges(now int64) [3]int64 {
	if e := c.last.Load(); e != nil && now >= e[0] && now < e[1] {
		return *e
	}
	t := time.UnixMicro(now).In(c.zone)
	n := c.number(t.Date())
	for c.begins(n) > now { // this month's first day is still to come
		n--
	}
	for c.begins(n+1) <= now { // clocks went back from after midnight to before it; the day doesn't begin again
		n++
	}
	after := n + 2
	for c.begins(after) == c.begins(n+1) { // the time zone skipped a whole date
		after++
	}
	e := [3]int64{max(1, c.begins(n)), c.begins(n + 1), c.begins(after)} // a Time of 0 means untouched
	c.last.Store(&e)
	return e
}

// Window returns the beginning and the end of the window that contains the moment at. For algorithms other than FixedWindow, it
// returns zero times.
func (p *Policy) Window(at time.Time) (start, end time.Time) {
	if p.Limit.Algorithm != FixedWindow {
		return start, end
	}
	from := p.roll(State{}, at.UnixMicro()).Time
	return time.UnixMicro(from).UTC(), time.UnixMicro(p.windowEnd(from)).UTC()
}

// Edges returns when the window that contained the moment a minute before now began, and when the next two begin, in µs. It is
// for stores that count elsewhere, by a clock that may be up to a minute behind now.
func (p *Policy) Edges(now int64) [3]int64 {
	return p.calendar.edges(max(1, now-60*micro))
}

// roll is [Policy.roll] for calendar windows. If the clock ran backwards over one edge, the state stays in the later window, so
// that crossing the edge twice admits nothing extra. If it ran back further, the window of the new time begins.
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

const thursday = 4 // 1 January 1970 was a Thursday

// number returns the number of the window that contains a date, or one more or less.
func (c *calendar) number(y int, m time.Month, d int) int {
	days := int(time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Unix() / (24 * 3600))
	switch c.Unit {
	case Week:
		return (days + thursday - int(c.Weekday)) / 7
	case Month:
		return 12*(y-1970) + int(m) - 1
	}
	return days
}

// begins returns when the nth window since 1970 begins.
func (c *calendar) begins(n int) int64 {
	y, m, d := 1970, time.January, 1+n
	switch c.Unit {
	case Week:
		d = 1 + 7*n + int(c.Weekday) - thursday
	case Month:
		m = time.Month(1 + n)
		last := time.Date(y, m+1, 0, 0, 0, 0, 0, time.UTC).Day()
		d = min(max(c.Day, 1), last)
	}
	return c.midnight(time.Date(y, m, d, 0, 0, 0, 0, time.UTC)).UnixMicro()
}

// midnight returns the first moment of the date that utc has as 0:00 UTC, or of the next date if the time zone skipped this
// one. If clocks change around midnight, 0:00 may come twice, or not at all.
func (c *calendar) midnight(utc time.Time) time.Time {
	// The offset of the day before and that of the day after may differ. One of the two is in force at 0:00.
	_, before := utc.Add(-24 * time.Hour).In(c.zone).Zone()
	_, after := utc.Add(24 * time.Hour).In(c.zone).Zone()
	first := utc.Add(-time.Duration(max(before, after)) * time.Second).In(c.zone)
	if sooner(first, utc) { // the moment is still on the day before
		first = utc.Add(-time.Duration(min(before, after)) * time.Second).In(c.zone)
	}
	if change, _ := first.ZoneBounds(); !change.IsZero() && change.Before(first) && !sooner(change.In(c.zone), utc) && first.Sub(change) < 24*time.Hour {
		if just := change.Add(-time.Microsecond).In(c.zone); sooner(just, utc) {
			return change.In(c.zone) // clocks skipped 0:00, so the date began when they changed
		}
	}
	return first
}

// sooner reports whether the moment t, in its own time zone, is on an earlier date than date.
func sooner(t, date time.Time) bool {
	y, m, d := t.Date()
	return time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Before(date)
}
