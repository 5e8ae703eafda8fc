package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/checkapi"
	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/internal/serve"
)

func checkCommand() *cobra.Command {
	var r requestFlags
	var node string
	var secret tokenFlag
	var asJSON bool
	var colour colour
	cmd := &cobra.Command{
		Use:   "check [KEY]",
		Short: "Ask a running node for one decision",
		Long: `Ask a running node for one decision, as POST /v1/check does. KEY may be - to read
it from standard input, so that it isn't in the shell's history. Without --ip, rules
that count by address take all such checks for one client.

Exit 0 if the request is allowed, 1 if it is refused, 2 for a mistake in the
command or its token, 3 if no node answers or it can't decide.`,
		Example: `  weir check sk_123 --path /v1/orders --ip 203.0.113.7
  weir check --ip 203.0.113.7 --method POST --path /login --user ada --cost 0
  until weir check job:42 --json > answer.json; do sleep 1; done`,
		Args:              takes(0, 1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := r.argument(cmd, args); err != nil {
				return err
			}
			w, err := r.wire()
			if err != nil {
				return err
			}
			base, err := address("http", node)
			if err != nil {
				return err
			}
			url := base + "/v1/check"
			header, err := secret.header()
			if err != nil {
				return err
			}
			a, err := call(cmd.Context(), "http", http.MethodPost, url, w, header)
			if err != nil {
				return &exit{exitUnavailable, err}
			}
			var d struct {
				checkapi.CheckResponse
				Error *jsonerror.Error // of an answer that is no decision
			}
			if err := json.Unmarshal(a.body, &d); err != nil || !isDecision(a.status) || d.Error != nil {
				if a.status == http.StatusUnauthorized && header == nil {
					return errors.New(secret.wanted())
				}
				if a.status == http.StatusNotFound && d.Error != nil && strings.HasPrefix(d.Error.Message, serve.AdminPort) {
					return fmt.Errorf("--http: %s is on a node's admin port: give its check port, which is 127.0.0.1:8080 unless the node was told another", url)
				}
				return &exit{noDecision(a.status), unexpected(url, a.status, a.body)}
			}
			if asJSON {
				_, err = cmd.OutOrStdout().Write(a.body)
			} else {
				out := cmd.OutOrStdout()
				verdict, rest, _ := strings.Cut(words(&d.CheckResponse), "ed") // allowed, refused
				_, err = fmt.Fprintln(out, colour.verdict(out, d.Allowed, verdict+"ed")+rest)
			}
			if err == nil && !d.Allowed {
				err = &exit{code: exitRefused}
			}
			return err
		},
	}
	r.register(cmd)
	addressFlag(cmd, &node, "http", "127.0.0.1:8080", "check API")
	secret.register(cmd.Flags(), "http", "check API")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the node's answer")
	colour.register(cmd)
	return cmd
}

// words says what a decision says.
func words(d *checkapi.CheckResponse) string {
	s := "allowed"
	if !d.Allowed {
		s = "refused"
	}
	uncounted := d.Degraded && d.Remaining < 0
	switch {
	case d.Rule == "" && d.Allowed:
		s += ": no limit applies"
	case d.Rule == "":
		s += ": " + d.Reason
	case uncounted:
		s += fmt.Sprintf(" by %s: not counted, since the store can't be reached", d.Rule)
	default:
		if s += fmt.Sprintf(" by %s: %d of %d left", d.Rule, d.Remaining, cmp.Or(d.Burst, d.Limit)); d.Reason == weir.ReasonCooldown.String() {
			s = fmt.Sprintf("refused by %s, in a cooldown: it kept coming while it was refused", d.Rule)
		}
	}
	switch {
	case d.Allowed && d.DelayMS > 0:
		s += fmt.Sprintf(", after waiting %s", ms(d.DelayMS))
	case !d.Allowed && d.RetryAfterMS > 0:
		s += fmt.Sprintf(", retry in %s", ms(d.RetryAfterMS))
	case !d.Allowed && d.RetryAfterMS < 0:
		s += ", waiting does not help"
	}
	if d.Degraded && !uncounted {
		s += " (degraded: the store can't be reached)"
	}
	return s
}

// isDecision: the statuses of a check that was decided.
func isDecision(status int) bool {
	switch status {
	case http.StatusOK, http.StatusTooManyRequests, http.StatusForbidden, http.StatusServiceUnavailable:
		return true
	}
	return false
}

// noDecision is the exit code of an answer that is none: the caller's mistake, or the node's trouble.
func noDecision(status int) int {
	switch status {
	case http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden:
		return exitUsage
	}
	return exitUnavailable
}

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
