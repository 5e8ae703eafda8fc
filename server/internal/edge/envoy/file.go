package envoy

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/weirhq/weir/rulefile"
)

// File is a configuration file in envoyproxy/ratelimit's language.
type File struct {
	Name string
	Text []byte
}

// Bounds of a configuration. They are far above real ones, and keep a hostile file from using up
// the node's memory.
const (
	MaxFile  = 16 << 20   // bytes of a file
	maxNodes = 1_000_000  // values in a file, counted as often as aliases repeat them
	maxDepth = MaxEntries // levels of descriptors: no request has more
)

// Parse reads configuration files, which together are one configuration. The error has everything
// that is wrong with them, with file, line and column. Warnings are about keys that have no meaning
// where they are.
func Parse(files []File, modes Modes) (c *Config, warnings rulefile.Problems, err error) {
	return compile(len(files), modes, func(r *reader, i int) {
		r.file, r.kind, r.lines = files[i], "file", strings.Split(string(files[i].Text), "\n")
		r.read()
	})
}

func compile(n int, modes Modes, read func(r *reader, i int)) (c *Config, warnings rulefile.Problems, err error) {
	c = &Config{domains: map[string]level{}}
	var wrong rulefile.Problems
	for i := 0; i < n && len(wrong) < maxProblems; i++ {
		r := &reader{config: c, modes: modes}
		read(r, i)
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

// reader reads one file, or one resource of an xDS server. A resource has no lines, so positions in
// it are nil.
type reader struct {
	config  *Config
	modes   Modes
	file    File
	kind    string // "file" or "resource"
	domain  string
	lines   []string
	nodes   int // values read so far
	merging int // depth of merges

	problems, warnings rulefile.Problems
}

// maxProblems bounds the problems that are remembered of a file.
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
	if n == nil {
		return rulefile.Problem{File: r.file.Name, Path: path, Text: text, Hint: hint}
	}
	p := rulefile.Problem{File: r.file.Name, Line: n.Line, Column: n.Column, Path: path, Text: text, Hint: hint}
	if n.Line > 0 && n.Line <= len(r.lines) {
		line := strings.ReplaceAll(strings.TrimRight(r.lines[n.Line-1], "\r \t"), "\t", " ")
		if len(line) <= widest && strings.IndexFunc(line, func(c rune) bool { return !strconv.IsPrint(c) || c == utf8.RuneError }) < 0 {
			p.Excerpt, p.Caret = line, n.Column-1
		}
	}
	return p
}

func (r *reader) read() {
	if len(r.file.Text) > MaxFile {
		r.fail(nil, "", "", "is too large: a configuration file has at most %d MiB", MaxFile>>20)
		return
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(r.file.Text, &doc); err != nil {
		r.misread(err)
		return
	}
	root := &yaml.Node{Kind: yaml.MappingNode, Line: 1, Column: 1} // of an empty file
	if len(doc.Content) > 0 && doc.Content[0].Tag != "!!null" {
		root = doc.Content[0]
	}
	if !r.isMap(root, "") {
		return
	}
	at, list := root, (*yaml.Node)(nil)
	for _, f := range r.fields(root, "", rootKeys) {
		switch f.name {
		case "domain":
			r.domain, at = r.text(f), f.value
		case "descriptors":
			list = f.value
		}
	}
	if len(r.problems) > 0 {
		return
	}
	if below := r.enter(at); below != nil && list != nil {
		r.descriptors(list, "descriptors", below, r.top())
	}
}

// enter returns the level of the reader's domain, or nil if it can't.
func (r *reader) enter(at *yaml.Node) level {
	if r.domain == "" {
		r.fail(at, "domain", "", "is missing: name the domain that Envoy sends, such as domain: envoy")
		return nil
	}
	below := r.config.domains[r.domain]
	if below != nil && !r.modes.MergeDomains {
		hint := "put both into one " + r.kind
		if r.kind == "file" {
			hint += ", or have them merged: envoy: {merge_domains: true} in weir.yaml, or MERGE_DOMAIN_CONFIG=true for ratelimit"
		}
		r.fail(at, "domain", hint, "%q is in another %s already", clip(r.domain), r.kind)
		return nil
	}
	if below == nil {
		below = level{}
		r.config.domains[r.domain] = below
	}
	return below
}

// misread reports text that isn't YAML. The rule file reader explains more errors than the YAML
// library.
func (r *reader) misread(err error) {
	for _, p := range rulefile.Layout(r.file.Name, r.file.Text) {
		if p.Line > 0 && !strings.Contains(p.Text, "rule") { // the rule language leaves out parts of YAML
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

// descriptors reads a list of descriptors into a level.
func (r *reader) descriptors(n *yaml.Node, path string, into level, up inherited) {
	if !r.deeper(n, path, up) {
		return
	}
	for i, item := range r.items(n, path) {
		r.descriptor(item, fmt.Sprintf("%s[%d]", path, i), into, up)
	}
}

func (r *reader) descriptor(n *yaml.Node, path string, into level, up inherited) {
	e := descriptorSpec{keyAt: n, shareAt: n}
	var rates, metas []field // merged ones first, then the descriptor's own, which win
	var below field
	for _, f := range r.fields(n, path, descriptorKeys) {
		switch f.name {
		case "key":
			e.key, e.keyAt = r.text(f), f.value
		case "value":
			e.value = r.text(f)
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
			e.shadow = r.flag(f)
		case "quota_mode":
			e.quota = r.flag(f)
		case "share_threshold":
			e.share, e.shareAt = r.flag(f), f.value
		case "detailed_metric", "value_to_metric":
			e.detailed = r.flag(f) || e.detailed // of the configuration: values of clients never become time series
		}
	}
	d, here := r.place(&e, path, into, up)
	if d == nil {
		return
	}
	if meta := r.metadata(metas); len(rates) > 0 {
		r.limit(d, &e, r.rate(rates), rates[0].path, here)
		if d.limit != nil {
			d.limit.metadata = meta
		}
	}
	if below.value != nil {
		d.below = level{}
		r.descriptors(below.value, below.path, d.below, here)
	}
}

// rate reads a rate_limit. Later parts override earlier ones.
func (r *reader) rate(parts []field) (w limitSpec) {
	for _, at := range parts {
		w.at = at.value
		if w.unitAt == nil {
			w.unitAt = at.value
		}
		for _, f := range r.fields(at.value, at.path, limitKeys) {
			switch f.name {
			case "name":
				w.name = r.text(f)
			case "unit":
				w.unit, w.unitAt = r.text(f), f.value
			case "requests_per_unit":
				w.perUnit = r.number(f)
			case "unlimited":
				w.unlimited = r.flag(f)
			case "replaces":
				w.replaces = r.replaces(f)
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
