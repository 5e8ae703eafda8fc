package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/spf13/cobra"
	adminapi "github.com/weirhq/weir/server/internal/admin"
	"github.com/weirhq/weir/server/internal/observe/top"
)

func usageCommand() *cobra.Command {
	var node adminPort
	var by string
	var clients int
	cmd := command("rules usage", func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			if cmd.Flags().Changed("by") || cmd.Flags().Changed("clients") {
				return errors.New("--by, --clients: are for one rule: name it")
			}
			return show(&node, cmd, http.MethodGet, "/v1/rules/usage", nil, func(u *top.HourOfRules) { printUsage(cmd, u) })
		}
		q := url.Values{"by": {by}, "k": {fmt.Sprint(clients)}}
		return show(&node, cmd, http.MethodGet, "/v1/rules/usage/"+url.PathEscape(args[0])+"?"+q.Encode(), nil, func(u *top.HourOfRule) {
			fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s in the last hour, %s refused; %s made %s of them\n", cell(u.Rule), count(int(u.Requests), "request"), whole(u.Refused), count(u.Keys, "key"), percent(u.Coverage))
			rows := [][]string{{"CLIENT", "FINGERPRINT", "KIND", "REQUESTS", "REFUSED", "USED"}}
			for _, c := range u.Clients {
				rows = append(rows, []string{cell(c.Client), cell(c.Fingerprint), cell(c.Kind), whole(c.Requests), whole(c.Refused), percent(c.Used)})
			}
			printMissingNodes(cmd, u.Partial, u.NodesMissing)
			printTable(cmd.OutOrStdout(), "lllrrr", rows)
		})
	}, &node)
	cmd.ValidArgsFunction = each(node.ruleIDs)
	cmd.Flags().StringVar(&by, "by", "requests", "sort keys by requests or refused")
	cmd.Flags().IntVar(&clients, "clients", 50, "how many keys, up to 1000")
	complete(cmd, "by", fixed("requests", "refused"))
	return cmd
}

func printUsage(cmd *cobra.Command, u *top.HourOfRules) {
	const never = "never seen"
	rows := [][]string{{"RULE", "REQUESTS", "REFUSED", "IN SHADOW", "KEYS", ">=50%", ">=80%", "USED UP", "LAST HIT", "LAST REFUSAL", "COVERAGE"}}
	for _, r := range u.Rules {
		rows = append(rows, []string{cell(r.Rule), whole(r.Requests), whole(r.Refused), whole(r.WouldRefuse), fmt.Sprint(r.Keys),
			fmt.Sprint(r.Above50), fmt.Sprint(r.Above80), fmt.Sprint(r.Above100), ago(u.At, r.LastHit, never), ago(u.At, r.LastRefusal, never), percent(r.Coverage)})
	}
	printMissingNodes(cmd, u.Partial, u.NodesMissing)
	printTable(cmd.OutOrStdout(), "l"+strings.Repeat("r", 10), rows)
}

func whatIfCommand() *cobra.Command {
	var node adminPort
	var limit string
	var body adminapi.WhatIf
	cmd := command("rules whatif", func(cmd *cobra.Command, args []string) error {
		if limit == "" && !cmd.Flags().Changed("burst") {
			return errors.New("--limit: is missing: give a limit such as 50/minute")
		}
		body.Rule, body.Limit = args[0], limitJSON(limit)
		return show(&node, cmd, http.MethodPost, "/v1/rules/whatif", body, func(w *adminapi.WhatIfAnswer) { printWhatIf(cmd, w) })
	}, &node)
	cmd.ValidArgsFunction = each(node.ruleIDs)
	f := cmd.Flags()
	f.StringVar(&limit, "limit", "", "the other limit, such as 50/minute, or 50, which keeps the rule's window")
	f.Int64Var(&body.Capacity, "burst", 0, "how much of it at once (default: as much as the limit)")
	f.StringVar(&body.Algorithm, "algorithm", "", "the other algorithm (default: the rule's)")
	complete(cmd, "algorithm", fixed("token_bucket", "leaky_bucket", "leaky_queue", "fixed_window", "sliding_window_log", "sliding_window_counter"))
	return cmd
}

func printWhatIf(cmd *cobra.Command, w *adminapi.WhatIfAnswer) {
	words := cmd.ErrOrStderr()
	fmt.Fprintf(words, "at %s, %s would have refused %s of %s in the last hour; it refused %s\n", w.Limit, cell(w.Rule), between(w.WouldRefuse, w.AtMost), count(int(w.Requests), "request"), whole(w.WasRefused))
	fmt.Fprintf(words, "%d of %s would have been refused something; those keys made %s of the rule's requests\n", w.KeysRefused, count(w.Keys, "key"), percent(w.Coverage))
	for _, n := range w.Notes {
		fmt.Fprintln(words, "note:", cell(n))
	}
	printMissingNodes(cmd, w.Partial, w.NodesMissing)
	rows := [][]string{{"CLIENT", "FINGERPRINT", "KIND", "REQUESTS", "WOULD REFUSE", "REFUSED"}}
	for _, c := range w.Clients {
		rows = append(rows, []string{cell(c.Client), cell(c.Fingerprint), cell(c.Kind), whole(c.Requests), between(c.WouldRefuse, c.AtMost), whole(c.WasRefused)})
	}
	printTable(cmd.OutOrStdout(), "lllrrr", rows)
}

// missingNodes says which nodes are missing from a response, and why.
func missingNodes(partial string, missing []string) (words []string) {
	if partial != "" {
		words = append(words, cell(partial))
	}
	if len(missing) > 0 {
		words = append(words, "not in it: "+cell(strings.Join(missing, ", ")))
	}
	return words
}

func printMissingNodes(cmd *cobra.Command, partial string, missing []string) {
	for _, line := range missingNodes(partial, missing) {
		fmt.Fprintln(cmd.ErrOrStderr(), line)
	}
}
