package rulefile

import (
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/weirhq/weir"
)

// One is a single rule of a document.
type One struct {
	// Text is the rule as written, with the comments in it and right above it. [PutRule] accepts it.
	Text string
	// Line is where the rule begins in the document.
	Line int
	// Rule is the parsed rule.
	Rule weir.Rule
	// Tiers are the document's tiers, if the rule has no numbers of its own.
	Tiers []weir.Tier

	expires map[string]time.Time // when its overrides expire, by key
}

// Same reports whether both rules mean the same, however they are written.
func (o *One) Same(other *One) bool {
	return reflect.DeepEqual(o.Rule, other.Rule) && reflect.DeepEqual(o.Tiers, other.Tiers) && reflect.DeepEqual(o.expires, other.expires)
}

// Find returns the rule with an id, without the overrides that have expired at now. The error is [ErrNotFound] if there is no
// such rule, or [Problems] if the text isn't a valid document.
func Find(text []byte, id string, now time.Time) (*One, error) {
	e, err := edit(text)
	if err != nil {
		return nil, err
	}
	i, err := e.findRule(id)
	if err != nil {
		return nil, err
	}
	doc, _ := e.unexpired(now)
	one := &One{Rule: doc.Rules[i], expires: map[string]time.Time{}}
	for o, at := range e.expires {
		if o.rule == one.Rule.ID && now.Before(at) {
			one.expires[o.key] = at
		}
	}
	if len(one.Rule.Limits) == 0 {
		one.Tiers = doc.Tiers
	}
	item := e.ruleNode(i)
	one.Line = e.src.line(item.from) + 1
	one.Text = e.ownText(item)
	return one, nil
}

// ownText returns the text of a list item without its dash, but with the comments that belong to it.
func (e *editor) ownText(item *node) string {
	begin := e.src.lineBegin(item.from)
	if before := strings.TrimSpace(e.src.text[begin:item.from]); e.json || before != "" && before != "-" {
		return e.src.text[item.from:item.to] // it is on one line with others
	}
	lines := e.src.dedented(item.from, item.to)
	for line := e.src.line(begin) - 1; line >= 0; line-- { // comments right above it
		at := e.src.begins[line]
		comment := strings.TrimSpace(e.src.text[at:e.src.lineEnd(at)])
		if !strings.HasPrefix(comment, "#") {
			break
		}
		lines = slices.Insert(lines, 0, comment)
	}
	return strings.Join(lines, "\n") + "\n"
}
