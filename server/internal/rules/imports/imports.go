// Package imports converts the limits of other limiters to Weir rules. envoy.go converts those of envoyproxy/ratelimit,
// and nginx.go those of nginx's limit_req, whose files conf.go parses.
//
// If a rule differs from the original, this is explained twice: in a comment in the rules, and in a [Note] for the
// operator.
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

// Result is the result of an import.
type Result struct {
	// Text is a rule document, or nil if there are no limits.
	Text []byte
	// Notes are remarks that the operator should read before using the rules. They are roughly in the order of the
	// input.
	Notes []Note
	// Rules is how many rules Text has.
	Rules int
}

// Note is a remark about one part of the import.
type Note struct {
	// Where is the place in the input that the note is about.
	Where string `json:"where"`
	// Rule is the id of the rule that the note is about, or "".
	Rule string `json:"rule,omitempty"`
	// Text says what differs.
	Text string `json:"text"`
	// Differs means that the rule decides differently from the original, or that there is no rule. Other notes are
	// about details.
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
	head  []string // comments at the beginning
	rules []*entry
	notes []Note
	said  map[Note]bool
	ids   map[string]int // how often each id was asked for
}

func newDocument(head ...string) *document {
	return &document{head: head, said: map[Note]bool{}, ids: map[string]int{}}
}

// entry is a rule with its comments. If it has no id, it is only comments.
type entry struct {
	id       string
	comments []string
	fields   []string // the lines after the id
}

// matchField returns the condition of a rule as a field of the rule. If there is no condition, it returns no field. If
// no rule can have the condition, ok is false.
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

// byFields returns the fields that say what a rule counts by. The rule doesn't count requests that lack it.
func byFields(by []string) []string {
	fields := []string{"by: " + scalars(by)}
	if slices.ContainsFunc(by, func(s string) bool { return s != "ip" }) {
		fields = append(fields, "missing: skip")
	}
	return fields
}

// add adds a rule. Its id is derived from a name.
func (d *document) add(name string, fields ...string) *entry {
	e := &entry{id: d.id(name), fields: fields}
	d.rules = append(d.rules, e)
	return e
}

// note adds a note about a rule, and a comment with the same text to the rule. If e is nil, the comment belongs to no
// rule.
func (d *document) note(e *entry, where string, differs bool, format string, args ...any) {
	n := Note{Where: where, Text: fmt.Sprintf(format, args...), Differs: differs}
	if e != nil {
		n.Rule = e.id
	}
	if d.said[n] { // the same note on the same line is added only once
		return
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

// id derives an id from a name. The id is unique, and consists of [a-z0-9_-].
func (d *document) id(name string) string {
	base := strings.Trim(notInID.ReplaceAllString(strings.ToLower(name), "-"), "-")
	if base == "" {
		base = "rule"
	}
	base = base[:min(len(base), maxID)]
	id := base
	for d.ids[id] > 0 {
		d.ids[base]++ // count up, so that thousands of rules with the same name don't each try all earlier ids
		end := "-" + strconv.Itoa(d.ids[base])
		id = base[:min(len(base), maxID-len(end))] + end
	}
	d.ids[id]++
	return id
}

// result returns the document as text. It parses the text, to make sure that it is valid.
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
		r.Text = nil // a document without rules isn't valid
		return r, nil
	}
	if _, err := rulefile.Parse("the imported rules", r.Text); err != nil {
		return nil, fmt.Errorf("the limits can't be written as one document of rules: %w", err)
	}
	return r, nil
}

// writeComment writes a text as a comment, wrapped at 100 columns. Whatever the text contains, all of it is in the
// comment.
func writeComment(b *bytes.Buffer, indent, text string) {
	line := ""
	flush := func() {
		if line != "" {
			b.WriteString(indent + "# " + line + "\n")
		}
		line = ""
	}
	for _, word := range strings.Fields(shown.Printable(text)) {
		if line != "" && len(indent)+2+len(line)+1+len(word) > 100 {
			flush()
		}
		line = strings.TrimPrefix(line+" "+word, " ")
	}
	flush()
}

// clip shortens a name for messages if it would fill a line.
func clip(s string) string { return shown.Clip(shown.Printable(s), 80) }

// scalars formats a list of strings as YAML.
func scalars(list []string) string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = rulefile.Quote(s)
	}
	return "[" + strings.Join(out, ", ") + "]"
}

// errTooLarge says that the input is much larger than what people write.
var errTooLarge = errors.New("is too large")
