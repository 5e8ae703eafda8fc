package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/weirhq/weir"
	"github.com/weirhq/weir/cooldown"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/rulefile"
	adminapi "github.com/weirhq/weir/server/internal/admin"
	"github.com/weirhq/weir/server/internal/edge/checkapi"
)

// maxKey is more bytes than any key has that a node accepts.
const maxKey = 64 << 10

// keyOf returns the key in an argument or, if the argument is -, the first line of standard input.
func keyOf(cmd *cobra.Command, arg string) (string, error) {
	if arg == "-" {
		if isTerminal(cmd.InOrStdin()) {
			fmt.Fprint(cmd.ErrOrStderr(), "key: ")
		}
		line, err := bufio.NewReader(io.LimitReader(cmd.InOrStdin(), maxKey)).ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return "", err
		}
		arg = line
	}
	// Remove spaces, which may have been pasted with the key. Headers can't contain them, so the key would never match.
	if arg = strings.TrimSpace(arg); arg == "" {
		return "", errors.New("the key is empty")
	}
	return arg, nil
}

// clientFlag is a flag that identifies a client by its fingerprint, instead of its key.
type clientFlag string

func (c *clientFlag) register(cmd *cobra.Command) {
	cmd.Flags().StringVar((*string)(c), "client", "", "fingerprint of the client, as weir top shows it, instead of its key")
}

// key returns the key in the arguments, or "" if the flag is used.
func (c clientFlag) key(cmd *cobra.Command, args []string) (string, error) {
	switch {
	case c == "" && len(args) == 0:
		return "", takes(1, 1)(cmd, args)
	case c == "":
		return keyOf(cmd, args[0])
	case len(args) > 0:
		return "", errors.New("--client: stands for the key: leave the key out, or --client")
	case !fingerprint.MatchString(string(c)):
		return "", fmt.Errorf("--client: must be a fingerprint of 8 hexadecimal digits, as weir top shows it, got %q", string(c))
	}
	return "", nil
}

func overrideCommand() *cobra.Command {
	var c change
	var client clientFlag
	var limit, lasting string
	var remove bool
	var body adminapi.Override
	cmd := command("keys override", func(cmd *cobra.Command, args []string) error {
		if err := completeOverride(cmd, &body, limit, lasting, remove); err != nil {
			return err
		}
		var err error
		body.Client = string(client)
		if body.Key, err = client.key(cmd, args); err != nil {
			return err
		}
		if remove {
			return c.run(cmd, http.MethodDelete, "/v1/rules/key", body.OverrideName, nil, "")
		}
		return c.run(cmd, http.MethodPut, "/v1/rules/key", body, nil, "")
	}, &client, &c)
	cmd.Args = takes(0, 1) // the key, or --client
	f := cmd.Flags()
	f.StringVar(&body.Rule, "rule", "", "id of the rule")
	f.StringVar(&limit, "limit", "", "the key's limit, such as 3000/minute or 3000")
	f.Int64Var(&body.Capacity, "burst", 0, "how much of it at once (default: as the key's override has it, or as much as the limit)")
	f.StringVar(&lasting, "for", "", "how long, such as 90m, 1h or 7d, or good (default: as the key's override has it, or for good)")
	f.BoolVar(&remove, "remove", false, "take the key's override away")
	return cmd
}

// completeOverride validates the flags of an override, and sets its limit and its end.
func completeOverride(cmd *cobra.Command, body *adminapi.Override, limit, lasting string, remove bool) error {
	f := cmd.Flags()
	switch {
	case body.Rule == "":
		return errors.New("--rule: is missing: give the id of the rule, as weir rules show has it")
	case remove && (f.Changed("limit") || f.Changed("burst") || f.Changed("for")):
		return errors.New("--remove: takes the override away: leave --limit, --burst and --for out")
	case remove:
		return nil
	case limit == "":
		return errors.New("--limit: is missing: give the key's limit, such as 3000/minute, or --remove")
	case f.Changed("burst") && body.Capacity < 1:
		return fmt.Errorf("--burst: must be at least 1, got %d", body.Capacity)
	}
	if _, err := weir.ParseLimit(limit); err != nil && !isNumber(limit) {
		return fmt.Errorf("--limit: %w", err)
	}
	body.Limit = limitJSON(limit)
	switch d, err := counter.ParseWindow(lasting); {
	case !f.Changed("for"):
	case lasting == "good":
		body.ExpiresIn = "never"
	case err != nil || d <= 0:
		return fmt.Errorf("--for: must be a time such as 90m, 1h or 7d, or good, got %q", lasting)
	default:
		body.ExpiresIn = d.String()
	}
	return nil
}

