package envoy

import (
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/weirhq/weir/internal/shown"
	"github.com/weirhq/weir/rulefile"
)

// File is a configuration file in envoyproxy/ratelimit's format.
type File struct {
	Name string
	Text []byte
}

// Limits on a configuration, so that a hostile file can't exhaust the node's memory.
const (
	MaxFile  = 16 << 20   // bytes of a file
	maxNodes = 1_000_000  // values in a file; those that an alias repeats count again
	maxDepth = MaxEntries // levels of descriptors: a request can't have more
)

// Parse parses the files of a configuration. The error lists all problems with file, line and column. Warnings are
// about keys that have no effect in their place.
func Parse(files []File, modes Modes) (c *Config, warnings rulefile.Problems, err error) {
	return compile(len(files), modes, func(r *reader, i int) *Document { return r.read(files[i]) })
}

// Documents parses configuration files, and returns a document for each of them. It returns the same errors as [Parse].
func Documents(files []File, modes Modes) (docs []*Document, err error) {
	_, _, err = compile(len(files), modes, func(r *reader, i int) *Document {
		docs = append(docs, r.read(files[i]))
		return docs[i]
	})
	return docs, err
}

// compile makes a configuration of n documents. read returns the i-th document, or nil if it can't be read.
func compile(n int, modes Modes, read func(r *reader, i int) *Document) (c *Config, warnings rulefile.Problems, err error) {
	c = &Config{domains: map[string]level{}}
	var wrong rulefile.Problems
	for i := 0; i < n && len(wrong) < maxProblems; i++ {
		r := &reader{config: c, modes: modes}
		if doc := read(r, i); doc != nil {
			if below := r.enter(doc); below != nil {
				r.add(doc.Descriptors, below, inherited{path: doc.Domain, label: doc.Domain})
			}
		}
		wrong = append(wrong, r.problems...)
		if len(warnings) < maxProblems {
			warnings = append(warnings, r.warnings...)
		}
	}
	if len(wrong) > 0 {
		return nil, warnings, wrong
	}
	return c, warnings, nil
}

// reader reads one file, or one resource from an xDS server. Resources have no positions.
type reader struct {
	config  *Config
	modes   Modes
	file    File
	kind    string // "file" or "resource"
	domain  string
	lines   []string
	nodes   int // values read so far
	merging int // nesting depth of merges

	problems, warnings rulefile.Problems
}

const maxProblems = 100

func (r *reader) fail(n *yaml.Node, path, hint, format string, args ...any) {
	if len(r.problems) < maxProblems {
		r.problems = append(r.problems, r.problem(n, path, hint, fmt.Sprintf(format, args...)))
	}
}

func (r *reader) warn(n *yaml.Node, path, format string, args ...any) {
	if len(r.warnings) < maxProblems {
		r.warnings = append(r.warnings, r.problem(n, path, "", fmt.Sprintf(format, args...)))
	}
}

const widest = 160

func (r *reader) problem(n *yaml.Node, path, hint, text string) rulefile.Problem {
	p := rulefile.Problem{File: r.file.Name, Path: path, Text: text, Hint: hint}
	if n != nil {
		p.Line, p.Column = n.Line, n.Column
	}
	if p.Line > 0 && p.Line <= len(r.lines) {
		if line := strings.TrimRight(r.lines[p.Line-1], "\r \t"); len(line) <= widest {
			p.Excerpt, p.Caret = shown.Printable(line), p.Column-1
		}
	}
	return p
}

func (r *reader) read(file File) *Document {
	r.file, r.kind, r.lines = file, "file", strings.Split(string(file.Text), "\n")
	if len(file.Text) > MaxFile {
		r.fail(nil, "", "", "is too large: a configuration file has at most %d MiB", MaxFile>>20)
		return nil
	}
	var text yaml.Node
	if err := yaml.Unmarshal(file.Text, &text); err != nil {
		r.misread(err)
		return nil
	}
	root := &yaml.Node{Kind: yaml.MappingNode, Line: 1, Column: 1} // the root of an empty file
	if len(text.Content) > 0 && text.Content[0].Tag != "!!null" {
		root = text.Content[0]
	}
	if !r.isMap(root, "") {
		return nil
	}
	doc, list := &Document{at: root}, (*yaml.Node)(nil)
	for _, f := range r.fields(root, "", rootKeys) {
		switch f.name {
		case "domain":
			doc.Domain, doc.at = r.text(f), f.value
		case "descriptors":
			list = f.value
		}
	}
	if len(r.problems) > 0 {
		return nil
	}
	if list != nil {
		doc.Descriptors = r.descriptors(list, "descriptors", 0)
	}
	return doc
}

