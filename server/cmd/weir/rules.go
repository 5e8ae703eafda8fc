package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/weirhq/weir/rulefile"
	adminapi "github.com/weirhq/weir/server/internal/admin"
	"github.com/weirhq/weir/server/internal/observe/top"
)

func lintCommand() *cobra.Command {
	var strict bool
	var colour colour
	var node adminPort
	cmd := command("rules lint", func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return errors.New("name the rule files, or - for standard input")
		}
		var blocked adminapi.List
		if cmd.Flags().Changed("admin") {
			var err error
			if blocked, _, err = get[adminapi.List](&node, cmd, http.MethodGet, denylist, nil, nil); err != nil {
				return err
			}
		}
		var reports []lintReport
		var bad error
		for _, name := range args {
			r, err := lint(cmd, name, blocked.Emergency)
			if err != nil {
				return err
			}
			if len(r.Problems) > 0 || strict && len(r.Warnings) > 0 {
				bad = &exit{code: exitRefused}
			}
			reports = append(reports, r)
		}
		if node.asJSON {
			return cmp.Or(printJSON(cmd, reports), bad)
		}
		printLint(cmd.OutOrStdout(), reports, strict, &colour)
		return bad
	}, &colour, &node)
	cmd.ValidArgsFunction = ruleFiles
	cmd.Flags().BoolVar(&strict, "strict", false, "exit 1 also for warnings, for which weir rules apply needs --force")
	return cmd
}

type lintReport struct {
	File     string             `json:"file"`
	Rules    int                `json:"rules"`
	Problems []rulefile.Problem `json:"problems"`
	Warnings []rulefile.Problem `json:"warnings"`
}

// lint checks a rule file. It also warns of entries on the emergency list that are missing in the file.
func lint(cmd *cobra.Command, name string, emergency []adminapi.Block) (lintReport, error) {
	text, err := readFile(cmd, name, rulefile.MaxSize)
	if err != nil {
		return lintReport{}, err
	}
	r := lintReport{File: name, Problems: []rulefile.Problem{}, Warnings: []rulefile.Problem{}}
	f, err := rulefile.Parse(name, text)
	if problems, found := errors.AsType[rulefile.Problems](err); found {
		r.Problems = problems
		return r, nil
	}
	if err != nil {
		return r, err
	}
	r.Rules = len(f.Rules.Rules)
	r.Warnings = append(append(r.Warnings, f.Warnings...), adminapi.Unlisted(emergency, f.Set)...)
	return r, nil
}

// badRules adds the exit code to an error about a rule file. The code shows whether the rules have problems, or the
// file can't be read.
func badRules(err error) error {
	if is[rulefile.Problems](err) {
		return rejected(err)
	}
	return err
}

// readFile reads a file or a pipe or, if name is -, standard input. If there are more than most bytes, it returns
// most+1 of them.
func readFile(cmd *cobra.Command, name string, most int64) ([]byte, error) {
	from := cmd.InOrStdin()
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		from = f
	}
	return io.ReadAll(io.LimitReader(from, most+1))
}

func printLint(w io.Writer, reports []lintReport, strict bool, colour *colour) {
	for _, r := range reports {
		for _, p := range r.Problems {
			fmt.Fprintln(w, p.Long())
		}
		for _, p := range r.Warnings {
			fmt.Fprintln(w, colour.paint(w, amber, "warning:"), p.Long())
		}
		warnings := count(len(r.Warnings), "warning")
		switch {
		case len(r.Problems) > 0:
			fmt.Fprintf(w, "%s: %s\n", r.File, colour.paint(w, red, count(len(r.Problems), "problem")))
		case strict && len(r.Warnings) > 0:
			fmt.Fprintf(w, "%s: %s: applying it needs --force\n", r.File, colour.paint(w, red, warnings))
		default:
			fmt.Fprintf(w, "%s: %s, %s, %s\n", r.File, colour.paint(w, green, "ok"), count(r.Rules, "rule"), warnings)
		}
	}
}

func showCommand() *cobra.Command {
	var node adminPort
	var version string
	cmd := command("rules show", func(cmd *cobra.Command, args []string) error {
		text, err := node.rules(cmd, args, version)
		if err == nil && bool(node.asJSON) {
			text, err = rulefile.JSON(text)
			err = rejected(err)
		}
		if err == nil {
			_, err = cmd.OutOrStdout().Write(text)
		}
		return err
	}, &node)
	cmd.ValidArgsFunction = ruleFiles
	cmd.Flags().StringVar(&version, "version", "", "print this version instead of the one in force: 41, or 41-abcdef12 for an orphan")
	return cmd
}

