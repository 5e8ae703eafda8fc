package main

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/weirhq/weir/cooldown"
	adminapi "github.com/weirhq/weir/server/internal/admin"
)

func keysBlocksCommand() *cobra.Command {
	var node adminPort
	return command("keys blocks", func(cmd *cobra.Command, _ []string) error {
		return show(&node, cmd, http.MethodGet, denylist, nil, func(all *adminapi.List) {
			rows := [][]string{{"ENTRY", "LIST", "SINCE", "BY", "WHY"}}
			for _, b := range all.Emergency {
				rows = append(rows, []string{cell(b.Entry), "emergency", clock(b.Since), orDash(b.By), orDash(b.Message)})
			}
			for _, e := range all.Entries {
				rows = append(rows, []string{cell(e), "rules", "-", "-", "-"})
			}
			printTable(cmd.OutOrStdout(), "", rows)
			fmt.Fprintf(cmd.ErrOrStderr(), "%d on the deny list of the rules, %d on the emergency list\n", len(all.Entries), len(all.Emergency))
		})
	}, &node)
}

func keysCooldownsCommand() *cobra.Command {
	var node adminPort
	var most int
	cmd := command("keys cooldowns", func(cmd *cobra.Command, _ []string) error {
		return show(&node, cmd, http.MethodGet, fmt.Sprintf("/v1/cooldowns?k=%d", most), nil, func(all *adminapi.Cooldowns) {
			rows := [][]string{{"RULE", "CLIENT", "FINGERPRINT", "TIMES", "ENDS", "ID"}}
			for _, c := range all.Cooldowns {
				rule := cell(c.Rule)
				if c.Shadow {
					rule += " (shadow)"
				}
				rows = append(rows, []string{rule, cell(c.Client), orDash(c.Fingerprint), fmt.Sprint(c.N), clock(c.Ends), c.ID.String()})
			}
			printTable(cmd.OutOrStdout(), "", rows)
			if n := all.InForce + all.Shadow; n != len(all.Cooldowns) || n == 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "%s in force, and %d in shadow\n", count(all.InForce, "cooldown"), all.Shadow)
			}
		})
	}, &node)
	cmd.Flags().IntVar(&most, "clients", 100, "how many are shown")
	return cmd
}

func keysLiftCommand() *cobra.Command {
	var node adminPort
	return command("keys lift", func(cmd *cobra.Command, args []string) error {
		return show(&node, cmd, http.MethodDelete, "/v1/cooldowns/"+url.PathEscape(args[0]), nil, func(c *cooldown.Cooldown) {
			fmt.Fprintf(cmd.ErrOrStderr(), "%s may come again: rule %s kept it out until %s\n", cell(cmp.Or(c.Client, "the client")), cell(c.Rule), clock(c.Ends))
		})
	}, &node)
}
