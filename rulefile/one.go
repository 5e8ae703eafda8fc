package rulefile

import (
	"bytes"
	"reflect"
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
	e, i, err := editRule(text, id)
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
	item := e.rulesField().value.items[i]
	one.Line = item.first.line
	one.Text = e.ownText(item)
	return one, nil
}

// ownText is the text of an item of a list without its dash, and with the comments that belong to it.
func (e *editor) ownText(item *node) string {
	from, to := e.begin(item), e.end(item)
	line := e.lineBegin(from)
	if before := bytes.TrimSpace(e.text[line:from]); e.json || len(before) > 0 && string(before) != "-" {
		return string(e.text[from:to]) // it is on one line with others
	}
	var out strings.Builder
	first := line // of the comments right above it
	for first > 0 {
		above := e.lineBegin(first - 1)
		if comment := bytes.TrimSpace(e.text[above:first]); len(comment) == 0 || comment[0] != '#' {
			break
		}
		first = above
	}
	for i := first; i < line; i = e.nextLine(i) {
		out.Write(bytes.TrimSpace(e.text[i:e.lineEnd(i)]))
		out.WriteByte('\n')
	}
	column := from - line
	out.Write(e.text[from:e.lineEnd(from)])
	for i := e.nextLine(from); i < e.nextLine(to); i = e.nextLine(i) {
		out.WriteByte('\n')
		text := e.text[i:e.lineEnd(i)]
		out.Write(text[min(column, len(text)-len(bytes.TrimLeft(text, " "))):])
	}
	out.WriteByte('\n')
	return out.String()
}
