package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/spf13/cobra"
	"github.com/weirhq/weir/rulefile"
	adminapi "github.com/weirhq/weir/server/internal/admin"
)

// change is what the commands have in common that change the rules of a node.
type change struct {
	admin
	dryRun, force, asJSON bool
	message               string
	colour                colour
}

func (c *change) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.BoolVar(&c.dryRun, "dry-run", false, "show what would change, and change nothing")
	f.BoolVar(&c.force, "force", false, "change it in spite of warnings")
	f.StringVarP(&c.message, "message", "m", "", "why, for the history")
	complete(cmd, "message", cobra.NoFileCompletions)
	f.DurationVar(&c.wait, "wait", 0, "how long to try again while the node can't reach the store of its rules, such as 5m (default: not at all)")
	f.BoolVar(&c.asJSON, "json", false, "print the node's answer")
	c.colour.register(cmd)
	c.admin.register(cmd)
}

// changed is what became of a change, and the answer that says so.
type changed struct {
	adminapi.Changed
	body []byte
}

// send makes the change. A dry run is sent with force, so that it shows the difference beside the warnings.
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
	a, err := c.call(cmd, method, path, body, header)
	if err != nil {
		return nil, err
	}
	out := &changed{body: a.body}
	return out, a.decode(out)
}

// run makes the change and says what became of it. Places of problems are in file, or where the node says.
func (c *change) run(cmd *cobra.Command, method, path string, body any, header http.Header, file string) error {
	out, err := c.send(cmd, method, path, body, header)
	if err != nil {
		return c.rejected(cmd, err, file)
	}
	return c.report(cmd, out, file)
}

// report prints the difference, and says what became of the change.
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
		fmt.Fprintf(w, "the override ends at %s\n", out.Expires.Local().Format(time.DateTime))
	}
	return nil
}

// print writes the difference to stdout and the warnings to stderr; or all of it as JSON.
func (c *change) print(cmd *cobra.Command, out *changed, file string) error {
	if c.asJSON {
		return printJSON(cmd, json.RawMessage(out.body))
	}
	if err := printDiff(cmd.OutOrStdout(), out.Diff, c.colour.on(cmd.OutOrStdout())); err != nil {
		return err
	}
	printProblems(cmd.ErrOrStderr(), "warning: ", out.Warnings, file)
	return nil
}

// rejected prints what the node has against a document, and returns the error that says what to do.
func (c *change) rejected(cmd *cobra.Command, err error, file string) error {
	var r *refusal
	if !errors.As(err, &r) || r.status != http.StatusUnprocessableEntity {
		return err
	}
	if c.asJSON {
		if failed := printJSON(cmd, json.RawMessage(r.body)); failed != nil {
			return failed
		}
		return err
	}
	printProblems(cmd.ErrOrStderr(), "", r.Details.Problems, file)
	printProblems(cmd.ErrOrStderr(), "warning: ", r.Details.Warnings, file)
	return err
}

// printProblems names the file as it is called here: the node has never seen its name.
func printProblems(w io.Writer, prefix string, problems []rulefile.Problem, file string) {
	for _, p := range problems {
		if file != "" {
			p.File = file
		}
		fmt.Fprintln(w, prefix+p.Long())
	}
}
