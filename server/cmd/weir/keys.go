package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/rulefile"
	adminapi "github.com/weirhq/weir/server/internal/admin"
)

func keysCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "keys",
		Short: "Manage single clients: overrides, lists, counters",
		Long: `Manage single clients: limits of their own, the deny and allow lists, and their
counters. In place of a key, - reads it from standard input, which keeps it out of
the shell's history, and --client names a client by its fingerprint, as weir top
shows it, if a node has seen the client in the last hour.`,
		Example: `  weir keys show sk_prod_1 --path /v1/orders
  weir keys show --client 1a2b3c4d --path /v1/orders
  weir keys override sk_prod_1 --rule search --limit 3000/minute --for 1h
  pass show stolen-key | weir keys block -`,
		Args: cobra.ArbitraryArgs,
		RunE: help,
	}
	cmd.AddCommand(overrideCommand(), blockCommand(), keysBlocksCommand(), allowCommand(), keysShowCommand(), keysResetCommand(), keysReleaseCommand(), keysCooldownsCommand(), keysLiftCommand())
	return cmd
}

// maxKey is longer than any key that a node accepts.
const maxKey = 64 << 10

// keyOf returns the key in an argument, or the first line of standard input for -.
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
	// Pasting adds spaces, and headers don't carry them, so a key with spaces would never match.
	if arg = strings.TrimSpace(arg); arg == "" {
		return "", errors.New("the key is empty")
	}
	return arg, nil
}

// clientFlag names a client by its fingerprint, instead of its key.
type clientFlag string

func (c *clientFlag) register(cmd *cobra.Command) {
	cmd.Flags().StringVar((*string)(c), "client", "", "fingerprint of the client, as weir top shows it, instead of its key")
}

// key returns the key that the arguments name, or "" if the flag names the client.
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
	cmd := &cobra.Command{
		Use:   "override KEY",
		Short: "Give one key a limit of its own in a rule, for a while or for good",
		Long: `Give one key a limit of its own in a rule, for a while or for good, or take it away
again. KEY may be - to read it from standard input, which keeps it out of the
shell's history; or --client names the client. A limit without a window, such as
3000, keeps the rule's window. An existing override keeps its burst and its end,
unless --burst or --for say otherwise.

Exit codes are those of weir rules apply.`,
		Example: `  weir keys override sk_prod_1 --rule search --limit 3000/minute --for 1h
  weir keys override sk_prod_1 --rule search --limit 3000 --burst 500 --for good -m "launch day"
  weir keys override - --rule search --remove < key.txt`,
		Args: takes(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
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
		},
	}
	f := cmd.Flags()
	f.StringVar(&body.Rule, "rule", "", "id of the rule")
	f.StringVar(&limit, "limit", "", "the key's limit, such as 3000/minute or 3000")
	f.Int64Var(&body.Capacity, "burst", 0, "how much of it at once (default: as the key's override has it, or as much as the limit)")
	f.StringVar(&lasting, "for", "", "how long, such as 90m, 1h or 7d, or good (default: as the key's override has it, or for good)")
	f.BoolVar(&remove, "remove", false, "take the key's override away")
	complete(cmd, "rule", c.ruleIDs)
	client.register(cmd)
	c.register(cmd)
	return cmd
}

