package main

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/weirhq/weir/rulefile"
)

const (
	applied = `{"version": 43, "dry_run": false, "warnings": [], "diff": "--- version 42\n+++ new\n@@ -1 +1 @@\n-a\n+b\n"}`
	warned  = `{"version": 42, "dry_run": true, "diff": "@@ -1 +1 @@\n-a\n+b\n", "warnings": [
		{"file": "rules", "line": 3, "column": 5, "text": "the limit is cut", "hint": "is it meant?"}], "needs_force": true}`
	same    = `{"version": 42, "dry_run": false, "warnings": [], "diff": ""}`
	warning = `{"error": {"code": "RULES_WARN", "message": "use force", "details": {"warnings": [
		{"file": "rules", "line": 3, "column": 5, "text": "the limit is cut"}]}}}`
	invalid = `{"error": {"code": "RULES_INVALID", "message": "no", "details": {"problems": [
		{"file": "rules", "line": 2, "column": 7, "text": "must be at least 1, got 0"}]}}}`
)

func TestApplyIsForTheVersionInForce(t *testing.T) {
	s := newShell(t, answers{"GET /v1/rules": text(200, "42", "a"), "PUT /v1/rules": text(200, "43", applied)})
	const document = "# mine\r\nrules: [{id: a, limit: 1/s}]"
	d := s.run("rules", "apply", file(t, document), "-m", "more & more", "--force")
	d.expect(t, 0, "-a\n+b\n", "version 43 is in force")
	if !slices.Equal(d.lines(), []string{"GET /v1/rules", "PUT /v1/rules?force=true&message=more+%26+more"}) {
		t.Fatal(d.lines())
	}
	put := d.asked[1]
	if put.body != document || put.header.Get("If-Match") != `"42"` || put.header.Get("Content-Type") != "application/yaml" {
		t.Errorf("%q, %v", put.body, put.header)
	}
	// With --if-version, the given version is sent as it is.
	d = s.run("rules", "apply", file(t, document), "--if-version", "41")
	if len(d.asked) != 1 || d.asked[0].header.Get("If-Match") != `"41"` || d.asked[0].uri != "/v1/rules" {
		t.Errorf("%+v", d.asked)
	}
	s.stdin = document
	if d = s.run("rules", "apply", "-"); d.code != 0 || d.asked[1].body != document {
		t.Errorf("exit %d, %+v", d.code, d.asked)
	}
	s.run("rules", "apply", file(t, document), "--json").expect(t, 0, `"version": 43`, "")
	s.run("rules", "apply", file(t, document), "--color", "always").expect(t, 0, red+"-a"+plain, "")
}

func TestApplyOutcomes(t *testing.T) {
	for _, c := range []struct {
		status         int
		body           string
		args           []string
		code           int
		stdout, stderr string
	}{
		{200, same, nil, 0, "", "nothing to change: version 42 is the same"},
		{200, warned, []string{"--dry-run"}, 1, "+b", "FILE:3:5: the limit is cut; is it meant?\nweir: 1 warning: this change needs --force"},
		{200, warned, []string{"--dry-run", "--force"}, 0, "+b", "warning: FILE:3:5: the limit is cut; is it meant?\nnothing was changed: a dry run"},
		{422, warning, nil, 1, "", "warning: FILE:3:5: the limit is cut\nweir: 1 warning: nothing was changed; --dry-run shows the difference, and --force makes the change"},
		{422, invalid, nil, 1, "", "FILE:2:7: must be at least 1, got 0\nweir: 1 problem: nothing was changed"},
		{422, invalid, []string{"--json"}, 1, `"code": "RULES_INVALID"`, "weir: 1 problem: nothing was changed"},
		{412, `{"error": {"code": "CONFLICT", "message": "the rules are at version 43 by now"}}`, nil, 1, "",
			"the rules are at version 43 by now; to see it: weir rules diff --from 42"},
		{409, `{"error": {"code": "RULES_IN_FILE", "message": "the rules are those of /etc/weir/rules.yaml"}}`, nil, 1, "",
			"those of /etc/weir/rules.yaml"},
		{413, `{"error": {"code": "TOO_LARGE", "message": "too large"}}`, nil, 1, "", "too large"},
		{200, `<html>`, nil, 3, "", "isn't understood"},
	} {
		s := newShell(t, answers{"GET /v1/rules": text(200, "42", "a"), "PUT /v1/rules": text(c.status, "", c.body)})
		name := file(t, "a")
		d := s.run(append([]string{"rules", "apply", name}, c.args...)...)
		d.expect(t, c.code, c.stdout, strings.ReplaceAll(c.stderr, "FILE", name))
	}
}

// If a node rejects the newest rules, apply doesn't suggest comparing them with the ones in force there.
func TestApplyWhereTheNewestAreRejected(t *testing.T) {
	s := newShell(t, answers{"GET /v1/rules": text(200, "42", "a"), "PUT /v1/rules": text(412, "", `{"error": {"code": "NEWEST_REJECTED", "message": "go back"}}`)})
	d := s.run("rules", "apply", file(t, "b"))
	d.expect(t, 1, "", "weir: go back")
	if strings.Contains(d.stderr, "rules diff") {
		t.Errorf("it says %s", d.stderr)
	}
}

