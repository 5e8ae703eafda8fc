package envoy

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"go.yaml.in/yaml/v3"

	"github.com/weirhq/weir/rulefile"
)

// File is a configuration file in envoyproxy/ratelimit's language.
type File struct {
	Name string
	Text []byte
}

// Bounds of a configuration. They are far above what people write, and keep a hostile file from
// taking the node's memory.
const (
	MaxFile  = 16 << 20   // bytes of a file
	maxNodes = 1_000_000  // values that a file may have, each counted as often as aliases repeat it
	maxDepth = MaxEntries // descriptors below each other: no request has more
)

// Parse reads configuration files, which are one configuration together. The error is everything
// that is wrong with them, with file, line and column. Warnings are of keys that are understood, but
// mean nothing where they stand.
func Parse(files []File, modes Modes) (c *Config, warnings rulefile.Problems, err error) {
	c = &Config{domains: map[string]level{}}
	var wrong rulefile.Problems
	for _, f := range files {
		r := &reader{config: c, modes: modes, file: f, lines: strings.Split(string(f.Text), "\n")}
		r.read()
		wrong, warnings = append(wrong, r.problems...), append(warnings, r.warnings...)
	}
	if len(wrong) > 0 {
		return nil, warnings, wrong
	}
	return c, warnings, nil
}

// reader reads one file.
type reader struct {
	config  *Config
	modes   Modes
	file    File
	domain  string
	lines   []string
	nodes   int // that were looked at
	merging int // how deep

	problems, warnings rulefile.Problems
}

// maxProblems is how many are remembered of a file.
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

// widest is the longest line that a problem shows.
const widest = 160

func (r *reader) problem(n *yaml.Node, path, hint, text string) rulefile.Problem {
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
		r.fail(&yaml.Node{}, "", "", "is too large: a configuration file has at most %d MiB", MaxFile>>20)
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
	domain := r.domain
	if domain == "" {
		r.fail(at, "domain", "", "is missing: name the domain that Envoy sends, such as domain: envoy")
		return
	}
	below := r.config.domains[domain]
	if below != nil && !r.modes.MergeDomains {
		r.fail(at, "domain", "put both into one file", "%q is in another file already", domain)
		return
	}
	if below == nil {
		below = level{}
		r.config.domains[domain] = below
	}
	if list != nil {
		r.descriptors(list, "descriptors", below, above{path: domain, label: domain})
	}
}

