package main

import (
	"strings"
	"testing"
)

func TestOneRuleIsPutAndRemoved(t *testing.T) {
	s := newShell(t, answers{"PUT /v1/rules/id/search": text(200, "43", applied), "DELETE /v1/rules/id/search": text(200, "43", applied)})
	s.stdin = "limit: 60/minute # twice\n"
	d := s.run("rules", "put", "search", "-", "-m", "more & more")
	d.expect(t, 0, "+b", "version 43 is in force")
	if len(d.asked) != 1 || d.asked[0].uri != "/v1/rules/id/search?message=more+%26+more" || d.asked[0].body != s.stdin || d.asked[0].header.Get("If-Match") != "" {
		t.Errorf("%+v", d.asked)
	}
	d = s.run("rules", "remove", "search", "--dry-run")
	if len(d.asked) != 1 || d.asked[0].method != "DELETE" || d.asked[0].uri != "/v1/rules/id/search?dry_run=true&force=true" {
		t.Errorf("%+v", d.asked)
	}
	s.run("rules", "put", "search", "none.yaml").expect(t, exitUsage, "", "none.yaml")
	s.run("rules", "put", "search").expect(t, exitUsage, "", "")
	s = newShell(t, answers{"PUT /v1/rules/id/search": text(422, "42", warning)})
	s.stdin = "limit: 1/minute\n"
	s.run("rules", "put", "search", "-").expect(t, exitRefused, "", "--force makes the change")
}

func TestTier(t *testing.T) {
	s := newShell(t, answers{"PUT /v1/rules/tier/pro": text(200, "43", applied)})
	for args, want := range map[string]string{
		"--limit 2000/minute --burst 500": `{"limit":"2000/minute","capacity":500}`,
		"--limit 2000":                    `{"limit":2000}`,
		"--burst 500":                     `{"capacity":500}`,
	} {
		d := s.run(append([]string{"rules", "tier", "pro"}, strings.Fields(args)...)...)
		d.expect(t, 0, "+b", "version 43 is in force")
		if len(d.asked) != 1 || d.asked[0].body != want {
			t.Errorf("%s: %+v", args, d.asked)
		}
	}
	s.run("rules", "tier", "pro").expect(t, exitUsage, "", "give --limit")
	s.run("rules", "tier", "pro", "--burst", "0").expect(t, exitUsage, "", "--burst: must be at least 1")
}
