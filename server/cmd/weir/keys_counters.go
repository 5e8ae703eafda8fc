package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/weirhq/weir"
	adminapi "github.com/weirhq/weir/server/internal/admin"
	"github.com/weirhq/weir/server/internal/edge/checkapi"
)

// namedRequest is a request of a client that may be known by its fingerprint.
type namedRequest struct {
	*checkapi.CheckRequest
	Client string `json:"client,omitempty"`
}

// clientCommand completes a command about the counters of a client, which is named by a key or by
// flags.
func clientCommand(cmd *cobra.Command, run func(cmd *cobra.Command, node *admin, r *namedRequest, query string, asJSON bool) error) *cobra.Command {
	var node admin
	var r requestFlags
	var client clientFlag
	var asJSON, unverified bool
	cmd.Args = takes(0, 1)
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var err error
		switch {
		case len(args) == 1 || client != "":
			if r.Key, err = client.key(cmd, args); err != nil {
				return err
			}
		case r.IP == "" && r.user == "" && r.org == "" && len(r.attrs) == 0:
			return errors.New("name the key, or - for standard input, or say with --client, --ip, --user or --org who it is")
		}
		w, err := r.wire()
		if err != nil {
			return err
		}
		return run(cmd, &node, &namedRequest{w, string(client)}, query(unverified), asJSON)
	}
	r.registerRest(cmd)
	client.register(cmd)
	unverifiedFlag(cmd, &unverified)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	node.register(cmd)
	if cmd.Flags().Lookup("rule") != nil {
		complete(cmd, "rule", node.ruleIDs)
	}
	return cmd
}

func keysShowCommand() *cobra.Command {
	var colour colour
	cmd := clientCommand(&cobra.Command{
		Use:   "show [KEY]",
		Short: "Show a client's counters, and which rules apply to it",
		Long: `Show which rules apply to a client and how much of each limit is left. KEY may be -
to read it from standard input, which keeps it out of the shell's history. For rules
of an endpoint, give --method and --path. Nothing is counted. If a rule limits
requests in flight, they are listed with the time since when each holds its slots,
and when the slots end unless they are renewed; weir keys release frees one. If the
client uses a gateway that can't verify its key, add --unverified.`,
		Example: `  weir keys show sk_prod_1 --path /v1/orders
  weir keys show --client 1a2b3c4d --path /v1/orders
  weir keys show - --method POST --path /v1/orders < key.txt
  weir keys show --ip 203.0.113.7 --method POST --path /login --user ada --json`,
	}, func(cmd *cobra.Command, node *admin, r *namedRequest, query string, asJSON bool) error {
		explained, err := node.call(cmd, http.MethodPost, "/v1/explain"+query, r, nil)
		if err != nil {
			return err
		}
		counted, err := node.call(cmd, http.MethodPost, "/v1/counters"+query, r, nil)
		if err != nil {
			return err
		}
		var x adminapi.Explanation
		if err := explained.decode(&x); err != nil {
			return err
		}
		var counters adminapi.Counters
		if err := counted.decode(&counters); err != nil {
			return err
		}
		if asJSON {
			var all struct {
				Counters json.RawMessage `json:"counters"`
				Explain  json.RawMessage `json:"explain"`
			}
			if err := counted.decode(&all); err != nil {
				return err
			}
			all.Explain = explained.body
			return printJSON(cmd, all)
		}
		printExplanation(cmd.OutOrStdout(), &x, &colour)
		if counters.Reason == weir.ReasonCooldown.String() {
			fmt.Fprintln(cmd.OutOrStdout(), "\nIt is in a cooldown, whatever its counters have left: weir keys cooldowns says until when, and weir keys reset ends it.")
		}
		if err := printCounters(cmd.OutOrStdout(), counters.Counters); err != nil {
			return err
		}
		return printSlots(cmd.OutOrStdout(), counters.Counters, counters.At)
	})
	colour.register(cmd)
	return cmd
}

