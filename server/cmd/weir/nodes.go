package main

import (
	"cmp"
	"fmt"
	"net/http"
	"strings"

	"github.com/spf13/cobra"
	adminapi "github.com/weirhq/weir/server/internal/admin"
)

func nodesCommand() *cobra.Command {
	var node adminPort
	var colour colour
	return command("nodes", func(cmd *cobra.Command, _ []string) error {
		return show(&node, cmd, http.MethodGet, "/v1/nodes", nil, func(all *adminapi.Nodes) { printNodes(cmd, all, &colour) })
	}, &colour, &node)
}

func printNodes(cmd *cobra.Command, all *adminapi.Nodes, colour *colour) {
	w := cmd.OutOrStdout()
	rows := [][]string{{"NODE", "WEIR", "RULES", "TEXT", "SEEN", "STORE"}}
	for _, n := range all.Nodes {
		name := cell(n.Name) + given(n.Region != "", " in "+cell(n.Region)) + given(n.Self, " *")
		rules := fmt.Sprint(n.RulesVersion) + given(n.RulesHash != "", "-"+cell(n.RulesHash[:min(8, len(n.RulesHash))]))
		seen := cmp.Or(given(n.SeenMSAgo >= 100, fmt.Sprintf("%.1f s ago", float64(n.SeenMSAgo)/1000)), "now")
		// The colored cell comes last, because the alignment would count color codes as characters.
		store := colour.verdict(w, n.Store == "up", cell(n.Store))
		if !n.Since.IsZero() {
			store += " since " + clock(n.Since)
		}
		store += given(len(n.Lost) > 0, ": "+cell(strings.Join(n.Lost, ", "))) + given(n.Warning != "", "; "+colour.paint(w, amber, cell(n.Warning)))
		rows = append(rows, []string{name, cell(n.Version), rules, cell(n.RulesText), seen, store})
	}
	printTable(w, "", rows)
	if all.Stale {
		age := 0.
		if all.AgeSeconds != nil {
			age = *all.AgeSeconds
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "The other nodes can't be asked: this is what was heard of them %.0f s ago.\n", age)
	}
}

func regionsCommand() *cobra.Command {
	cmd := regionCommand("regions", "")
	cmd.AddCommand(regionCommand("regions move", "move"), regionCommand("regions drain", "drain"), regionCommand("regions forget", "forget"), regionCommand("regions restore", "restore"))
	return cmd
}

// regionCommand returns a command that lists the regions. If do isn't "", it first makes that change to the named
// regions.
func regionCommand(path, do string) *cobra.Command {
	var node adminPort
	var colour colour
	c := adminapi.RegionChange{Do: do}
	cmd := command(path, func(cmd *cobra.Command, args []string) error {
		method, body := http.MethodGet, any(nil)
		if do != "" {
			c.Region = args[0]
			if do == "move" {
				c.To = args[1]
			}
			method, body = http.MethodPost, c
		}
		return show(&node, cmd, method, "/v1/regions", body, func(all *adminapi.Regions) {
			printRegions(cmd, all, &colour)
			if do == "move" {
				fmt.Fprintf(cmd.OutOrStdout(), "\nUntil %s owns what %s did, all regions have no more than their floors: of buckets for 25 s, of windows that have begun to their end.\n", cell(c.To), cell(c.Region))
			}
		})
	}, &colour, &node)
	if do == "move" || do == "forget" {
		cmd.Flags().BoolVar(&c.Force, "force", false, "do it although more may be admitted than the limit")
	}
	return cmd
}

func printRegions(cmd *cobra.Command, all *adminapi.Regions, colour *colour) {
	w := cmd.OutOrStdout()
	if all.Name == "" {
		fmt.Fprintln(w, "The node has no region: see --region.")
		return
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
		rules, heard := "", colour.verdict(w, false, "no: "+cell(p.Error))
		switch {
		case p.Up && p.SameRules:
			rules, heard = "the same", colour.verdict(w, true, "yes")
		case p.Up:
			rules, heard = "others", colour.verdict(w, true, "yes")
		}
		heard += given(!p.Since.IsZero(), ", since "+clock(p.Since))
		rows = append(rows, []string{cell(p.Region), home(p.Home, p.Grace, p.State), given(p.RTTMS > 0, fmt.Sprintf("%.1f ms", p.RTTMS)), rules, heard})
	}
	printTable(w, "", rows)
}
