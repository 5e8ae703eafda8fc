package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
	adminapi "github.com/weirhq/weir/server/internal/admin"
	"github.com/weirhq/weir/server/internal/observe/top"
)

func usageCommand() *cobra.Command {
	var node admin
	var asJSON bool
	var by string
	var clients int
	cmd := &cobra.Command{
		Use:   "usage [RULE]",
		Short: "Show how rules were used in the last hour, and by whom",
		Long: `Show how each rule was used in the last hour, over all nodes: the requests that it
applied to, what it refused, and how many keys have used 50%, 80% and 100% of their
limit. For a single rule, show the keys that used it the most, masked. A key is
whatever the rule counts by.

Nodes remember the thousand busiest keys of a rule. COVERAGE is the share of the
rule's requests that those made.`,
		Example:           "  weir rules usage\n  weir rules usage orders\n  weir rules usage orders --by refused --clients 20 --json",
		Args:              takes(0, 1),
		ValidArgsFunction: one(node.ruleIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				if cmd.Flags().Changed("by") || cmd.Flags().Changed("clients") {
					return errors.New("--by, --clients: are of one rule: name it")
				}
				return usageOfRules(cmd, &node, asJSON)
			}
			q := url.Values{"by": {by}, "k": {fmt.Sprint(clients)}}
			a, err := node.call(cmd, http.MethodGet, "/v1/rules/usage/"+url.PathEscape(args[0])+"?"+q.Encode(), nil, nil)
			if err != nil {
				return err
			}
			var u top.HourOfRule
			if err := a.decode(&u); err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd, json.RawMessage(a.body))
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s in the last hour, %s refused; %s made %s of them\n", cell(u.Rule), count(int(u.Requests), "request"), whole(u.Refused), count(u.Keys, "key"), percent(u.Coverage))
			rows := [][]string{{"CLIENT", "FINGERPRINT", "KIND", "REQUESTS", "REFUSED", "USED"}}
			for _, c := range u.Clients {
				rows = append(rows, []string{cell(c.Client), cell(c.Fingerprint), cell(c.Kind), whole(c.Requests), whole(c.Refused), percent(c.Used)})
			}
			printRows(cmd.OutOrStdout(), rows, 3)
			missingNodes(cmd, u.Partial, u.NodesMissing)
			return nil
		},
	}
	cmd.Flags().StringVar(&by, "by", "requests", "sort keys by requests or refused")
	cmd.Flags().IntVar(&clients, "clients", 50, "how many keys, up to 1000")
	complete(cmd, "by", cobra.FixedCompletions([]cobra.Completion{"requests", "refused"}, cobra.ShellCompDirectiveNoFileComp))
	complete(cmd, "clients", cobra.NoFileCompletions)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the node's answer")
	node.register(cmd)
	return cmd
}

func usageOfRules(cmd *cobra.Command, node *admin, asJSON bool) error {
	a, err := node.call(cmd, http.MethodGet, "/v1/rules/usage", nil, nil)
	if err != nil {
		return err
	}
	var u top.HourOfRules
	if err := a.decode(&u); err != nil {
		return err
	}
	if asJSON {
		return printJSON(cmd, json.RawMessage(a.body))
	}
	ago := func(t *time.Time) string {
		if t == nil {
			return "never seen"
		}
		return short(u.At.Sub(*t)) + " ago"
	}
	rows := [][]string{{"RULE", "REQUESTS", "REFUSED", "IN SHADOW", "KEYS", ">=50%", ">=80%", "USED UP", "LAST HIT", "LAST REFUSAL", "COVERAGE"}}
	for _, r := range u.Rules {
		rows = append(rows, []string{cell(r.Rule), whole(r.Requests), whole(r.Refused), whole(r.WouldRefuse), fmt.Sprint(r.Keys),
			fmt.Sprint(r.Above50), fmt.Sprint(r.Above80), fmt.Sprint(r.Above100), ago(r.LastHit), ago(r.LastRefusal), percent(r.Coverage)})
	}
	printRows(cmd.OutOrStdout(), rows, 1)
	missingNodes(cmd, u.Partial, u.NodesMissing)
	return nil
}

