package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/rulefile"
	adminapi "github.com/weirhq/weir/server/internal/admin"
)

// change has the flags of all commands that change a node's rules.
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

// changed is the outcome of a change, and the response to print with --json.
type changed struct {
	adminapi.Changed
	sent any
}

// send makes the change. It sends a dry run with force, because the response then includes the difference even if there
// are warnings.
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

// run makes the change and reports the outcome. If file isn't empty, it reports problems as problems in that file.
func (c *change) run(cmd *cobra.Command, method, path string, body any, header http.Header, file string) error {
	out, err := c.send(cmd, method, path, body, header)
	if err != nil {
		return c.showProblems(cmd, err, file)
	}
	return c.report(cmd, out, file)
}

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
	if !out.Expires.IsZero() {
		fmt.Fprintf(w, "the override ends at %s\n", clock(out.Expires))
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

// showProblems prints why the node rejects a document. It returns err, so that the caller can return it.
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

// printProblems prints problems with the file's name on this machine, which the node doesn't know.
func printProblems(w io.Writer, prefix string, problems []rulefile.Problem, file string) {
	for _, p := range problems {
		if file != "" {
			p.File = file
		}
		fmt.Fprintln(w, prefix+p.Long())
	}
}

func applyCommand() *cobra.Command {
	var c change
	var version int64
	cmd := command("rules apply", func(cmd *cobra.Command, args []string) error {
		text, err := readRules(cmd, args[0])
		if err != nil {
			return err
		}
		if !cmd.Flags().Changed("if-version") {
			if version, err = c.inForce(cmd); err != nil {
				return err
			}
		}
		err = c.run(cmd, http.MethodPut, "/v1/rules", text, ifMatch(version), args[0])
		if r, ok := refused(err, http.StatusPreconditionFailed); ok && r.Code == jsonerror.Conflict {
			return &exit{exitRefused, fmt.Errorf("%w; to see it: weir rules diff --from %d", r, version)}
		}
		return err
	}, &c)
	cmd.ValidArgsFunction = ruleFiles
	cmd.Flags().Int64Var(&version, "if-version", 0, "only if this version is in force (default: whichever is)")
	return cmd
}

func diffCommand() *cobra.Command {
	c := change{dryRun: true, force: true}
	var from, to int64
	cmd := command("rules diff", func(cmd *cobra.Command, args []string) error {
		out, err := c.compare(cmd, args, from, to)
		file := strings.Join(args, "")
		if err == nil {
			err = c.print(cmd, out, file)
		}
		switch {
		case err != nil:
			return trouble(c.showProblems(cmd, err, file))
		case out.Diff != "":
			return &exit{code: exitRefused}
		}
		return nil
	}, &c.colour, &c.adminPort)
	cmd.ValidArgsFunction = ruleFiles
	f := cmd.Flags()
	f.Int64Var(&from, "from", 0, "version to compare with --to, instead of a file")
	f.Int64Var(&to, "to", 0, "the version to compare it with (default: the one in force)")
	return cmd
}

// compare returns what applying a file would change, or the difference between two versions.
func (c *change) compare(cmd *cobra.Command, args []string, from, to int64) (*changed, error) {
	versions, until := cmd.Flags().Changed("from"), cmd.Flags().Changed("to")
	var text []byte
	var err error
	switch {
	case len(args) == 1 && (versions || until):
		return nil, errors.New("--from and --to compare versions: leave the file out")
	case len(args) == 1:
		text, err = readRules(cmd, args[0])
	case !versions:
		return nil, errors.New("name a rule file, - for standard input, or a version with --from")
	}
	if err == nil && !until {
		to, err = c.inForce(cmd)
	}
	switch {
	case err != nil:
		return nil, err
	case versions:
		q := url.Values{"from": {strconv.FormatInt(from, 10)}, "to": {strconv.FormatInt(to, 10)}}
		out, sent, err := get[adminapi.Changed](&c.adminPort, cmd, http.MethodGet, "/v1/rules/diff?"+q.Encode(), nil, http.Header{"Accept": {"application/json"}})
		return &changed{out, sent}, err
	}
	return c.send(cmd, http.MethodPut, "/v1/rules", text, ifMatch(to))
}

// trouble replaces exit code 1 in errors of commands for which exit code 1 has another meaning, such as that there is a
// difference.
func trouble(err error) error {
	var e *exit
	if errors.As(err, &e) && e.code == exitRefused {
		return &exit{exitUsage, e.cause}
	}
	return err
}

func (n *adminPort) inForce(cmd *cobra.Command) (int64, error) {
	a, err := n.call(cmd, http.MethodGet, "/v1/rules", nil, nil)
	if err != nil {
		return 0, err
	}
	return a.version()
}

func readRules(cmd *cobra.Command, name string) ([]byte, error) {
	text, err := readFile(cmd, name, rulefile.MaxSize)
	switch {
	case err != nil:
		return nil, err
	case len(text) > rulefile.MaxSize:
		return nil, &exit{exitRefused, fmt.Errorf("%s: is too large: a rule file has at most %d MiB", name, rulefile.MaxSize>>20)}
	}
	return text, nil
}

func putRuleCommand() *cobra.Command {
	var c change
	cmd := command("rules put", func(cmd *cobra.Command, args []string) error {
		text, err := readRules(cmd, args[1])
		if err != nil {
			return err
		}
		// A problem may be in the rule or in the document around it, so show the file name that the node reports.
		return c.run(cmd, http.MethodPut, "/v1/rules/id/"+url.PathEscape(args[0]), text, nil, "")
	}, &c)
	cmd.ValidArgsFunction = ruleFiles
	return cmd
}

func removeRuleCommand() *cobra.Command {
	var c change
	cmd := command("rules remove", func(cmd *cobra.Command, args []string) error {
		return c.run(cmd, http.MethodDelete, "/v1/rules/id/"+url.PathEscape(args[0]), nil, nil, "")
	}, &c)
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	return cmd
}

func tierCommand() *cobra.Command {
	var c change
	var limit string
	var body adminapi.Numbers
	cmd := command("rules tier", func(cmd *cobra.Command, args []string) error {
		switch given := cmd.Flags().Changed; {
		case !given("limit") && !given("burst"):
			return errors.New("give --limit, such as 500/minute, or --burst")
		case given("burst") && body.Capacity < 1:
			return fmt.Errorf("--burst: must be at least 1, got %d", body.Capacity)
		}
		body.Limit = limitJSON(limit)
		return c.run(cmd, http.MethodPut, "/v1/rules/tier/"+url.PathEscape(args[0]), body, nil, "")
	}, &c)
	f := cmd.Flags()
	f.StringVar(&limit, "limit", "", "the tier's limit, such as 500/minute or 500")
	f.Int64Var(&body.Capacity, "burst", 0, "how much of it at once (default: as the tier has it)")
	return cmd
}

// limitJSON encodes a limit: as text, such as 500/minute, or as a number, which leaves the window unchanged.
func limitJSON(limit string) json.RawMessage {
	if limit == "" {
		return nil
	}
	if n, err := strconv.ParseInt(limit, 10, 64); err == nil {
		return strconv.AppendInt(nil, n, 10)
	}
	text, _ := json.Marshal(limit) // strings can always be encoded
	return text
}
