package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	adminapi "github.com/weirhq/weir/internal/admin"
)

func regionsCommand() *cobra.Command {
	var node admin
	var asJSON bool
	var colour colour
	cmd := &cobra.Command{
		Use:   "regions",
		Short: "List the other regions: whether they are heard, how far they are, and their global rules",
		Long: `List the other regions as a node knows them: whether it hears of them and since when,
how long a message takes there and back, and whether their rules with scope: global
are the same. The home counts global limits that name none. See docs/regions.md.`,
		Example: "  weir regions\n  weir regions --admin weir-2:8082 --json",
		Args:    takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			a, err := node.call(cmd, http.MethodGet, "/v1/regions", nil, nil)
			if err != nil {
				return err
			}
			var all adminapi.Regions
			if err := a.decode(&all); err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd, json.RawMessage(a.body))
			}
			w := cmd.OutOrStdout()
			if all.Name == "" {
				fmt.Fprintln(w, "The node has no region: see --region.")
				return nil
			}
			t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
			fmt.Fprintln(t, "REGION\tHOME\tRTT\tGLOBAL RULES\tHEARD")
			mark := func(home bool) string {
				if home {
					return "yes"
				}
				return ""
			}
			fmt.Fprintf(t, "%s *\t%s\t\t\t\n", cell(all.Name), mark(all.Home == all.Name))
			for _, p := range all.Peers {
				rules, heard := "the same", colour.verdict(w, true, "yes")
				if !p.SameRules {
					rules = "others"
				}
				if !p.Up {
					rules, heard = "", colour.verdict(w, false, "no: "+cell(p.Error))
				}
				if !p.Since.IsZero() {
					heard += ", since " + p.Since.Local().Format(time.DateTime)
				}
				fmt.Fprintf(t, "%s\t%s\t%.1f ms\t%s\t%s\n", cell(p.Region), mark(p.Home), p.RTTMS, rules, heard)
			}
			return t.Flush()
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	colour.register(cmd)
	node.register(cmd)
	return cmd
}