const denylist, allowlist = "/v1/denylist", "/v1/allowlist"

func listCommand(name, path string) *cobra.Command {
	var c change
	var client clientFlag
	var remove bool
	cmd := command(name, func(cmd *cobra.Command, args []string) error {
		entry, err := client.key(cmd, args)
		if err != nil {
			return err
		}
		body := adminapi.ListEntry{Key: entry, Client: string(client), Remove: remove}
		switch {
		case client != "" || remove || !fingerprint.MatchString(entry) || !c.remembers(cmd, entry):
		case path == denylist: // don't fail, because blocking must always work; no client's key looks like a fingerprint
			fmt.Fprintf(cmd.ErrOrStderr(), "%s is the fingerprint of a client in weir top: that client is blocked, as by --client\n", entry)
			body.Key, body.Client = "", entry
		case !c.force:
			return fmt.Errorf("%s is the fingerprint of a client in weir top, not its key, so this entry would match no request: write --client %s, or --force if it is a key after all", entry, entry)
		}
		err = c.run(cmd, http.MethodPost, path+"/entries", body, nil, "")
		if r, ok := refused(err, http.StatusNotFound); ok && remove && body.Client == "" && strings.Contains(r.Message, adminapi.NoEntry) {
			return c.nothing(cmd)
		}
		return err
	}, &client, &c)
	cmd.Args = takes(0, 1) // the key, or --client
	cmd.Flags().BoolVar(&remove, "remove", false, "take it off the list")
	return cmd
}

var fingerprint = regexp.MustCompile(`^[0-9a-f]{8}$`)

// remembers reports whether the node knows a client with the given fingerprint.
func (c *change) remembers(cmd *cobra.Command, word string) bool {
	_, err := c.call(cmd, http.MethodPost, "/v1/clients", map[string]string{"client": word}, nil)
	return err == nil
}

// nothing prints that the list doesn't contain the entry that should be removed.
func (c *change) nothing(cmd *cobra.Command) error {
	version, err := c.inForce(cmd)
	if err != nil {
		return err
	}
	out := adminapi.Changed{Version: version, DryRun: c.dryRun, Warnings: []rulefile.Problem{}}
	return c.report(cmd, &changed{out, out}, "")
}

func keysBlocksCommand() *cobra.Command {
	var node adminPort
	return command("keys blocks", func(cmd *cobra.Command, _ []string) error {
		return show(&node, cmd, http.MethodGet, denylist, nil, func(all *adminapi.List) {
			rows := [][]string{{"ENTRY", "LIST", "SINCE", "BY", "WHY"}}
			for _, b := range all.Emergency {
				rows = append(rows, []string{cell(b.Entry), "emergency", clock(b.Since), orDash(b.By), orDash(b.Message)})
			}
			for _, e := range all.Entries {
				rows = append(rows, []string{cell(e), "rules", "-", "-", "-"})
			}
			printTable(cmd.OutOrStdout(), "", rows)
			fmt.Fprintf(cmd.ErrOrStderr(), "%d on the deny list of the rules, %d on the emergency list\n", len(all.Entries), len(all.Emergency))
		})
	}, &node)
}

func keysCooldownsCommand() *cobra.Command {
	var node adminPort
	var most int
	cmd := command("keys cooldowns", func(cmd *cobra.Command, _ []string) error {
		return show(&node, cmd, http.MethodGet, fmt.Sprintf("/v1/cooldowns?k=%d", most), nil, func(all *adminapi.Cooldowns) {
			rows := [][]string{{"RULE", "CLIENT", "FINGERPRINT", "TIMES", "ENDS", "ID"}}
			for _, c := range all.Cooldowns {
				rows = append(rows, []string{cell(c.Rule) + given(c.Shadow, " (shadow)"), cell(c.Client), orDash(c.Fingerprint), fmt.Sprint(c.N), clock(c.Ends), c.ID.String()})
			}
			printTable(cmd.OutOrStdout(), "", rows)
			if n := all.InForce + all.Shadow; n != len(all.Cooldowns) || n == 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "%s in force, and %d in shadow\n", count(all.InForce, "cooldown"), all.Shadow)
			}
		})
	}, &node)
	cmd.Flags().IntVar(&most, "clients", 100, "how many are shown")
	return cmd
}

