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
	cmd := &cobra.Command{
		Use:   "blocks",
		Short: "List what is blocked: the deny list of the rules, and the emergency list",
		Long: `List what is blocked: the deny list of the rules in force, and the emergency list.
The emergency list holds blocks that couldn't be added to the rules, because the
rules are in a file or their store couldn't be reached. weir keys block ENTRY
--remove takes an entry off. Entries are shown in full.`,
		Example: "  weir keys blocks\n  weir keys blocks --json\n  weir keys block sk_prod_1 --remove",
		Args:    takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(&node, cmd, http.MethodGet, denylist, nil, func(all *adminapi.List) error {
				var rows [][]string
				if len(all.Entries)+len(all.Emergency) > 0 {
					rows = append(rows, []string{"ENTRY", "LIST", "SINCE", "BY", "WHY"})
				}
				for _, b := range all.Emergency {
					rows = append(rows, []string{cell(b.Entry), "emergency", clock(b.Since), orDash(b.By), orDash(b.Message)})
				}
				for _, e := range all.Entries {
					rows = append(rows, []string{cell(e), "rules", "-", "-", "-"})
				}
				if err := printTable(cmd.OutOrStdout(), "", rows); err != nil {
					return err
				}
				fmt.Fprintf(cmd.ErrOrStderr(), "%d on the deny list of the rules, %d on the emergency list\n", len(all.Entries), len(all.Emergency))
				return nil
			})
		},
	}
	node.register(cmd)
	return cmd
}

func keysCooldownsCommand() *cobra.Command {
	var node adminPort
	var most int
	cmd := &cobra.Command{
		Use:   "cooldowns",
		Short: "List clients that are kept out because they kept coming while they were refused",
		Long: `List the clients that rules with abuse: keep out, on all nodes, the longest cooldown
first: the rule, the masked client and its fingerprint, how many cooldowns it has
had in a row, and when this one ends. weir keys lift ends a cooldown early, and weir
keys block --client FINGERPRINT keeps the client out for good.`,
		Example: "  weir keys cooldowns\n  weir keys cooldowns --clients 1000 --json",
		Args:    takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(&node, cmd, http.MethodGet, fmt.Sprintf("/v1/cooldowns?k=%d", most), nil, func(all *adminapi.Cooldowns) error {
				var rows [][]string
				if len(all.Cooldowns) > 0 {
					rows = append(rows, []string{"RULE", "CLIENT", "FINGERPRINT", "TIMES", "ENDS", "ID"})
				}
				for _, c := range all.Cooldowns {
					rule := cell(c.Rule)
					if c.Shadow {
						rule += " (shadow)"
					}
					rows = append(rows, []string{rule, cell(c.Client), orDash(c.Fingerprint), fmt.Sprint(c.N), clock(c.Ends), c.ID.String()})
				}
				if err := printTable(cmd.OutOrStdout(), "", rows); err != nil {
					return err
				}
				if n := all.InForce + all.Shadow; n != len(all.Cooldowns) || n == 0 {
					fmt.Fprintf(cmd.ErrOrStderr(), "%s in force, and %d in shadow\n", count(all.InForce, "cooldown"), all.Shadow)
				}
				return nil
			})
		},
	}
	cmd.Flags().IntVar(&most, "clients", 100, "how many are shown")
	node.register(cmd)
	return cmd
}

func keysLiftCommand() *cobra.Command {
	var node adminPort
	cmd := &cobra.Command{
		Use:   "lift ID",
		Short: "End a client's cooldown on all nodes, and forgive it",
		Long: `End a client's cooldown on all nodes, and forgive the client: its next cooldown is
as short as a first one. weir keys cooldowns shows the ID.`,
		Example: "  weir keys lift 5f0c4b1d9a7e3c2240d1e8b7a6f59312",
		Args:    takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return show(&node, cmd, http.MethodDelete, "/v1/cooldowns/"+url.PathEscape(args[0]), nil, func(c *cooldown.Cooldown) error {
				fmt.Fprintf(cmd.ErrOrStderr(), "%s may come again: rule %s kept it out until %s\n", cell(cmp.Or(c.Client, "the client")), cell(c.Rule), clock(c.Ends))
				return nil
			})
		},
	}
	node.register(cmd)
	return cmd
}
