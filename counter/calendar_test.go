package counter

import (
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
	_ "time/tzdata" // where the machine has none, or an older one

	"pgregory.net/rapid"
)

// testdata/calendar_windows.py wrote this table. It uses other time zone data than Go and another search than ours.
//
//go:embed testdata/calendar.txt
var calendarTable string

func TestCalendarAgainstAnother(t *testing.T) {
	var warm *calendar // asked for all of its windows, in turn
	rows := 0
	for line := range strings.Lines(calendarTable) {
		var c Calendar
		var name string
		var anchor int
		if n, _ := fmt.Sscanf(line, "%s %s %d", &c.Zone, &name, &anchor); n == 3 && strings.ContainsAny(name, "dwm") {
			switch name {
			case "day":
				c.Unit = Day
			case "week":
				c.Unit, c.Weekday = Week, time.Weekday(anchor)
			case "month":
				c.Unit, c.Day = Month, anchor
			}
			if err := c.check(); err != nil {
				t.Fatal(line, err)
			}
			warm = newCalendar(c)
			continue
		}
		var now, start, end int64
		if _, err := fmt.Sscan(line, &now, &start, &end); err != nil {
			t.Fatal(line, err)
		}
		rows++
		for _, c := range []*calendar{newCalendar(warm.Calendar), warm} {
			if from, to := c.window(now); from != start || to != end {
				t.Errorf("%+v: the window of %s is %s to %s, want %s to %s", c.Calendar, c.at(now), c.at(from), c.at(to), c.at(start), c.at(end))
			}
		}
	}
	if rows < 3000 {
		t.Errorf("only %d rows", rows)
	}
}

func (c Calendar) check() error {
	var f fault
	c.validate(&f)
	return f.error
}

func (c *calendar) at(us int64) string {
	return time.UnixMicro(us).In(c.zone).Format("Mon 2006-01-02 15:04:05.999999 -0700")
}

var (
	calendarZones = []string{
		"", "Etc/GMT+12", "Pacific/Kiritimati", "Pacific/Apia", "Pacific/Kwajalein", "America/Sao_Paulo", "Asia/Beirut", "Africa/Cairo",
		"America/Havana", "America/St_Johns", "Australia/Lord_Howe", "Europe/Berlin", "America/New_York", "Asia/Kathmandu",
		"Pacific/Chatham", "Antarctica/Troll", "Africa/Casablanca", "Atlantic/Azores",
	}
	// One day for each kind of clock change around midnight: an hour skipped, an hour repeated, a whole day left out,
	// and a return to the previous day after a minute.
	calendarDays = []time.Time{
		date(2017, 10, 15), date(2018, 2, 18), date(2011, 12, 30), date(1995, 1, 1), date(2006, 10, 29), date(2024, 2, 29), date(2023, 4, 28), date(2010, 11, 7),
	}
)

func date(y int, m time.Month, d int) time.Time { return time.Date(y, m, d, 0, 0, 0, 0, time.UTC) }

func drawCalendar(t *rapid.T) Calendar {
	c := Calendar{Unit: CalendarUnit(rapid.IntRange(1, 3).Draw(t, "unit")), Zone: rapid.SampledFrom(calendarZones).Draw(t, "zone")}
	switch c.Unit {
	case Week:
		c.Weekday = time.Weekday(rapid.IntRange(0, 6).Draw(t, "weekday"))
	case Month:
		c.Day = rapid.SampledFrom([]int{0, 1, 2, 14, 15, 28, 29, 30, 31}).Draw(t, "day")
	}
	return c
}

func drawMoment(t *rapid.T, zone *time.Location) int64 {
	if rapid.Bool().Draw(t, "near a change") {
		at := rapid.SampledFrom(calendarDays).Draw(t, "day")
		if from, to := at.In(zone).ZoneBounds(); rapid.Bool().Draw(t, "of clocks") && !to.IsZero() {
			at = to
			if from.Year() > 1971 && rapid.Bool().Draw(t, "the one before") {
				at = from
			}
		}
		reach := rapid.SampledFrom([]int{90, 72 * 60}).Draw(t, "reach")
		at = at.Add(time.Duration(rapid.IntRange(-reach, reach).Draw(t, "minutes")) * time.Minute)
		return at.UnixMicro() + rapid.Int64Range(-1, 1).Draw(t, "µs")
	}
	return rapid.Int64Range(date(1972, 2, 1).UnixMicro(), date(2200, 1, 1).UnixMicro()).Draw(t, "moment")
}

