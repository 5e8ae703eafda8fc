package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/internal/guess"
	"github.com/weirhq/weir/rulefile"
	"github.com/weirhq/weir/server/internal/edge/envoy"
	"github.com/weirhq/weir/server/internal/observe/otlp"
	"github.com/weirhq/weir/server/internal/serve"
	"go.yaml.in/yaml/v3"
)

// sections are the settings in weir.yaml that have no flags. A field without a tag has its name in lower case with
// underscores there: TrustUnverified is trust_unverified.
type sections struct {
	Identity serve.Identity
	Headers  struct {
		Dialects []httplimit.Dialect
		Names    httplimit.HeaderNames
		Expose   bool
	}
	Refusal httplimit.Template
	OTLP    otlp.Config
	Envoy   serve.Envoy
	Regions serve.Region
}

func (s *sections) apply(c *serve.Config) {
	c.Identity, c.OTLP, c.Envoy = s.Identity, s.OTLP, s.Envoy
	s.Regions.Name = cmp.Or(c.Region.Name, s.Regions.Name) // the flag takes precedence
	c.Region = s.Regions
	c.Answers = httplimit.Answers{Dialects: s.Headers.Dialects, Names: s.Headers.Names, Expose: s.Headers.Expose, Refusal: s.Refusal}
}

// settings sets the flags that weren't given on the command line, from the environment and from weir.yaml. The
// environment takes precedence.
func settings(flags *pflag.FlagSet, path string, required bool) (*settingsFile, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && !required {
		text, err = nil, nil
	}
	if err != nil {
		return nil, missing(fmt.Errorf("--config: %w", err))
	}
	s, bad := readSettings(path, text, flags)
	if s == nil {
		return nil, bad
	}
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Changed || !isSetting(f) {
			delete(s.flags, f.Name)
			return
		}
		value, ok := s.flags[f.Name]
		if text, given := os.LookupEnv(variable(f.Name)); given {
			s.variables[f.Name], value, ok = variable(f.Name), text, true
		}
		if !ok {
			return
		}
		if err := flags.Set(f.Name, value); err != nil {
			bad = errors.Join(bad, s.blame(flagError(nil, err)))
		}
	})
	return s, bad
}

// warnOfVariables logs warnings about environment variables that look like settings but aren't, such as misspelled
// ones.
func warnOfVariables(log *slog.Logger, flags *pflag.FlagSet, environ []string) {
	known := slices.Clone(clientVariables)
	flags.VisitAll(func(f *pflag.Flag) {
		if isSetting(f) {
			known = append(known, variable(f.Name))
		}
	})
	slices.Sort(environ)
	for _, v := range environ {
		name, value, _ := strings.Cut(v, "=")
		if !strings.HasPrefix(name, "WEIR_") || slices.Contains(known, name) || serviceLink(name, value) {
			continue
		}
		best := guess.Closest(name, known)
		hint := cmp.Or(given(best != "", "did you mean "+best+"?"), "weir serve --help lists the flags, and each is a variable, too, as --memory-cap is WEIR_MEMORY_CAP")
		log.Warn("this variable isn't a setting, and does nothing", "variable", name, "hint", hint)
	}
}

func variable(flag string) string { return "WEIR_" + strings.ToUpper(settingName(flag)) }

// isSetting reports whether a flag can also be set in weir.yaml and in the environment.
func isSetting(f *pflag.Flag) bool { return f.Name != "help" && f.Name != "config" }

func settingName(flag string) string { return strings.ReplaceAll(flag, "-", "_") }

// blame adds to an error about a flag or a section where the value was set, unless that was on the command line.
func (s *settingsFile) blame(err error) error {
	text, isFlag := strings.CutPrefix(err.Error(), "--")
	name, rest, ok := strings.Cut(text, ": ")
	switch {
	case !ok:
		return err
	case isFlag && s.variables[name] != "":
		return fmt.Errorf("%s: %s", s.variables[name], rest)
	case isFlag:
		name = settingName(name)
		if _, set := s.flags[strings.ReplaceAll(name, "_", "-")]; !set {
			return err
		}
	}
	if s.places[name] == nil {
		return err
	}
	// Extend the name while the text goes on with the name of a nested setting: an error that begins with "refusal:
	// status:" is about the setting refusal.status.
	for {
		part, after, ok := strings.Cut(rest, ": ")
		if !ok || s.places[name+"."+part] == nil {
			break
		}
		name, rest = name+"."+part, after
	}
	s.fail(s.places[name], name, "", "%s", rest)
	return s.problems[len(s.problems)-1:]
}

// settingsFile is the content of weir.yaml. It has flags, by their names with _ instead of -, and sections, which are
// settings without flags.
type settingsFile struct {
	sections
	// flags are the values of flags that the file sets. variables are the environment variables that set other flags,
	// by flag.
	flags, variables map[string]string
	// places are the YAML nodes of values, by paths such as http or headers.dialects.
	places map[string]*yaml.Node

	name     string
	lines    []string
	problems rulefile.Problems
}