// misread notes what isn't YAML. The library knows little about it; the reader of rule files knows more.
func (r *reader) misread(err error) {
	for _, p := range rulefile.Layout(r.file.Name, r.file.Text) {
		if p.Line > 0 && !strings.Contains(p.Text, "rule") { // the rule language leaves out some of YAML
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

// descriptors reads a list of them into a level.
func (r *reader) descriptors(n *yaml.Node, path string, into level, up above) {
	if len(up.patterns) >= maxDepth {
		r.fail(n, path, "", "descriptors are nested more than %d deep", maxDepth)
		return
	}
	for i, item := range r.items(n, path) {
		r.descriptor(item, fmt.Sprintf("%s[%d]", path, i), into, up)
	}
}

// above is what descriptors inherit.
type above struct {
	path     string
	label    string   // see limit
	patterns []string // see limit
}

func (r *reader) descriptor(n *yaml.Node, path string, into level, up above) {
	var key, value string
	var rate, below, meta field
	var shadow, quota, share, detailed bool
	keyAt, shareAt := n, n
	for _, f := range r.fields(n, path, descriptorKeys) {
		switch f.name {
		case "key":
			key, keyAt = r.text(f), f.value
		case "value":
			value = r.text(f)
		case "rate_limit":
			rate = f
		case "descriptors":
			below = f
		case "metadata":
			meta = f
		case "shadow_mode":
			shadow = r.flag(f)
		case "quota_mode":
			quota = r.flag(f)
		case "share_threshold":
			share, shareAt = r.flag(f), f.value
		case "detailed_metric", "value_to_metric":
			detailed = r.flag(f) || detailed // the configuration's value: a client's values make no series
		}
	}
	switch {
	case key == "":
		r.fail(keyAt, path+".key", "", "is missing: a descriptor has a key, such as key: remote_address")
		return
	case strings.Contains(key, "*"):
		r.fail(keyAt, path+".key", "put it into the value", "wildcards are for values, not for keys")
		return
	case share && !strings.Contains(value, "*"):
		r.fail(shareAt, path+".share_threshold", "", "is for values with a *: all that match it share one counter")
		return
	}
	d := &descriptor{path: up.path + "." + key, below: level{}}
	if value != "" {
		d.path += "_" + value
	}
	if !into.add(key, value, d) {
		r.fail(keyAt, path, "keep one of them", "the descriptor %q is there twice", clip(d.path))
		return
	}
	pattern := ""
	if share {
		pattern = value
	}
	// The values of a configuration may be keys of clients, and thousands: they are in no label unasked.
	label := up.label + "." + key
	if detailed && value != "" {
		label += "_" + value
	}
	here := above{d.path, label, append(slices.Clone(up.patterns), pattern)}
	if rate.value != nil {
		if d.limit = r.limit(rate, label); d.limit != nil {
			d.limit.shadow, d.limit.quota, d.limit.patterns = shadow, quota, here.patterns
			if meta.value != nil {
				d.limit.metadata = r.metadata(meta)
			}
			d.limit.soften(r.modes)
			r.config.limits++
		}
	}
	if below.value != nil {
		r.descriptors(below.value, below.path, d.below, here)
	}
}

// add adds a descriptor, unless there is one of this key and value.
func (l level) add(key, value string, d *descriptor) bool {
	c := l[key]
	if c == nil {
		c = &choices{exact: map[string]*descriptor{}}
		l[key] = c
	}
	switch {
	case value == "":
		if c.any != nil {
			return false
		}
		c.any = d
	case strings.Contains(value, "*"):
		if slices.ContainsFunc(c.wild, func(o *descriptor) bool { return o.path == d.path }) {
			return false
		}
		d.parts = strings.Split(value, "*")
		c.wild = append(c.wild, d)
	default:
		if c.exact[value] != nil {
			return false
		}
		c.exact[value] = d
	}
	return true
}

// limit reads a rate_limit.
func (r *reader) limit(at field, rule string) *limit {
	if at.value.Tag == "!!null" || !r.isMap(at.value, at.path) {
		return nil
	}
	var name, unit string
	var perUnit uint32
	var unlimited bool
	var replaces field
	unitAt := at.value
	before := len(r.problems)
	for _, f := range r.fields(at.value, at.path, limitKeys) {
		switch f.name {
		case "name":
			name = r.text(f)
		case "unit":
			unit, unitAt = r.text(f), f.value
		case "requests_per_unit":
			perUnit = r.number(f)
		case "unlimited":
			unlimited = r.flag(f)
		case "replaces":
			replaces = f
		}
	}
	number, known := rls.RateLimitResponse_RateLimit_Unit_value[strings.ToUpper(unit)]
	known = known && number != 0
	switch {
	case unlimited && known:
		r.fail(unitAt, at.path+".unit", "leave it out", "an unlimited rate_limit has no unit")
	case !unlimited && !known:
		r.fail(unitAt, at.path+".unit", "", "must be second, minute, hour, day, week, month or year, got %q", clip(unit))
	}
	names := r.replaced(replaces, name)
	if len(r.problems) > before {
		return nil
	}
	if unlimited {
		return &limit{replaces: names, wire: &rls.RateLimitResponse_RateLimit{Name: name}}
	}
	if name != "" {
		rule = r.domain + "." + name
	}
	l, err := newLimit(label(rule), name, perUnit, rls.RateLimitResponse_RateLimit_Unit(number))
	if err != nil {
		r.fail(at.value, at.path, "", "%v", err)
		return nil
	}
	l.replaces = names
	return l
}

// replaced reads the names of limits that one replaces.
func (r *reader) replaced(at field, own string) (names []string) {
	if at.value == nil {
		return nil
	}
	for i, item := range r.items(at.value, at.path) {
		path := fmt.Sprintf("%s[%d]", at.path, i)
		name, nameAt := "", item
		for _, f := range r.fields(item, path, replaceKeys) {
			name, nameAt = r.text(f), f.value
		}
		switch {
		case name == "":
			r.fail(nameAt, path+".name", "", "is missing: name the limit that this one replaces")
		case name == own:
			r.fail(nameAt, path+".name", "", "a limit can't replace itself")
		}
		names = append(names, name)
	}
	return names
}
