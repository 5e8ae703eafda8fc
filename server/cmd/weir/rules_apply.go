package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/rulefile"
)

func applyCommand() *cobra.Command {
	var c change
	var version int64
	cmd := &cobra.Command{
		Use:   "apply FILE",
		Short: "Put the rules of a file in force, on all nodes",
		Long: `Put the rules of a file in force, on all nodes that share a store. - reads
standard input. The difference goes to stdout, warnings to stderr; a change with
warnings needs --force.

If two people apply at once, the second is told and changes nothing. --if-version
goes further: it applies the file only if the version it was made from is in force.

Exit 0 if the rules are in force, even if they were before; 1 if they are
rejected, or have warnings; 2 for a mistake in the command; 3 if no node answers.`,
		Example: `  weir rules apply rules.yaml --dry-run
  weir rules apply rules.yaml -m "twice as much for search"
  weir rules apply rules.yaml --if-version 42
  sed s/100/200/ rules.yaml | WEIR_ADMIN_TOKEN=$TOKEN weir rules apply - --admin https://weir.example.com:8082`,
		Args:              takes(1, 1),
		ValidArgsFunction: one(ruleFiles),
		RunE: func(cmd *cobra.Command, args []string) error {
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
		},
	}
	cmd.Flags().Int64Var(&version, "if-version", 0, "only if this version is in force (default: whichever is)")
	complete(cmd, "if-version", c.versions)
	c.register(cmd)
	return cmd
}

func diffCommand() *cobra.Command {
	c := change{dryRun: true, force: true}
	var from, to int64
	cmd := &cobra.Command{
		Use:   "diff [FILE]",
		Short: "Show what applying a file would change, or how two versions differ",
		Long: `Show what applying a file would change, with its warnings, or how two versions
differ. - reads standard input. Nothing is changed.

Exit 0 if there is no difference, 1 if there is one, as diff does; 2 for a mistake
in the command or in the file, or a version that isn't there; 3 if no node answers.`,
		Example: `  weir rules diff rules.yaml
  weir rules diff --from 41
  weir rules diff --from 41 --to 42 --color always | less -R`,
		Args:              takes(0, 1),
		ValidArgsFunction: one(ruleFiles),
		RunE: func(cmd *cobra.Command, args []string) error {
			versions := cmd.Flags().Changed("from")
			switch {
			case len(args) == 1 && (versions || cmd.Flags().Changed("to")):
				return errors.New("--from and --to are of versions: leave the file out")
			case len(args) == 0 && !versions:
				return errors.New("name a rule file, - for standard input, or a version with --from")
			}
			var out *changed
			var err error
			file := ""
			if versions {
				if !cmd.Flags().Changed("to") {
					if to, err = c.inForce(cmd); err != nil {
						return trouble(err)
					}
				}
				out, err = c.between(cmd, from, to)
			} else {
				file = args[0]
				out, err = c.wouldBe(cmd, args[0])
			}
			if err != nil {
				return trouble(c.rejected(cmd, err, file))
			}
			if err := c.print(cmd, out, file); err != nil {
				return trouble(err)
			}
			if out.Diff != "" {
				return &exit{code: exitRefused}
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.Int64Var(&from, "from", 0, "version to compare with --to, instead of a file")
	f.Int64Var(&to, "to", 0, "the version to compare it with (default: the one in force)")
	complete(cmd, "from", c.versions)
	complete(cmd, "to", c.versions)
	f.BoolVar(&c.asJSON, "json", false, "print the node's answer")
	c.colour.register(cmd)
	c.admin.register(cmd)
	return cmd
}

// wouldBe is what applying a file would do.
func (c *change) wouldBe(cmd *cobra.Command, file string) (*changed, error) {
	text, err := readRules(cmd, file)
	if err != nil {
		return nil, err
	}
	version, err := c.inForce(cmd)
	if err != nil {
		return nil, err
	}
	return c.send(cmd, http.MethodPut, "/v1/rules", text, ifMatch(version))
}

// between is how two versions differ.
func (c *change) between(cmd *cobra.Command, from, to int64) (*changed, error) {
	q := url.Values{"from": {strconv.FormatInt(from, 10)}, "to": {strconv.FormatInt(to, 10)}}
	a, err := c.call(cmd, http.MethodGet, "/v1/rules/diff?"+q.Encode(), nil, http.Header{"Accept": {"application/json"}})
	if err != nil {
		return nil, err
	}
	out := &changed{body: a.body}
	return out, a.decode(out)
}

// trouble keeps the exit code that says "they differ" for that alone.
func trouble(err error) error {
	var e *exit
	if errors.As(err, &e) && e.code == exitRefused {
		return &exit{exitUsage, e.cause}
	}
	return err
}

// inForce is the version of the rules in force.
func (n *admin) inForce(cmd *cobra.Command) (int64, error) {
	a, err := n.call(cmd, http.MethodGet, "/v1/rules", nil, nil)
	if err != nil {
		return 0, err
	}
	return a.version()
}

// readRules reads a document that is to be sent to a node.
func readRules(cmd *cobra.Command, name string) ([]byte, error) {
	text, err := readFile(cmd, name)
	switch {
	case err != nil:
		return nil, &exit{exitUsage, err}
	case len(text) > rulefile.MaxSize:
		return nil, &exit{exitRefused, fmt.Errorf("%s: is too large: a rule file has at most %d MiB", name, rulefile.MaxSize>>20)}
	}
	return text, nil
}