func printCounters(w io.Writer, all []adminapi.Counter) error {
	if len(all) == 0 {
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "\nCOUNTER\tLIMIT\tLEFT\tNEXT IN\tFULL IN")
	runsOut := slices.ContainsFunc(all, func(c adminapi.Counter) bool { return c.RunsOutAt != nil })
	if runsOut {
		fmt.Fprint(t, "\tRUNS OUT IN")
	}
	fmt.Fprintln(t)
	for _, c := range all {
		name := cmp.Or(c.Policy, c.Rule) // nodes of an older release don't name limits
		if c.Degraded {
			what := "the store can't be reached"
			if c.MissingHome != "" {
				what = fmt.Sprintf("its home, region %s, can't be asked", cell(c.MissingHome))
			}
			fmt.Fprintf(t, "%s\t%s\tunknown: %s\n", name, c.Limit, what)
			continue
		}
		left, next, full := fmt.Sprintf("%s of %s", c.Remaining, c.Max), "never", wait(c.ResetAfterMS)
		if c.RetryAfterMS >= 0 {
			next = wait(c.RetryAfterMS)
		}
		if c.Amount != "" {
			left += " " + c.Amount
		}
		if s := c.Stake; s != nil {
			left = fmt.Sprintf("%s here, of %s: own %s", c.Remaining, c.Max, s.Own)
			if s.Borrowed > 0 {
				left += fmt.Sprintf(", borrowed %s", s.Borrowed)
			}
			if s.Lent > 0 {
				left += fmt.Sprintf(", lent %s", s.Lent)
			}
			left += "; home " + cell(s.Home)
		}
		if c.InFlight != nil { // which end when they end
			left += fmt.Sprintf(" (%d in flight)", *c.InFlight)
			if c.RetryAfterMS > 0 {
				next = "when one ends"
			}
			if *c.InFlight > 0 {
				full = "when all end"
			}
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s", name, c.Limit, left, next, full)
		switch {
		case c.RunsOutAt != nil && c.WindowEnd != nil: // by the node's clock, not by this machine's
			fmt.Fprintf(t, "\t%s", wait(max(1, c.ResetAfterMS-c.WindowEnd.Sub(*c.RunsOutAt).Milliseconds())))
		case runsOut:
			fmt.Fprint(t, "\t-")
		}
		fmt.Fprintln(t)
	}
	return t.Flush()
}

// wait is how long something takes, in units that people can tell apart.
func wait(milliseconds int64) string {
	const day = 24 * time.Hour
	switch d := ms(milliseconds); {
	case d == 0:
		return "now"
	case d >= 2*day:
		return fmt.Sprintf("%dd%dh", d/day, d%day/time.Hour)
	case d >= time.Hour:
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	default:
		return d.String()
	}
}

func keysResetCommand() *cobra.Command {
	return clientCommand(&cobra.Command{
		Use:   "reset [KEY]",
		Short: "Make a client's counters full again",
		Long: `Give a client its full limits again, in all counters that apply to its request. KEY
may be - to read it from standard input, which keeps it out of the shell's history.
For rules of an endpoint, give --method and --path, and for those that count by
address --ip; weir keys show lists the counters. If the client uses a gateway that
can't verify its key, add --unverified.`,
		Example: `  weir keys reset sk_prod_1 --path /v1/orders --ip 203.0.113.7
  weir keys reset --client 1a2b3c4d --path /v1/orders
  weir keys reset - < key.txt
  weir keys reset --user ada --method POST --path /login`,
	}, func(cmd *cobra.Command, node *admin, r *namedRequest, query string, asJSON bool) error {
		a, err := node.call(cmd, http.MethodPost, "/v1/counters/reset"+query, r, nil)
		if err != nil {
			return err
		}
		var done adminapi.Reset
		if err := a.decode(&done); err != nil {
			return err
		}
		if asJSON {
			return printJSON(cmd, json.RawMessage(a.body))
		}
		text := count(done.Reset, "counter") + " reset"
		if done.Reset == 0 {
			text += ": no limit applies to such a request; rules may need its --method, --path or --ip"
		} else if names := counterNames(cmd, node, r, query); names != "" {
			text += ": " + names
		}
		fmt.Fprintln(cmd.ErrOrStderr(), text)
		return nil
	})
}

// counterNames names the counters of a request. The reset is done by then: not to know them is no error.
func counterNames(cmd *cobra.Command, node *admin, r *namedRequest, query string) string {
	a, err := node.call(cmd, http.MethodPost, "/v1/counters"+query, r, nil)
	var counters adminapi.Counters
	if err != nil || a.decode(&counters) != nil {
		return ""
	}
	var names []string
	for _, c := range counters.Counters {
		names = append(names, cmp.Or(c.Policy, c.Rule))
	}
	return strings.Join(names, ", ")
}