func keysLiftCommand() *cobra.Command {
	var node adminPort
	return command("keys lift", func(cmd *cobra.Command, args []string) error {
		return show(&node, cmd, http.MethodDelete, "/v1/cooldowns/"+url.PathEscape(args[0]), nil, func(c *cooldown.Cooldown) {
			fmt.Fprintf(cmd.ErrOrStderr(), "%s may come again: rule %s kept it out until %s\n", cell(cmp.Or(c.Client, "the client")), cell(c.Rule), clock(c.Ends))
		})
	}, &node)
}

// clientRequest is a request whose client may be given by its fingerprint.
type clientRequest struct {
	*checkapi.CheckRequest
	Client string `json:"client,omitempty"`
	Slot   string `json:"slot,omitempty"` // the request in flight whose slots to release; needs Rule
	Rule   string `json:"rule,omitempty"`
}

// clientQuestion is a request to the node about the counters of a client, which is given by a key or by flags.
type clientQuestion struct {
	*adminPort
	request clientRequest
	query   string
}

func (q *clientQuestion) path(endpoint string) string { return "/v1/" + endpoint + q.query }

func clientCommand(path string, node *adminPort, run func(*cobra.Command, *clientQuestion) error) *cobra.Command {
	var r requestFlags
	var client clientFlag
	cmd := command(path, func(cmd *cobra.Command, args []string) error {
		var err error
		switch {
		case len(args) == 1 || client != "":
			if r.Key, err = client.key(cmd, args); err != nil {
				return err
			}
		case r.IP == "" && *r.named["user"] == "" && *r.named["org"] == "" && len(r.attrs) == 0:
			return errors.New("name the client: give its key, or - for standard input, or --client, --ip, --user or --org")
		}
		w, err := r.wire()
		if err != nil {
			return err
		}
		return run(cmd, &clientQuestion{node, clientRequest{CheckRequest: w, Client: string(client)}, r.query()})
	}, &client, node, &r)
	r.registerUnverified(cmd)
	return cmd
}

func keysShowCommand() *cobra.Command {
	var colour colour
	cmd := clientCommand("keys show", new(adminPort), func(cmd *cobra.Command, q *clientQuestion) error {
		x, explained, err := get[adminapi.Explanation](q.adminPort, cmd, http.MethodPost, q.path("explain"), q.request, nil)
		if err != nil {
			return err
		}
		counters, counted, err := get[adminapi.Counters](q.adminPort, cmd, http.MethodPost, q.path("counters"), q.request, nil)
		if err != nil {
			return err
		}
		if q.asJSON {
			var all map[string]json.RawMessage
			if err := json.Unmarshal(counted, &all); err != nil {
				return notUnderstood(err)
			}
			return printJSON(cmd, map[string]json.RawMessage{"counters": all["counters"], "explain": explained})
		}
		out := cmd.OutOrStdout()
		printExplanation(out, &x, &colour)
		if counters.Reason == weir.ReasonCooldown.String() {
			fmt.Fprintln(out, "\nThe client is in a cooldown, whatever its counters have left: weir keys cooldowns says until when, and weir keys reset ends it.")
		}
		printCounters(out, counters.Counters)
		printSlots(out, counters.Counters, counters.At)
		return nil
	})
	colour.register(cmd)
	return cmd
}

// limitName returns the name of a counter's limit. Nodes with an older release send only the rule's name.
func limitName(c *adminapi.Counter) string { return cell(cmp.Or(c.Policy, c.Rule)) }

func printCounters(w io.Writer, all []adminapi.Counter) {
	if len(all) == 0 {
		return
	}
	head := []string{"COUNTER", "LIMIT", "LEFT", "NEXT IN", "FULL IN"}
	if slices.ContainsFunc(all, func(c adminapi.Counter) bool { return c.RunsOutAt != nil }) {
		head = append(head, "RUNS OUT IN")
	}
	rows := [][]string{head}
	for i := range all {
		rows = append(rows, counterRow(&all[i], len(head)))
	}
	fmt.Fprintln(w)
	printTable(w, "", rows)
}

