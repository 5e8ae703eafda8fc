package weir

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Amount is a decimal number, kept exactly in millionths: 1,500 tokens, or 0.012 dollars.
type Amount int64

// ParseAmount reads a decimal number with at most six digits behind the point: "1500", "0.012".
func ParseAmount(s string) (Amount, error) {
	whole, part, point := strings.Cut(s, ".")
	if whole == "" || point && part == "" || strings.Trim(whole+part, "0123456789") != "" {
		return 0, fmt.Errorf(`must be a number such as 1500 or 0.012, got %q`, s)
	}
	if len(strings.TrimRight(part, "0")) > 6 {
		return 0, fmt.Errorf("has more than six digits behind the point: %s", s)
	}
	a, err := amountOfNumber(s)
	if err != nil {
		err = fmt.Errorf("%w, got %s", err, s)
	}
	return a, err
}

// Whole is an amount of n.
func Whole(n int64) Amount { return Amount(min(max(n, 0), MaxTokens)) * micro }

// String returns the amount as people write it: 0.012.
func (a Amount) String() string { return string(a.append(nil)) }

func (a Amount) append(b []byte) []byte {
	n := uint64(a)
	if a < 0 {
		b, n = append(b, '-'), -n
	}
	b = strconv.AppendUint(b, n/micro, 10)
	if part := n % micro; part > 0 {
		digits := strconv.AppendUint(nil, micro+part, 10)
		b = append(append(b, '.'), strings.TrimRight(string(digits[1:]), "0")...)
	}
	return b
}

// MarshalJSON writes a number.
func (a Amount) MarshalJSON() ([]byte, error) { return a.append(nil), nil }

// UnmarshalJSON reads a number. One that has more than six digits behind the point is rounded up: nothing is free.
func (a *Amount) UnmarshalJSON(b []byte) error {
	n, err := amountOfNumber(string(b))
	if err == nil {
		*a = n
	}
	return err
}

var (
	errAmount  = errors.New("must be a number from 0 on")
	errTooMuch = fmt.Errorf("must be at most %d", int64(MaxTokens))
)

// amountOfNumber reads a JSON number, in whatever form, digit by digit: 1.2e-05 is 12 millionths, and not a bit more.
func amountOfNumber(s string) (Amount, error) {
	number, exponent, e := strings.Cut(strings.ToLower(strings.TrimPrefix(s, "-")), "e")
	power := 0
	if e {
		var err error
		if power, err = strconv.Atoi(exponent); err != nil && !errors.Is(err, strconv.ErrRange) {
			return 0, errAmount
		}
	}
	whole, part, point := strings.Cut(number, ".")
	digits := strings.TrimLeft(whole+part, "0")
	switch {
	case whole == "" || point && part == "" || strings.Trim(digits, "0123456789") != "":
		return 0, errAmount
	case digits == "":
		return 0, nil
	case s[0] == '-':
		return 0, errAmount
	}
	// How many of the digits are millionths: those that follow are rounded up.
	n := len(digits) - len(part) + 6 + min(max(power, -len(s)-len("1000000")), len(s)+20)
	switch {
	case n <= 0:
		return 1, nil
	case n > len("9000000000000000"):
		return 0, errTooMuch
	}
	rest := ""
	if n < len(digits) {
		digits, rest = digits[:n], strings.Trim(digits[n:], "0")
	}
	a, err := strconv.ParseInt(digits+strings.Repeat("0", n-len(digits)), 10, 64)
	if rest != "" {
		a++
	}
	if err != nil || a > MaxAmount {
		return 0, errTooMuch
	}
	return Amount(a), nil
}

// asked is how many millionths of a rule's amount a request is charged, and whether it is charged at all.
func (rs *RuleSet) asked(r *rule, req *Request) (n int64, charged bool) {
	a, known := rs.amount(r.Amount, req.Amounts, req)
	if assumed, ok := rs.amount(r.Amount, req.Assumed, req); ok && (!known || assumed != a) { // a part of the amount isn't known yet
		if r.Default > 0 {
			assumed = r.byDefault(req)
		}
		a, known = max(a, assumed), true
	}
	switch {
	case known:
	case r.Default > 0:
		a = r.byDefault(req)
	case req.Peek: // it is told what is left
	case req.Reserve > 0: // it is booked when it is settled
	default:
		return 0, false
	}
	return mulDiv(int64(a), r.cost, 1), true
}

