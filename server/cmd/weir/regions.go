package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	adminapi "github.com/weirhq/weir/server/internal/admin"
)

func regionsCommand() *cobra.Command {
	var node admin
	var asJSON bool
	var colour colour
	cmd := &cobra.Command{
		Use:   "regions",
		Short: "List the other regions: whether they are heard, their round-trip time, and their global rules",
		Long: `List the other regions as a node sees them: whether it hears from them and since
when, the round-trip time, and whether their rules with scope: global are the same.
The home counts global limits that don't name one. See docs/regions.md.`,
		Example: "  weir regions\n  weir regions --admin weir-2:8082 --json",
		Args:    takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			a, err := node.call(cmd, http.MethodGet, "/v1/regions", nil, nil)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd, json.RawMessage(a.body))
			}
			return printRegions(cmd, a, colour)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	colour.register(cmd)
	node.register(cmd)
	cmd.AddCommand(
		regroupCommand("move", "move FROM TO", "Make a region the home in another's place", `Make one region the home of all global limits whose home another is. The old
home keeps its floor. The new one owns the rest after 25 seconds: its buckets
begin empty then, and its windows with the next one. If the old home can't be
reached, that needs --force: one that is only cut off goes on as the home, and
both together admit up to twice the limit until it hears of this.`, "  weir regions move us eu\n  weir regions move us eu --force", true),
		regroupCommand("drain", "drain REGION", "Take a region's share of global limits out of use", `Take a region's share of global limits out of use. Its checks of them ask the
home from then on, and the other regions borrow what it has. Then it can be
stopped, and left out of regions.peers.`, "  weir regions drain ap", false),
		regroupCommand("forget", "forget REGION", "Give the home what a dead region has of global limits", `Give the home at once what a region has of global limits: its floor, and what
it has borrowed. It is for a region that is dead. If it isn't, what it has is
admitted once more, so that needs --force.`, "  weir regions forget ap", true),
		regroupCommand("restore", "restore REGION", "Give a region that was drained or forgotten its share again", `Give a region that was drained or forgotten its share of global limits again.`, "  weir regions restore ap", false),
	)
	return cmd
}

// regroupCommand makes a command that changes what regions are.
func regroupCommand(do, use, short, long, example string, forces bool) *cobra.Command {
	var node admin
	var asJSON bool
	var colour colour
	c := adminapi.RegionChange{Do: do}
	names := strings.Count(use, " ")
	cmd := &cobra.Command{
		Use: use, Short: short, Long: long, Example: example, Args: takes(names, names),
		RunE: func(cmd *cobra.Command, args []string) error {
			c.Region = args[0]
			if names > 1 {
				c.To = args[1]
			}
			a, err := node.call(cmd, http.MethodPost, "/v1/regions", c, nil)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd, json.RawMessage(a.body))
			}
			if err := printRegions(cmd, a, colour); err != nil || do != "move" {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "\nUntil %s owns what %s did, all regions have no more than their floors: of buckets for 25 s, of windows that have begun to their end.\n", cell(c.To), cell(c.Region))
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	if forces {
		cmd.Flags().BoolVar(&c.Force, "force", false, "do it although more may be admitted than the limit")
	}
	colour.register(cmd)
	node.register(cmd)
	return cmd
}

// printRegions shows the regions as a node knows them.
func printRegions(cmd *cobra.Command, a *answer, colour colour) error {
	var all adminapi.Regions
	if err := a.decode(&all); err != nil {
		return err
	}
	w := cmd.OutOrStdout()
	if all.Name == "" {
		fmt.Fprintln(w, "The node has no region: see --region.")
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "REGION\tHOME\tRTT\tGLOBAL RULES\tHEARD")
	mark := func(home, grace bool, state string) string {
		switch {
		case grace:
			return "soon"
		case home:
			return "yes"
		}
		return cell(state)
	}
	fmt.Fprintf(t, "%s *\t%s\t\t\t\n", cell(all.Name), mark(all.Home == all.Name, all.Grace, all.State))
	for _, p := range all.Peers {
		rules, heard := "the same", colour.verdict(w, true, "yes")
		if !p.SameRules {
			rules = "others"
		}
		rtt := fmt.Sprintf("%.1f ms", p.RTTMS)
		if p.RTTMS == 0 { // it was never heard
			rtt = ""
		}
		if !p.Up {
			rules, heard = "", colour.verdict(w, false, "no: "+cell(p.Error))
		}
		if !p.Since.IsZero() {
			heard += ", since " + p.Since.Local().Format(time.DateTime)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", cell(p.Region), mark(p.Home, p.Grace, p.State), rtt, rules, heard)
	}
	return t.Flush()
}
