package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/internal/private"
	"github.com/weirhq/weir/rulefile"
	adminapi "github.com/weirhq/weir/server/internal/admin"
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
			verdict := cmp.Or(given(d.Allowed, "allowed"), "refused")
			fmt.Fprintln(out, colour.verdict(out, d.Allowed, verdict)+words(&d.CheckResponse))
			printAmountsLeft(out, &d.CheckResponse)
		}
		if !d.Allowed {
			return &exit{code: exitRefused}
		}
		return nil
	}, &r, &colour, &asJSON)
	r.registerCharge(cmd)
	cmd.Flags().DurationVar((*time.Duration)(&r.Reserve), "reserve", 0, "reserve the amounts, which are an estimate to settle later, for at least this long, such as 2m")
	cmd.Flags().StringVar(&r.ID, "id", "", "id of the request: within a minute, requests with one id are charged once")
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
		s = fmt.Sprintf(" by %s: %d of %d left", d.Rule, d.Remaining, cmp.Or(d.Burst, d.Limit))
		if i := slices.IndexFunc(d.Limits, func(l checkapi.LimitStatus) bool { return binds(d, l) }); i >= 0 {
			s = " by " + d.Rule + ": " + amountLeft(&d.Limits[i])
		}
	}
	switch {
	case d.Allowed && d.DelayMS > 0:
		s += fmt.Sprintf(", after waiting %s", ms(d.DelayMS))
	case d.Allowed && d.SlotTTLMS > 0:
		s += fmt.Sprintf(", with a slot for %s", ms(d.SlotTTLMS))
	case !d.Allowed && d.RetryAfterMS > 0:
		s += fmt.Sprintf(", retry in %s", ms(d.RetryAfterMS)) + given(d.RetryIsAGuess, " or sooner, when a slot is released")
	case !d.Allowed && d.RetryAfterMS < 0:
		s += ", waiting does not help"
	}
	return s + given(d.Degraded && !uncounted, " (degraded: the store can't be reached)")
}

// binds reports whether the decision is about this limit, which counts an amount.
func binds(d *checkapi.CheckResponse, l checkapi.LimitStatus) bool {
	return l.Amount != "" && l.Rule == d.Rule && int64(l.Limit) == d.Limit && int64(l.Remaining) == d.Remaining
}

func amountLeft(l *checkapi.LimitStatus) string {
	if l.Remaining < 0 {
		return "not counted"
	}
	s := fmt.Sprintf("%s of %s %s left", decimal(l.Remaining), decimal(cmp.Or(float64(l.Burst), l.Limit)), l.Amount)
	return s + given(!l.WindowEnd.IsZero(), " until "+l.WindowEnd.Format(time.RFC3339))
}

func printAmountsLeft(w io.Writer, d *checkapi.CheckResponse) {
	for _, l := range d.Limits {
		if l.Amount != "" && !binds(d, l) {
			fmt.Fprintf(w, "  %s: %s\n", l.Rule, amountLeft(&l))
		}
	}
}

func decimal(n float64) string { return strconv.FormatFloat(n, 'f', -1, 64) }

// decisions are the statuses of the check API's responses that contain a decision.
var decisions = []int{http.StatusOK, http.StatusTooManyRequests, http.StatusForbidden, http.StatusServiceUnavailable}

// noDecision returns the exit code for a response without a decision.
func noDecision(status int) int {
	if slices.Contains([]int{http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden}, status) {
		return exitUsage
	}
	return exitUnavailable
}

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
	node.register(cmd) // call this after --key is registered for API keys, so that the flag for the certificate's key gets another name
	cmd.Flags().StringVar(&file, "rules", "", "rule file (default: ask a running node)")
	complete(cmd, "rules", ruleFiles)
	return cmd
}

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

// limitWords describes a limit in words. It leaves out the defaults: the token bucket, and no burst.
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
	return l.Limit + given(len(more) > 0, " ("+strings.Join(more, ", ")+")") + given(l.Shadow, " in shadow")
}

