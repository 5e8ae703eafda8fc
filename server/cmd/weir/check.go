package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/server/internal/edge/checkapi"
)

func checkCommand() *cobra.Command {
	var r requestFlags
	var node nodePort
	var asJSON jsonFlag
	var colour colour
	cmd := command("check", func(cmd *cobra.Command, args []string) error {
		w, err := r.check(cmd, args)
		if err != nil {
			return err
		}
		a, err := node.ask(cmd.Context(), http.MethodPost, checkPath, w, nil)
		if err != nil {
			return err
		}
		var d struct {
			checkapi.CheckResponse
			Error *jsonerror.Error // the error in a response without a decision
		}
		if err := json.Unmarshal(a.body, &d); err != nil || !slices.Contains(decisions, a.StatusCode) || d.Error != nil {
			return trouble(a.refused()) // exit code 1 is for refused checks
		}
		out := cmd.OutOrStdout()
		if asJSON {
			fmt.Fprintf(out, "%s", a.body)
		} else {
			verdict := "refused"
			if d.Allowed {
				verdict = "allowed"
			}
			fmt.Fprintln(out, colour.verdict(out, d.Allowed, verdict)+words(&d.CheckResponse))
			printAmountsLeft(out, &d.CheckResponse)
		}
		if !d.Allowed {
			return &exit{code: exitRefused}
		}
		return nil
	}, &r, &colour, &asJSON)
	r.registerCharge(cmd)
	r.registerReserve(cmd)
	node.register(cmd, "http", "127.0.0.1:8080", "check API")
	cmd.Flags().Lookup("json").Usage = "print the node's answer"
	return cmd
}

// words returns the text that follows "allowed" or "refused".
func words(d *checkapi.CheckResponse) (s string) {
	uncounted := d.Degraded && d.Remaining < 0
	switch {
	case d.Rule == "" && d.Allowed:
		s = ": no limit applies"
	case d.Reason == weir.ReasonDenied.String():
		s = ": the client is on the deny list"
	case d.Rule == "" && d.Reason == weir.ReasonUnavailable.String():
		s = ": the node can't decide now; its /readyz says why"
	case d.Rule == "":
		s = ": " + d.Reason
	case d.Reason == weir.ReasonIdentityRequired.String():
		s = " by " + d.Rule + ": the request lacks a value that the rule counts by"
	case uncounted:
		s = " by " + d.Rule + ": not counted, since the store can't be reached"
	case d.Reason == weir.ReasonCooldown.String():
		s = " by " + d.Rule + ", in a cooldown: it kept coming while it was refused"
	default:
		s = " by " + d.Rule + ": " + whatIsLeft(d)
	}
	switch {
	case d.Allowed && d.DelayMS > 0:
		s += fmt.Sprintf(", after waiting %s", ms(d.DelayMS))
	case d.Allowed && d.SlotTTLMS > 0:
		s += fmt.Sprintf(", with a slot for %s", ms(d.SlotTTLMS))
	case !d.Allowed && d.RetryAfterMS > 0:
		if s += fmt.Sprintf(", retry in %s", ms(d.RetryAfterMS)); d.RetryIsAGuess {
			s += " or sooner, when a slot is released"
		}
	case !d.Allowed && d.RetryAfterMS < 0:
		s += ", waiting does not help"
	}
	if d.Degraded && !uncounted {
		s += " (degraded: the store can't be reached)"
	}
	return s
}

// binds reports whether a limit on an amount is the one that the decision is about.
func binds(d *checkapi.CheckResponse, l checkapi.LimitStatus) bool {
	return l.Amount != "" && l.Rule == d.Rule && int64(l.Limit) == d.Limit && int64(l.Remaining) == d.Remaining
}

// whatIsLeft describes what is left of the limit that the decision is about.
func whatIsLeft(d *checkapi.CheckResponse) string {
	if i := slices.IndexFunc(d.Limits, func(l checkapi.LimitStatus) bool { return binds(d, l) }); i >= 0 {
		return amountLeft(&d.Limits[i])
	}
	return fmt.Sprintf("%d of %d left", d.Remaining, cmp.Or(d.Burst, d.Limit))
}

func amountLeft(l *checkapi.LimitStatus) string {
	if l.Remaining < 0 {
		return "not counted"
	}
	s := fmt.Sprintf("%s of %s %s left", decimal(l.Remaining), decimal(cmp.Or(float64(l.Burst), l.Limit)), l.Amount)
	if !l.WindowEnd.IsZero() {
		s += " until " + l.WindowEnd.Format(time.RFC3339)
	}
	return s
}

// printAmountsLeft prints a line about each of the other limits on amounts.
func printAmountsLeft(w io.Writer, d *checkapi.CheckResponse) {
	for _, l := range d.Limits {
		if l.Amount != "" && !binds(d, l) {
			fmt.Fprintf(w, "  %s: %s\n", l.Rule, amountLeft(&l))
		}
	}
}

func decimal(n float64) string { return strconv.FormatFloat(n, 'f', -1, 64) }

// decisions are the statuses with which the check API sends a decision.
var decisions = []int{http.StatusOK, http.StatusTooManyRequests, http.StatusForbidden, http.StatusServiceUnavailable}

// noDecision returns the exit code for a response without a decision: the caller made a mistake, or the node has a
// problem.
func noDecision(status int) int {
	if slices.Contains([]int{http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden}, status) {
		return exitUsage
	}
	return exitUnavailable
}
