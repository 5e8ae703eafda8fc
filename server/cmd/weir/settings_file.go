package main

import (
	"cmp"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/internal/guess"
	"github.com/weirhq/weir/rulefile"
	"github.com/weirhq/weir/server/internal/edge/envoy"
)

// settingsFile is what weir.yaml holds: flags by their names, with _ for -, and the sections, which have no flags.
type settingsFile struct {
	sections
	// flags are the values that the file has for flags. Variables are the environment variables that set flags instead.
	flags, variables map[string]string
	// places are the nodes of values, by their paths, such as http or headers.dialects.
	places map[string]*yaml.Node

	name     string
	lines    []string
	problems rulefile.Problems
}

// readSettings reads weir.yaml. It returns the settings that can be read, and an error with every problem of the others.
func readSettings(name string, text []byte, flags *pflag.FlagSet) (*settingsFile, error) {
	s := &settingsFile{
		flags: map[string]string{}, variables: map[string]string{}, places: map[string]*yaml.Node{},
		name: name, lines: strings.Split(string(text), "\n"),
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		s.misread(text, err)
		return nil, s.problems
	}
	if len(doc.Content) > 0 && doc.Content[0].Tag != "!!null" {
		s.document(doc.Content[0], flags)
	}
	if len(s.problems) > 0 {
		return s, s.problems
	}
	return s, nil
}

// misread notes that the text isn't YAML. The reader of rule files knows the place better than the YAML library.
func (s *settingsFile) misread(text []byte, err error) {
	for _, p := range rulefile.Layout(s.name, text) {
		if p.Line > 0 && !strings.Contains(p.Text, "rule") { // weir.yaml may have what the rule language leaves out
			p.Text, p.Hint = secret.ReplaceAllString(p.Text, "$1…"), secret.ReplaceAllString(p.Hint, "$1…")
			s.add(p)
			return
		}
	}
	s.add(rulefile.Problem{File: s.name, Text: "is not valid YAML near " + strings.TrimPrefix(err.Error(), "yaml: "),
		Hint: "is a bracket or a quote missing, or a line indented too far?"})
}

// secret matches the setting of a token, so that messages don't show the token.
var secret = regexp.MustCompile(`((?:http|admin)[_-]token["']?\s*:?\s*)\S.*`)

// fail notes a problem with a value, or with its name.
func (s *settingsFile) fail(n *yaml.Node, path, hint, format string, args ...any) {
	s.add(rulefile.Problem{File: s.name, Line: n.Line, Column: n.Column, Path: path, Text: fmt.Sprintf(format, args...), Hint: hint})
}

// add notes a problem, with its line unless that may hold a secret.
func (s *settingsFile) add(p rulefile.Problem) {
	p.Excerpt, p.Caret = "", 0
	if p.Line > 0 && p.Line <= len(s.lines) {
		line := strings.ReplaceAll(strings.TrimRight(s.lines[p.Line-1], "\r \t"), "\t", " ")
		above := s.lines[max(p.Line-2, 0)]
		if !strings.Contains(line, "token") && !strings.Contains(above, "token") && !strings.Contains(line, "://") && len(line) <= 200 {
			p.Excerpt, p.Caret = printable(line), p.Column-1
		}
	}
	s.problems = append(s.problems, p)
}

type setting struct {
	name       string
	key, value *yaml.Node
}

// settings returns the entries of a map, each name once.
func (s *settingsFile) settings(n *yaml.Node, path, what string) []setting {
	if n.Kind != yaml.MappingNode {
		s.fail(n, path, "", "must be %s, got %s", what, describe(n))
		return nil
	}
	var list []setting
	lines := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if value.Kind == yaml.AliasNode {
			value = value.Alias
		}
		at := strings.TrimPrefix(path+"."+key.Value, ".")
		if lines[key.Value] > 0 {
			s.fail(key, at, "keep one of them", "is written twice: the first is on line %d", lines[key.Value])
			continue
		}
		lines[key.Value] = key.Line
		s.places[at] = value
		list = append(list, setting{name: key.Value, key: key, value: value})
	}
	return list
}

func (s *settingsFile) document(root *yaml.Node, flags *pflag.FlagSet) {
	sections, names := fields(reflect.ValueOf(&s.sections).Elem())
	flags.VisitAll(func(f *pflag.Flag) {
		if isSetting(f) {
			names = append(names, settingName(f.Name))
		}
	})
	slices.Sort(names)
	for _, e := range s.settings(root, "", "settings, a line each, such as http: 127.0.0.1:8080") {
		section, isSection := sections[e.name]
		switch flag := flags.Lookup(strings.ReplaceAll(e.name, "_", "-")); {
		case isSection:
			s.read(e.value, section, e.name)
		case flag != nil && isSetting(flag):
			s.flag(e, flag)
		default:
			s.unknown(e, e.name, "", names)
		}
	}
}

