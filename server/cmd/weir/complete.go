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

// completionTime is how long a shell waits for a node.
const completionTime = time.Second

// complete sets what a shell offers for the value of a flag.
func complete(cmd *cobra.Command, flag string, f cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, f); err != nil {
		panic(err) // there is no such flag
	}
}

// ruleFiles are files that may be rules.
func ruleFiles(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return []cobra.Completion{"yaml", "yml", "json"}, cobra.ShellCompDirectiveFilterFileExt
}

// one offers something for the first argument, and nothing for more.
func one(f cobra.CompletionFunc) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, written string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return f(cmd, args, written)
	}
}

// quietly asks the node for what to offer. Whatever goes wrong, a shell is no place to say so.
func (n *admin) quietly(cmd *cobra.Command, path string) (*answer, error) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTime)
	defer cancel()
	cmd.SetContext(ctx)
	return n.call(cmd, http.MethodGet, path, nil, nil)
}

// ruleIDs are those in force on the node.
func (n *admin) ruleIDs(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var out []cobra.Completion
	if a, err := n.quietly(cmd, "/v1/rules"); err == nil {
		if f, err := rulefile.Parse("rules", a.body); err == nil {
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
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// versions are the newest ones on the node.
func (n *admin) versions(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var out []cobra.Completion
	if a, err := n.quietly(cmd, "/v1/rules/versions?limit=20"); err == nil {
		var page adminapi.Versions
		if a.decode(&page) == nil {
			for _, v := range page.Versions {
				if v.Orphan {
					continue
				}
				words := strings.Join([]string{v.Time.Local().Format(time.DateTime), v.Author, v.Message}, " ")
				out = append(out, cobra.CompletionWithDesc(strconv.FormatInt(v.Number, 10), cell(words)))
			}
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
}
