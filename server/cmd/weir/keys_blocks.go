package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	adminapi "github.com/weirhq/weir/server/internal/admin"
)

func keysBlocksCommand() *cobra.Command {
	var node admin
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "blocks",
		Short: "List what is blocked: the deny list of the rules, and the emergency list",
		Long: `List what is blocked: the deny list of the rules in force, and the emergency list,
which holds blocks that couldn't be put into the rules, since these are in a file or
their store couldn't be reached. weir keys block ENTRY --remove takes an entry off.
Entries are shown in full.`,
		Example: "  weir keys blocks\n  weir keys blocks --json\n  weir keys block sk_prod_1 --remove",
		Args:    takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			a, err := node.call(cmd, http.MethodGet, denylist, nil, nil)
			if err != nil {
				return err
			}
			var all adminapi.List
			if err := a.decode(&all); err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd, json.RawMessage(a.body))
			}
			t := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			if len(all.Entries)+len(all.Emergency) > 0 {
				fmt.Fprintln(t, "ENTRY\tLIST\tSINCE\tBY\tWHY")
			}
			for _, b := range all.Emergency {
				fmt.Fprintf(t, "%s\temergency\t%s\t%s\t%s\n", cell(b.Entry), b.Since.Local().Format(time.DateTime), cell(cmp.Or(b.By, "-")), cell(cmp.Or(b.Message, "-")))
			}
			for _, e := range all.Entries {
				fmt.Fprintf(t, "%s\trules\t-\t-\t-\n", cell(e))
			}
			if err := t.Flush(); err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "%d on the deny list of the rules, %d on the emergency list\n", len(all.Entries), len(all.Emergency))
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	node.register(cmd)
	return cmd
}