// unknown notes that there is no setting of that name.
func (s *settingsFile) unknown(e setting, path, in string, names []string) {
	hint := didYouMean(e.name, names, "write one of "+strings.Join(names, ", "))
	if path == "otlp.headers" {
		hint = "they hold secrets: put them into OTEL_EXPORTER_OTLP_HEADERS"
	}
	s.fail(e.key, path, hint, "there is no setting %q%s", e.name, in)
	if p := &s.problems[len(s.problems)-1]; p.Excerpt != "" { // hide the value, which may be a secret
		p.Excerpt = strings.Repeat(" ", p.Caret) + e.name + ": …"
	}
}

func didYouMean(written string, names []string, otherwise string) string {
	if best := guess.Closest(written, names); best != "" {
		return fmt.Sprintf("did you mean %q?", best)
	}
	return otherwise
}

// flag reads the value of a flag. The items of a list are joined by commas.
func (s *settingsFile) flag(e setting, flag *pflag.Flag) {
	items := []*yaml.Node{e.value}
	if e.value.Kind == yaml.SequenceNode {
		items = e.value.Content
	}
	parts := make([]string, len(items))
	for i, item := range items {
		if item.Kind != yaml.ScalarNode || item.Tag == "!!null" {
			_, usage := pflag.UnquoteUsage(flag)
			s.fail(item, e.name, usage, "must be a value, got %s", describe(item))
			return
		}
		parts[i] = item.Value
	}
	s.flags[flag.Name] = strings.Join(parts, ",")
}

// wordEnd matches the places in a Go name where a word ends: trust_unverified is TrustUnverified, api_key is APIKey.
var wordEnd = regexp.MustCompile(`([a-z]|[A-Z]+)([A-Z][a-z])`)

// fields returns the fields of a section by their names in weir.yaml, and the names in order.
func fields(section reflect.Value) (byName map[string]reflect.Value, names []string) {
	byName = map[string]reflect.Value{}
	for f, v := range section.Fields() {
		name := cmp.Or(f.Tag.Get("yaml"), strings.ToLower(wordEnd.ReplaceAllString(f.Name, "${1}_${2}")))
		if name != "-" {
			byName[name], names = v, append(names, name)
		}
	}
	return byName, names
}

var dialects = []string{string(httplimit.XRateLimit), string(httplimit.IETF), string(httplimit.IETF06), string(httplimit.GitHub), string(httplimit.Tokens)}

// wanted describes the values of a field's type.
var wanted = map[reflect.Type]string{
	reflect.TypeFor[bool]():                "true or false",
	reflect.TypeFor[int]():                 "a whole number",
	reflect.TypeFor[float64]():             "a number",
	reflect.TypeFor[string]():              "text",
	reflect.TypeFor[time.Duration]():       "a time with its unit, such as 60s",
	reflect.TypeFor[[]string]():            "a list such as [weir-eu.example:8084]",
	reflect.TypeFor[[]httplimit.Dialect](): "a list such as [x-ratelimit, ietf]",
	reflect.TypeFor[map[string]string]():   "a map such as {client: user}",
	reflect.TypeFor[map[string][]string](): "a map such as {eu: [weir-eu.example:8084]}",
}

func (s *settingsFile) read(n *yaml.Node, v reflect.Value, path string) {
	kind := yaml.ScalarNode
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		s.read(n, v.Elem(), path)
		return
	case reflect.Struct:
		inside, names := fields(v)
		for _, e := range s.settings(n, path, "a map of "+strings.Join(names, ", ")) {
			if field, ok := inside[e.name]; ok {
				s.read(e.value, field, path+"."+e.name)
			} else {
				s.unknown(e, path+"."+e.name, " in "+path, names)
			}
		}
		return
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for _, e := range s.settings(n, path, wanted[v.Type()]) {
			value := reflect.New(v.Type().Elem()).Elem()
			s.read(e.value, value, path+"."+e.name)
			v.SetMapIndex(reflect.ValueOf(e.name), value)
		}
		return
	case reflect.Slice:
		kind = yaml.SequenceNode
	}
	if n.Kind != kind || n.Tag == "!!null" || n.Decode(v.Addr().Interface()) != nil {
		s.fail(n, path, "", "must be %s, got %s", wanted[v.Type()], describe(n))
		return
	}
	if v.Type() != reflect.TypeFor[[]httplimit.Dialect]() {
		return
	}
	for _, item := range n.Content {
		if !slices.Contains(dialects, item.Value) {
			s.fail(item, path, didYouMean(item.Value, dialects, ""), "must be one of %s, got %s", strings.Join(dialects, ", "), describe(item))
		}
	}
}

// describe says what a node is, without showing a token.
func describe(n *yaml.Node) string { return secret.ReplaceAllString(envoy.Describe(n), "$1…") }
