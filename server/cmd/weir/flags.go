package main

import (
	"cmp"
	_ "embed"
	"fmt"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/weirhq/weir/internal/guess"
)

// flagError rewrites an error of pflag so that it says what to do.
func flagError(cmd *cobra.Command, err error) error {
	switch e := err.(type) {
	case *pflag.NotExistError:
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		if letters := e.GetSpecifiedShortnames(); len(letters) > 1 { // such as -http, which pflag reads as several short flags
			return fmt.Errorf("a flag has two dashes: %s", instead(cmd, letters, names, "--"))
		}
		return fmt.Errorf("%w: %s", err, instead(cmd, e.GetSpecifiedName(), names, "--"))
	case *pflag.ValueRequiredError:
		_, usage := pflag.UnquoteUsage(e.GetFlag())
		return fmt.Errorf("--%s: needs a value: %s", e.GetFlag().Name, usage)
	case *pflag.InvalidValueError:
		return fmt.Errorf("--%s: %s", e.GetFlag().Name, wrongValue(e))
	}
	return err
}

// instead suggests the name that is closest to one that doesn't exist.
func instead(cmd *cobra.Command, written string, names []string, prefix string) string {
	if best := guess.Closest(written, names); best != "" {
		return fmt.Sprintf("did you mean %s?", prefix+best)
	}
	return fmt.Sprintf("see %s --help", cmd.CommandPath())
}

// wrongValue returns an error that says which values a flag accepts.
func wrongValue(e *pflag.InvalidValueError) string {
	kind, got, normally := e.GetFlag().Value.Type(), e.GetValue(), e.GetFlag().DefValue
	want := map[string]string{"int": "a whole number", "int64": "a whole number", "float64": "a number", "bool": "true or false"}[kind]
	hint := ""
	switch {
	case kind == "duration" && normally == "0s": // the default 0s means off, so don't show it as an example
		want = "a time with its unit, such as 50ms or 2s"
	case kind == "duration":
		want = "a time with its unit, such as " + normally
		hint = given(isNumber(got), ": did you mean "+got+strings.TrimLeft(normally, "0123456789.")+"?")
	case want == "": // flags with types of this package have their own error texts
		return e.Unwrap().Error()
	}
	return fmt.Sprintf("must be %s, got %q%s", want, got, hint)
}

// parsed is the value of a flag whose type pflag doesn't support.
type parsed[T any] struct {
	into  *T
	kind  string // name of the type, for the help
	parse func(text string) (T, error)
	show  func(T) string // formats the default value for the help; nil if there is none to show
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
	other := otherLevels[strings.ToLower(text)]
	return 0, fmt.Errorf("must be debug, info, warn or error, got %q%s", text, given(other != "", ": write "+other))
}

type jsonFlag bool

func (j *jsonFlag) register(cmd *cobra.Command) {
	cmd.Flags().BoolVar((*bool)(j), "json", false, "print JSON")
}

// takes returns a check of the number of arguments. Its errors show the command's Use line.
func takes(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		_, names, _ := strings.Cut(cmd.Use, " ")
		switch {
		case len(args) < least:
			return fmt.Errorf("%s is missing: write %s %s", strings.Trim(names, "[]."), cmd.CommandPath(), names)
		case len(args) > most && cmd.HasSubCommands():
			return unknown(cmd, args)
		case len(args) > most && most == 0:
			hint := given(cmd.Flags().Lookup("rules") != nil && isRuleFile(args[0]), "did you mean --rules "+args[0]+"?")
			return fmt.Errorf("%s takes no arguments: %s", cmd.CommandPath(), cmp.Or(hint, "see "+cmd.CommandPath()+" --help"))
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

// helpText has a section for each command. A section has the command's path and arguments, a line for lists of
// commands, the text, and examples.
//
//go:embed help.txt
var helpText string

// flagged is implemented by sets of flags that several commands share.
type flagged interface{ register(*cobra.Command) }

// command returns the command that help.txt describes for a path, with the arguments that are listed there.
func command(path string, run func(*cobra.Command, []string) error, flags ...flagged) *cobra.Command {
	cmd := &cobra.Command{RunE: run}
	for section := range strings.SplitSeq(strings.TrimPrefix(helpText, "# "), "\n# ") {
		head, text, _ := strings.Cut(section, "\n")
		arguments, found := strings.CutPrefix(head, path)
		if !found || arguments != strings.ToUpper(arguments) { // arguments in lower case are a subcommand's name
			continue
		}
		text, cmd.Example, _ = strings.Cut(strings.TrimRight(text, "\n"), "\n\nExamples:\n")
		cmd.Short, cmd.Long, _ = strings.Cut(text, "\n\n")
		cmd.Use = path[strings.LastIndex(path, " ")+1:] + arguments
		names := strings.Count(arguments, " ")
		if cmd.Args = takes(names-strings.Count(arguments, "["), names); strings.HasSuffix(arguments, "...") {
			cmd.Args = cobra.ArbitraryArgs
		}
	}
	for _, f := range flags {
		f.register(cmd)
	}
	return cmd
}

// group returns a command that only has subcommands. It accepts arguments, so that it can suggest the right subcommand.
func group(path string, subcommands ...*cobra.Command) *cobra.Command {
	cmd := command(path, func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		return unknown(cmd, args)
	})
	cmd.Args = cobra.ArbitraryArgs
	cmd.AddCommand(subcommands...)
	return cmd
}

// serveGroups are the flags of weir serve in groups, each with a title.
var serveGroups = []string{
	"Ports: http grpc admin metrics gateway",
	"Rules: rules seed-rules data ipv4-prefix ipv6-prefix",
	"Store: store store-prefix store-timeout emergency-limit memory-cap",
	"Regions: region region-timeout",
	"Gateway: upstream allow-unsafe-paths preflight-limit max-waiting connections-per-ip usage-header",
	"Envoy: envoy-config grpc-reflection",
	"Who may ask: http-token admin-token admin-tokens trusted-proxies tls-cert tls-key tls-client-ca grpc-tls-cert grpc-tls-key http-client-ca grpc-client-ca grpc-client-san admin-client-ca",
	"Seeing what it does: decision-log decision-log-sample budget-webhook budget-webhook-token-file budget-full-names log-format log-level pprof",
	"Running: config max-in-flight drain-notice drain-timeout",
	"Other: help",
}

// serveUsage prints how weir serve is used, with its flags in groups.
func serveUsage(cmd *cobra.Command) error {
	out := cmd.OutOrStdout()
	fmt.Fprintf(out, "Usage:\n  %s\n\nExamples:\n%s\n", cmd.UseLine(), cmd.Example)
	for _, g := range serveGroups {
		title, names, _ := strings.Cut(g, ": ")
		set := pflag.NewFlagSet("", pflag.ContinueOnError)
		set.SortFlags = false
		for name := range strings.FieldsSeq(names) {
			set.AddFlag(cmd.Flags().Lookup(name))
		}
		fmt.Fprintf(out, "\n%s:\n%s", title, set.FlagUsages())
	}
	return nil
}

// complete sets the function that completes the values of a flag. It panics if there is no such flag.
func complete(cmd *cobra.Command, flag string, f cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, f); err != nil {
		panic(err)
	}
}

func fixed(values ...string) cobra.CompletionFunc {
	return cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)
}

func ruleFiles(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return []cobra.Completion{"yaml", "yml", "json"}, cobra.ShellCompDirectiveFilterFileExt
}
