package main

import (
	_ "embed"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// helpText has a section for each command: its path and arguments, a line for lists of commands, the text and examples.
//
//go:embed help.txt
var helpText string

// flagged is a set of flags that several commands share.
type flagged interface{ register(*cobra.Command) }

// command returns the command that is described in help.txt under a path. It accepts the arguments that are listed
// there.
func command(path string, run func(*cobra.Command, []string) error, flags ...flagged) *cobra.Command {
	cmd := &cobra.Command{RunE: run}
	for section := range strings.SplitSeq(strings.TrimPrefix(helpText, "# "), "\n# ") {
		head, text, _ := strings.Cut(section, "\n")
		arguments, found := strings.CutPrefix(head, path)
		if !found || arguments != strings.ToUpper(arguments) { // it is a subcommand
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

// flagGroup is a group of a command's flags, with a title.
type flagGroup struct {
	title string
	flags []string
}

var serveGroups = []flagGroup{
	{"Ports", []string{"http", "grpc", "admin", "metrics", "gateway"}},
	{"Rules", []string{"rules", "seed-rules", "data", "ipv4-prefix", "ipv6-prefix"}},
	{"Store", []string{"store", "store-prefix", "store-timeout", "emergency-limit", "memory-cap"}},
	{"Regions", []string{"region", "region-timeout"}},
	{"Gateway", []string{"upstream", "allow-unsafe-paths", "preflight-limit", "max-waiting", "connections-per-ip", "usage-header"}},
	{"Envoy", []string{"envoy-config", "grpc-reflection"}},
	{"Who may ask", []string{"http-token", "admin-token", "admin-tokens", "trusted-proxies", "tls-cert", "tls-key", "tls-client-ca", "grpc-tls-cert", "grpc-tls-key", "http-client-ca", "grpc-client-ca", "grpc-client-san", "admin-client-ca"}},
	{"Seeing what it does", []string{"decision-log", "decision-log-sample", "budget-webhook", "budget-webhook-token-file", "budget-full-names", "log-format", "log-level", "pprof"}},
	{"Running", []string{"config", "max-in-flight", "drain-notice", "drain-timeout"}},
	{"Other", []string{"help"}},
}

// inGroups makes the help of a command show its flags in groups.
func inGroups(cmd *cobra.Command, groups []flagGroup) {
	cmd.SetUsageFunc(func(cmd *cobra.Command) error {
		out := cmd.OutOrStdout()
		fmt.Fprintf(out, "Usage:\n  %s\n\nExamples:\n%s\n", cmd.UseLine(), cmd.Example)
		for _, g := range groups {
			set := pflag.NewFlagSet("", pflag.ContinueOnError)
			set.SortFlags = false
			for _, name := range g.flags {
				set.AddFlag(cmd.Flags().Lookup(name))
			}
			fmt.Fprintf(out, "\n%s:\n%s", g.title, set.FlagUsages())
		}
		return nil
	})
}