// A dry run uses force, because otherwise the warnings would hide the difference.
func TestDryRunChangesNothing(t *testing.T) {
	s := newShell(t, answers{"GET /v1/rules": text(200, "42", "a"), "PUT /v1/rules": text(200, "42", warned)})
	for _, args := range [][]string{{"rules", "apply", "--dry-run"}, {"rules", "diff"}} {
		if d := s.run(append(args, file(t, "a"))...); len(d.asked) != 2 || d.asked[1].line() != "PUT /v1/rules?dry_run=true&force=true" {
			t.Errorf("%v: %v", args, d.lines())
		}
	}
}

func TestApplyUsage(t *testing.T) {
	s := newShell(t, nil)
	for want, args := range map[string][]string{
		"FILE is missing: write weir rules apply FILE": {"rules", "apply"},
		"missing.yaml":                  {"rules", "apply", "missing.yaml"},
		"must be auto, always or never": {"rules", "apply", "a.yaml", "--color", "red"},
		"leave the file out":            {"rules", "diff", "a.yaml", "--from", "1"},
		"name a rule file":              {"rules", "diff"},
		"VERSION: must be a number":     {"rules", "rollback", "last"},
		"--limit: must be at least 1":   {"rules", "history", "--limit", "0"},
		"--version: is of a node":       {"rules", "show", "a.yaml", "--version", "1"},
	} {
		d := s.run(args...)
		d.expect(t, exitUsage, "", want)
		if len(d.asked) > 0 {
			t.Errorf("%v asked %v", args, d.lines())
		}
	}
	s.run("rules", "apply", file(t, strings.Repeat("#", rulefile.MaxSize+1))).expect(t, exitRefused, "", "is too large: a rule file has at most 4 MiB")
}

func TestDiffExitsAsDiffDoes(t *testing.T) {
	name := file(t, "a")
	for _, c := range []struct {
		status         int
		body           string
		code           int
		stdout, stderr string
	}{
		{200, same, 0, "", ""},
		{200, warned, 1, "+b", "warning: " + name + ":3:5: the limit is cut"},
		{422, invalid, 2, "", name + ":2:7: must be at least 1, got 0"},
		{401, `{}`, 2, "", "asks for a token"},
		{503, `{}`, 3, "", "answers 503"},
	} {
		s := newShell(t, answers{"GET /v1/rules": text(200, "42", "a"), "PUT /v1/rules": text(c.status, "", c.body)})
		s.run("rules", "diff", name).expect(t, c.code, c.stdout, c.stderr)
	}
}

func TestDiffOfAMissingVersion(t *testing.T) {
	s := newShell(t, answers{"GET /v1/rules/diff": text(404, "", `{"error": {"code": "VERSION_NOT_FOUND", "message": "there is no such version of the rules: 9"}}`)})
	s.run("rules", "diff", "--from", "1", "--to", "9").expect(t, 2, "", "there is no such version of the rules: 9")
}

func TestDiffOfVersions(t *testing.T) {
	s := newShell(t, answers{
		"GET /v1/rules":      text(200, "42", "a"),
		"GET /v1/rules/diff": text(200, "", `{"from": 41, "to": 42, "diff": "@@ -1 +1 @@\n-a\n+b\n"}`),
	})
	d := s.run("rules", "diff", "--from", "40", "--to", "41")
	d.expect(t, 1, "-a\n+b\n", "")
	if !slices.Equal(d.lines(), []string{"GET /v1/rules/diff?from=40&to=41"}) {
		t.Error(d.lines())
	}
	d = s.run("rules", "diff", "--from", "40", "--json")
	d.expect(t, 1, `"to": 42`, "")
	if !slices.Equal(d.lines(), []string{"GET /v1/rules", "GET /v1/rules/diff?from=40&to=42"}) {
		t.Error(d.lines())
	}
}

// versions lists versions in pages of two, like a node that returns fewer than asked for.
func versions(newest int) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, r *http.Request) {
		n := newest
		if before := r.URL.Query().Get("before"); before != "" {
			b, _ := strconv.Atoi(before)
			n = b - 1
		}
		limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
		var page []string
		for ; n > 0 && len(page) < min(limit, 2); n-- {
			page = append(page, fmt.Sprintf(`{"version": %d, "hash": "abcdef1234567890", "author": "ada", "time": "2026-01-05T12:00:00Z", "message": "change\n%d\u001b[2J"}`, n, n))
		}
		fmt.Fprintf(w, `{"versions": [%s]}`, strings.Join(page, ", "))
	}
}

