package rulefile

import (
	"regexp/syntax"
	"strings"

	"github.com/weirhq/weir"
)

// These limits bound the work that a short file can cause in Compile, and then in every request.
const (
	maxRules    = 10_000
	maxPerLayer = 1_000   // the rules of a layer are compared with each other
	maxSegments = 1 << 26 // compared segments: for each layer, the number of rules times that of their segments
	maxPolicies = 100_000 // a rule without numbers has a policy for every tier
	maxRegex    = 500_000 // instructions of all regular expressions together
)

// rules returns the items of the list of rules, if there aren't too many.
func (d *decoder) rules(v value) []value {
	items := d.items(v, "[{id: quota, limit: 100/minute}]")
	if len(items) > maxRules {
		d.fail(v, "must be at most %d rules, got %d: rules of the same kind can share one, with tiers or overrides", maxRules, len(items))
		return nil
	}
	return items
}

// withinBudget reports whether the document may be compiled. It adds a problem for each limit that
// is exceeded.
func (d *decoder) withinBudget(doc *weir.Rules) bool {
	before := len(d.list)
	layers, segments := map[string]int{}, map[string]int{}
	policies, regex, compared := 0, 0, 0
	// spend adds to a total, and adds a problem when that first exceeds its limit.
	spend := func(total *int, n, most int, path, format string, args ...any) {
		was := *total
		if *total += n; was <= most && *total > most {
			d.failAt(path, format, args...)
		}
	}
	for i := range doc.Rules {
		r := &doc.Rules[i]
		path := index("rules", i)
		if r.Layer != "" {
			if layers[r.Layer]++; layers[r.Layer] == maxPerLayer+1 {
				d.failAt(path+".layer", "at most %d rules can share a layer", maxPerLayer)
			}
			// The new rule is compared with each other rule of its layer, and each of them with it.
			n := strings.Count(r.Match.Endpoint, "/")
			spend(&compared, segments[r.Layer]+layers[r.Layer]*n, maxSegments, path+".layer", "the layers up to here have too many rules for such long endpoints: give them more layers")
			segments[r.Layer] += n
		}
		if len(r.Limits) == 0 && r.Descriptor == nil {
			spend(&policies, len(doc.Tiers), maxPolicies, path, "too many rules without numbers for so many tiers: one times the other must be at most %d", maxPolicies)
		}
		if re, err := syntax.Parse(r.Match.EndpointRegex, syntax.Perl); err == nil { // otherwise, Compile says what is wrong with it
			spend(&regex, regexSize(re), maxRegex, path+".match.endpoint_regex", "the regular expressions up to here are too large: repeat less, or write endpoint patterns")
		}
	}
	return len(d.list) == before
}

// regexSize estimates how many instructions an expression becomes. Repetitions are written out, so
// a few characters can stand for millions.
func regexSize(re *syntax.Regexp) int {
	size := 1 + len(re.Rune)
	for _, sub := range re.Sub {
		size += regexSize(sub)
	}
	if re.Op == syntax.OpRepeat {
		size *= max(re.Min, re.Max, 1)
	}
	return min(size, maxRegex+1)
}
