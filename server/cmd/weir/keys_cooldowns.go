package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/weirhq/weir/cooldown"
	adminapi "github.com/weirhq/weir/server/internal/admin"
)

func keysCooldownsCommand() *cobra.Command {
	var node admin
	var asJSON bool
	var most int
	cmd := &cobra.Command{
		Use:   "cooldowns",
		Short: "List clients that are kept out, since they kept coming while they were refused",
		Long: `List the clients that rules with abuse: keep out, on all nodes, the longest cooldown
first: the rule, the masked client and its fingerprint, how many cooldowns it has
had in a row, and when this one ends. weir keys lift ends a cooldown early, and weir
keys block --client FINGERPRINT keeps the client out for good.`,
		Example: "  weir keys cooldowns\n  weir keys cooldowns --clients 1000 --json",
		Args:    takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			a, err := node.call(cmd, http.MethodGet, fmt.Sprintf("/v1/cooldowns?k=%d", most), nil, nil)
			if err != nil {
				return err
			}
			var all adminapi.Cooldowns
			if err := a.decode(&all); err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd, json.RawMessage(a.body))
			}
			t := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			if len(all.Cooldowns) > 0 {
				fmt.Fprintln(t, "RULE\tCLIENT\tFINGERPRINT\tTIMES\tENDS\tID")
			}
			for _, c := range all.Cooldowns {
				rule := cell(c.Rule)
				if c.Shadow {
					rule += " (shadow)"
				}
				fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\t%s\n", rule, cell(c.Client), cell(cmp.Or(c.Fingerprint, "-")), c.N, c.Ends.Local().Format(time.DateTime), c.ID)
			}
			if err := t.Flush(); err != nil {
				return err
			}
			if n := all.InForce + all.Shadow; n != len(all.Cooldowns) || n == 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "%s in force, and %d in shadow\n", count(all.InForce, "cooldown"), all.Shadow)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().IntVar(&most, "clients", 100, "how many are shown")
	complete(cmd, "clients", cobra.NoFileCompletions)
	node.register(cmd)
	return cmd
}

func keysLiftCommand() *cobra.Command {
	var node admin
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "lift ID",
		Short: "End a client's cooldown on all nodes, and forgive it",
		Long: `End a client's cooldown on all nodes, and forgive the client: its next cooldown is
as short as a first one. weir keys cooldowns shows the ID.`,
		Example:           "  weir keys lift 5f0c4b1d9a7e3c2240d1e8b7a6f59312",
		Args:              takes(1, 1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			a, err := node.call(cmd, http.MethodDelete, "/v1/cooldowns/"+url.PathEscape(args[0]), nil, nil)
			if err != nil {
				return err
			}
			var c cooldown.Cooldown
			if err := a.decode(&c); err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd, json.RawMessage(a.body))
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "%s may come again: rule %s kept it out until %s\n", cell(cmp.Or(c.Client, "the client")), cell(c.Rule), c.Ends.Local().Format(time.DateTime))
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	node.register(cmd)
	return cmd
}
