package main

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/spf13/cobra"
	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/private"
	"github.com/weirhq/weir/rulefile"
	adminapi "github.com/weirhq/weir/server/internal/admin"
)

func explainCommand() *cobra.Command {
	var r requestFlags
	var node adminPort
	var file string
	var colour colour
	cmd := command("explain", func(cmd *cobra.Command, args []string) error {
		w, err := r.check(cmd, args)
		if err != nil {
			return err
		}
		var x adminapi.Explanation
		if file == "" {
			x, _, err = get[adminapi.Explanation](&node, cmd, http.MethodPost, "/v1/explain"+r.query(), w, nil)
		} else {
			x, err = r.explain(file)
		}
		if err != nil {
			return err
		}
		if node.asJSON {
			return printJSON(cmd, x)
		}
		printExplanation(cmd.OutOrStdout(), &x, &colour)
		return nil
	}, &r, &colour)
	r.registerCharge(cmd)
	r.registerUnverified(cmd)
	node.register(cmd) // after --key for API keys, which renames the flag for the certificate's key
	cmd.Flags().StringVar(&file, "rules", "", "rule file (default: ask a running node)")
	complete(cmd, "rules", ruleFiles)
	return cmd
}

// explain explains which rules of a file apply to the request.
func (r *requestFlags) explain(file string) (x adminapi.Explanation, err error) {
	f, err := rulefile.Load(file)
	if err != nil {
		return x, badRules(err)
	}
	req, err := r.decode()
	if r.unverified {
		req.KeyVerified, req.TierVerified = false, false
	}
	return adminapi.Explain(f.Set, &req), err
}

// limitWords describes a limit. It leaves out the defaults, which are a token bucket without a
// burst.
func limitWords(l *adminapi.ExplainedLimit) string {
	var more []string
	if l.Algorithm != weir.TokenBucket.String() {
		more = append(more, l.Algorithm)
	}
	if l.Calendar != "" {
		more = append(more, l.Calendar)
	}
	if l.Burst > 0 {
		more = append(more, fmt.Sprint("burst ", l.Burst))
	}
	s := l.Limit
	if len(more) > 0 {
		s += " (" + strings.Join(more, ", ") + ")"
	}
	if l.Shadow {
		s += " in shadow"
	}
	return s
}

func printExplanation(w io.Writer, x *adminapi.Explanation, colour *colour) {
	denied := colour.verdict(w, false, "denied")
	switch x.Reason {
	case weir.ReasonDenied.String():
		if x.Emergency {
			fmt.Fprintf(w, "%s by %s on the emergency list: weir keys blocks shows who put it there\n", denied, x.Pattern)
		} else {
			fmt.Fprintf(w, "%s by deny list entry %s\n", denied, x.Pattern)
		}
	case weir.ReasonBypassed.String():
		fmt.Fprintf(w, "%s by allow list entry %s\n", colour.verdict(w, true, "bypassed"), x.Pattern)
	case weir.ReasonUnreadablePath.String():
		fmt.Fprintf(w, "%s: the path is longer than %d bytes, or can be read in too many ways\n", colour.verdict(w, false, "refused"), private.MaxPath)
	default:
		if path := cmp.Or(strings.Join(x.Paths, " or "), x.Path); path != "" {
			fmt.Fprintf(w, "path  %s\n", path)
		}
		switch verified := x.KeyVerified; {
		case verified != nil && *verified:
			fmt.Fprintln(w, "key   taken as verified, as by the check API; --unverified takes it as a gateway that doesn't know it")
		case verified != nil:
			fmt.Fprintln(w, "key   taken as unverified, as by a gateway that doesn't know it")
		}
		if x.Tier != "" {
			fmt.Fprintf(w, "tier  %s: %s\n", x.Tier, x.TierWhy)
		}
	}
	for _, s := range x.Ignored {
		fmt.Fprintf(w, "ignored  %s\n", s)
	}
	for _, r := range x.Rules {
		if !r.Applies {
			fmt.Fprintf(w, "  %s   %s: %s\n", colour.verdict(w, false, "no"), r.ID, r.Why)
			continue
		}
		by := "one counter for all"
		if len(r.By) > 0 {
			by = "by " + strings.Join(r.By, ", ")
		}
		var limits []string
		for _, l := range r.Limits {
			limits = append(limits, limitWords(&l))
		}
		takes := fmt.Sprint("cost ", r.Cost)
		if r.Amount != "" {
			takes = fmt.Sprintf("charged %s %s (%s)", r.Charged, r.Amount, r.AmountFrom)
		}
		if r.Scope != "" {
			takes += ", " + r.Scope
		}
		fmt.Fprintf(w, "  %s  %s: %s; %s from %s, %s, %s\n", colour.verdict(w, true, "yes"), r.ID, r.Why, strings.Join(limits, " and "), r.From, by, takes)
	}
}