// Windows tile time: every moment lies in its window, and each window begins where the previous one ends. Earlier calls
// don't change an answer.
func TestCalendarWindowsTile(t *testing.T) {
	many(t, func(t *rapid.T) {
		cal := drawCalendar(t)
		c := newCalendar(cal)
		longest := cal.Unit.length() + 24*time.Hour
		for range 3 {
			now := drawMoment(t, c.zone)
			start, end := c.window(now)
			if now < start || now >= end {
				t.Fatalf("%+v: %s is outside of its window, %s to %s", cal, c.at(now), c.at(start), c.at(end))
			}
			if micros(end-start) > longest {
				t.Fatalf("%+v: the window from %s to %s is longer than %s", cal, c.at(start), c.at(end), longest)
			}
			inside := rapid.Int64Range(start, end-1).Draw(t, "inside")
			for _, us := range []int64{start, inside, end - 1} {
				if s, e := newCalendar(cal).window(us); s != start || e != end {
					t.Fatalf("%+v: the window of %s is %s to %s, that of %s is %s to %s", cal, c.at(now), c.at(start), c.at(end), c.at(us), c.at(s), c.at(e))
				}
			}
			if _, e := newCalendar(cal).window(start - 1); e != start {
				t.Fatalf("%+v: a window begins %s, and the one before ends %s", cal, c.at(start), c.at(e))
			}
			if s, _ := newCalendar(cal).window(end); s != end {
				t.Fatalf("%+v: a window ends %s, and the next one begins %s", cal, c.at(end), c.at(s))
			}
		}
	})
}

// zoneThatChanges returns a zone whose clocks change once, at the given moment. The offsets are in seconds.
func zoneThatChanges(t failer, at time.Time, before, after int32) *time.Location {
	b := append([]byte("TZif"), make([]byte, 16)...)
	for _, n := range []uint32{0, 0, 0, 1, 2, 4} { // one change, two offsets, and their name
		b = binary.BigEndian.AppendUint32(b, n)
	}
	b = append(binary.BigEndian.AppendUint32(b, uint32(at.Unix())), 1)
	for _, offset := range []int32{before, after} {
		b = append(binary.BigEndian.AppendUint32(b, uint32(offset)), 0, 0)
	}
	zone, err := time.LoadLocationFromTZData("made up", append(b, "HERE"[:3]+"\x00"...))
	if err != nil {
		t.Fatalf("%v", err)
	}
	return zone
}

// A date begins at its first moment, whenever clocks change around midnight and by however much.
func TestCalendarWithMadeUpChanges(t *testing.T) {
	many(t, func(t *rapid.T) {
		before := int32(rapid.IntRange(-12*4, 12*4).Draw(t, "offset")) * 900
		by := int32(rapid.IntRange(-2*4, 2*4).Draw(t, "by")) * 900
		if before <= -10*3600 && rapid.Bool().Draw(t, "a day is left out") {
			by = 24 * 3600
		}
		day := date(2024, 3, 10)
		at := day.Add(-time.Duration(before)*time.Second + time.Duration(rapid.IntRange(-30, 30).Draw(t, "five minutes"))*5*time.Minute)
		c := &calendar{Calendar: Calendar{Unit: Day}, zone: zoneThatChanges(t, at, before, before+by)}
		// Find all edges of the surrounding days, in steps of five minutes.
		var edges []int64
		last := time.Time{}
		from := at.Add(-60 * time.Hour)
		for now := from; now.Before(at.Add(60 * time.Hour)); now = now.Add(5 * time.Minute) {
			y, m, d := now.In(c.zone).Date()
			if today := time.Date(y, m, d, 0, 0, 0, 0, time.UTC); today.After(last) {
				last = today
				edges = append(edges, now.UnixMicro())
			}
		}
		for i := 1; i+1 < len(edges); i++ {
			for _, now := range []int64{edges[i], (edges[i] + edges[i+1]) / 2, edges[i+1] - 1, rapid.Int64Range(edges[i], edges[i+1]-1).Draw(t, "now")} {
				c.last.Store(nil)
				if s, e := c.window(now); s != edges[i] || e != edges[i+1] {
					t.Fatalf("changed by %d s at %s: the window of %s is %s to %s, want %s to %s", by, c.at(at.UnixMicro()), c.at(now), c.at(s), c.at(e), c.at(edges[i]), c.at(edges[i+1]))
				}
			}
		}
	})
}

// A calendar that other goroutines use at the same time answers like an unused one.
func TestCalendarIsSharedByGoroutines(t *testing.T) {
	cal := Calendar{Unit: Day, Zone: "America/St_Johns"}
	c := newCalendar(cal)
	from := date(2010, 11, 1).UnixMicro()
	const hour = int64(3600 * micro)
	var want [24 * 14][2]int64
	for i := range want {
		want[i][0], want[i][1] = newCalendar(cal).window(from + int64(i)*hour)
	}
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 5000 {
				i = (i*37 + g*101) % len(want)
				if s, e := c.window(from + int64(i)*hour); s != want[i][0] || e != want[i][1] {
					t.Errorf("hour %d: %s to %s", i, c.at(s), c.at(e))
					return
				}
			}
		})
	}
	wg.Wait()
}