func counterRow(c *adminapi.Counter, columns int) []string {
	if c.Degraded {
		home := given(c.MissingHome != "", "its home, region "+cell(c.MissingHome)+", can't be asked")
		return []string{limitName(c), c.Limit, "unknown: " + cmp.Or(home, "the store can't be reached")}
	}
	left, next, full := fmt.Sprintf("%s of %s", c.Remaining, c.Max)+given(c.Amount != "", " "+c.Amount), "never", wait(ms(c.ResetAfterMS))
	if c.RetryAfterMS >= 0 {
		next = wait(ms(c.RetryAfterMS))
	}
	if s := c.Stake; s != nil {
		left = fmt.Sprintf("%s here, of %s: own %s, borrowed %s, lent %s; home %s", c.Remaining, c.Max, s.Own, s.Borrowed, s.Lent, cell(s.Home))
	}
	if c.InFlight != nil { // a request in flight ends at an unknown time
		left += fmt.Sprintf(" (%d in flight)", *c.InFlight)
		if c.RetryAfterMS > 0 {
			next = "when one ends"
		}
		if *c.InFlight > 0 {
			full = "when all end"
		}
	}
	runsOut := "-"
	if c.RunsOutAt != nil && c.WindowEnd != nil { // compare two times from the node, because this machine's clock may differ
		runsOut = wait(ms(max(1, c.ResetAfterMS-c.WindowEnd.Sub(*c.RunsOutAt).Milliseconds())))
	}
	return []string{limitName(c), c.Limit, left, next, full, runsOut}[:columns]
}

// printSlots prints a client's requests in flight. at is the time of the node's response by the node's clock.
func printSlots(w io.Writer, all []adminapi.Counter, at time.Time) {
	rows := [][]string{{"SLOT", "COUNTER", "HOLDS", "TAKEN", "ENDS IN"}}
	var more strings.Builder
	for i := range all {
		c := &all[i]
		listed := int64(0)
		for _, s := range c.Slots {
			rows = append(rows, []string{cell(s.ID), limitName(c), fmt.Sprint(s.Slots), roughly(at.Sub(s.Since)) + " ago", roughly(s.Ends.Sub(at))})
			listed += s.Slots
		}
		if c.InFlight != nil && listed > 0 && listed < *c.InFlight {
			fmt.Fprintf(&more, "%s: only the oldest are listed, with %d of %d slots\n", limitName(c), listed, *c.InFlight)
		}
	}
	if len(rows) == 1 {
		return
	}
	fmt.Fprintln(w)
	printTable(w, "", rows)
	fmt.Fprint(w, more.String())
}

func keysResetCommand() *cobra.Command {
	return clientCommand("keys reset", new(adminPort), func(cmd *cobra.Command, q *clientQuestion) error {
		return show(q.adminPort, cmd, http.MethodPost, q.path("counters/reset"), q.request, func(done *adminapi.Reset) {
			text := count(done.Reset, "counter") + " reset"
			if done.Reset == 0 {
				text += ": no limit applies to such a request; rules may need its --method, --path or --ip"
			} else if counters, _, err := get[adminapi.Counters](q.adminPort, cmd, http.MethodPost, q.path("counters"), q.request, nil); err == nil && len(counters.Counters) > 0 {
				var names []string
				for i := range counters.Counters {
					names = append(names, limitName(&counters.Counters[i]))
				}
				text += ": " + strings.Join(names, ", ")
			}
			fmt.Fprintln(cmd.ErrOrStderr(), text)
		})
	})
}

var slotID = regexp.MustCompile(`^[0-9a-fA-F]{32}$`)

func keysReleaseCommand() *cobra.Command {
	var node adminPort
	var slot, rule string
	cmd := clientCommand("keys release", &node, func(cmd *cobra.Command, q *clientQuestion) error {
		switch {
		case slot == "":
			return errors.New("--slot: is missing: give the id of a slot, as weir keys show lists it")
		case !slotID.MatchString(slot):
			return fmt.Errorf("--slot: must be the id of a slot, 32 hexadecimal digits, as weir keys show lists it, got %q", slot)
		}
		q.request.Slot, q.request.Rule = slot, rule
		return show(q.adminPort, cmd, http.MethodPost, q.path("counters/release"), q.request, func(done *adminapi.Released) {
			fmt.Fprintf(cmd.ErrOrStderr(), "slot released: %s\n", cell(strings.Join(done.Released, ", ")))
		})
	})
	cmd.Flags().StringVar(&slot, "slot", "", "id of the slot, as weir keys show lists it")
	cmd.Flags().StringVar(&rule, "rule", "", "id of the rule (default: all that limit requests in flight)")
	return cmd
}
