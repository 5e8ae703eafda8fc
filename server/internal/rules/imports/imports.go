// Package imports writes the limits of other limiters as Weir rules: envoy.go those of envoyproxy/ratelimit's configuration, nginx.go
// those of nginx's limit_req, which conf.go reads, and ingress.go those of ingress-nginx' annotations.
//
// What isn't one to one is said twice: as a comment beside the rule, and as a [Note] for whoever runs the import.
package imports

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/lint"
	"github.com/weirhq/weir/internal/shown"
	"github.com/weirhq/weir/rulefile"
)

// Result is what an import makes of its input.
type Result struct {
	// Text is a rule document, or nil if there is no limit.
	Text []byte
	// Notes are what to know before using it, about in the order of the input.
	Notes []Note
	// Rules is how many rules it has.
	Rules int
}

// Note is something that is not one to one.
type Note struct {
	// Where is the place in the input.
	Where string `json:"where"`
	// Rule is the id of the rule that the note is about, or "".
	Rule string `json:"rule,omitempty"`
	// Text says what differs.
	Text string `json:"text"`
	// Differs: the rule decides otherwise than the original did, or there is no rule. The other notes are about what is shown.
	Differs bool `json:"differs"`
}

func (n Note) String() string {
	text := n.Text
	if n.Rule != "" {
		text = "rule " + n.Rule + ": " + text
	}
	if n.Where == "" {
		return text
	}
	return n.Where + ": " + text
}

// document is a rule document in the making.
type document struct {
	head  []string // comments
	rules []*entry
	notes []Note
	said  map[Note]bool
	ids   map[string]int // how often each was wanted
}

// entry is a rule, or without an id only comments.
type entry struct {
	id       string
	comments []string
	fields   []string // lines behind the id
}

// matchField is the condition of a rule as a field, if it has one. It reports false if no rule can have it.
func matchField(m weir.Match) (fields []string, ok bool) {
	switch {
	case m.Endpoint != "":
		fields = []string{"match: {endpoint: " + rulefile.Quote(m.Endpoint) + "}"}
	case m.EndpointRegex != "":
		fields = []string{"match: {endpoint_regex: " + rulefile.Quote(m.EndpointRegex) + "}"}
	}
	_, err := lint.Compile(weir.Rules{Rules: []weir.Rule{{ID: "x", Match: m, Limits: []weir.Limit{weir.PerMinute(1)}}}})
	return fields, err == nil
}

// byFields are what a rule counts by. Requests without that aren't counted there.
func byFields(by []string) []string {
	fields := []string{"by: " + scalars(by)}
	if slices.ContainsFunc(by, func(s string) bool { return s != "ip" }) {
		fields = append(fields, "missing: skip")
	}
	return fields
}

// add adds a rule with an id that is like a name.
func (d *document) add(name string, fields ...string) *entry {
	e := &entry{id: d.id(name), fields: fields}
	d.rules = append(d.rules, e)
	return e
}

// note notes something about a rule, and says it beside it. Without a rule it stands by itself.
func (d *document) note(e *entry, where string, differs bool, format string, args ...any) {
	n := Note{Where: where, Text: fmt.Sprintf(format, args...), Differs: differs}
	if e != nil {
		n.Rule = e.id
	}
	if d.said[n] { // of many alike on one line
		return
	}
	if d.said == nil {
		d.said = map[Note]bool{}
	}
	d.said[n] = true
	if e == nil {
		e = &entry{}
		d.rules = append(d.rules, e)
	}
	e.comments = append(e.comments, n.Text)
	if n.Rule == "" && where != "" {
		e.comments[len(e.comments)-1] = where + ": " + n.Text
	}
	d.notes = append(d.notes, n)
}

const maxID = 64

var notInID = regexp.MustCompile(`[^a-z0-9_]+`)

// id makes an id of a name: [a-z0-9_-], and no other rule's.
func (d *document) id(name string) string {
	base := strings.Trim(notInID.ReplaceAllString(strings.ToLower(name), "-"), "-")
	if base == "" {
		base = "rule"
	}
	base = base[:min(len(base), maxID)]
	if d.ids == nil {
		d.ids = map[string]int{}
	}
	id := base
	for d.ids[id] > 0 {
		d.ids[base]++ // so that thousands of one name don't try each other's
		end := "-" + strconv.Itoa(d.ids[base])
		id = base[:min(len(base), maxID-len(end))] + end
	}
	d.ids[id]++
	return id
}

// result writes the document, and reads it again: what is printed is a document that loads.
func (d *document) result() (*Result, error) {
	var b bytes.Buffer
	for _, line := range d.head {
		writeComment(&b, "", line)
	}
	n := 0
	b.WriteString("rules:\n")
	for _, e := range d.rules {
		for _, c := range e.comments {
			writeComment(&b, "  ", c)
		}
		if e.id == "" {
			continue
		}
		n++
		fmt.Fprintf(&b, "  - id: %s\n", rulefile.Quote(e.id))
		for _, f := range e.fields {
			fmt.Fprintf(&b, "    %s\n", f)
		}
	}
	r := &Result{Text: b.Bytes(), Notes: d.notes, Rules: n}
	if n == 0 {
		r.Text = nil // a document has at least one rule
		return r, nil
	}
	if _, err := rulefile.Parse("the imported rules", r.Text); err != nil {
		return nil, fmt.Errorf("the limits can't be written as one document of rules: %w", err)
	}
	return r, nil
}

// writeComment wraps words at 100 columns. Whatever the input holds, it stays a comment.
func writeComment(b *bytes.Buffer, indent, text string) {
	line := ""
	flush := func() {
		if line != "" {
			b.WriteString(indent + "# " + line + "\n")
		}
		line = ""
	}
	for _, word := range strings.Fields(printable(text)) {
		if line != "" && len(indent)+2+len(line)+1+len(word) > 100 {
			flush()
		}
		line = strings.TrimPrefix(line+" "+word, " ")
	}
	flush()
}

// printable leaves out what a terminal, or a reader of YAML, would take for something else than text.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) {
			return ' '
		}
		return r
	}, s)
}

// clip keeps a name from filling a line.
func clip(s string) string { return shown.Clip(s, 80) }

// scalars writes a list of texts.
func scalars(list []string) string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = rulefile.Quote(s)
	}
	return "[" + strings.Join(out, ", ") + "]"
}

// errTooLarge is of input beyond what anyone writes.
var errTooLarge = errors.New("is too large")