// rules returns a document: the file in the arguments, a version, or the rules in force.
func (n *adminPort) rules(cmd *cobra.Command, args []string, version string) ([]byte, error) {
	given := cmd.Flags().Changed("version")
	switch {
	case len(args) == 1 && given:
		return nil, errors.New("--version: is of a node: leave the file out")
	case len(args) == 1:
		text, err := readFile(cmd, args[0], rulefile.MaxSize)
		if err == nil {
			_, err = rulefile.Parse(args[0], text)
		}
		return text, badRules(err)
	case given:
		v, _, err := get[adminapi.Version](n, cmd, http.MethodGet, "/v1/rules/versions/"+url.PathEscape(version), nil, nil)
		return []byte(v.Text), err
	}
	a, err := n.call(cmd, http.MethodGet, "/v1/rules", nil, nil)
	if err != nil {
		return nil, err
	}
	return a.body, nil
}

func historyCommand() *cobra.Command {
	var node adminPort
	var limit int
	cmd := command("rules history", func(cmd *cobra.Command, _ []string) error {
		if limit < 1 {
			return fmt.Errorf("--limit: must be at least 1, got %d", limit)
		}
		all, err := node.history(cmd, limit)
		if err != nil {
			return err
		}
		if node.asJSON {
			return printJSON(cmd, adminapi.Versions{Versions: all})
		}
		printHistory(cmd.OutOrStdout(), all)
		return nil
	}, &node)
	cmd.Flags().IntVar(&limit, "limit", 20, "how many versions")
	return cmd
}

// history lists versions page by page, because a node limits the size of a page. Orphans don't count toward the limit.
func (n *adminPort) history(cmd *cobra.Command, limit int) ([]adminapi.Version, error) {
	all := []adminapi.Version{}
	var before int64
	for count := 0; count < limit; {
		path := "/v1/rules/versions?limit=" + strconv.Itoa(min(limit-count, 50))
		if before > 0 {
			path += "&before=" + strconv.FormatInt(before, 10)
		}
		page, _, err := get[adminapi.Versions](n, cmd, http.MethodGet, path, nil, nil)
		if err != nil {
			return nil, err
		}
		if len(page.Versions) == 0 {
			break
		}
		for _, v := range page.Versions {
			if v.Orphan {
				continue
			}
			if before > 0 && v.Number >= before {
				return nil, &exit{exitUnavailable, errors.New("the node's history isn't understood, since it doesn't end: is it a Weir node, of this version?")}
			}
			count, before = count+1, v.Number
		}
		all = append(all, page.Versions...)
		if before <= 1 || count == 0 { // a page that has only orphans is the last one
			break
		}
	}
	return all, nil
}

func printHistory(w io.Writer, all []adminapi.Version) {
	rows := [][]string{{"VERSION", "HASH", "WHEN", "WHO", "MESSAGE"}}
	for _, v := range all {
		when := given(!v.Time.IsZero(), clock(v.Time)) // a damaged version has no time
		message := given(v.Orphan, "(orphan) ") + cell(v.Message)
		rows = append(rows, []string{strconv.FormatInt(v.Number, 10), cell(v.Hash[:min(8, len(v.Hash))]), when, cell(v.Author), message})
	}
	printTable(w, "", rows)
}

func rollbackCommand() *cobra.Command {
	var c change
	cmd := command("rules rollback", func(cmd *cobra.Command, args []string) error {
		var body adminapi.Rollback
		var header http.Header
		if len(args) == 1 {
			number, hash, hashed := strings.Cut(args[0], "-")
			version, err := strconv.ParseInt(number, 10, 64)
			if err != nil || version < 1 || hashed && len(hash) < 4 {
				return fmt.Errorf("VERSION: must be a number as weir rules history has it, or with the hash as in 42-abcdef12, got %q", args[0])
			}
			body.Version, body.Hash = version, hash
		} else {
			all, err := c.history(cmd, 2)
			if err != nil {
				return err
			}
			all = slices.DeleteFunc(all, func(v adminapi.Version) bool { return v.Orphan })
			if len(all) < 2 {
				return rejected(errors.New("there is no version before this one: nothing to roll back to"))
			}
			body.Version, header = all[1].Number, ifMatch(all[0].Number) // if somebody else makes a change in the meantime, fail instead of undoing it
		}
		body.Message, c.message = c.message, ""
		return c.run(cmd, http.MethodPost, "/v1/rules/rollback", body, header, "")
	}, &c)
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	return cmd
}