// completeOverride checks the flags of an override, and fills in its limit and its end.
func completeOverride(cmd *cobra.Command, body *adminapi.Override, limit, lasting string, remove bool) error {
	f := cmd.Flags()
	if body.Rule == "" {
		return errors.New("--rule: is missing: give the id of the rule, as weir rules show has it")
	}
	if remove {
		if f.Changed("limit") || f.Changed("burst") || f.Changed("for") {
			return errors.New("--remove: takes the override away: leave --limit, --burst and --for out")
		}
		return nil
	}
	if limit == "" {
		return errors.New("--limit: is missing: give the key's limit, such as 3000/minute, or --remove")
	}
	if _, err := weir.ParseLimit(limit); err != nil && !isNumber(limit) {
		return fmt.Errorf("--limit: %w", err)
	}
	if body.Limit = limitJSON(limit); f.Changed("burst") && body.Capacity < 1 {
		return fmt.Errorf("--burst: must be at least 1, got %d", body.Capacity)
	}
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

const denylist = "/v1/denylist"

func blockCommand() *cobra.Command {
	return listCommand(denylist, &cobra.Command{
		Use:   "block KEY",
		Short: "Refuse a key, whatever its limits: put it on the deny list",
		Long: `Refuse a key, whatever its limits: put it on the deny list, or with --remove take it
off. KEY may be a pattern such as sk_test_*, addresses such as 203.0.113.0/24, or -
to read it from standard input, which keeps it out of the shell's history. --client
names a client by its fingerprint, as weir top shows it, if a node has seen the
client in the last hour. If there is nothing to do, that is no error.

A block beats overrides and the allow list, and needs no --force. If the rules can't
be changed, because they are in a file or their store can't be reached, the block
goes on the emergency list, which all nodes with the same Redis follow within 2
seconds. weir keys blocks lists what is blocked, and --remove takes an entry off
both lists.

Exit codes are those of weir rules apply.`,
		Example: `  weir keys block sk_prod_1 -m "leaked"
  weir keys block --client 1a2b3c4d -m "floods us"
  weir keys block - < key.txt
  weir keys block 203.0.113.0/24 --remove`,
	})
}

func allowCommand() *cobra.Command {
	return listCommand("/v1/allowlist", &cobra.Command{
		Use:   "allow PATTERN",
		Short: "Let keys pass without limits: put them on the allow list",
		Long: `Let keys pass without limits: put a pattern on the allow list, or take it off.
PATTERN may be - to read it from standard input, which keeps it out of the shell's
history. It is no error if there is nothing to do.

Exit codes are those of weir rules apply.`,
		Example: `  weir keys allow 'sk_internal_*' -m "our own jobs"
  weir keys allow 'sk_internal_*' --remove`,
	})
}

// listCommand completes a command that adds an entry to a list, or removes it.
func listCommand(path string, cmd *cobra.Command) *cobra.Command {
	var c change
	var client clientFlag
	var remove bool
	cmd.Args = takes(0, 1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		entry, err := client.key(cmd, args)
		if err != nil {
			return err
		}
		body := adminapi.ListEntry{Key: entry, Client: string(client), Remove: remove}
		switch {
		case client != "" || remove || !c.isFingerprint(cmd, entry):
		case path == denylist: // a block is never refused, and no client has such a key
			fmt.Fprintf(cmd.ErrOrStderr(), "%s is the fingerprint of a client in weir top: that client is blocked, as by --client\n", entry)
			body.Key, body.Client = "", entry
		case !c.force:
			return fmt.Errorf("%s is the fingerprint of a client in weir top, not its key, so this entry would match no request: write --client %s, or --force if it is a key after all", entry, entry)
		}
		err = c.run(cmd, http.MethodPost, path+"/entries", body, nil, "")
		if r, ok := refused(err, http.StatusNotFound); ok && remove && body.Client == "" && strings.Contains(r.Message, adminapi.NoEntry) {
			return c.nothing(cmd, path)
		}
		return err
	}
	client.register(cmd)
	cmd.Flags().BoolVar(&remove, "remove", false, "take it off the list")
	c.register(cmd)
	return cmd
}

var fingerprint = regexp.MustCompile(`^[0-9a-f]{8}$`)

// isFingerprint reports whether a word is the fingerprint of a client that the node remembers.
func (c *change) isFingerprint(cmd *cobra.Command, word string) bool {
	if !fingerprint.MatchString(word) {
		return false
	}
	_, err := c.call(cmd, http.MethodPost, "/v1/clients", map[string]string{"client": word}, nil)
	return err == nil
}

// nothing reports that there was nothing to remove: the list lacks the entry.
func (c *change) nothing(cmd *cobra.Command, path string) error {
	a, err := c.call(cmd, http.MethodGet, path, nil, nil)
	if err != nil {
		return err
	}
	version, err := a.version()
	if err != nil {
		return err
	}
	if c.asJSON {
		return printJSON(cmd, adminapi.Changed{Version: version, DryRun: c.dryRun, Warnings: []rulefile.Problem{}})
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "nothing to change: version %d is the same\n", version)
	return nil
}