// readSettings parses weir.yaml. It returns all valid settings, and an error with the problems of all others.
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
		known := s.fields(reflect.ValueOf(&s.sections).Elem(), "")
		flags.VisitAll(func(f *pflag.Flag) {
			if isSetting(f) {
				known[settingName(f.Name)] = func(e setting) { s.flag(e, f) }
			}
		})
		s.section(doc.Content[0], "", "settings, a line each, such as http: 127.0.0.1:8080", known)
	}
	if len(s.problems) > 0 {
		return s, s.problems
	}
	return s, nil
}

// misread reports invalid YAML. For some errors, package rulefile finds the line and column more exactly than the YAML
// library.
func (s *settingsFile) misread(text []byte, err error) {
	for _, p := range rulefile.Layout(s.name, text) {
		if p.Line > 0 && !strings.Contains(p.Text, "rule") { // skip what only rule files forbid: weir.yaml may use more of YAML
			p.Text, p.Hint = secret.ReplaceAllString(p.Text, "$1…"), secret.ReplaceAllString(p.Hint, "$1…")
			s.add(p)
			return
		}
	}
	s.add(rulefile.Problem{File: s.name, Text: "is not valid YAML near " + strings.TrimPrefix(err.Error(), "yaml: "),
		Hint: "is a bracket or a quote missing, or a line indented too far?"})
}

// secret matches the setting of a token, so that it can be hidden in messages.
var secret = regexp.MustCompile(`((?:http|admin)[_-]token["']?\s*:?\s*)\S.*`)

// fail reports a problem with a value, or with the name of a setting.
func (s *settingsFile) fail(n *yaml.Node, path, hint, format string, args ...any) {
	s.add(rulefile.Problem{File: s.name, Line: n.Line, Column: n.Column, Path: path, Text: fmt.Sprintf(format, args...), Hint: hint})
}

// add adds a problem. It shows the line of the file, unless that may contain a secret.
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

// settings returns the entries of a map. It reports a repeated name as a problem.
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

func (s *settingsFile) section(n *yaml.Node, path, what string, known map[string]func(setting)) {
	names, in := slices.Sorted(maps.Keys(known)), given(path != "", " in "+path)
	for _, e := range s.settings(n, path, cmp.Or(what, "a map of "+strings.Join(names, ", "))) {
		if read := known[settingName(e.name)]; read != nil {
			read(e)
		} else {
			s.unknown(e, strings.TrimPrefix(path+"."+e.name, "."), in, names)
		}
	}
}

func (s *settingsFile) unknown(e setting, path, in string, names []string) {
	hint := cmp.Or(guess.Hint(e.name, names), "write one of "+strings.Join(names, ", "))
	if path == "otlp.headers" {
		hint = "they hold secrets: put them into OTEL_EXPORTER_OTLP_HEADERS"
	}
	s.fail(e.key, path, hint, "there is no setting %q%s", e.name, in)
	if p := &s.problems[len(s.problems)-1]; p.Excerpt != "" { // hide the value, because it may be a secret
		p.Excerpt = strings.Repeat(" ", p.Caret) + e.name + ": …"
	}
}

// flag sets a flag from the file. It joins the items of a list with commas.
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

// wordEnd matches the end of a word in the name of a Go field: TrustUnverified becomes trust_unverified, and APIKey
// becomes api_key.
var wordEnd = regexp.MustCompile(`([a-z]|[A-Z]+)([A-Z][a-z])`)

// fields returns functions that set the fields of a section, by the fields' names in weir.yaml.
func (s *settingsFile) fields(section reflect.Value, path string) map[string]func(setting) {
	readers := map[string]func(setting){}
	for f, v := range section.Fields() {
		name := cmp.Or(f.Tag.Get("yaml"), strings.ToLower(wordEnd.ReplaceAllString(f.Name, "${1}_${2}")))
		if name != "-" {
			readers[name] = func(e setting) { s.read(e.value, v, strings.TrimPrefix(path+"."+e.name, ".")) }
		}
	}
	return readers
}

var dialects = []string{string(httplimit.XRateLimit), string(httplimit.IETF), string(httplimit.IETF06), string(httplimit.GitHub), string(httplimit.Tokens)}

// wanted describes the valid values of each type.
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
		s.section(n, path, "", s.fields(v, path))
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
			s.fail(item, path, guess.Hint(item.Value, dialects), "must be one of %s, got %s", strings.Join(dialects, ", "), describe(item))
		}
	}
}

// describe describes the value of a node. It doesn't show a token.
func describe(n *yaml.Node) string { return secret.ReplaceAllString(envoy.Describe(n), "$1…") }
