package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/internal/guess"
	"github.com/weirhq/weir/server/internal/edge/envoy"
	"github.com/weirhq/weir/server/internal/observe/otlp"
	"github.com/weirhq/weir/server/internal/serve"
)

// sections are what weir.yaml has beside flags.
type sections struct {
	Identity identitySettings `yaml:"identity"`
	Headers  headerSettings   `yaml:"headers"`
	Refusal  refusalSettings  `yaml:"refusal"`
	OTLP     otlp.Config      `yaml:"otlp"`
	Envoy    envoySettings    `yaml:"envoy"`
	Regions  serve.Region     `yaml:"regions"`
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

// envoySettings are how Envoy's rate limit service answers.
type envoySettings struct {
	Headers     *bool `yaml:"headers"`
	HeaderNames struct {
		Limit     string `yaml:"limit"`
		Remaining string `yaml:"remaining"`
		Reset     string `yaml:"reset"`
	} `yaml:"header_names"`
	DynamicMetadata bool              `yaml:"dynamic_metadata"`
	ShadowMode      bool              `yaml:"shadow_mode"`
	QuotaMode       bool              `yaml:"quota_mode"`
	MergeDomains    bool              `yaml:"merge_domains"`
	StartWithout    bool              `yaml:"start_without_config"`
	MaxAge          time.Duration     `yaml:"max_connection_age"`
	MaxAgeGrace     time.Duration     `yaml:"max_connection_age_grace"`
	Attributes      map[string]string `yaml:"attributes"`
	XDS             *xdsSettings      `yaml:"xds"`
}

// xdsSettings are where the limits of Envoy's rate limit service come from, if that is an xDS server.
type xdsSettings struct {
	Server     string `yaml:"server"`
	Node       string `yaml:"node"`
	MaxMessage int    `yaml:"max_message_bytes"`
	TLS        *struct {
		CA         string `yaml:"ca"`
		Cert       string `yaml:"cert"`
		Key        string `yaml:"key"`
		ServerName string `yaml:"server_name"`
	} `yaml:"tls"`
}

func (s *sections) apply(c *serve.Config) {
	c.Identity = serve.Identity{
		APIKey: s.Identity.APIKey, User: s.Identity.User, Org: s.Identity.Org, Tier: s.Identity.Tier,
		JWT: s.Identity.JWT, KnownKeysFile: s.Identity.KnownKeys, TrustUnverified: s.Identity.TrustUnverified,
	}
	c.OTLP = s.OTLP
	s.Regions.Name = cmp.Or(c.Region.Name, s.Regions.Name) // the flag goes first
	c.Region = s.Regions
	c.Answers = httplimit.Answers{
		Dialects: s.Headers.Dialects, Names: httplimit.HeaderNames(s.Headers.Names), Expose: s.Headers.Expose,
		Refusal: httplimit.Template{Status: s.Refusal.Status, ContentType: s.Refusal.ContentType, Body: s.Refusal.Body},
	}
	e := &s.Envoy
	c.Envoy = serve.Envoy{
		NoHeaders: e.Headers != nil && !*e.Headers, DynamicMetadata: e.DynamicMetadata, Attributes: e.Attributes,
		MaxConnectionAge: e.MaxAge, MaxConnectionAgeGrace: e.MaxAgeGrace, StartWithout: e.StartWithout,
		Modes: envoy.Modes{Shadow: e.ShadowMode, Quota: e.QuotaMode, MergeDomains: e.MergeDomains},
	}
	if x := e.XDS; x != nil {
		c.EnvoyXDS = &envoy.XDS{Server: x.Server, Node: x.Node, MaxMessage: x.MaxMessage, TLS: (*envoy.TLSFiles)(x.TLS)}
	}
	c.Envoy.Names.Limit, c.Envoy.Names.Remaining, c.Envoy.Names.Reset = e.HeaderNames.Limit, e.HeaderNames.Remaining, e.HeaderNames.Reset
}

// settings fills flags that weren't given from the environment and from
// weir.yaml: flag > environment > file. It returns what the file says, and where.
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
		env := variable(f.Name)
		value, ok := os.LookupEnv(env)
		if ok {
			s.variables[f.Name] = env
		} else {
			value, ok = s.flags[f.Name]
		}
		if ok {
			if err := flags.Set(f.Name, value); err != nil {
				bad = errors.Join(bad, s.blame(flagError(nil, err)))
			}
		}
	})
	return s, bad
}

// kubernetes are the variables that it sets in containers beside a service called weir.
var kubernetes = regexp.MustCompile(`^WEIR_(.*_)?(SERVICE_HOST|SERVICE_PORT.*|PORT|PORT_\d+_(TCP|UDP|SCTP).*)$`)

// warnOfVariables names variables that look like settings and are none: a mistyped one would be missed only when it is needed.
func warnOfVariables(log *slog.Logger, flags *pflag.FlagSet, environ []string) {
	known := slices.Clone(clientVariables)
	flags.VisitAll(func(f *pflag.Flag) {
		if isSetting(f) {
			known = append(known, variable(f.Name))
		}
	})
	slices.Sort(environ)
	for _, v := range environ {
		name, _, _ := strings.Cut(v, "=")
		if !strings.HasPrefix(name, "WEIR_") || slices.Contains(known, name) || kubernetes.MatchString(name) {
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

// isSetting: the flag is one in weir.yaml and in the environment, too.
func isSetting(f *pflag.Flag) bool { return f.Name != "help" && f.Name != "config" }

func settingName(flag string) string { return strings.ReplaceAll(flag, "-", "_") }

// blame says of an error about a flag or a section where that was set, if it wasn't in the command.
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