func printExplanation(w io.Writer, x *adminapi.Explanation, colour *colour) {
	denied := colour.verdict(w, false, "denied")
	switch x.Reason {
	case weir.ReasonDenied.String():
		emergency := given(x.Emergency, x.Pattern+" on the emergency list: weir keys blocks shows who put it there")
		fmt.Fprintln(w, denied, "by", cmp.Or(emergency, "deny list entry "+x.Pattern))
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
		by := cmp.Or(given(len(r.By) > 0, "by "+strings.Join(r.By, ", ")), "one counter for all")
		var limits []string
		for _, l := range r.Limits {
			limits = append(limits, limitWords(&l))
		}
		takes := cmp.Or(given(r.Amount != "", fmt.Sprintf("charged %s %s (%s)", r.Charged, r.Amount, r.AmountFrom)), fmt.Sprint("cost ", r.Cost))
		takes += given(r.Scope != "", ", "+r.Scope)
		fmt.Fprintf(w, "  %s  %s: %s; %s from %s, %s, %s\n", colour.verdict(w, true, "yes"), r.ID, r.Why, strings.Join(limits, " and "), r.From, by, takes)
	}
}

// requestFlags are the flags that describe a request.
type requestFlags struct {
	checkapi.CheckRequest
	named          map[string]*string // attributes with flags of their own, by the flag's name
	attrs, amounts []string           // NAME=VALUE each
	unverified     bool
}

// register adds the flags for the parts of a request on which counters and rules depend.
func (r *requestFlags) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&r.Method, "method", "GET", "HTTP method")
	f.StringVar(&r.Path, "path", "", "path")
	f.StringVar(&r.IP, "ip", "", "the client's IP address")
	r.named = map[string]*string{"user": f.String("user", "", "user"), "org": f.String("org", "", "organisation"), "tier": f.String("tier", "", "tier")}
	f.StringArrayVar(&r.attrs, "attr", nil, "another attribute, NAME=VALUE; repeatable")
}

// registerCharge adds the flags for the key, and for the cost and amounts of the request.
func (r *requestFlags) registerCharge(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&r.Key, "key", "", "API key")
	r.Cost = f.Int64("cost", 1, "tokens; 0 peeks")
	f.StringArrayVar(&r.amounts, "amount", nil, "an amount that the request takes, NAME=NUMBER, such as tokens=1500; repeatable")
}

func (r *requestFlags) registerUnverified(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&r.unverified, "unverified", false, "treat the key and the tier as unverified, as the gateway does for a stranger")
}

// query returns the query string of the URL. It isn't empty if --unverified is set.
func (r *requestFlags) query() string {
	if r.unverified {
		return "?unverified=true"
	}
	return ""
}

// check returns the request that a command's arguments and flags describe.
func (r *requestFlags) check(cmd *cobra.Command, args []string) (*checkapi.CheckRequest, error) {
	var err error
	f := cmd.Flags()
	switch {
	case len(args) == 0:
	case f.Changed("key"):
		return nil, errors.New("--key: the key is there already, as an argument: give it once")
	case f.Lookup("rules") != nil && isRuleFile(args[0]):
		return nil, fmt.Errorf("%s takes a key: did you mean --rules %s?", cmd.CommandPath(), args[0])
	default:
		r.Key, err = keyOf(cmd, args[0])
	}
	switch {
	case err != nil:
		return nil, err
	case f.Changed("id") && r.ID == "":
		return nil, errors.New("--id: must not be empty")
	case f.Changed("reserve") && r.Reserve <= 0:
		return nil, errors.New("--reserve: must be a time such as 2m")
	}
	return r.wire()
}

// wire returns the request in the format of the check API.
func (r *requestFlags) wire() (*checkapi.CheckRequest, error) {
	r.Attributes, r.Amounts = map[string]string{}, map[string]counter.Amount{}
	for name, v := range r.named {
		if *v != "" {
			r.Attributes[name] = *v
		}
	}
	for _, text := range r.amounts {
		name, value, ok := strings.Cut(text, "=")
		if !ok {
			return nil, fmt.Errorf("--amount: must be NAME=NUMBER, such as tokens=1500, got %q", text)
		}
		n, err := counter.ParseAmount(value)
		if err != nil {
			return nil, fmt.Errorf("--amount %s: %w", name, err)
		}
		if _, twice := r.Amounts[name]; twice {
			return nil, fmt.Errorf("--amount %s: is given twice", name)
		}
		r.Amounts[name] = n
	}
	for _, text := range r.attrs {
		name, v, ok := strings.Cut(text, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("--attr: must be NAME=VALUE, got %q", text)
		}
		r.Attributes[name] = v
	}
	_, err := r.decode()
	return &r.CheckRequest, err
}

// decode decodes the request in the same way as a node does.
func (r *requestFlags) decode() (weir.Request, error) {
	body, err := json.Marshal(r.CheckRequest)
	if err != nil {
		return weir.Request{}, err
	}
	return checkapi.DecodeCheck(body)
}
