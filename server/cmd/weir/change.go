package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"
	"github.com/weirhq/weir/rulefile"
	adminapi "github.com/weirhq/weir/server/internal/admin"
)

// change is what the commands that change the rules of a node have in common.
type change struct {
	adminPort
	dryRun, force bool
	message       string
	colour        colour
}

func (c *change) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.BoolVar(&c.dryRun, "dry-run", false, "show what would change, and change nothing")
	f.BoolVar(&c.force, "force", false, "make the change in spite of warnings")
	f.StringVarP(&c.message, "message", "m", "", "why, for the history")
	f.DurationVar(&c.wait, "wait", 0, "how long to keep trying while the node can't reach its rule store, such as 5m (default: not at all)")
	c.colour.register(cmd)
	c.adminPort.register(cmd)
}

// changed is the outcome of a change, with the answer that it was decoded from.
type changed struct {
	adminapi.Changed
	sent json.RawMessage
}

// send makes the change. A dry run is sent with force, so that its answer has the difference beside the warnings.
func (c *change) send(cmd *cobra.Command, method, path string, body any, header http.Header) (*changed, error) {
	q := url.Values{}
	if c.dryRun {
		q.Set("dry_run", "true")
	}
	if c.dryRun || c.force {
		q.Set("force", "true")
	}
	if c.message != "" {
		q.Set("message", c.message)
	}
	if len(q) > 0 {
		path += "?" + q.Encode()
	}
	out, sent, err := get[adminapi.Changed](&c.adminPort, cmd, method, path, body, header)
	return &changed{out, sent}, err
}

// run makes the change and reports the outcome. If file isn't empty, problems are reported as being in that file.
func (c *change) run(cmd *cobra.Command, method, path string, body any, header http.Header, file string) error {
	out, err := c.send(cmd, method, path, body, header)
	if err != nil {
		return c.showProblems(cmd, err, file)
	}
	return c.report(cmd, out, file)
}

// report prints the difference and the outcome of the change.
func (c *change) report(cmd *cobra.Command, out *changed, file string) error {
	if err := c.print(cmd, out, file); err != nil {
		return err
	}
	w := cmd.ErrOrStderr()
	switch {
	case out.Emergency != "" && out.DryRun:
		fmt.Fprintln(w, "nothing was changed: a dry run")
	case out.Emergency == "added":
		fmt.Fprintln(w, "blocked by the emergency list: weir keys blocks shows it")
	case out.Emergency == "removed" && out.Diff == "":
		fmt.Fprintln(w, "taken off the emergency list")
	case out.Diff == "":
		fmt.Fprintf(w, "nothing to change: version %d is the same\n", out.Version)
	case out.DryRun && out.NeedsForce && !c.force:
		return &exit{exitRefused, fmt.Errorf("%s: this change needs --force", count(len(out.Warnings), "warning"))}
	case out.DryRun:
		fmt.Fprintln(w, "nothing was changed: a dry run")
	default:
		fmt.Fprintf(w, "version %d is in force\n", out.Version)
	}
	if out.Expires != nil {
		fmt.Fprintf(w, "the override ends at %s\n", clock(*out.Expires))
	}
	return nil
}

// print writes the difference to stdout and the warnings to stderr, or the whole answer as JSON.
func (c *change) print(cmd *cobra.Command, out *changed, file string) error {
	if c.asJSON {
		return printJSON(cmd, out.sent)
	}
	printDiff(cmd.OutOrStdout(), out.Diff, c.colour.on(cmd.OutOrStdout()))
	printProblems(cmd.ErrOrStderr(), "warning: ", out.Warnings, file)
	return nil
}

// showProblems prints the problems for which the node rejects a document, and returns the error that says what to do.
func (c *change) showProblems(cmd *cobra.Command, err error, file string) error {
	switch r, rejected := refused(err, http.StatusUnprocessableEntity); {
	case !rejected:
	case bool(c.asJSON):
		return cmp.Or(printJSON(cmd, json.RawMessage(r.body)), err)
	default:
		printProblems(cmd.ErrOrStderr(), "", r.Details.Problems, file)
		printProblems(cmd.ErrOrStderr(), "warning: ", r.Details.Warnings, file)
	}
	return err
}

// printProblems prints problems under the file's name on this machine, which the node doesn't know.
func printProblems(w io.Writer, prefix string, problems []rulefile.Problem, file string) {
	for _, p := range problems {
		if file != "" {
			p.File = file
		}
		fmt.Fprintln(w, prefix+p.Long())
	}
}
