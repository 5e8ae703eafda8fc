package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	adminapi "github.com/weirhq/weir/server/internal/admin"
)

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

// history lists versions, page by page: a node limits the size of a page. Orphans come on top of the limit.
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
		if before <= 1 || count == 0 { // a page of nothing but orphans is the only one
			break
		}
	}
	return all, nil
}

func printHistory(w io.Writer, all []adminapi.Version) {
	rows := [][]string{{"VERSION", "HASH", "WHEN", "WHO", "MESSAGE"}}
	for _, v := range all {
		message := cell(v.Message)
		if v.Orphan {
			message = "(orphan) " + message
		}
		when := "" // a damaged version has no time
		if !v.Time.IsZero() {
			when = clock(v.Time)
		}
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
			version, newest, err := c.beforeNewest(cmd)
			if err != nil {
				return err
			}
			body.Version, header = version, ifMatch(newest) // a change that somebody else makes meanwhile isn't undone unseen
		}
		body.Message, c.message = c.message, ""
		return c.run(cmd, http.MethodPost, "/v1/rules/rollback", body, header, "")
	}, &c)
	cmd.ValidArgsFunction = each(c.versions)
	return cmd
}

// beforeNewest returns the two newest versions.
func (n *adminPort) beforeNewest(cmd *cobra.Command) (before, newest int64, err error) {
	all, err := n.history(cmd, 2)
	if err != nil {
		return 0, 0, err
	}
	all = slices.DeleteFunc(all, func(v adminapi.Version) bool { return v.Orphan })
	if len(all) < 2 {
		return 0, 0, rejected(errors.New("there is no version before this one: nothing to roll back to"))
	}
	return all[1].Number, all[0].Number, nil
}
