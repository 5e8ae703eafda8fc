package main

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	adminapi "github.com/weirhq/weir/server/internal/admin"
)

func regionsCommand() *cobra.Command {
	cmd := regionCommand(&cobra.Command{
		Use:   "regions",
		Short: "List the other regions: whether they are heard, their round-trip time, and their global rules",
		Long: `List the other regions as a node sees them: whether it hears from them and since
when, the round-trip time, and whether their rules with scope: global are the same.
The home counts global limits that don't name one. See docs/guides/regions.md.`,
		Example: "  weir regions\n  weir regions --admin weir-2:8082 --json",
	}, "", false)
	cmd.AddCommand(
		regionCommand(&cobra.Command{
			Use: "move FROM TO", Short: "Make a region the home in another's place",
			Long: `Make one region the home of all global limits whose home another is. The old
home keeps its floor. The new one owns the rest after 25 seconds: its buckets
begin empty then, and its windows with the next one. If the old home can't be
reached, that needs --force: one that is only cut off goes on as the home, and
both together admit up to twice the limit until it hears of this.`,
			Example: "  weir regions move us eu\n  weir regions move us eu --force",
		}, "move", true),
		regionCommand(&cobra.Command{
			Use: "drain REGION", Short: "Take a region's share of global limits out of use",
			Long: `Take a region's share of global limits out of use. Its checks of them ask the
home from then on, and the other regions borrow what it has. Then it can be
stopped, and left out of regions.peers.`,
			Example: "  weir regions drain ap",
		}, "drain", false),
		regionCommand(&cobra.Command{
			Use: "forget REGION", Short: "Give the home what a dead region has of global limits",
			Long: `Give the home at once what a region has of global limits: its floor, and what
it has borrowed. It is for a region that is dead. If it isn't, what it has is
admitted once more, so that needs --force.`,
			Example: "  weir regions forget ap",
		}, "forget", true),
		regionCommand(&cobra.Command{
			Use: "restore REGION", Short: "Give a region that was drained or forgotten its share again",
			Long:    `Give a region that was drained or forgotten its share of global limits again.`,
			Example: "  weir regions restore ap",
		}, "restore", false),
	)
	return cmd
}

// regionCommand completes a command that makes a change to regions, if do names one, and then lists them.
func regionCommand(cmd *cobra.Command, do string, forces bool) *cobra.Command {
	var node adminPort
	var colour colour
	names := strings.Count(cmd.Use, " ")
	cmd.Args = takes(names, names)
	c := adminapi.RegionChange{Do: do}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		method, body := http.MethodGet, any(nil)
		if do != "" {
			c.Region = args[0]
			if names > 1 {
				c.To = args[1]
			}
			method, body = http.MethodPost, c
		}
		return show(&node, cmd, method, "/v1/regions", body, func(all *adminapi.Regions) error {
			if err := printRegions(cmd, all, &colour); err != nil || do != "move" {
				return err
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "\nUntil %s owns what %s did, all regions have no more than their floors: of buckets for 25 s, of windows that have begun to their end.\n", cell(c.To), cell(c.Region))
			return err
		})
	}
	if forces {
		cmd.Flags().BoolVar(&c.Force, "force", false, "do it although more may be admitted than the limit")
	}
	colour.register(cmd)
	node.register(cmd)
	return cmd
}

func printRegions(cmd *cobra.Command, all *adminapi.Regions, colour *colour) error {
	w := cmd.OutOrStdout()
	if all.Name == "" {
		fmt.Fprintln(w, "The node has no region: see --region.")
		return nil
	}
	home := func(home, grace bool, state string) string {
		switch {
		case grace:
			return "soon"
		case home:
			return "yes"
		}
		return cell(state)
	}
	rows := [][]string{{"REGION", "HOME", "RTT", "GLOBAL RULES", "HEARD"},
		{cell(all.Name) + " *", home(all.Home == all.Name, all.Grace, all.State), "", "", ""}}
	for _, p := range all.Peers {
		rules, heard := "the same", colour.verdict(w, true, "yes")
		if !p.SameRules {
			rules = "others"
		}
		rtt := fmt.Sprintf("%.1f ms", p.RTTMS)
		if p.RTTMS == 0 { // never heard
			rtt = ""
		}
		if !p.Up {
			rules, heard = "", colour.verdict(w, false, "no: "+cell(p.Error))
		}
		if !p.Since.IsZero() {
			heard += ", since " + clock(p.Since)
		}
		rows = append(rows, []string{cell(p.Region), home(p.Home, p.Grace, p.State), rtt, rules, heard})
	}
	return printTable(w, "", rows)
}
