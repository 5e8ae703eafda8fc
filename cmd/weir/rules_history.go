package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
)

// ruleVersion is one version of the rules, as history lists it.
type ruleVersion struct {
	Version int64
	Author  string
	Time    time.Time
	Message string
}

// words say what the version is, on one line.
func (v *ruleVersion) words() string {
	return strings.Join(strings.Fields(printable(v.Time.Local().Format(time.DateTime)+" "+v.Author+" "+v.Message)), " ")
}

func historyCommand() *cobra.Command {
	var node admin
	var asJSON bool
	var limit int
	cmd := &cobra.Command{
		Use:   "history",
		Short: "List versions of the rules: when, who and why",
		Long: `List versions of the rules, the newest first: when, who and why. weir rules show
--version has the document of one, weir rules diff --from how it was changed since.`,
		Example:           "  weir rules history\n  weir rules history --limit 100 --json",
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 1 {
				return fmt.Errorf("--limit: must be at least 1, got %d", limit)
			}
			all, err := node.history(cmd, limit)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd, map[string]any{"versions": all})
			}
			return printHistory(cmd.OutOrStdout(), all)
		},
	}
	cmd.Flags().IntVar(&limit, "limit", 20, "how many versions")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	node.register(cmd)
	return cmd
}

// history asks for page after page: a node decides how much it tells at once.
func (n *admin) history(cmd *cobra.Command, limit int) ([]json.RawMessage, error) {
	all := []json.RawMessage{}
	var before int64
	for len(all) < limit {
		path := "/v1/rules/versions?limit=" + strconv.Itoa(min(limit-len(all), 50))
		if before > 0 {
			path += "&before=" + strconv.FormatInt(before, 10)
		}
		a, err := n.call(cmd, http.MethodGet, path, nil, nil)
		if err != nil {
			return nil, err
		}
		var page struct{ Versions []json.RawMessage }
		if err := a.decode(&page); err != nil {
			return nil, err
		}
		if len(page.Versions) == 0 {
			break
		}
		var last ruleVersion
		if err := json.Unmarshal(page.Versions[len(page.Versions)-1], &last); err != nil || before > 0 && last.Version >= before {
			return nil, &exit{exitUnavailable, errors.New("the node's history isn't understood: is it a Weir node, of this version?")}
		}
		all, before = append(all, page.Versions...), last.Version
		if before <= 1 {
			break
		}
	}
	return all[:min(len(all), limit)], nil
}

func printHistory(w io.Writer, all []json.RawMessage) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "VERSION\tWHEN\tWHO\tMESSAGE")
	for _, raw := range all {
		var v ruleVersion
		if err := json.Unmarshal(raw, &v); err != nil {
			return &exit{exitUnavailable, err}
		}
		fmt.Fprintf(t, "%d\t%s\t%s\t%s\n", v.Version, v.Time.Local().Format(time.DateTime), cell(v.Author), cell(v.Message))
	}
	return t.Flush()
}

// cell is text of others in a table of one line each.
func cell(text string) string { return printable(strings.Join(strings.Fields(text), " ")) }

func rollbackCommand() *cobra.Command {
	var c change
	cmd := &cobra.Command{
		Use:   "rollback [VERSION]",
		Short: "Put an earlier version of the rules in force again",
		Long: `Put an earlier version of the rules in force again, on all nodes: the one before
the newest, or the one that is named. It becomes a new version, so a rollback can
be undone the same way. The difference goes to stdout, warnings to stderr. Most
don't keep anybody from going back. But blocks, allowances and overrides that the
version doesn't have are listed, and losing them needs --force.

Exit codes are those of weir rules apply.`,
		Example: `  weir rules rollback
  weir rules rollback 41 --dry-run
  weir rules rollback 41 -m "search was too tight"`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: one(c.versions),
		RunE: func(cmd *cobra.Command, args []string) error {
			var version int64
			var header http.Header
			var err error
			if len(args) == 1 {
				if version, err = strconv.ParseInt(args[0], 10, 64); err != nil || version < 1 {
					return fmt.Errorf("VERSION: must be a number as weir rules history has it, got %q", args[0])
				}
			} else {
				var newest int64
				if version, newest, err = c.beforeNewest(cmd); err != nil {
					return err
				}
				header = ifMatch(newest) // what somebody else changed meanwhile isn't undone unseen
			}
			body := map[string]any{"version": version}
			if c.message != "" {
				body["message"], c.message = c.message, ""
			}
			return c.run(cmd, http.MethodPost, "/v1/rules/rollback", body, header, "")
		},
	}
	c.register(cmd)
	return cmd
}

func (n *admin) beforeNewest(cmd *cobra.Command) (before, newest int64, err error) {
	all, err := n.history(cmd, 2)
	if err != nil {
		return 0, 0, err
	}
	if len(all) < 2 {
		return 0, 0, &exit{exitRefused, errors.New("there is no version before this one: nothing to roll back to")}
	}
	var vs [2]ruleVersion
	for i := range vs {
		if err := json.Unmarshal(all[i], &vs[i]); err != nil {
			return 0, 0, &exit{exitUnavailable, err}
		}
	}
	return vs[1].Version, vs[0].Version, nil
}
