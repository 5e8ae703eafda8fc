package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	toplist "github.com/weirhq/weir/server/internal/observe/top"
)

// topView is the state of weir top.
type topView struct {
	node    adminPort
	colour  colour
	refused bool
	rule    string // "" means every rule
	rules   bool   // show how rules are used, instead of clients
	k       int
	every   time.Duration

	answer   toplist.Answer
	at       time.Time // of the answer
	trouble  string    // why there is no newer answer
	paused   bool
	typing   *string // the rule that the user is typing; nil while they aren't
	coloured bool
}

func topCommand() *cobra.Command {
	var v topView
	var by string
	var once bool
	cmd := command("top", func(cmd *cobra.Command, _ []string) error {
		v.refused = by == "refused"
		switch {
		case by != "requests" && by != "refused":
			return fmt.Errorf("--by: must be requests or refused, got %q", by)
		case v.k < 1 || v.k > 200:
			return fmt.Errorf("--clients: must be from 1 to 200, got %d", v.k)
		case v.every < 200*time.Millisecond:
			return fmt.Errorf("--interval: must be at least 200ms, got %s", v.every)
		}
		body, err := v.fetch(cmd)
		if err != nil {
			return err
		}
		if v.node.asJSON {
			return printJSON(cmd, body)
		}
		out := cmd.OutOrStdout()
		v.coloured = v.colour.on(out)
		in, isFile := cmd.InOrStdin().(*os.File)
		if !once && isTerminal(out) && isFile && term.IsTerminal(int(in.Fd())) {
			return v.show(cmd, &screen{in: in, out: os.Stdout})
		}
		for _, line := range v.table(0) {
			fmt.Fprintln(out, line)
		}
		if words := v.limits(); words != "" {
			fmt.Fprintln(cmd.ErrOrStderr(), words)
		}
		return nil
	}, &v.colour, &v.node)
	f := cmd.Flags()
	f.StringVar(&by, "by", "requests", "sort by requests or refused")
	complete(cmd, "by", fixed("requests", "refused"))
	f.StringVar(&v.rule, "rule", "", "only what this rule has decided")
	complete(cmd, "rule", v.node.ruleIDs)
	f.BoolVar(&v.rules, "rules", false, "show rules in place of clients: rates, last hit, last refusal")
	f.IntVar(&v.k, "clients", 50, "how many clients, up to 200")
	f.DurationVar(&v.every, "interval", time.Second, "time between looks, on a terminal")
	f.BoolVar(&once, "once", false, "print once and leave, also on a terminal")
	f.Lookup("json").Usage = "print JSON, once"
	return cmd
}

func (v *topView) query() string {
	q := url.Values{"by": {"requests"}, "k": {strconv.Itoa(v.k)}}
	if v.refused {
		q.Set("by", "refused")
	}
	if v.rule != "" {
		q.Set("rule", v.rule)
	}
	return "/v1/top?" + q.Encode()
}

// fetch asks the node, and returns its answer as it was sent.
func (v *topView) fetch(cmd *cobra.Command) (sent json.RawMessage, err error) {
	v.answer, sent, err = get[toplist.Answer](&v.node, cmd, http.MethodGet, v.query(), nil, nil)
	v.at = time.Now()
	return sent, err
}