// byDefault is what a rule with a Default charges a request whose amount isn't known.
func (r *rule) byDefault(req *Request) Amount {
	return min(Amount(mulDiv(int64(r.Default), max(req.Choices, 1), 1)), MaxAmount)
}

// amount is one of the amounts of a request: as it came, or made of others by prices and weights.
func (rs *RuleSet) amount(name string, of map[string]Amount, req *Request) (a Amount, known bool) {
	if a, known = of[name]; known || len(of) == 0 {
		return min(max(a, 0), MaxAmount), known
	}
	return made(rs.parts(name, req), of)
}

// parts is what an amount is made of, for this request.
func (rs *RuleSet) parts(name string, req *Request) []Weight {
	if p := rs.price(name, req); p != nil {
		return p.Parts
	}
	return rs.weights[name]
}

// price is that of the model that a request is for, if the amount is made of prices.
func (rs *RuleSet) price(name string, req *Request) *Sum {
	if name != "usd" || len(rs.doc.Prices) == 0 || req.Attr == nil {
		return nil
	}
	model := rs.model(req)
	for i := range rs.doc.Prices {
		if p := &rs.doc.Prices[i]; matchGlob(p.Name, model) {
			return p
		}
	}
	return nil
}

// Price returns what amounts cost in usd if the model isn't certain: the highest price of the models that the request and its answer
// name. Letter case doesn't matter. A model without a price costs what weights of usd say, or without those as much as the dearest
// model, and so does a call for which no model is named. If the answer's name is one of those asked for with something added, such
// as a date, it is the same model unless it has a price of its own. known is false if there are no prices.
func (rs *RuleSet) Price(asked []string, answered string, of map[string]Amount) (usd Amount, known bool) {
	var models []string
	for _, m := range asked {
		if m != "" {
			models = append(models, m)
		}
	}
	if answered != "" && !rs.isVersion(answered, models) {
		models = append(models, answered)
	}
	for _, parts := range rs.mayCost(models) {
		if a, ok := made(parts, of); ok {
			usd, known = max(usd, a), true
		}
	}
	return usd, known
}

// mayCost returns the sums that usd may be for a call to any of the models.
func (rs *RuleSet) mayCost(models []string) (parts [][]Weight) {
	for _, m := range models {
		first, folded := rs.priceOf(m)
		switch other := rs.weights["usd"]; {
		case first != nil:
			parts = append(parts, first.Parts)
		case other != nil:
			parts = append(parts, other)
		case folded == nil:
			return rs.mayCost(nil)
		}
		if folded != nil {
			parts = append(parts, folded.Parts)
		}
	}
	if len(models) == 0 {
		for _, p := range rs.doc.Prices {
			parts = append(parts, p.Parts)
		}
		parts = append(parts, rs.weights["usd"])
	}
	return parts
}

// priceOf finds the first price that matches a model, and the first one that does if letter case is ignored.
func (rs *RuleSet) priceOf(model string) (first, folded *Sum) {
	lower := strings.ToLower(strings.TrimSpace(model))
	for i := range rs.doc.Prices {
		p := &rs.doc.Prices[i]
		if first == nil && matchGlob(p.Name, model) {
			first = p
		}
		if folded == nil && matchGlob(strings.ToLower(p.Name), lower) {
			folded = p
		}
	}
	return first, folded
}

// isVersion reports whether an answer's model is one of those asked for with something added, and has no price of its own.
func (rs *RuleSet) isVersion(answered string, asked []string) bool {
	if p, _ := rs.priceOf(answered); p != nil && p.Name != "*" {
		return false
	}
	return slices.ContainsFunc(asked, func(m string) bool { return strings.HasPrefix(answered, m) })
}

// model is the one that a request is for, or "".
func (rs *RuleSet) model(req *Request) string {
	if req.Attr == nil {
		return ""
	}
	return req.Attr("attr:model")
}

