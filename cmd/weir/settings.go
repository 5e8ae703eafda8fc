package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/internal/serve"
)

// settingsFile is weir.yaml: every flag by its name, with _ for -, and what has no flag.
type settingsFile struct {
	Identity identitySettings `yaml:"identity"`
	Headers  headerSettings   `yaml:"headers"`
	Refusal  refusalSettings  `yaml:"refusal"`
	// Flags is all the rest.
	Flags map[string]yaml.Node `yaml:",inline"`
}

type identitySettings struct {
	APIKey          httplimit.Source `yaml:"api_key"`
	User            httplimit.Source `yaml:"user"`
	Org             httplimit.Source `yaml:"org"`
	Tier            httplimit.Source `yaml:"tier"`
	JWT             *serve.JWT       `yaml:"jwt"`
	KnownKeys       string           `yaml:"known_keys"`
	TrustUnverified bool             `yaml:"trust_unverified"`
}

type headerSettings struct {
	Dialects []httplimit.Dialect `yaml:"dialects"`
	Names    struct {
		Limit      string `yaml:"limit"`
		Remaining  string `yaml:"remaining"`
		Reset      string `yaml:"reset"`
		ResetAfter string `yaml:"reset_after"`
	} `yaml:"names"`
	Expose bool `yaml:"expose"`
}

type refusalSettings struct {
	Status      int    `yaml:"status"`
	ContentType string `yaml:"content_type"`
	Body        string `yaml:"body"`
}

func (s *settingsFile) apply(c *serve.Config) {
	c.Identity = serve.Identity{
		APIKey: s.Identity.APIKey, User: s.Identity.User, Org: s.Identity.Org, Tier: s.Identity.Tier,
		JWT: s.Identity.JWT, KnownKeysFile: s.Identity.KnownKeys, TrustUnverified: s.Identity.TrustUnverified,
	}
	c.Answers = httplimit.Answers{
		Dialects: s.Headers.Dialects, Names: httplimit.HeaderNames(s.Headers.Names), Expose: s.Headers.Expose,
		Refusal: httplimit.Template{Status: s.Refusal.Status, ContentType: s.Refusal.ContentType, Body: s.Refusal.Body},
	}
}

// settings fills flags that weren't given from the environment and from
// weir.yaml: flag > environment > file. It returns what the file says beside flags.
func settings(flags *pflag.FlagSet, path string, required bool) (*settingsFile, error) {
	var s settingsFile
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && !required {
		text, err = nil, nil
	}
	if err != nil {
		return nil, err
	}
	values, err := s.parse(text, flags)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	var bad error
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Changed || f.Name == "help" || f.Name == "config" {
			return
		}
		env := "WEIR_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		value, ok := os.LookupEnv(env)
		from := env
		if !ok {
			value, ok = values[f.Name]
			from = path + ": " + strings.ReplaceAll(f.Name, "-", "_")
		}
		if ok {
			if err := flags.Set(f.Name, value); err != nil {
				bad = errors.Join(bad, fmt.Errorf("%s: %w", from, err))
			}
		}
	})
	return &s, bad
}

// parse reads the sections into s, and returns the flags that the file sets.
func (s *settingsFile) parse(text []byte, flags *pflag.FlagSet) (map[string]string, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(s); err != nil && err != io.EOF {
		return nil, settingsError(err)
	}
	values := map[string]string{}
	for _, key := range slices.SortedFunc(maps.Keys(s.Flags), func(a, b string) int { return s.Flags[a].Line - s.Flags[b].Line }) {
		node := s.Flags[key]
		name := strings.ReplaceAll(key, "_", "-")
		if flags.Lookup(name) == nil || name == "config" {
			return nil, fmt.Errorf("line %d: there is no setting %q: write one of %s", node.Line, key, strings.Join(settingNames(flags), ", "))
		}
		items := []*yaml.Node{&node}
		if node.Kind == yaml.SequenceNode {
			items = node.Content
		}
		parts := make([]string, len(items))
		for i, item := range items {
			if item.Kind != yaml.ScalarNode || item.Tag == "!!null" {
				return nil, fmt.Errorf("line %d: %s: must be a value", item.Line, key)
			}
			parts[i] = item.Value
		}
		values[name] = strings.Join(parts, ",")
	}
	return values, nil
}

var (
	unknownField = regexp.MustCompile(`field (\S+) not found in type (\S+)`)
	wrongType    = regexp.MustCompile("cannot unmarshal !!\\w+ (`.*` )?into (\\S+)")
)

// settingsError says in the words of weir.yaml what the YAML library says of Go's types.
func settingsError(err error) error {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	var wrong *yaml.TypeError
	if !errors.As(err, &wrong) { // the line may be that of what encloses the fault
		return fmt.Errorf("is not valid YAML near %s: is a bracket or a quote missing, or a line indented too far?", text)
	}
	text = strings.Join(wrong.Errors, "\n")
	text = unknownField.ReplaceAllStringFunc(text, func(s string) string {
		m := unknownField.FindStringSubmatch(s)
		return fmt.Sprintf("there is no setting %q here%s", m[1], sectionFields(m[2]))
	})
	text = wrongType.ReplaceAllStringFunc(text, func(s string) string {
		m := wrongType.FindStringSubmatch(s)
		want, ok := map[string]string{
			"bool": "true or false", "int": "a number", "string": "text", "[]httplimit.Dialect": "a list such as [x-ratelimit, ietf]",
			"main.settingsFile": "settings, a line each, such as http: 127.0.0.1:8080",
		}[m[2]]
		if !ok {
			want = "a map" + sectionFields(m[2])
		}
		return strings.TrimSpace(fmt.Sprintf("must be %s, got %s", want, m[1]))
	})
	return errors.New(strings.TrimSuffix(text, ", got"))
}

// sectionFields lists what can stand in a section, by the name of its type.
func sectionFields(name string) string {
	for _, section := range []any{identitySettings{}, headerSettings{}, refusalSettings{}, httplimit.Source{}, serve.JWT{}} {
		if t := reflect.TypeOf(section); t.String() == name {
			var names []string
			for i := range t.NumField() {
				names = append(names, cmp.Or(t.Field(i).Tag.Get("yaml"), strings.ToLower(t.Field(i).Name)))
			}
			return ": write one of " + strings.Join(names, ", ")
		}
	}
	return ""
}

func settingNames(flags *pflag.FlagSet) []string {
	names := []string{"identity", "headers", "refusal"}
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Name != "help" && f.Name != "config" {
			names = append(names, strings.ReplaceAll(f.Name, "-", "_"))
		}
	})
	slices.Sort(names)
	return names
}
