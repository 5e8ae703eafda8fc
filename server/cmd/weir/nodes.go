package main

import (
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
		name := cell(n.Name)
		if n.Region != "" {
			name += " in " + cell(n.Region)
		}
		if n.Self {
			name += " *"
		}
		rules := fmt.Sprint(n.RulesVersion)
		if n.RulesHash != "" {
			rules += "-" + cell(n.RulesHash[:min(8, len(n.RulesHash))])
		}
		seen := "now"
		if n.SeenMSAgo >= 100 {
			seen = fmt.Sprintf("%.1f s ago", float64(n.SeenMSAgo)/1000)
		}
		// The coloured cell comes last, because the alignment would count colour codes as width.
		store := colour.verdict(w, n.Store == "up", cell(n.Store))
		if n.Since != nil {
			store += " since " + clock(*n.Since)
		}
		if len(n.Lost) > 0 {
			store += ": " + cell(strings.Join(n.Lost, ", "))
		}
		if n.Warning != "" {
			store += "; " + colour.paint(w, amber, cell(n.Warning))
		}
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
