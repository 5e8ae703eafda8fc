package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/spf13/pflag"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/internal/serve"
)

// settingsFile is weir.yaml: every flag by its name, with _ for -, and what has no flag.
type settingsFile struct {
	Identity identitySettings `yaml:"identity"`
	Headers  headerSettings   `yaml:"headers"`
	Refusal  refusalSettings  `yaml:"refusal"`
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
	file, err := parser.ParseBytes(text, 0)
	if err != nil {
		return nil, yamlError(err)
	}
	values := map[string]string{}
	if len(file.Docs) == 0 || file.Docs[0].Body == nil {
		return values, nil
	}
	var all []*ast.MappingValueNode
	switch body := file.Docs[0].Body.(type) {
	case *ast.MappingNode:
		all = body.Values
	case *ast.MappingValueNode:
		all = []*ast.MappingValueNode{body}
	case *ast.NullNode, *ast.CommentGroupNode:
	default:
		return nil, errors.New("must be settings, a line each, such as `http: 127.0.0.1:8080`")
	}
	into := map[string]any{"identity": &s.Identity, "headers": &s.Headers, "refusal": &s.Refusal}
	for _, item := range all {
		key, at := item.Key.String(), item.Key.GetToken().Position
		if section, ok := into[key]; ok {
			if err := yaml.NodeToValue(item.Value, section, yaml.Strict()); err != nil {
				return nil, yamlError(err)
			}
			continue
		}
		name := strings.ReplaceAll(key, "_", "-")
		if flags.Lookup(name) == nil || name == "config" {
			return nil, fmt.Errorf("line %d: there is no setting %q: write one of %s", at.Line, key, strings.Join(settingNames(flags), ", "))
		}
		var value any
		if err := yaml.NodeToValue(item.Value, &value); err != nil {
			return nil, yamlError(err)
		}
		switch v := value.(type) {
		case []any:
			parts := make([]string, len(v))
			for i := range v {
				parts[i] = fmt.Sprint(v[i])
			}
			values[name] = strings.Join(parts, ",")
		case string, bool, int64, uint64, float64:
			values[name] = fmt.Sprint(v)
		default:
			return nil, fmt.Errorf("line %d: %s: must be a value", at.Line, key)
		}
	}
	return values, nil
}

// yamlError shows the place, as the library formats it.
func yamlError(err error) error { return errors.New(yaml.FormatError(err, false, true)) }

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
