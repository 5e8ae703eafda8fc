package main

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	toplist "github.com/weirhq/weir/server/internal/observe/top"
	"golang.org/x/term"
)

type topView struct {
	node    adminPort
	colour  colour
	refused bool
	rule    string // "" shows all rules
	rules   bool   // show how rules are used instead of clients
	k       int
	every   time.Duration

	answer   toplist.Answer
	at       time.Time // when the response arrived
	trouble  string    // why there is no newer response
	paused   bool
	typing   *string // what the user has typed so far to choose a rule; nil if the user isn't typing
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
		if !once && isTerminal(out) && term.IsTerminal(int(os.Stdin.Fd())) {
			return v.show(cmd, &screen{in: os.Stdin, out: os.Stdout})
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

func (v *topView) fetch(cmd *cobra.Command) (sent json.RawMessage, err error) {
	q := url.Values{"by": {"requests"}, "k": {strconv.Itoa(v.k)}}
	if v.refused {
		q.Set("by", "refused")
	}
	if v.rule != "" {
		q.Set("rule", v.rule)
	}
	v.answer, sent, err = get[toplist.Answer](&v.node, cmd, http.MethodGet, "/v1/top?"+q.Encode(), nil, nil)
	v.at = time.Now()
	return sent, err
}

func (v *topView) title() string {
	by := "requests"
	switch {
	case v.rules:
		by = "rule"
	case v.refused:
		by = "refusals"
	}
	out := fmt.Sprintf("weir top  %s  by %s  %s", v.at.Format(time.TimeOnly), by, count(len(v.answer.Nodes), "node"))
	if v.rule != "" {
		out += "  rule " + cell(v.rule)
	}
	if v.paused {
		out += "  paused"
	}
	return out
}

// limits says what is missing from the response, or returns "".
func (v *topView) limits() string {
	out := missingNodes(v.answer.Partial, v.answer.NodesMissing)
	for _, n := range v.answer.Nodes {
		if n.SampledOneIn > 1 {
			out = append(out, fmt.Sprintf("%s looks at one decision in %.0f", cell(n.Name), n.SampledOneIn))
		}
	}
	if below := v.answer.MissingBelow; below > 0 && !v.rules {
		out = append(out, fmt.Sprintf("clients below %s/s may be missing", number(below)))
	}
	return strings.Join(out, "; ")
}

// table returns a line for each client or rule, with at most width columns. 0 means no limit.
func (v *topView) table(width int) []string {
	if v.rules {
		return v.ruleTable()
	}
	if len(v.answer.Clients) == 0 {
		some := "No client"
		if below := v.answer.MissingBelow; below > 0 {
			some += " above " + number(below) + "/s"
		}
		// Rates cover only completed slots, so they don't include requests of the last moments.
		return []string{fmt.Sprintf("%s in the last %.0f seconds; a new request shows up after about %.0f s.", some, v.answer.WindowSeconds, v.answer.SlotSeconds)}
	}
	rows := [][]string{{"CLIENT", "", "REQ/S", "REFUSED/S", "RULE"}}
	for _, c := range v.answer.Clients {
		requests := number(c.Requests)
		if c.PlusMinus >= 0.1 {
			requests += " ±" + number(c.PlusMinus)
		}
		rule := cell(c.Rule)
		if c.MoreRules > 0 {
			rule += fmt.Sprintf(" +%d", c.MoreRules)
		}
		rows = append(rows, []string{cell(c.Client), c.Fingerprint, requests, number(c.Refused), rule})
	}
	lines, used := aligned("llrrl", rows)
	room := toplist.Slots
	if width > 0 {
		room = min(room, width-used-2)
	}
	if room < 5 {
		return lines
	}
	lines[0] += "  " + "LAST MINUTE"[:min(room, len("LAST MINUTE"))]
	for i := range v.answer.Clients {
		c := &v.answer.Clients[i]
		past, style := c.History.Requests, green
		if v.refused {
			past, style = c.History.Refused, red
		}
		lines[i+1] += "  " + v.paint(style, sparkline(past[toplist.Slots-room:]))
	}
	return lines
}

func (v *topView) ruleTable() []string {
	rows := [][]string{{"RULE", "REQ/S", "REFUSED/S", "IN SHADOW/S", "LAST HIT", "LAST REFUSAL"}}
	never := "none in " + roughly(v.at.Sub(v.answer.RulesSince))
	for _, r := range v.answer.Rules {
		rows = append(rows, []string{cell(r.Rule), number(r.Requests), number(r.Refused), number(r.Shadow), ago(v.at, r.LastHit, never), ago(v.at, r.LastRefusal, never)})
	}
	lines, _ := aligned("lrrrrr", rows)
	return lines
}

// sparkline draws counts as bars. The highest count is a full block.
func sparkline(counts []uint32) string {
	const bars = "▁▂▃▄▅▆▇█"
	most := slices.Max(counts)
	var b strings.Builder
	for _, n := range counts {
		if n == 0 {
			b.WriteByte(' ')
			continue
		}
		i := int(math.Ceil(8*float64(n)/float64(most))) - 1
		b.WriteString(bars[3*i : 3*i+3]) // each bar takes three bytes
	}
	return b.String()
}
