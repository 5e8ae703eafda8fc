package rulefile

import (
	"cmp"
	"fmt"
	"math"
	"math/big"
	"regexp"
	"strings"

	"github.com/weirhq/weir"
)

// Each request that names a model is compared with all prices, so their number is limited.
const (
	maxSums  = 1_000
	maxParts = 64 // parts of one price, or of one weight
)

const (
	priceExample  = "{input: 2.50/1M, output: 10/1M}"
	weightExample = "{input: 1, output: 4}"
)

// sums reads the prices of models, or the amounts that are computed from others. They keep the order of the file, because the
// first price that matches a model applies.
func (d *decoder) sums(v value, what, name, parts string) []weir.Sum {
	entries := d.mapOf(v, "{"+name+": "+parts+"}", maxSums, what+", got %d: a pattern such as gpt-* can stand for many")
	var list []weir.Sum
	for _, e := range entries {
		if e.name == "" && what == "prices" {
			d.add(e.nameAt, v.path, "needs a model, or a pattern such as gpt-*, got nothing")
			continue
		}
		sum := weir.Sum{Name: e.name}
		for _, part := range d.mapOf(e.value, parts, maxParts, "amounts, got %d") {
			if each, ok := d.each(part.value); ok {
				sum.Parts = append(sum.Parts, weir.Weight{Amount: part.name, Each: each})
			}
		}
		list = append(list, sum)
	}
	return list
}

// mapOf returns the fields of a map whose names are free, if there aren't too many.
func (d *decoder) mapOf(v value, example string, most int, what string) []entry {
	if v.node != nil && v.kind != mapping && v.kind != empty {
		d.fail(v, "must be a map such as %s, got %s", example, v.describe())
		return nil
	}
	entries := d.entries(v)
	if len(entries) > most {
		d.fail(v, "must be at most %d "+what, most, len(entries))
		return nil
	}
	return entries
}

var (
	// eachNumber matches a price, also as programs write it: 2.5e-06.
	eachNumber = regexp.MustCompile(`^([0-9]{1,40}(?:\.[0-9]{1,40})?(?:[eE][+-]?[0-9]{1,2})?)(?:/1([KMB]))?$`)
	// otherEach matches other ways in which people write 2.50/1M.
	otherEach = regexp.MustCompile(`^[$€]? ?([0-9][0-9_,]*(?:\.[0-9]+)?) ?(?:USD|usd|[$€])? ?(?:(?:/|per) ?1? ?([kKmMbB]|[1-9][0-9_,]*)[a-z]*(?: tokens)?)?$`)
)

// keptDigits maps the unit of a price, such as K in 2.50/1K, to the decimal places that are kept.
var keptDigits = map[string]int{"": 12, "K": 9, "M": 6, "B": 3}

// each reads what one unit of an amount counts, in 10^-12. It is written as a number, or as a number for a thousand, a million
// or a billion units.
func (d *decoder) each(v value) (int64, bool) {
	if !d.given(v) {
		return 0, false
	}
	const want = "must be a number from 0 to 1000000, or one such as 2.50/1M, for a million of them (1K, 1M, 1B)"
	if v.kind != scalar {
		d.fail(v, want+", got %s", v.describe())
		return 0, false
	}
	found := eachNumber.FindStringSubmatch(strings.ReplaceAll(v.text, "_", ""))
	if found == nil || v.quoted && found[2] == "" {
		p := d.fail(v, want+", got %s", v.describe())
		if p.Hint = guessEach(v.text); found != nil {
			p.Hint = "remove the quotes"
		}
		return 0, false
	}
	digits := keptDigits[found[2]]
	each, _ := new(big.Rat).SetString(found[1]) // it is a number: see eachNumber
	each.Mul(each, big.NewRat(int64(math.Pow10(digits)), 1))
	switch {
	case each.Cmp(big.NewRat(1_000_000*1e12, 1)) > 0:
		d.fail(v, "must be at most 1000000 for one of them, got %s", shorten(v.text))
		return 0, false
	case !each.IsInt():
		d.fail(v, "has more digits than are kept, which is %d behind the point: %s", digits, shorten(v.text))
		return 0, false
	}
	return each.Num().Int64(), true
}

// guessEach returns a hint for a price that is written in another way.
func guessEach(s string) string {
	found := otherEach.FindStringSubmatch(strings.TrimSpace(s))
	if found == nil || len(s) > 64 {
		return ""
	}
	number, of := strings.ReplaceAll(found[1], ",", ""), strings.NewReplacer("_", "", ",", "").Replace(strings.ToUpper(found[2]))
	of = cmp.Or(map[string]string{"1000": "K", "1000000": "M", "1000000000": "B"}[of], of)
	switch {
	case of == "":
		return fmt.Sprintf("did you mean %q?", number)
	case keptDigits[of] == 0:
		return ""
	}
	return fmt.Sprintf("did you mean %q?", number+"/1"+of)
}
