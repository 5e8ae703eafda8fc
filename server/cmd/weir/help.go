package main

import (
	_ "embed"
	"strings"

	"github.com/spf13/cobra"
)

// helpText holds the help of every command: "# ", its path and its arguments; a line for the list of commands; and, each
// after an empty line, the text and the examples.
//
//go:embed help.txt
var helpText string

// flagged is something with flags that several commands have.
type flagged interface{ register(*cobra.Command) }

// command returns the command that help.txt describes under a path. It takes the arguments that are named there.
func command(path string, run func(*cobra.Command, []string) error, flags ...flagged) *cobra.Command {
	cmd := &cobra.Command{RunE: run}
	for section := range strings.SplitSeq(strings.TrimPrefix(helpText, "# "), "\n# ") {
		head, text, _ := strings.Cut(section, "\n")
		arguments, found := strings.CutPrefix(head, path)
		if !found || arguments != strings.ToUpper(arguments) { // a subcommand
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

// group returns a command that only holds subcommands. It takes arguments in order to suggest what they may have meant.
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