// enter returns the level of a document's domain. If the domain is invalid, it returns nil.
func (r *reader) enter(doc *Document) level {
	r.domain = doc.Domain
	if r.domain == "" {
		r.fail(doc.at, "domain", "", "is missing: name the domain that Envoy sends, such as domain: envoy")
		return nil
	}
	below := r.config.domains[r.domain]
	if below != nil && !r.modes.MergeDomains {
		hint := "put both into one " + r.kind
		if r.kind == "file" {
			hint += ", or have them merged: envoy: {merge_domains: true} in weir.yaml, or MERGE_DOMAIN_CONFIG=true for ratelimit"
		}
		r.fail(doc.at, "domain", hint, "%q is in another %s already", clip(r.domain), r.kind)
		return nil
	}
	if below == nil {
		below = level{}
		r.config.domains[r.domain] = below
	}
	return below
}

// misread reports text that isn't valid YAML. It prefers errors of package rulefile, because they explain more than
// those of the YAML library.
func (r *reader) misread(err error) {
	for _, p := range rulefile.Layout(r.file.Name, r.file.Text) {
		if p.Line > 0 && !strings.Contains(p.Text, "rule") { // rulefile also rejects YAML that only rules must not use
			r.problems = append(r.problems, p)
			return
		}
	}
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	at := &yaml.Node{}
	if where, rest, ok := strings.Cut(text, ": "); ok {
		if _, scanned := fmt.Sscanf(where, "line %d", &at.Line); scanned == nil {
			at.Column, text = 1, rest
		}
	}
	r.fail(at, "", "is a bracket or a quote missing, or a line indented too far?", "is not valid YAML: %s", text)
}

func (r *reader) descriptors(n *yaml.Node, path string, depth int) (list []Descriptor) {
	if !r.deeper(n, path, depth) {
		return nil
	}
	for i, item := range r.items(n, path) {
		list = append(list, r.descriptor(item, fmt.Sprintf("%s[%d]", path, i), depth))
	}
	return list
}

func (r *reader) descriptor(n *yaml.Node, path string, depth int) Descriptor {
	d := Descriptor{path: path, keyAt: n, shareAt: n}
	var rates, metas []field // the merged fields, and then the descriptor's own fields, which override them
	var below field
	for _, f := range r.fields(n, path, descriptorKeys) {
		switch f.name {
		case "key":
			d.Key, d.keyAt = r.text(f), f.value
		case "value":
			d.Value = r.text(f)
		case "rate_limit":
			switch {
			case f.value.Tag == "!!null":
				rates = nil
			case r.isMap(f.value, f.path):
				rates = append(rates, f)
			}
		case "descriptors":
			below = f
		case "metadata":
			metas = append(metas, f)
		case "shadow_mode":
			d.Shadow = r.flag(f)
		case "quota_mode":
			d.Quota = r.flag(f)
		case "share_threshold":
			d.Share, d.shareAt = r.flag(f), f.value
		case "detailed_metric", "value_to_metric":
			d.Detailed = r.flag(f) || d.Detailed // value_to_metric shows only values of the configuration, too: clients' values must never become time series
		}
	}
	if d.Metadata = r.metadata(metas); len(rates) > 0 {
		d.Limit = r.rate(rates)
	}
	if below.value != nil {
		d.Descriptors = r.descriptors(below.value, below.path, depth+1)
	}
	return d
}

// rate reads a rate_limit, whose parts may be merged from several places. Later parts override earlier ones.
func (r *reader) rate(parts []field) *RateLimit {
	w := &RateLimit{path: parts[0].path, unitAt: parts[0].value}
	for _, at := range parts {
		w.at = at.value
		for _, f := range r.fields(at.value, at.path, limitKeys) {
			switch f.name {
			case "name":
				w.Name = r.text(f)
			case "unit":
				w.Unit, w.unitAt = r.text(f), f.value
			case "requests_per_unit":
				w.PerUnit = r.number(f)
			case "unlimited":
				w.Unlimited = r.flag(f)
			case "replaces":
				w.Replaces = r.replaces(f)
			}
		}
	}
	return w
}

func (r *reader) replaces(f field) (list []replacedLimit) {
	for i, item := range r.items(f.value, f.path) {
		o := replacedLimit{at: item}
		for _, f := range r.fields(item, fmt.Sprintf("%s[%d]", f.path, i), replaceKeys) {
			o.name, o.at = r.text(f), f.value
		}
		list = append(list, o)
	}
	return list
}
