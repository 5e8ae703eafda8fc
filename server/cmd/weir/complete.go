package main

import (
	"cmp"
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/weirhq/weir/rulefile"
	adminapi "github.com/weirhq/weir/server/internal/admin"
)

// completionTime is how long shell completion waits for a node's response.
const completionTime = time.Second

// complete sets the function that completes the values of a flag. It panics if there is no such
// flag.
func complete(cmd *cobra.Command, flag string, f cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, f); err != nil {
		panic(err)
	}
}

func fixed(values ...string) cobra.CompletionFunc {
	return cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)
}

// ruleFiles completes names of files that may contain rules.
func ruleFiles(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return []cobra.Completion{"yaml", "yml", "json"}, cobra.ShellCompDirectiveFilterFileExt
}

// each completes each argument with its own function, and doesn't complete further arguments.
func each(functions ...cobra.CompletionFunc) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, written string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) >= len(functions) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return functions[len(args)](cmd, args, written)
	}
}

// soon limits how long the command may run, because completion must not block the shell.
func soon(cmd *cobra.Command) (cancel func()) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTime)
	cmd.SetContext(ctx)
	return cancel
}

// ruleIDs completes the ids of the rules in force on the node.
func (n *adminPort) ruleIDs(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var f *rulefile.File
	defer soon(cmd)()
	a, err := n.call(cmd, http.MethodGet, "/v1/rules", nil, nil)
	if err == nil {
		f, err = rulefile.Parse("rules", a.body)
	}
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []cobra.Completion
	for _, r := range f.Rules.Rules {
		var limits []string
		for _, l := range r.Limits {
			if l.Count > 0 {
				limits = append(limits, l.String())
			}
		}
		otherwise := "numbers of its tiers"
		if r.Descriptor != nil {
			otherwise = "numbers of Envoy's configuration"
		}
		out = append(out, cobra.CompletionWithDesc(r.ID, cmp.Or(strings.Join(limits, " and "), otherwise)))
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// versions completes the newest versions of the rules on the node.
func (n *adminPort) versions(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var out []cobra.Completion
	defer soon(cmd)()
	page, _, _ := get[adminapi.Versions](n, cmd, http.MethodGet, "/v1/rules/versions?limit=20", nil, nil) // without a response, there is nothing to complete
	for _, v := range page.Versions {
		if !v.Orphan {
			words := strings.Join([]string{clock(v.Time), v.Author, v.Message}, " ")
			out = append(out, cobra.CompletionWithDesc(strconv.FormatInt(v.Number, 10), cell(words)))
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
}