// A clock that crosses an edge back and forth admits no request twice, even with refusals in between. If the clock runs back
// further, requests count in the window of the new time.
func TestCalendarClockRunsBack(t *testing.T) {
	p := policyOf(t, Limit{Algorithm: FixedWindow, Count: 10, Window: Month.length(), Calendar: Calendar{Unit: Month, Zone: "Europe/Berlin"}})
	edge, next := p.calendar.window(date(2024, 3, 10).UnixMicro())
	before, _ := p.calendar.window(edge - 1)
	s, ok := p.Try(State{}, edge, 10)
	if !ok || s != (State{Time: edge, Level: 10}) {
		t.Fatal(s, ok)
	}
	for _, now := range []int64{edge - 1, edge + 5, edge - 1, edge - 7*24*3600*micro} {
		if s, ok = p.Try(s, now, 1); ok || s.Level != 10 {
			t.Fatalf("at %s: %+v, %v", p.calendar.at(now), s, ok)
		}
		if r := p.Report(s, now, 1, Refused); r.Allowed || r.Remaining != 0 || r.RetryAfter != micros(next-now) {
			t.Errorf("at %s: %+v, want a wait until %s", p.calendar.at(now), r, p.calendar.at(next))
		}
	}
	if s, ok = p.Try(s, edge+1, 1); ok {
		t.Errorf("the edge was crossed twice, and the window is as new: %+v", s)
	}
	if booked := p.Overdraw(s, edge-1, 5); booked != (State{Time: edge, Level: 15}) {
		t.Errorf("booked behind the edge: %+v", booked)
	}
	if back := p.Return(s, edge-1, 4, edge); back != (State{Time: edge, Level: 6}) {
		t.Errorf("given back behind the edge: %+v", back)
	}
	if s, ok = p.Try(s, before-1, 1); ok || s != (State{Time: first(p, before-1), Level: 10}) {
		t.Errorf("two edges back: %+v, %v", s, ok)
	}
	if s, ok = p.Try(s, before, 1); !ok || s != (State{Time: before, Level: 1}) {
		t.Errorf("the next window: %+v, %v", s, ok)
	}
}

func first(p *Policy, now int64) int64 {
	start, _ := p.calendar.window(now)
	return start
}

func TestCalendarChecks(t *testing.T) {
	for _, row := range []struct {
		c     Calendar
		fault string
	}{
		{Calendar{Unit: Month, Day: 31, Zone: "Europe/Berlin"}, ""},
		{Calendar{Unit: Week, Weekday: time.Saturday}, ""},
		{Calendar{Unit: Day, Zone: "UTC"}, ""},
		{Calendar{Unit: Month + 1}, "calendar: there is no such unit"},
		{Calendar{Unit: Month, Day: 32}, "calendar.day: must be from 1 to 31, got 32"},
		{Calendar{Unit: Month, Day: -1}, "calendar.day: must be from 1 to 31, got -1"},
		{Calendar{Unit: Day, Day: 2}, "calendar.day: is the day on which months begin, and this is a day"},
		{Calendar{Unit: Week, Weekday: 7}, "calendar.weekday: must be a day of the week"},
		{Calendar{Unit: Month, Weekday: 1}, "calendar.weekday: is the day on which weeks begin, and this is a month"},
		{Calendar{Unit: Day, Zone: "Local"}, "calendar.tz: must be the same on every node: name a zone such as Europe/Berlin"},
		{Calendar{Unit: Day, Zone: "Europe/Bonn"}, `calendar.tz: there is no time zone "Europe/Bonn": write one such as Europe/Berlin`},
		{Calendar{Unit: Day, Zone: "../UTC"}, `calendar.tz: there is no time zone "../UTC": write one such as Europe/Berlin`},
	} {
		err := row.c.check()
		var p Problem
		if err == nil && row.fault == "" || errors.As(err, &p) && p.Error() == row.fault {
			continue
		}
		t.Errorf("%+v: %v, want %q", row.c, err, row.fault)
	}
}

// Different calendars have different counters. The same calendar has the same counter on every node.
func TestCalendarsAreOtherCounters(t *testing.T) {
	seen := map[uint64]Calendar{}
	for _, c := range []Calendar{
		{}, {Unit: Month}, {Unit: Month, Day: 2}, {Unit: Month, Zone: "Europe/Berlin"}, {Unit: Week}, {Unit: Week, Weekday: 1}, {Unit: Day},
	} {
		l := Limit{Algorithm: FixedWindow, Count: 1, Window: max(c.Unit.length(), time.Hour), Calendar: c}
		id := policyOf(t, l).ID
		if other, ok := seen[id]; ok {
			t.Errorf("%+v and %+v are one counter", c, other)
		}
		seen[id] = c
		l.Count = 2
		if policyOf(t, l).ID != id {
			t.Errorf("%+v: another count is another counter", c)
		}
	}
	one := policyOf(t, Limit{Algorithm: FixedWindow, Count: 1, Window: Month.length(), Calendar: Calendar{Unit: Month, Day: 1}})
	if seen[one.ID] != (Calendar{Unit: Month}) {
		t.Error("day 1 is what no day means, and another counter")
	}
}
