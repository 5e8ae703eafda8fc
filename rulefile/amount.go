package rulefile

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/guess"
)

// amounts reads the fields that say what a rule counts: an amount, windows of the calendar, or requests in flight. It also
// records in the scope what this means for the rule's numbers.
func (d *decoder) amounts(f map[string]value, r *weir.Rule, s *scope) {
	if v := f["amount"]; v.node != nil {
		s.decimal = true
		if r.Amount = d.amountName(v); r.Amount == "" {
			r.Amount = "amount" // so that Compile finds no other fault because of this one
		}
		switch r.Algorithm {
		case weir.TokenBucket, weir.LeakyBucket, weir.FixedWindow:
		default:
			if !s.unsure {
				d.fail(f["algorithm"], "%s counts requests, not amounts: use token_bucket, leaky_bucket or fixed_window", r.Algorithm)
				s.forget()
			}
		}
	}
	if v := f["default"]; d.given(v) {
		if r.Default = d.amount(v); v.isNumber() && strings.Trim(v.text, "0_.") == "" {
			d.fail(v, "must be more than 0, got %s: without a default, a request that lacks the amount isn't charged", v.text)
		}
	}
	r.GiveBackUnsettled = d.choice(f["unsettled"], "keep", "give_back") == 1
	if ttl, ok := d.duration(f["slot_ttl"]); ok && !s.unsure {
		if r.SlotTTL = ttl; ttl <= 0 {
			d.fail(f["slot_ttl"], "must be from 1s to 1h, got %s", ttl)
		}
	}
	v := f["calendar"]
	c, ok := d.calendar(v)
	switch {
	case !ok || s.unsure:
	case s.named && r.Algorithm != weir.FixedWindow:
		d.fail(v, "days, weeks and months of the calendar are fixed windows, and a %s isn't: write algorithm: fixed_window, or leave the calendar out", r.Algorithm)
	default:
		r.Calendar, s.calendar = c, true
	}
}

// notAmounts are words for what a rule counts if it has no amount.
var notAmounts = []string{"request", "requests", "cost", "hits", "calls"}

// amountName reads the name of an amount. [weir.Compile] checks its letters.
func (d *decoder) amountName(v value) string {
	name := d.text(v)
	switch {
	case name == "":
		return ""
	case v.isNumber():
		d.fail(v, "must be the name of an amount such as tokens, got %s", v.text).Hint = "write amount: tokens, and default: " + shorten(v.text) + " for requests that don't say how many they take"
		return ""
	case slices.Contains(notAmounts, name):
		d.fail(v, "requests, and what they cost, are what a rule counts without an amount: leave it out, got %q", name)
		return ""
	}
	if lower := strings.ReplaceAll(strings.ToLower(name), "-", "_"); lower != name {
		d.hints[v.path] = guess.Hint(lower, []string{lower})
	}
	return name
}

// amount reads a decimal number. It returns 0 if there is none.
func (d *decoder) amount(v value) counter.Amount {
	if _, ok := d.number(v, "a number such as 1500 or 0.012"); !ok {
		return 0
	}
	digits := strings.ReplaceAll(v.text, "_", "")
	a, err := counter.ParseAmount(digits)
	switch {
	case strings.HasPrefix(digits, "-"):
		d.fail(v, "must not be negative, got %s", shorten(v.text))
	case err != nil:
		d.fail(v, "%v", err)
	case len(digits) > 1 && digits[0] == '0' && digits[1] != '.':
		d.fail(v, "must be a number without a leading 0, got %s", shorten(v.text))
	default:
		return a
	}
	return 0
}

var calendarFields = fieldSet{
	of:    "calendar",
	names: []string{"tz", "day", "weekday"},
	wrong: map[string]string{
		"zone": `write "tz"`, "timezone": `write "tz"`, "time_zone": `write "tz"`, "location": `write "tz"`,
		"unit": "the limit says it: limit: 50/month", "month": "the limit says it: limit: 50/month",
		"week": "write weekday: monday", "start": "write day: 15, or weekday: monday", "month_day": `write "day"`,
	},
}

// weekdays are the names in the rule language. They begin with Monday, and [time.Weekday] with Sunday.
var weekdays = []string{"monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"}

