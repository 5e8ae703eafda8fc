// Command weir runs nodes of the rate limiter, and has the tools for operators.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"runtime/debug"
	"strings"
	"syscall"
	_ "time/tzdata" // so that rules can name time zones even if the machine has no time zone data

	"github.com/spf13/cobra"
)

// version is set by make build. With go install, the module's version is used.
var version string

func init() {
	if version != "" {
		return
	}
	version = "dev"
	if b, ok := debug.ReadBuildInfo(); ok && b.Main.Version != "" && b.Main.Version != "(devel)" {
		version = b.Main.Version
	}
}

// Exit codes, for scripts.
const (
	exitRefused     = 1 // also if problems were found
	exitUsage       = 2 // also for errors without a code, an unreadable file, and a missing or wrong token
	exitUnavailable = 3
)

// exit is an error with an exit code. If the error has already been printed, its cause is nil.
type exit struct {
	code  int
	cause error
}

func (e *exit) Error() string {
	if e.cause == nil {
		return fmt.Sprint("exit ", e.code)
	}
	return e.cause.Error()
}

func (e *exit) Unwrap() error { return e.cause }

// rejected returns an error with the exit code for rejected input, such as invalid rules.
func rejected(err error) error {
	if err == nil {
		return nil
	}
	return &exit{exitRefused, err}
}

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	name, cmd := "weir", root()
	if isRatelimit(os.Args[0]) {
		name, cmd = ratelimitName, ratelimitCommand()
	}
	out := &output{File: os.Stdout}
	cmd.SetOut(out)
	err := cmp.Or(execute(ctx, cmd), out.err)
	if err == nil {
		return 0
	}
	var e *exit
	if !errors.As(err, &e) {
		e = &exit{exitUsage, err}
	}
	if e.cause != nil {
		fmt.Fprintln(os.Stderr, name+":", redact(e.cause.Error()))
	}
	return e.code
}

// output is standard output. It remembers the first error, so that commands needn't check each print for errors.
type output struct {
	*os.File
	err error
}

func (o *output) Write(text []byte) (int, error) {
	n, err := o.File.Write(text)
	o.err = cmp.Or(o.err, err)
	return n, err
}

// execute runs a command. In contrast to cobra, it treats help for a nonexistent command as an error.
func execute(ctx context.Context, cmd *cobra.Command) error {
	done, err := cmd.ExecuteContextC(ctx)
	if err == nil && done.Flags().Changed("help") {
		err = unknown(done, done.Flags().Args())
	}
	return err
}

// redact removes passwords from URLs in an error text. Errors of libraries contain URLs, for example in lines of
// weir.yaml.
func redact(text string) string {
	const example = "://user:password@" // this example is not a secret
	parts := strings.Split(text, example)
	for i, p := range parts {
		parts[i] = sentinelPassword.ReplaceAllString(userInfo.ReplaceAllString(p, "://…@"), "sentinel_password=…")
	}
	return strings.Join(parts, example)
}

var (
	userInfo         = regexp.MustCompile(`://.*@`)
	sentinelPassword = regexp.MustCompile(`sentinel_password=[^&\s"]*`)
)

func root() *cobra.Command {
	cmd := group("weir",
		demoCommand(), serveCommand(), checkCommand(), explainCommand(), topCommand(), tailCommand(), nodesCommand(), regionsCommand(), benchCommand(), versionCommand(),
		group("rules", lintCommand(), showCommand(), applyCommand(), putRuleCommand(), removeRuleCommand(), tierCommand(), diffCommand(), historyCommand(),
			rollbackCommand(), usageCommand(), whatIfCommand()),
		group("keys", overrideCommand(), listCommand("keys block", denylist), listCommand("keys allow", allowlist), keysBlocksCommand(), keysShowCommand(),
			keysResetCommand(), keysReleaseCommand(), keysCooldownsCommand(), keysLiftCommand()),
		group("import", importEnvoyCommand(), importNginxCommand()))
	asProgram(cmd)
	cmd.SetFlagErrorFunc(flagError)
	print := cmd.HelpFunc()
	cmd.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		if unknown(cmd, cmd.Flags().Args()) == nil {
			print(cmd, args)
		}
	})
	cmd.SetHelpCommand(helpCommand())
	return cmd
}

// asProgram configures a command that isn't a subcommand. main prints its errors.
func asProgram(cmd *cobra.Command) {
	cmd.SilenceUsage, cmd.SilenceErrors, cmd.Version = true, true, version
	cmd.SetVersionTemplate("weir {{.Version}}\n")
}

// meant maps commands that people may try to the commands that they mean.
var meant = map[string]string{
	"weir keys unblock": "weir keys block KEY --remove", "weir keys undeny": "weir keys block KEY --remove",
	"weir keys unallow": "weir keys allow PATTERN --remove", "weir keys disallow": "weir keys allow PATTERN --remove",
	"weir keys deny": "weir keys block KEY", "weir regions remove": removeRegion, "weir regions delete": removeRegion, "weir regions rm": removeRegion,
}

const removeRegion = "weir regions drain REGION, or weir regions forget REGION if it is dead"

// unknown returns the error for a command that only has subcommands but was given other arguments.
func unknown(cmd *cobra.Command, args []string) error {
	if len(args) == 0 || !cmd.HasSubCommands() {
		return nil
	}
	var names []string
	for _, c := range cmd.Commands() {
		names = append(names, c.Name())
	}
	path := cmd.CommandPath() + " " + args[0]
	if other, ok := meant[path]; ok {
		return fmt.Errorf("there is no command %q: write %s", path, other)
	}
	return fmt.Errorf("there is no command %q: %s", path, instead(cmd, args[0], names, cmd.CommandPath()+" "))
}

// helpCommand is like cobra's help command, but treats help for an unknown command as an error.
func helpCommand() *cobra.Command {
	cmd := command("help", func(cmd *cobra.Command, args []string) error {
		found, rest, err := cmd.Root().Find(args)
		if err == nil {
			err = unknown(found, rest)
		}
		if err != nil {
			return err
		}
		found.InitDefaultHelpFlag()
		return found.Help()
	})
	cmd.Args = cobra.ArbitraryArgs // the arguments are the words of a command's name
	return cmd
}

func versionCommand() *cobra.Command {
	var asJSON jsonFlag
	return command("version", func(cmd *cobra.Command, _ []string) error {
		if asJSON {
			return printJSON(cmd, map[string]string{"version": version})
		}
		fmt.Fprintln(cmd.OutOrStdout(), "weir", version)
		return nil
	}, &asJSON)
}