// made adds up what is there of the parts. A sum is rounded up: nothing is free.
func made(parts []Weight, of map[string]Amount) (a Amount, known bool) {
	const trillion = 1_000_000_000_000
	var hi, lo uint64
	for _, w := range parts {
		if n, ok := of[w.Amount]; ok {
			known = true
			h, l := bits.Mul64(uint64(min(max(n, 0), MaxAmount)), uint64(w.Each))
			var carry uint64
			lo, carry = bits.Add64(lo, l, 0)
			hi += h + carry
		}
	}
	lo, carry := bits.Add64(lo, trillion-1, 0)
	if hi += carry; hi >= trillion {
		return MaxAmount, known
	}
	n, _ := bits.Div64(hi, lo, trillion)
	return Amount(min(n, MaxAmount)), known
}

// checkPrices looks at what amounts are made of.
func (rs *RuleSet) checkPrices(bad *Problems) {
	check := func(path, of string, parts []Weight) {
		if len(parts) == 0 {
			bad.addf(path, "needs amounts, such as {input: 2.50/1M, output: 10/1M}")
		}
		for _, w := range parts {
			path := path + "." + w.Amount
			switch {
			case !isName(w.Amount):
				bad.addf(path, "must be the name of an amount, of a-z, 0-9 and _ such as input, got %q", w.Amount)
			case w.Amount == of:
				bad.addf(path, "%s can't be made of itself: name the amounts that it is made of, such as input and output", of)
			case w.Each < 0 || w.Each > maxWeight:
				bad.addf(path, "must be a number from 0 to a million")
			}
		}
	}
	for i, p := range rs.doc.Prices {
		if p.Name == "" {
			bad.addf(fmt.Sprintf("prices[%d]", i), "needs a model, or a pattern such as gpt-*")
		}
		check("prices."+p.Name, "usd", p.Parts)
	}
	if len(rs.doc.Prices) > 0 {
		rs.attributes = append(rs.attributes, "attr:model")
	}
	for _, w := range rs.doc.Weights {
		path := "weights." + w.Name
		switch {
		case !isName(w.Name):
			bad.addf(path, "must be the name of an amount, of a-z, 0-9 and _ such as tokens, got %q", w.Name)
		case rs.weights[w.Name] != nil:
			bad.addf(path, "is listed twice")
		}
		check(path, w.Name, w.Parts)
		rs.weights[w.Name] = w.Parts
	}
}

const maxWeight = 1_000_000 * 1_000_000_000_000

// compileAmount looks at what a rule counts: an amount, or requests in flight.
func (rs *RuleSet) compileAmount(r *rule, path string, bad *Problems) {
	switch {
	case r.Amount == "" && r.Default != 0:
		bad.addf(path+".default", "is for requests that lack the rule's amount: give it an amount, such as tokens")
	case r.Amount == "" && r.GiveBackUnsettled:
		bad.addf(path+".unsettled", "is for amounts that were reserved: give the rule an amount, such as tokens")
	case r.Amount != "" && !isName(r.Amount):
		bad.addf(path+".amount", "must be a name of a-z, 0-9 and _ such as tokens, got %q", r.Amount)
	case r.Default < 0 || r.Default > MaxAmount:
		bad.addf(path+".default", "must be from 0 to %d", int64(MaxTokens))
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
	if l.Calendar.Unit != NoUnit || r.Calendar != (Calendar{}) {
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
	unit := l.unitOn(r.Calendar)
	if unit == NoUnit {
		return l
	}
	// Only what it begins by: the rest is for other limits of the rule, and would make another counter of it.
	l.Calendar = Calendar{Unit: unit, Zone: r.Calendar.Zone}
	switch unit {
	case Month:
		l.Calendar.Day = r.Calendar.Day
	case Week:
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
func (l Limit) unitOn(c Calendar) CalendarUnit {
	switch {
	case l.Calendar.Unit != NoUnit || c == (Calendar{}):
		return l.Calendar.Unit
	case l.Window == Day.length():
		return Day
	case l.Window == Week.length():
		return Week
	}
	return NoUnit
}

// checkCalendar: a rule's calendar must mean something for each of its numbers.
func (r *rule) checkCalendar(limits []Limit, path string, bad *Problems) {
	if r.Calendar == (Calendar{}) || len(limits) == 0 {
		return
	}
	months, any := false, false
	for _, l := range limits {
		unit := l.unitOn(r.Calendar)
		any, months = any || unit != NoUnit, months || unit == Month
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

// window names what a limit is over, shortly: 1s, 15m, or a month of the calendar.
func (l Limit) window() string {
	if l.Calendar.Unit != NoUnit {
		return l.Calendar.Unit.String()
	}
	return shortWindow(l.Window)
}
