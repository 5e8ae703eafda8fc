package main

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/weirhq/weir/internal/guess"
)

// flagError rewrites an error of pflag so that it says what to do.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) {
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		if letters := unknown.GetSpecifiedShortnames(); len(letters) > 1 { // such as -http, which pflag reads as several short flags
			return fmt.Errorf("a flag has two dashes: %s", instead(cmd, letters, names, "--"))
		}
		return fmt.Errorf("%w: %s", err, instead(cmd, unknown.GetSpecifiedName(), names, "--"))
	}
	var missing *pflag.ValueRequiredError
	if errors.As(err, &missing) {
		_, usage := pflag.UnquoteUsage(missing.GetFlag())
		return fmt.Errorf("--%s: needs a value: %s", missing.GetFlag().Name, usage)
	}
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) {
		return fmt.Errorf("--%s: %s", invalid.GetFlag().Name, wrongValue(invalid))
	}
	return err
}

// instead suggests the closest of the existing names for one that doesn't exist.
func instead(cmd *cobra.Command, written string, names []string, prefix string) string {
	if best := guess.Closest(written, names); best != "" {
		return fmt.Sprintf("did you mean %s?", prefix+best)
	}
	return fmt.Sprintf("see %s --help", cmd.CommandPath())
}

// wrongValue says which values a flag accepts.
func wrongValue(e *pflag.InvalidValueError) string {
	kind, got, normally := e.GetFlag().Value.Type(), e.GetValue(), e.GetFlag().DefValue
	want := map[string]string{"int": "a whole number", "int64": "a whole number", "float64": "a number", "bool": "true or false"}[kind]
	hint := ""
	switch {
	case kind == "duration" && normally == "0s": // the default 0s means off, so don't show it as an example
		want = "a time with its unit, such as 50ms or 2s"
	case kind == "duration":
		want = "a time with its unit, such as " + normally
		if isNumber(got) {
			hint = fmt.Sprintf(": did you mean %s?", got+strings.TrimLeft(normally, "0123456789."))
		}
	case want == "": // types of this package have their own error texts
		return e.Unwrap().Error()
	}
	return fmt.Sprintf("must be %s, got %q%s", want, got, hint)
}

// parsed is the value of a flag whose type pflag doesn't support.
type parsed[T any] struct {
	into  *T
	kind  string // the name of the type in the help
	parse func(text string) (T, error)
	show  func(T) string // formats the default value; nil if there is none to show
}

func (p parsed[T]) Set(text string) (err error) {
	*p.into, err = p.parse(text)
	return err
}

func (p parsed[T]) String() string {
	if p.show == nil {
		return ""
	}
	return p.show(*p.into)
}

func (p parsed[T]) Type() string { return p.kind }

// otherLevels maps log levels of other programs to Weir's.
var otherLevels = map[string]string{
	"verbose": "debug", "trace": "debug", "all": "debug", "notice": "info",
	"warning": "warn", "critical": "error", "fatal": "error", "panic": "error", "quiet": "error", "off": "error", "none": "error",
}

func parseLevel(text string) (level slog.Level, err error) {
	if level.UnmarshalText([]byte(text)) == nil {
		return level, nil
	}
	hint := ""
	if other := otherLevels[strings.ToLower(text)]; other != "" {
		hint = ": write " + other
	}
	return 0, fmt.Errorf("must be debug, info, warn or error, got %q%s", text, hint)
}

// jsonFlag is the flag --json.
type jsonFlag bool

func (j *jsonFlag) register(cmd *cobra.Command) {
	cmd.Flags().BoolVar((*bool)(j), "json", false, "print JSON")
}

// takes checks the number of arguments. Its errors show the command's Use line.
func takes(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		_, names, _ := strings.Cut(cmd.Use, " ")
		switch {
		case len(args) < least:
			return fmt.Errorf("%s is missing: write %s %s", strings.Trim(names, "[]."), cmd.CommandPath(), names)
		case len(args) > most && cmd.HasSubCommands():
			return unknown(cmd, args)
		case len(args) > most && most == 0:
			hint := "see " + cmd.CommandPath() + " --help"
			if cmd.Flags().Lookup("rules") != nil && isRuleFile(args[0]) {
				hint = "did you mean --rules " + args[0] + "?"
			}
			return fmt.Errorf("%s takes no arguments: %s", cmd.CommandPath(), hint)
		case len(args) > most: // don't quote the arguments, since they may include keys
			return fmt.Errorf("%s takes %s, got %d arguments: quote one that has blanks in it", cmd.CommandPath(), names, len(args))
		}
		return nil
	}
}

func isRuleFile(name string) bool {
	return strings.HasSuffix(name, ".yaml") || strings.HasSuffix(name, ".yml") || strings.HasSuffix(name, ".json")
}

// isNumber reports whether a text has only digits, such as a port without an address.
func isNumber(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}
