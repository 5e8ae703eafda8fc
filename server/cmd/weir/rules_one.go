package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"
	adminapi "github.com/weirhq/weir/server/internal/admin"
)

func putRuleCommand() *cobra.Command {
	var c change
	cmd := &cobra.Command{
		Use:   "put ID FILE",
		Short: "Replace one rule, or add it, on all nodes",
		Long: `Replace one of the rules in force, or add it at the end, on all nodes. The file has
the fields of the rule, as under rules:; - reads standard input. Every other byte of
the rules stays as it is, comments included. The change applies to the newest
version.

Exit codes are those of weir rules apply.`,
		Example: `  weir rules put search search.yaml --dry-run
  echo '{match: {endpoint: /v1/search}, limit: 60/minute}' | weir rules put search - -m "twice as much"`,
		Args: takes(2, 2),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
			switch len(args) {
			case 0:
				return c.ruleIDs(cmd, args, typed)
			case 1:
				return ruleFiles(cmd, args, typed)
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := readRules(cmd, args[1])
			if err != nil {
				return err
			}
			// Problems may be in the rule or in what it makes of the document, so their file is called as the node calls it.
			return c.run(cmd, http.MethodPut, "/v1/rules/id/"+url.PathEscape(args[0]), text, nil, "")
		},
	}
	c.register(cmd)
	return cmd
}

func removeRuleCommand() *cobra.Command {
	var c change
	cmd := &cobra.Command{
		Use:   "remove ID",
		Short: "Take one rule away, on all nodes",
		Long: `Take one rule away from those in force, with its overrides, on all nodes. Every
other byte of the rules stays as it is.

Exit codes are those of weir rules apply.`,
		Example:           "  weir rules remove search --dry-run\n  weir rules remove search -m \"the endpoint is gone\"",
		Args:              takes(1, 1),
		ValidArgsFunction: one(c.ruleIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.run(cmd, http.MethodDelete, "/v1/rules/id/"+url.PathEscape(args[0]), nil, nil, "")
		},
	}
	c.register(cmd)
	return cmd
}

func tierCommand() *cobra.Command {
	var c change
	var limit string
	var burst int64
	cmd := &cobra.Command{
		Use:   "tier NAME",
		Short: "Change the numbers of a tier, on all nodes",
		Long: `Change the numbers of a tier on all nodes, and so those of the rules that take
theirs from it. A limit without a window, such as 500, keeps the tier's window.

Exit codes are those of weir rules apply.`,
		Example:           "  weir rules tier pro --limit 2000/minute --burst 500 -m launch\n  weir rules tier free --limit 50 --dry-run",
		Args:              takes(1, 1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			var body adminapi.Numbers
			switch given := cmd.Flags().Changed; {
			case !given("limit") && !given("burst"):
				return errors.New("give --limit, such as 500/minute, or --burst")
			case given("burst") && burst < 1:
				return fmt.Errorf("--burst: must be at least 1, got %d", burst)
			case given("limit"):
				var wanted any = limit
				if n, err := strconv.ParseInt(limit, 10, 64); err == nil {
					wanted = n
				}
				var err error
				if body.Limit, err = json.Marshal(wanted); err != nil {
					return err
				}
			}
			body.Capacity = burst
			return c.run(cmd, http.MethodPut, "/v1/rules/tier/"+url.PathEscape(args[0]), body, nil, "")
		},
	}
	f := cmd.Flags()
	f.StringVar(&limit, "limit", "", "the tier's limit, such as 500/minute or 500")
	f.Int64Var(&burst, "burst", 0, "how much of it at once (default: as the tier has it)")
	for _, name := range []string{"limit", "burst"} {
		complete(cmd, name, cobra.NoFileCompletions)
	}
	c.register(cmd)
	return cmd
}
