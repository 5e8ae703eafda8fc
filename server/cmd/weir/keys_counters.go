package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirhq/weir"
	adminapi "github.com/weirhq/weir/server/internal/admin"
	"github.com/weirhq/weir/server/internal/edge/checkapi"
)

// clientRequest is a request whose client may be given by its fingerprint.
type clientRequest struct {
	*checkapi.CheckRequest
	Client string `json:"client,omitempty"`
}

// clientQuestion is a request to the node about the counters of a client, which is given by a key or by flags.
type clientQuestion struct {
	*adminPort
	request clientRequest
	query   string
}

func (q *clientQuestion) path(endpoint string) string { return "/v1/" + endpoint + q.query }

// clientCommand returns a command that is about the counters of a client.
func clientCommand(path string, node *adminPort, run func(*cobra.Command, *clientQuestion) error) *cobra.Command {
	var r requestFlags
	var client clientFlag
	cmd := command(path, func(cmd *cobra.Command, args []string) error {
		var err error
		switch {
		case len(args) == 1 || client != "":
			if r.Key, err = client.key(cmd, args); err != nil {
				return err
			}
		case r.IP == "" && *r.named["user"] == "" && *r.named["org"] == "" && len(r.attrs) == 0:
			return errors.New("name the client: give its key, or - for standard input, or --client, --ip, --user or --org")
		}
		w, err := r.wire()
		if err != nil {
			return err
		}
		return run(cmd, &clientQuestion{node, clientRequest{w, string(client)}, r.query()})
	}, &client, node, &r)
	r.registerUnverified(cmd)
	return cmd
}

func keysShowCommand() *cobra.Command {
	var colour colour
	cmd := clientCommand("keys show", new(adminPort), func(cmd *cobra.Command, q *clientQuestion) error {
		x, explained, err := get[adminapi.Explanation](q.adminPort, cmd, http.MethodPost, q.path("explain"), q.request, nil)
		if err != nil {
			return err
		}
		counters, counted, err := get[adminapi.Counters](q.adminPort, cmd, http.MethodPost, q.path("counters"), q.request, nil)
		if err != nil {
			return err
		}
		if q.asJSON {
			var all struct {
				Counters json.RawMessage `json:"counters"`
				Explain  json.RawMessage `json:"explain"`
			}
			if err := json.Unmarshal(counted, &all); err != nil {
				return notUnderstood(err)
			}
			all.Explain = explained
			return printJSON(cmd, all)
		}
		out := cmd.OutOrStdout()
		printExplanation(out, &x, &colour)
		if counters.Reason == weir.ReasonCooldown.String() {
			fmt.Fprintln(out, "\nThe client is in a cooldown, whatever its counters have left: weir keys cooldowns says until when, and weir keys reset ends it.")
		}
		printCounters(out, counters.Counters)
		printSlots(out, counters.Counters, counters.At)
		return nil
	})
	colour.register(cmd)
	return cmd
}

// limitName returns the name of a counter's limit. Nodes of older releases send only the rule.
func limitName(c *adminapi.Counter) string { return cell(cmp.Or(c.Policy, c.Rule)) }

func printCounters(w io.Writer, all []adminapi.Counter) {
	if len(all) == 0 {
		return
	}
	head := []string{"COUNTER", "LIMIT", "LEFT", "NEXT IN", "FULL IN"}
	if slices.ContainsFunc(all, func(c adminapi.Counter) bool { return c.RunsOutAt != nil }) {
		head = append(head, "RUNS OUT IN")
	}
	rows := [][]string{head}
	for i := range all {
		rows = append(rows, counterRow(&all[i], len(head)))
	}
	fmt.Fprintln(w)
	printTable(w, "", rows)
}

