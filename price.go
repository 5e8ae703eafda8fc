package weir

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/pattern"
)

// asked returns how many millionths of the rule's amount to charge, and whether to charge the request at all.
func (rs *RuleSet) asked(r *rule, req *Request) (n int64, charged bool) {
	a, known := rs.amount(r.Amount, req.Amounts, req)
	if assumed, ok := rs.amount(r.Amount, req.Assumed, req); ok && (!known || assumed != a) { // some of the amount isn't known yet
		if r.Default > 0 {
			assumed = r.byDefault(req)
		}
		a, known = max(a, assumed), true
	}
	switch {
	case known:
	case r.Default > 0:
		a = r.byDefault(req)
	case req.Peek: // a peek for 0 returns what is left
	case req.Reserve > 0: // settling charges the amount
	default:
		return 0, false
	}
	return times(a, r.cost), true
}

// byDefault returns the charge of a request whose amount isn't known.
func (r *rule) byDefault(req *Request) counter.Amount {
	return min(counter.Amount(times(r.Default, max(req.Choices, 1))), counter.MaxAmount)
}

// amount returns one of a request's amounts, either as given, or computed from others by prices and weights.
func (rs *RuleSet) amount(name string, of map[string]counter.Amount, req *Request) (a counter.Amount, known bool) {
	if a, known = of[name]; known || len(of) == 0 {
		return min(max(a, 0), counter.MaxAmount), known
	}
	return made(rs.parts(name, req), of)
}

// parts returns the weights that the amount is computed from, for this request.
func (rs *RuleSet) parts(name string, req *Request) []Weight {
	if p := rs.price(name, req); p != nil {
		return p.Parts
	}
	return rs.weights[name]
}

// price returns the price of the request's model if the amount is usd, or nil.
func (rs *RuleSet) price(name string, req *Request) *Sum {
	if name != "usd" || len(rs.doc.Prices) == 0 || req.Attr == nil {
		return nil
	}
	model := rs.model(req)
	for i := range rs.doc.Prices {
		if p := &rs.doc.Prices[i]; pattern.MatchGlob(p.Name, model) {
			return p
		}
	}
	return nil
}

// highestPrice returns what amounts cost in usd at the highest price of the models that a request and its response name.
func (rs *RuleSet) highestPrice(asked []string, answered string, of map[string]counter.Amount) (usd counter.Amount, known bool) {
	models := slices.DeleteFunc(slices.Clone(asked), func(m string) bool { return m == "" })
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

// mayCost returns every sum that may be the price of a call to one of these models.
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

// priceOf returns the first price that matches a model, and the first that matches if letter case is ignored.
func (rs *RuleSet) priceOf(model string) (first, folded *Sum) {
	lower := strings.ToLower(strings.TrimSpace(model))
	for i := range rs.doc.Prices {
		p := &rs.doc.Prices[i]
		if first == nil && pattern.MatchGlob(p.Name, model) {
			first = p
		}
		if folded == nil && pattern.MatchGlob(strings.ToLower(p.Name), lower) {
			folded = p
		}
	}
	return first, folded
}

// isVersion reports whether the model in a response only extends the name of a requested model, and has no price of its own.
func (rs *RuleSet) isVersion(answered string, asked []string) bool {
	if p, _ := rs.priceOf(answered); p != nil && p.Name != "*" {
		return false
	}
	return slices.ContainsFunc(asked, func(m string) bool { return strings.HasPrefix(answered, m) })
}

// model returns the request's model, or "".
func (rs *RuleSet) model(req *Request) string {
	if req.Attr == nil {
		return ""
	}
	return req.Attr("attr:model")
}

// made adds up the parts that are known. It rounds up, so that nothing is free.
func made(parts []Weight, of map[string]counter.Amount) (a counter.Amount, known bool) {
	const trillion = 1_000_000_000_000
	var hi, lo uint64
	for _, w := range parts {
		if n, ok := of[w.Amount]; ok {
			known = true
			h, l := bits.Mul64(uint64(min(max(n, 0), counter.MaxAmount)), uint64(w.Each))
			var carry uint64
			lo, carry = bits.Add64(lo, l, 0)
			hi += h + carry
		}
	}
	lo, carry := bits.Add64(lo, trillion-1, 0)
	if hi += carry; hi >= trillion {
		return counter.MaxAmount, known
	}
	n, _ := bits.Div64(hi, lo, trillion)
	return counter.Amount(min(n, counter.MaxAmount)), known
}

// compilePrices checks and compiles prices and weights.
func (rs *RuleSet) compilePrices(bad *problems) {
	check := func(path, of string, parts []Weight) {
		bad.when(len(parts) == 0, path, "needs amounts, such as {input: 2.50/1M, output: 10/1M}")
		for _, w := range parts {
			path := path + "." + w.Amount
			bad.when(!isName(w.Amount), path, "must be the name of an amount, of a-z, 0-9 and _ such as input, got %q", w.Amount)
			bad.when(w.Amount == of, path, "%s can't be made of itself: name the amounts that it is made of, such as input and output", of)
			bad.when(w.Each < 0 || w.Each > maxWeight, path, "must be a number from 0 to a million")
		}
	}
	for i, p := range rs.doc.Prices {
		bad.when(p.Name == "", fmt.Sprintf("prices[%d]", i), "needs a model, or a pattern such as gpt-*")
		check("prices."+p.Name, "usd", p.Parts)
	}
	if len(rs.doc.Prices) > 0 {
		rs.attributes = append(rs.attributes, "attr:model")
	}
	for _, w := range rs.doc.Weights {
		path := "weights." + w.Name
		bad.when(!isName(w.Name), path, "must be the name of an amount, of a-z, 0-9 and _ such as tokens, got %q", w.Name)
		bad.when(rs.weights[w.Name] != nil, path, "is listed twice")
		check(path, w.Name, w.Parts)
		rs.weights[w.Name] = w.Parts
	}
}

const maxWeight = 1_000_000 * 1_000_000_000_000

// times multiplies an amount, in millionths. The product is capped at 2^53, which is more than any limit admits.
func times(a counter.Amount, n int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(n))
	if hi > 0 {
		return 1 << 53
	}
	return int64(min(lo, 1<<53))
}