// calendar reads when days, weeks and months begin.
func (d *decoder) calendar(v value) (c counter.Calendar, ok bool) {
	if !d.given(v) {
		return c, false
	}
	before := len(d.list)
	f := d.fields(v, &calendarFields)
	if v.kind == mapping && len(v.children) == 0 {
		d.fail(v, "needs a field, such as {tz: Europe/Berlin}: without a calendar, days and months are those of UTC")
	}
	// Set the zone, so that the calendar differs from a missing one even if weeks begin on Sundays.
	c = counter.Calendar{Zone: "UTC", Day: int(d.integer(f["day"]))}
	c.Weekday = time.Weekday(d.choice(f["weekday"], weekdays...)+1) % 7
	if tz := f["tz"]; tz.node != nil {
		c.Zone = d.text(tz)
	}
	if len(d.list) > before {
		return c, false
	}
	month := weir.Limit{Algorithm: weir.FixedWindow, Count: 1, Window: 31 * 24 * time.Hour, Calendar: counter.Calendar{Unit: counter.Month, Day: c.Day, Zone: c.Zone}}
	if wrong, ok := errors.AsType[counter.Problem](month.Validate()); ok {
		p := d.fail(f[strings.TrimPrefix(wrong.Path, "calendar.")], "%s", wrong.Text)
		if wrong.Path == "calendar.tz" {
			p.Hint = zoneHint(c.Zone)
		}
	}
	return c, len(d.list) == before
}

// zones are the time zones that hints can suggest.
var zones = []string{
	"UTC", "Europe/Berlin", "Europe/London", "Europe/Paris", "Europe/Madrid", "Europe/Rome", "Europe/Amsterdam", "Europe/Zurich", "Europe/Vienna",
	"Europe/Stockholm", "Europe/Warsaw", "Europe/Kyiv", "Europe/Istanbul", "Europe/Dublin", "Europe/Lisbon", "Europe/Helsinki", "Europe/Athens",
	"America/New_York", "America/Chicago", "America/Denver", "America/Los_Angeles", "America/Toronto", "America/Sao_Paulo", "America/Mexico_City",
	"Asia/Tokyo", "Asia/Shanghai", "Asia/Kolkata", "Asia/Singapore", "Asia/Hong_Kong", "Asia/Seoul", "Asia/Dubai", "Asia/Jerusalem",
	"Australia/Sydney", "Pacific/Auckland", "Africa/Johannesburg", "Africa/Lagos", "Africa/Cairo",
}

// zoneHint suggests a time zone for a name that isn't one.
func zoneHint(name string) string {
	if strings.ContainsAny(name, "+-0123456789") {
		return "name a place, since clocks are changed there, or write UTC"
	}
	name = strings.ReplaceAll(name, " ", "_")
	for _, z := range zones {
		if _, city, _ := strings.Cut(z, "/"); strings.EqualFold(city, name) {
			return guess.Hint(z, zones)
		}
	}
	return guess.Hint(name, zones)
}

// checkMonths adds problems for rules that name the token bucket and take calendar months from a tier. Compile doesn't know
// that the rule names it, and would make them fixed windows.
func (d *decoder) checkMonths(doc *weir.Rules) {
	for i, r := range doc.Rules {
		path := index("rules", i) + ".algorithm"
		if _, named := d.places[path]; !named || r.Algorithm != weir.TokenBucket || len(r.Limits) > 0 {
			continue
		}
		for _, t := range doc.Tiers {
			own := slices.ContainsFunc(r.Tiers, func(o weir.Tier) bool { return o.Name == t.Name })
			if !own && slices.ContainsFunc(t.Limits, func(l weir.Limit) bool { return l.Calendar.Unit == counter.Month }) {
				d.failAt(path, "the tier %q has a limit over a month: %s", t.Name, noBudget(r.Algorithm))
			}
		}
	}
}

// noBudget explains why a calendar month needs a fixed window.
func noBudget(a counter.Algorithm) string {
	why := "a " + a.String() + " doesn't know the calendar"
	if a <= weir.LeakyQueue {
		why = "a bucket is no budget, since it refills all the time"
	}
	return why + ": write algorithm: fixed_window, or 30d for that length of time"
}