func TestHistoryAsksForAllPages(t *testing.T) {
	s := newShell(t, answers{"GET /v1/rules/versions": versions(5)})
	d := s.run("rules", "history", "--limit", "3")
	lines := strings.Split(strings.TrimSpace(d.stdout), "\n")
	if len(lines) != 4 || !strings.HasPrefix(lines[0], "VERSION  HASH      WHEN") || !strings.HasPrefix(lines[3], "3        abcdef12  2026-01-0") {
		t.Errorf("%q", lines)
	}
	// A message that others wrote can't break its line.
	if !strings.HasSuffix(lines[1], "  ada  change 5\uFFFD[2J") {
		t.Errorf("%q", lines[1])
	}
	if d = s.run("rules", "history", "--json"); strings.Count(d.stdout, `"author": "ada"`) != 5 || len(d.asked) != 3 {
		t.Errorf("%s, %v", d.stdout, d.lines())
	}
}

// Orphans are listed in addition to the versions asked for, and a rollback goes to an orphan only if it is named.
func TestHistoryWithOrphans(t *testing.T) {
	s := newShell(t, answers{"POST /v1/rules/rollback": text(200, "43", applied), "GET /v1/rules/versions": text(200, "", `{"versions": [
		{"version": 9, "hash": "0009", "orphan": true}, {"version": 3, "hash": "aaaaaaaa11"}, {"version": 3, "hash": "bbbbbbbb22", "orphan": true, "author": "bob", "message": "mine"},
		{"version": 2, "hash": "cccccccc33"}]}`)})
	d := s.run("rules", "history", "--limit", "2")
	lines := strings.Split(strings.TrimSpace(d.stdout), "\n")
	if len(lines) != 5 || len(d.asked) != 1 || !strings.HasPrefix(lines[3], "3        bbbbbbbb  ") || !strings.HasSuffix(lines[3], "  bob  (orphan) mine") {
		t.Errorf("%q, %v", lines, d.lines())
	}
	d = s.run("rules", "rollback")
	if post := d.asked[len(d.asked)-1]; post.body != `{"version":2}` || post.header.Get("If-Match") != `"3"` {
		t.Errorf("%+v", post)
	}
	d = s.run("rules", "rollback", "3-bbbbbbbb")
	if post := d.asked[len(d.asked)-1]; post.body != `{"version":3,"hash":"bbbbbbbb"}` {
		t.Errorf("%+v", post)
	}
	s = newShell(t, answers{"GET /v1/rules/versions": text(200, "", `{"versions": [{"version": 9, "orphan": true}]}`)})
	s.run("rules", "rollback").expect(t, exitRefused, "", "nothing to roll back to")
}

func TestHistoryThatDoesNotEndIsAnError(t *testing.T) {
	s := newShell(t, answers{"GET /v1/rules/versions": text(200, "", `{"versions": [{"version": 7}]}`)})
	s.run("rules", "history").expect(t, exitUnavailable, "", "isn't understood")
}

func TestRollback(t *testing.T) {
	s := newShell(t, answers{"GET /v1/rules/versions": versions(42), "POST /v1/rules/rollback": text(200, "43", applied)})
	d := s.run("rules", "rollback", "-m", "oops")
	d.expect(t, 0, "+b", "version 43 is in force")
	post := d.asked[len(d.asked)-1]
	if post.line() != "POST /v1/rules/rollback" || post.body != `{"version":41,"message":"oops"}` || post.header.Get("If-Match") != `"42"` {
		t.Errorf("%+v", post)
	}
	d = s.run("rules", "rollback", "40", "--dry-run")
	if len(d.asked) != 1 || d.asked[0].uri != "/v1/rules/rollback?dry_run=true&force=true" || d.asked[0].body != `{"version":40}` ||
		d.asked[0].header.Get("If-Match") != "" {
		t.Errorf("%+v", d.asked)
	}
	// A rollback that would unblock a client needs force, and one that lowers a limit doesn't.
	if d = s.run("rules", "rollback", "40", "--force"); d.asked[0].uri != "/v1/rules/rollback?force=true" {
		t.Errorf("%+v", d.asked)
	}
	s = newShell(t, answers{"POST /v1/rules/rollback": text(422, "42", warning)})
	s.run("rules", "rollback", "40").expect(t, exitRefused, "", "1 warning: nothing was changed; --dry-run shows the difference, and --force makes the change")
	s = newShell(t, answers{"POST /v1/rules/rollback": text(200, "42", warned)})
	s.run("rules", "rollback", "40", "--dry-run").expect(t, exitRefused, "+b", "1 warning: this change needs --force")
	s = newShell(t, answers{"POST /v1/rules/rollback": text(200, "42", strings.Replace(warned, `"needs_force": true`, `"needs_force": false`, 1))})
	s.run("rules", "rollback", "40", "--dry-run").expect(t, 0, "+b", "nothing was changed: a dry run")
	s = newShell(t, answers{"GET /v1/rules/versions": versions(1)})
	s.run("rules", "rollback").expect(t, exitRefused, "", "there is no version before this one")
}

func TestShowOfAVersion(t *testing.T) {
	s := newShell(t, answers{"GET /v1/rules/versions/41": text(200, "", `{"version": 41, "text": "# old\nrules: []\n"}`)})
	if d := s.run("rules", "show", "--version", "41"); d.stdout != "# old\nrules: []\n" {
		t.Errorf("%q, %s", d.stdout, d.stderr)
	}
	s.run("rules", "show", "--version", "41", "--json").expect(t, 0, `{"rules": []}`, "")
}
