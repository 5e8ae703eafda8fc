package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
)

// nodesAnswer is what GET /v1/nodes answers, as far as it is shown.
type nodesAnswer struct {
	Nodes []struct {
		Name         string     `json:"name"`
		Region       string     `json:"region"`
		Self         bool       `json:"self"`
		Version      string     `json:"version"`
		RulesVersion int64      `json:"rules_version"`
		RulesHash    string     `json:"rules_hash"`
		RulesText    string     `json:"rules_text_hash"`
		Store        string     `json:"store"`
		Since        *time.Time `json:"since"`
		Lost         []string   `json:"lost"`
		Warning      string     `json:"warning"`
		SeenMSAgo    int64      `json:"seen_ms_ago"`
	} `json:"nodes"`
	AgeSeconds float64 `json:"age_seconds"`
	Stale      bool    `json:"stale"`
}

func nodesCommand() *cobra.Command {
	var node admin
	var asJSON bool
	var colour colour
	cmd := &cobra.Command{
		Use:   "nodes",
		Short: "List every node: the version of its rules, its store's health, since when",
		Long: `List the nodes that share a store, as one of them sees them: the version of the
rules in force, a hash of their text, the state of the store and since when, and
when the node was last heard. Nodes with the same TEXT have the same rules, even if
they read them from files; the metric weir_rules_info has the same hash. * marks the
node that answers. While Redis can't be reached, the list is the last one that the
node has heard, and stderr says how old it is.`,
		Example: "  weir nodes\n  weir nodes --admin weir-2:8082 --json",
		Args:    takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			a, err := node.call(cmd, http.MethodGet, "/v1/nodes", nil, nil)
			if err != nil {
				return err
			}
			var all nodesAnswer
			if err := a.decode(&all); err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd, json.RawMessage(a.body))
			}
			if err := printNodes(cmd.OutOrStdout(), &all, &colour); err != nil {
				return err
			}
			if all.Stale {
				fmt.Fprintf(cmd.ErrOrStderr(), "The other nodes can't be asked: this is what was heard of them %.0f s ago.\n", all.AgeSeconds)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	colour.register(cmd)
	node.register(cmd)
	return cmd
}

func printNodes(w io.Writer, all *nodesAnswer, colour *colour) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NODE\tWEIR\tRULES\tTEXT\tSEEN\tSTORE")
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
		// It is the last column, so that colours don't count as width.
		store := colour.verdict(w, n.Store == "up", cell(n.Store))
		if n.Since != nil {
			store += " since " + n.Since.Local().Format(time.DateTime)
		}
		if len(n.Lost) > 0 {
			store += ": " + cell(strings.Join(n.Lost, ", "))
		}
		if n.Warning != "" {
			store += "; " + colour.paint(w, amber, cell(n.Warning))
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", name, cell(n.Version), rules, cell(n.RulesText), seen, store)
	}
	return t.Flush()
}
