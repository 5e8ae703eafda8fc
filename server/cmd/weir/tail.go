package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	adminapi "github.com/weirhq/weir/server/internal/admin"
	"github.com/weirhq/weir/server/internal/observe/tail"
)

type tailView struct {
	node   adminPort
	colour colour
	filter map[string]*string // query parameters of GET /v1/events

	seen, shown uint64
	oneIn       uint64 // the sampling rate that was reported last; 0 while all decisions are shown
	sampled     bool   // whether decisions have ever been sampled
}

func tailCommand() *cobra.Command {
	v := tailView{filter: map[string]*string{}}
	cmd := command("tail", func(cmd *cobra.Command, _ []string) error { return v.run(cmd) }, &v.colour, &v.node)
	for _, filter := range []struct{ name, usage string }{
		{"rule", "only decisions that this rule binds"},
		{"outcome", "only allowed or refused"},
		{"client", "only the client with this fingerprint, as weir top shows it"},
		{"edge", "only requests that came in there: check, gateway, envoy, …"},
	} {
		v.filter[filter.name] = cmd.Flags().String(filter.name, "", filter.usage)
	}
	complete(cmd, "outcome", fixed("allowed", "refused"))
	cmd.Flags().Lookup("json").Usage = "print a line of JSON for each decision"
	return cmd
}

// silentFor is how long a stream may be silent before the command gives up. The node sends a pulse every second.
const silentFor = 15 * time.Second

func (v *tailView) run(cmd *cobra.Command) error {
	q := url.Values{}
	for name, value := range v.filter {
		if *value != "" {
			q.Set(name, *value)
		}
	}
	ctx := cmd.Context() // no timeout: the stream lasts until the user ends the command
	res, err := v.node.open(ctx, http.MethodGet, "/v1/events?"+q.Encode(), nil, http.Header{"Accept": {"text/event-stream"}})
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		a, err := v.node.read(res)
		if err != nil {
			return err
		}
		return a.refused()
	}
	silent := time.AfterFunc(silentFor, func() { res.Body.Close() })
	defer silent.Stop()
	ended := ""
	err = tail.Read(res.Body, func(event string, data []byte) error {
		silent.Reset(silentFor)
		switch event {
		case "decision":
			return v.show(cmd.OutOrStdout(), data)
		case "pulse":
			return v.pulse(cmd.ErrOrStderr(), data)
		case "end":
			var e adminapi.End
			_ = json.Unmarshal(data, &e) // without a reason, the stream has ended nevertheless
			ended = e.Text
		}
		return nil
	})
	switch told, failed := errors.AsType[*exit](err); {
	case ctx.Err() != nil: // the user pressed Ctrl-C
		if v.sampled {
			fmt.Fprintf(cmd.ErrOrStderr(), "of %d decisions, %d were shown\n", max(v.seen, v.shown), v.shown)
		}
		return nil
	case failed:
		return told
	case ended != "":
		return &exit{exitUnavailable, errors.New("the node has ended the stream: " + printable(ended))}
	}
	return &exit{exitUnavailable, errors.New("the connection to the node was lost: is it still there?")}
}

func (v *tailView) show(out io.Writer, data []byte) error {
	var d tail.Decision
	if err := json.Unmarshal(data, &d); err != nil {
		return notUnderstood(err)
	}
	v.shown++
	line := string(data)
	if !v.node.asJSON {
		line = v.line(out, &d)
	}
	if _, err := fmt.Fprintln(out, line); err != nil {
		return &exit{exitUnavailable, err} // the process that reads the output has ended
	}
	return nil
}

func (v *tailView) line(out io.Writer, d *tail.Decision) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %s  %-11s  %-16s  %-18s  %-8s", d.Time.Local().Format("15:04:05.000"), v.colour.verdict(out, d.Outcome == "allowed", fmt.Sprintf("%-7s", cell(d.Outcome))),
		cell(d.Reason), orDash(d.Rule), orDash(d.Client), orDash(d.Fingerprint))
	for _, text := range []string{d.Method, d.Path, d.Edge} {
		if text != "" {
			b.WriteString("  " + cell(text))
		}
	}
	b.WriteString(given(d.Limit > 0, fmt.Sprintf("  %d of %d left", d.Remaining, d.Limit)))
	b.WriteString(given(d.RetryMS > 0, "  retry in "+ms(d.RetryMS).String()))
	b.WriteString(given(len(d.Shadow) > 0, "  would be refused by "+cell(strings.Join(d.Shadow, ", "))))
	return b.String()
}

// pulse prints a line when sampling begins, changes or ends.
func (v *tailView) pulse(words io.Writer, data []byte) error {
	var p tail.Pulse
	if err := json.Unmarshal(data, &p); err != nil {
		return notUnderstood(err)
	}
	v.seen += p.Seen
	switch {
	case p.LeftOut > 0 && p.OneIn != v.oneIn:
		fmt.Fprintf(words, "sampled: %d of %d decisions in the last second are shown\n", p.Sent, p.Seen)
		v.oneIn, v.sampled = p.OneIn, true
	case p.LeftOut == 0 && v.oneIn > 0:
		fmt.Fprintln(words, "all decisions are shown again")
		v.oneIn = 0
	}
	return nil
}
