package weir

import (
	"cmp"
	"github.com/weirhq/weir/counter"
	"strings"
	"time"
)

// compileAmount looks at what a rule counts: an amount, or requests in flight.
func (rs *RuleSet) compileAmount(r *rule, path string, bad *problems) {
	switch {
	case r.Amount == "" && r.Default != 0:
		bad.addf(path+".default", "is for requests that lack the rule's amount: give it an amount, such as tokens")
	case r.Amount == "" && r.GiveBackUnsettled:
		bad.addf(path+".unsettled", "is for amounts that were reserved: give the rule an amount, such as tokens")
	case r.Amount != "" && !isName(r.Amount):
		bad.addf(path+".amount", "must be a name of a-z, 0-9 and _ such as tokens, got %q", r.Amount)
	case r.Default < 0 || r.Default > counter.MaxAmount:
		bad.addf(path+".default", "must be from 0 to %d", int64(counter.MaxTokens))
	case r.Amount != "" && r.Split > 0:
		bad.addf(path+".split", "can't stand beside amount: leave one of them out")
	}
	if r.Algorithm != Concurrency {
		if r.SlotTTL != 0 {
			bad.addf(path+".slot_ttl", "is for algorithm: concurrency, which %s isn't", r.Algorithm)
		}
		return
	}
	rs.slots = true
	switch {
	case r.SlotTTL != 0 && (r.SlotTTL < time.Second || r.SlotTTL > time.Hour):
		bad.addf(path+".slot_ttl", "must be from 1s to 1h, got %s", r.SlotTTL)
	case r.Split > 0:
		bad.addf(path+".split", "can't stand beside concurrency: leave one of them out")
	case r.Book:
		bad.addf(path+".past_limit", "can't stand beside concurrency: leave one of them out")
	case len(r.Statuses) > 0:
		bad.addf(path+".count", "can't stand beside concurrency: a slot is free again when the request ends, whatever its status")
	}
}

func isName(s string) bool {
	return s != "" && len(s) <= 64 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789_") == ""
}

// fit makes a limit what its rule says of all its limits.
func (r *rule) fit(l Limit) Limit {
	l.Algorithm = r.Algorithm
	l.Decimal = r.Amount != ""
	if l.Calendar.Unit != counter.NoUnit || r.Calendar != (counter.Calendar{}) {
		l = r.onCalendar(l)
	}
	if l.Algorithm == Concurrency && l.Window == 0 {
		l.Window = cmp.Or(r.SlotTTL, 30*time.Second)
	}
	return l
}

// onCalendar gives a limit the calendar of its rule, if it is over a day, a week or a month. Such a limit is a fixed window,
// unless another algorithm is named.
func (r *rule) onCalendar(l Limit) Limit {
	unit := unitOn(l, r.Calendar)
	if unit == counter.NoUnit {
		return l
	}
	// Only what it begins by: the rest is for other limits of the rule, and would make another counter of it.
	l.Calendar = counter.Calendar{Unit: unit, Zone: r.Calendar.Zone}
	switch unit {
	case counter.Month:
		l.Calendar.Day = r.Calendar.Day
	case counter.Week:
		l.Calendar.Weekday = r.Calendar.Weekday
	}
	if l.Calendar.Zone == "UTC" {
		l.Calendar.Zone = ""
	}
	if l.Algorithm == TokenBucket && l.Burst == 0 && l.Refill == 0 {
		l.Algorithm = FixedWindow
	}
	return l
}

// unitOn is which of the calendar's windows a limit has under a rule's calendar. A month has it in any case.
func unitOn(l Limit, c counter.Calendar) counter.CalendarUnit {
	switch {
	case l.Calendar.Unit != counter.NoUnit || c == (counter.Calendar{}):
		return l.Calendar.Unit
	case l.Window == 24*time.Hour:
		return counter.Day
	case l.Window == 7*24*time.Hour:
		return counter.Week
	}
	return counter.NoUnit
}

// checkCalendar: a rule's calendar must mean something for each of its numbers.
func (r *rule) checkCalendar(limits []Limit, path string, bad *problems) {
	if r.Calendar == (counter.Calendar{}) || len(limits) == 0 {
		return
	}
	months, any := false, false
	for _, l := range limits {
		unit := unitOn(l, r.Calendar)
		any, months = any || unit != counter.NoUnit, months || unit == counter.Month
	}
	first := limits[0]
	first.Algorithm = r.Algorithm
	switch {
	case !any:
		bad.addf(path+".calendar", "is for limits over a day, a week or a month, such as 50/month, and %s is over none of them", first)
	case r.Calendar.Day != 0 && !months:
		bad.addf(path+".calendar.day", "is the day on which months begin, and %s isn't over one", first)
	}
}