func counterRow(c *adminapi.Counter, columns int) []string {
	if c.Degraded {
		why := "the store can't be reached"
		if c.MissingHome != "" {
			why = fmt.Sprintf("its home, region %s, can't be asked", cell(c.MissingHome))
		}
		return []string{limitName(c), c.Limit, "unknown: " + why}
	}
	left, next, full := fmt.Sprintf("%s of %s", c.Remaining, c.Max), "never", wait(ms(c.ResetAfterMS))
	if c.RetryAfterMS >= 0 {
		next = wait(ms(c.RetryAfterMS))
	}
	if c.Amount != "" {
		left += " " + c.Amount
	}
	if s := c.Stake; s != nil {
		left = fmt.Sprintf("%s here, of %s: own %s, borrowed %s, lent %s; home %s", c.Remaining, c.Max, s.Own, s.Borrowed, s.Lent, cell(s.Home))
	}
	if c.InFlight != nil { // the end of requests in flight is unknown
		left += fmt.Sprintf(" (%d in flight)", *c.InFlight)
		if c.RetryAfterMS > 0 {
			next = "when one ends"
		}
		if *c.InFlight > 0 {
			full = "when all end"
		}
	}
	runsOut := "-"
	if c.RunsOutAt != nil && c.WindowEnd != nil { // compare with a time from the node, because this machine's clock may differ
		runsOut = wait(ms(max(1, c.ResetAfterMS-c.WindowEnd.Sub(*c.RunsOutAt).Milliseconds())))
	}
	return []string{limitName(c), c.Limit, left, next, full, runsOut}[:columns]
}

// printSlots lists a client's requests in flight. The time is that of the node's clock when it answered.
func printSlots(w io.Writer, all []adminapi.Counter, at time.Time) {
	rows := [][]string{{"SLOT", "COUNTER", "HOLDS", "TAKEN", "ENDS IN"}}
	var more []string
	for i := range all {
		c := &all[i]
		listed := int64(0)
		for _, s := range c.Slots {
			rows = append(rows, []string{cell(s.ID), limitName(c), fmt.Sprint(s.Slots), roughly(at.Sub(s.Since)) + " ago", roughly(s.Ends.Sub(at))})
			listed += s.Slots
		}
		if c.InFlight != nil && listed > 0 && listed < *c.InFlight {
			more = append(more, fmt.Sprintf("%s: only the oldest are listed, with %d of %d slots", limitName(c), listed, *c.InFlight))
		}
	}
	if len(rows) == 1 {
		return
	}
	fmt.Fprintln(w)
	printTable(w, "", rows)
	for _, line := range more {
		fmt.Fprintln(w, line)
	}
}

func keysResetCommand() *cobra.Command {
	return clientCommand("keys reset", new(adminPort), func(cmd *cobra.Command, q *clientQuestion) error {
		return show(q.adminPort, cmd, http.MethodPost, q.path("counters/reset"), q.request, func(done *adminapi.Reset) {
			text := count(done.Reset, "counter") + " reset"
			if done.Reset == 0 {
				text += ": no limit applies to such a request; rules may need its --method, --path or --ip"
			} else if names := counterNames(cmd, q); names != "" {
				text += ": " + names
			}
			fmt.Fprintln(cmd.ErrOrStderr(), text)
		})
	})
}

// counterNames returns the names of a request's counters, or "" on failure: after a reset, that isn't an error.
func counterNames(cmd *cobra.Command, q *clientQuestion) string {
	counters, _, _ := get[adminapi.Counters](q.adminPort, cmd, http.MethodPost, q.path("counters"), q.request, nil)
	var names []string
	for i := range counters.Counters {
		names = append(names, limitName(&counters.Counters[i]))
	}
	return strings.Join(names, ", ")
}

var slotID = regexp.MustCompile(`^[0-9a-fA-F]{32}$`)

func keysReleaseCommand() *cobra.Command {
	var node adminPort
	var slot, rule string
	cmd := clientCommand("keys release", &node, func(cmd *cobra.Command, q *clientQuestion) error {
		switch {
		case slot == "":
			return errors.New("--slot: is missing: give the id of a slot, as weir keys show lists it")
		case !slotID.MatchString(slot):
			return fmt.Errorf("--slot: must be the id of a slot, 32 hexadecimal digits, as weir keys show lists it, got %q", slot)
		}
		body := struct {
			clientRequest
			Slot string `json:"slot"`
			Rule string `json:"rule,omitempty"`
		}{q.request, slot, rule}
		return show(q.adminPort, cmd, http.MethodPost, q.path("counters/release"), body, func(done *adminapi.Released) {
			fmt.Fprintf(cmd.ErrOrStderr(), "slot released: %s\n", cell(strings.Join(done.Released, ", ")))
		})
	})
	cmd.Flags().StringVar(&slot, "slot", "", "id of the slot, as weir keys show lists it")
	cmd.Flags().StringVar(&rule, "rule", "", "id of the rule (default: all that limit requests in flight)")
	complete(cmd, "rule", node.ruleIDs)
	return cmd
}
