package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/internal/guess"
	"github.com/weirhq/weir/server/internal/observe/otlp"
	"github.com/weirhq/weir/server/internal/serve"
)

// sections are the settings of weir.yaml that have no flag. A field TrustUnverified is trust_unverified, unless it has a tag.
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
	s.Regions.Name = cmp.Or(c.Region.Name, s.Regions.Name) // the flag goes first
	c.Region = s.Regions
	c.Answers = httplimit.Answers{Dialects: s.Headers.Dialects, Names: s.Headers.Names, Expose: s.Headers.Expose, Refusal: s.Refusal}
}

// settings fills the flags that weren't given, from the environment and from weir.yaml: flag > environment > file.
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

// warnOfVariables warns of variables that look like settings and aren't, such as misspelled ones.
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
		hint := "weir serve --help lists the flags, and each is a variable, too, as --memory-cap is WEIR_MEMORY_CAP"
		if best := guess.Closest(name, known); best != "" {
			hint = fmt.Sprintf("did you mean %s?", best)
		}
		log.Warn("this variable isn't a setting, and does nothing", "variable", name, "hint", hint)
	}
}

func variable(flag string) string { return "WEIR_" + strings.ToUpper(settingName(flag)) }

// isSetting reports whether a flag can also be set in weir.yaml and in the environment.
func isSetting(f *pflag.Flag) bool { return f.Name != "help" && f.Name != "config" }

func settingName(flag string) string { return strings.ReplaceAll(flag, "-", "_") }

// blame adds to an error about a flag or a section where that was set, unless it was in the command line.
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
	// "refusal: status: must be …" is about refusal.status.
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
