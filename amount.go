package weir

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"strings"
	"time"
)

// Amount is a decimal number, kept exactly in millionths: 1,500 tokens, or 0.012 dollars.
type Amount int64

// MaxAmount is the largest amount that a request can have, and a limit.
const MaxAmount = MaxTokens * micro

// ParseAmount reads a decimal number with at most six digits behind the point: "1500", "0.012".
func ParseAmount(s string) (Amount, error) {
	whole, part, point := strings.Cut(s, ".")
	if point && (part == "" || whole == "") || whole == "" || strings.Trim(whole+part, "0123456789") != "" {
		return 0, fmt.Errorf(`must be a number such as 1500 or 0.012, got %q`, s)
	}
	if len(strings.TrimRight(part, "0")) > 6 {
		return 0, fmt.Errorf("has more than six digits behind the point: %s", s)
	}
	part = (part + "000000")[:6]
	n, err := strconv.ParseInt(whole+part, 10, 64)
	if err != nil || n > MaxAmount {
		return 0, fmt.Errorf("must be at most %d, got %s", int64(MaxTokens), s)
	}
	return Amount(n), nil
}

// Whole is an amount of n.
func Whole(n int64) Amount { return Amount(min(max(n, 0), MaxTokens)) * micro }

// String returns the amount as people write it: 0.012.
func (a Amount) String() string { return string(a.append(nil)) }

func (a Amount) append(b []byte) []byte {
	if a < 0 {
		return (-a).append(append(b, '-'))
	}
	b = strconv.AppendInt(b, int64(a)/micro, 10)
	if part := int64(a) % micro; part > 0 {
		digits := strconv.AppendInt(nil, micro+part, 10)
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

var errAmount = errors.New("must be a number from 0 on")

// amountOfNumber reads a JSON number, in whatever form.
func amountOfNumber(s string) (Amount, error) {
	if n, err := ParseAmount(s); err == nil {
		return n, nil
	}
	f, err := strconv.ParseFloat(s, 64)
	switch {
	case err != nil || f < 0 || math.IsNaN(f):
		return 0, errAmount
	case f > MaxTokens:
		return 0, fmt.Errorf("must be at most %d", int64(MaxTokens))
	}
	return Amount(math.Ceil(f * micro)), nil
}

// asked is how many millionths of a rule's amount a request is charged, and whether it is charged at all.
func (rs *RuleSet) asked(r *rule, req *Request) (n int64, charged bool) {
	a, known := rs.amount(r.Amount, req)
	switch {
	case known:
	case r.Default > 0:
		a = r.Default
	case req.Peek:
		a = micro
	default:
		return 0, false
	}
	return mulDiv(int64(a), r.cost, 1), true
}

// amount is an amount of a request: as it came, or made of others by prices and weights.
func (rs *RuleSet) amount(name string, req *Request) (a Amount, known bool) {
	if a, known = req.Amounts[name]; known || len(req.Amounts) == 0 {
		return min(max(a, 0), MaxAmount), known
	}
	return made(rs.parts(name, req), req.Amounts)
}

// parts is what an amount is made of, for this request.
func (rs *RuleSet) parts(name string, req *Request) []Weight {
	if name == "usd" && len(rs.doc.Prices) > 0 && req.Attr != nil {
		model := req.Attr("attr:model")
		for i := range rs.doc.Prices {
			if p := &rs.doc.Prices[i]; matchGlob(p.Model, model) {
				return p.Parts
			}
		}
	}
	return rs.weights[name]
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
	check := func(path string, parts []Weight) {
		if len(parts) == 0 {
			bad.addf(path, "needs amounts, such as {input: 2.50/1M, output: 10/1M}")
		}
		for _, w := range parts {
			if w.Amount == "" || w.Each < 0 || w.Each > maxWeight {
				bad.addf(path+"."+w.Amount, "must be a number from 0 to a million")
			}
		}
	}
	for i, p := range rs.doc.Prices {
		if p.Model == "" {
			bad.addf(fmt.Sprintf("prices[%d]", i), "needs a model, or a pattern such as gpt-*")
		}
		check("prices."+p.Model, p.Parts)
	}
	if len(rs.doc.Prices) > 0 {
		rs.attributes = append(rs.attributes, "attr:model")
	}
	for _, w := range rs.doc.Weights {
		path := "weights." + w.Amount
		if rs.weights[w.Amount] != nil {
			bad.addf(path, "is listed twice")
		}
		check(path, w.Parts)
		if rs.weights == nil {
			rs.weights = map[string][]Weight{}
		}
		rs.weights[w.Amount] = w.Parts
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
	case len(r.Limits) == 0 && len(r.Tiers) == 0:
		bad.addf(path+".limit", "needs a number: how many requests may be in flight, such as 20")
	case r.Split > 0:
		bad.addf(path+".split", "can't stand beside concurrency: leave one of them out")
	case r.Book || r.CountRefused:
		bad.addf(path+".past_limit", "can't stand beside concurrency: leave one of them out")
	case len(r.Statuses) > 0:
		bad.addf(path+".count", "can't stand beside concurrency: a slot is free again when the request ends, whatever its status")
	}
}

// isName reports whether an amount's name is one.
func isName(s string) bool {
	return len(s) <= 64 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789_") == ""
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

// onCalendar gives a limit the calendar of its rule. A month is a fixed window, unless another algorithm is named.
func (r *rule) onCalendar(l Limit) Limit {
	unit := l.Calendar.Unit
	for _, u := range []CalendarUnit{Day, Week} {
		if unit == NoUnit && l.Window == u.length() {
			unit = u
		}
	}
	l.Calendar = r.Calendar
	if l.Calendar.Unit = unit; unit != NoUnit && l.Algorithm == TokenBucket && l.Burst == 0 && l.Refill == 0 {
		l.Algorithm = FixedWindow
	}
	return l
}