func whatIfCommand() *cobra.Command {
	var node admin
	var asJSON bool
	var limit, algorithm string
	var burst int64
	cmd := &cobra.Command{
		Use:   "whatif RULE",
		Short: "Say what another limit would have refused in the last hour",
		Long: `Estimate what a rule would have refused in the last hour under another limit, and of
which keys. It counts again what the rule's busiest keys sent to all nodes, and
changes nothing. The estimate assumes that requests were spread evenly over each ten
seconds, and that every counter was untouched an hour ago.

To try a limit on real traffic, give the rule a candidate.`,
		Example: `  weir rules whatif search --limit 50/minute
  weir rules whatif search --limit 50 --burst 10
  weir rules whatif search --limit 50/minute --algorithm sliding_window_log --json`,
		Args:              takes(1, 1),
		ValidArgsFunction: one(node.ruleIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit == "" && !cmd.Flags().Changed("burst") {
				return errors.New("--limit: is missing: give a limit such as 50/minute")
			}
			body := adminapi.WhatIf{Rule: args[0], Algorithm: algorithm}
			body.Capacity = burst
			if limit != "" {
				text, err := json.Marshal(limit)
				if err != nil {
					return err
				}
				body.Limit = text
			}
			a, err := node.call(cmd, http.MethodPost, "/v1/rules/whatif", body, nil)
			if err != nil {
				return err
			}
			var w adminapi.WhatIfAnswer
			if err := a.decode(&w); err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd, json.RawMessage(a.body))
			}
			printWhatIf(cmd, &w)
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&limit, "limit", "", "the other limit, such as 50/minute, or 50, which keeps the rule's window")
	f.Int64Var(&burst, "burst", 0, "how much of it at once (default: as much as the limit)")
	f.StringVar(&algorithm, "algorithm", "", "the other algorithm (default: the rule's)")
	f.BoolVar(&asJSON, "json", false, "print the node's answer")
	for _, name := range []string{"limit", "burst"} {
		complete(cmd, name, cobra.NoFileCompletions)
	}
	complete(cmd, "algorithm", cobra.FixedCompletions([]cobra.Completion{"token_bucket", "leaky_bucket", "leaky_queue", "fixed_window", "sliding_window_log", "sliding_window_counter"}, cobra.ShellCompDirectiveNoFileComp))
	node.register(cmd)
	return cmd
}

func printWhatIf(cmd *cobra.Command, w *adminapi.WhatIfAnswer) {
	words := cmd.ErrOrStderr()
	fmt.Fprintf(words, "at %s, %s would have refused %s of %s in the last hour; it refused %s\n", w.Limit, cell(w.Rule), between(w.WouldRefuse, w.AtMost), count(int(w.Requests), "request"), whole(w.WasRefused))
	fmt.Fprintf(words, "%d of %s would have been refused something; those keys made %s of the rule's requests\n", w.KeysRefused, count(w.Keys, "key"), percent(w.Coverage))
	for _, n := range w.Notes {
		fmt.Fprintln(words, "note:", cell(n))
	}
	missingNodes(cmd, w.Partial, w.Missing)
	if len(w.Clients) == 0 {
		return
	}
	rows := [][]string{{"CLIENT", "FINGERPRINT", "KIND", "REQUESTS", "WOULD REFUSE", "REFUSED"}}
	for _, c := range w.Clients {
		rows = append(rows, []string{cell(c.Client), cell(c.Fingerprint), cell(c.Kind), whole(c.Requests), between(c.WouldRefuse, c.AtMost), whole(c.WasRefused)})
	}
	printRows(cmd.OutOrStdout(), rows, 3)
}

// printRows prints a table whose columns are numbers from the given one on.
func printRows(w io.Writer, rows [][]string, numbers int) {
	right := make([]bool, len(rows[0]))
	for i := numbers; i < len(right); i++ {
		right[i] = true
	}
	lines, _ := aligned(rows, right)
	for _, line := range lines {
		fmt.Fprintln(w, strings.TrimRight(line, " "))
	}
}

// missingNodes says whose part isn't in an answer.
func missingNodes(cmd *cobra.Command, partial string, missing []string) {
	if partial != "" {
		fmt.Fprintln(cmd.ErrOrStderr(), cell(partial))
	}
	if len(missing) > 0 {
		fmt.Fprintln(cmd.ErrOrStderr(), "not in it:", cell(strings.Join(missing, ", ")))
	}
}

func whole(n uint64) string { return strings.TrimSuffix(number(float64(n)), ".0") }

// percent is a share, rounded down: 100% is all.
func percent(share float64) string { return fmt.Sprintf("%.0f%%", math.Floor(100*share)) }

// between is a number that isn't known exactly.
func between(least, most uint64) string {
	if least == most {
		return whole(least)
	}
	return whole(least) + " to " + whole(most)
}
