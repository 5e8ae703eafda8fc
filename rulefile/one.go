package rulefile

import (
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/weirhq/weir"
)

// One is a rule of a document, alone.
type One struct {
	// Text is the rule as it is written, with the comments in it and right above it: what [PutRule] takes.
	Text string
	// Line is where the rule begins in the document.
	Line int
	// Rule is what it means.
	Rule weir.Rule
	// Tiers are the document's, for a rule that has no numbers of its own.
	Tiers []weir.Tier

	expires map[string]time.Time // of its overrides, by key
}

// Same reports whether both mean the same, however they are written.
func (o *One) Same(other *One) bool {
	return reflect.DeepEqual(o.Rule, other.Rule) && reflect.DeepEqual(o.Tiers, other.Tiers) && reflect.DeepEqual(o.expires, other.expires)
}

// Find returns the rule that has an id, at a time that decides which of its overrides have expired. Its error is [ErrNotFound] if
// there is none, or [Problems] if the text is no document.
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

// ownText is the text of an item of a list without its dash, and with the comments that belong to it.
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