func usageCommand() *cobra.Command {
	var node adminPort
	var by string
	var clients int
	cmd := command("rules usage", func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			if cmd.Flags().Changed("by") || cmd.Flags().Changed("clients") {
				return errors.New("--by, --clients: are for one rule: name it")
			}
			return show(&node, cmd, http.MethodGet, "/v1/rules/usage", nil, func(u *top.HourOfRules) {
				const never = "never seen"
				rows := [][]string{{"RULE", "REQUESTS", "REFUSED", "IN SHADOW", "KEYS", ">=50%", ">=80%", "USED UP", "LAST HIT", "LAST REFUSAL", "COVERAGE"}}
				for _, r := range u.Rules {
					rows = append(rows, []string{cell(r.Rule), whole(r.Requests), whole(r.Refused), whole(r.WouldRefuse), fmt.Sprint(r.Keys),
						fmt.Sprint(r.Above50), fmt.Sprint(r.Above80), fmt.Sprint(r.Above100), ago(u.At, r.LastHit, never), ago(u.At, r.LastRefusal, never), percent(r.Coverage)})
				}
				printMissingNodes(cmd, u.Partial, u.NodesMissing)
				printTable(cmd.OutOrStdout(), "l"+strings.Repeat("r", 10), rows)
			})
		}
		q := url.Values{"by": {by}, "k": {fmt.Sprint(clients)}}
		return show(&node, cmd, http.MethodGet, "/v1/rules/usage/"+url.PathEscape(args[0])+"?"+q.Encode(), nil, func(u *top.HourOfRule) {
			fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s in the last hour, %s refused; %s made %s of them\n", cell(u.Rule), count(int(u.Requests), "request"), whole(u.Refused), count(u.Keys, "key"), percent(u.Coverage))
			rows := [][]string{{"CLIENT", "FINGERPRINT", "KIND", "REQUESTS", "REFUSED", "USED"}}
			for _, c := range u.Clients {
				rows = append(rows, []string{cell(c.Client), cell(c.Fingerprint), cell(c.Kind), whole(c.Requests), whole(c.Refused), percent(c.Used)})
			}
			printMissingNodes(cmd, u.Partial, u.NodesMissing)
			printTable(cmd.OutOrStdout(), "lllrrr", rows)
		})
	}, &node)
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	cmd.Flags().StringVar(&by, "by", "requests", "sort keys by requests or refused")
	cmd.Flags().IntVar(&clients, "clients", 50, "how many keys, up to 1000")
	complete(cmd, "by", fixed("requests", "refused"))
	return cmd
}

func whatIfCommand() *cobra.Command {
	var node adminPort
	var limit string
	var body adminapi.WhatIf
	cmd := command("rules whatif", func(cmd *cobra.Command, args []string) error {
		if limit == "" && !cmd.Flags().Changed("burst") {
			return errors.New("--limit: is missing: give a limit such as 50/minute")
		}
		body.Rule, body.Limit = args[0], limitJSON(limit)
		return show(&node, cmd, http.MethodPost, "/v1/rules/whatif", body, func(w *adminapi.WhatIfAnswer) {
			words := cmd.ErrOrStderr()
			fmt.Fprintf(words, "at %s, %s would have refused %s of %s in the last hour; it refused %s\n", w.Limit, cell(w.Rule), between(w.WouldRefuse, w.AtMost), count(int(w.Requests), "request"), whole(w.WasRefused))
			fmt.Fprintf(words, "%d of %s would have been refused something; those keys made %s of the rule's requests\n", w.KeysRefused, count(w.Keys, "key"), percent(w.Coverage))
			for _, n := range w.Notes {
				fmt.Fprintln(words, "note:", cell(n))
			}
			printMissingNodes(cmd, w.Partial, w.NodesMissing)
			rows := [][]string{{"CLIENT", "FINGERPRINT", "KIND", "REQUESTS", "WOULD REFUSE", "REFUSED"}}
			for _, c := range w.Clients {
				rows = append(rows, []string{cell(c.Client), cell(c.Fingerprint), cell(c.Kind), whole(c.Requests), between(c.WouldRefuse, c.AtMost), whole(c.WasRefused)})
			}
			printTable(cmd.OutOrStdout(), "lllrrr", rows)
		})
	}, &node)
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	f := cmd.Flags()
	f.StringVar(&limit, "limit", "", "the other limit, such as 50/minute, or 50, which keeps the rule's window")
	f.Int64Var(&body.Capacity, "burst", 0, "how much of it at once (default: as much as the limit)")
	f.StringVar(&body.Algorithm, "algorithm", "", "the other algorithm (default: the rule's)")
	complete(cmd, "algorithm", fixed("token_bucket", "leaky_bucket", "leaky_queue", "fixed_window", "sliding_window_log", "sliding_window_counter"))
	return cmd
}

// missingNodes returns texts that say which nodes are missing from a response, and why.
func missingNodes(partial string, missing []string) (words []string) {
	if partial != "" {
		words = append(words, cell(partial))
	}
	if len(missing) > 0 {
		words = append(words, "not in it: "+cell(strings.Join(missing, ", ")))
	}
	return words
}

func printMissingNodes(cmd *cobra.Command, partial string, missing []string) {
	for _, line := range missingNodes(partial, missing) {
		fmt.Fprintln(cmd.ErrOrStderr(), line)
	}
}
