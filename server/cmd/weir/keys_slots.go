package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	adminapi "github.com/weirhq/weir/server/internal/admin"
)

// printSlots lists the requests in flight of a client, as they were at the given time, which is the node's: the clock of this
// machine may be another.
func printSlots(w io.Writer, all []adminapi.Counter, at time.Time) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	head := "\nSLOT\tCOUNTER\tHOLDS\tTAKEN\tENDS IN\n"
	var more []string
	for _, c := range all {
		listed := int64(0)
		for _, s := range c.Slots {
			fmt.Fprintf(t, "%s%s\t%s\t%d\t%s ago\t%s\n", head, cell(s.ID), cell(cmp.Or(c.Policy, c.Rule)), s.Slots, roughly(at.Sub(s.Since)), roughly(s.Ends.Sub(at)))
			head = ""
			listed += s.Slots
		}
		if c.InFlight != nil && listed > 0 && listed < *c.InFlight {
			more = append(more, fmt.Sprintf("of %s only the oldest are listed, with %d of %d slots", cell(cmp.Or(c.Policy, c.Rule)), listed, *c.InFlight))
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, line := range more {
		fmt.Fprintln(w, line)
	}
	return nil
}

// roughly is how long something takes, without what nobody reads.
func roughly(d time.Duration) string {
	unit := 100 * time.Millisecond
	if d >= 10*time.Second {
		unit = time.Second
	}
	if d = d.Round(unit); d <= 0 {
		return "0s"
	}
	return wait(d.Milliseconds())
}

var slotID = regexp.MustCompile(`^[0-9a-fA-F]{32}$`)

func keysReleaseCommand() *cobra.Command {
	var slot, rule string
	cmd := &cobra.Command{
		Use:   "release [KEY]",
		Short: "Free a slot of a client whose request has gone",
		Long: `Free the slots that one request of a client holds: of all limits on requests in
flight, or of --rule alone. Take the slot's id from weir keys show, and give the
same KEY and flags. KEY may be - to read it from standard input, which keeps it out
of the shell's history.

A slot that isn't renewed ends by itself after the rule's slot_ttl. Use this command
if the request is gone and you can't wait that long. It stops no request: one that
is still in flight takes its slot again at its next renewal, if one is free.`,
		Example: `  weir keys release sk_prod_1 --slot 5f0c4b1d9a7e3c2240d1e8b7a6f59312
  weir keys release --client 1a2b3c4d --path /v1/chat --rule chat --slot 5f0c4b1d9a7e3c2240d1e8b7a6f59312
  weir keys release --user ada --slot 5f0c4b1d9a7e3c2240d1e8b7a6f59312`,
	}
	cmd.Flags().StringVar(&slot, "slot", "", "id of the slot, as weir keys show lists it")
	cmd.Flags().StringVar(&rule, "rule", "", "id of the rule (default: all that limit what is in flight)")
	complete(cmd, "slot", cobra.NoFileCompletions)
	return clientCommand(cmd, func(cmd *cobra.Command, node *admin, r *namedRequest, query string, asJSON bool) error {
		switch {
		case slot == "":
			return errors.New("--slot: is missing: give the id of a slot, as weir keys show lists it")
		case !slotID.MatchString(slot):
			return fmt.Errorf("--slot: must be the id of a slot, 32 hexadecimal digits, as weir keys show lists it, got %q", slot)
		}
		a, err := node.call(cmd, http.MethodPost, "/v1/counters/release"+query, struct {
			*namedRequest
			Slot string `json:"slot"`
			Rule string `json:"rule,omitempty"`
		}{r, slot, rule}, nil)
		if err != nil {
			return err
		}
		var done adminapi.Released
		if err := a.decode(&done); err != nil {
			return err
		}
		if asJSON {
			return printJSON(cmd, json.RawMessage(a.body))
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "slot released: %s\n", cell(strings.Join(done.Released, ", ")))
		return nil
	})
}
