package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// make check fails on a known vulnerability, and on a scanner that doesn't work, but not on a machine without a network.
func TestVulnerabilitiesFailTheCheck(t *testing.T) {
	for _, c := range []struct {
		says   string
		status string
		want   string
		fails  bool
	}{
		{"No vulnerabilities found.", "0", "No vulnerabilities found.", false},
		{"Vulnerability #1: GO-2026-0001", "3", "GO-2026-0001", true},
		{"govulncheck: fetching vulnerabilities: Get https://vuln.go.dev/index/modules.json.gz: no such host", "1", "govulncheck skipped", false},
		{"govulncheck: loading packages: there are errors", "1", "loading packages", true},
	} {
		stub := filepath.Join(t.TempDir(), "go")
		text := "#!/bin/sh\necho \"$*\"\necho '" + c.says + "'\nexit " + c.status + "\n"
		if err := os.WriteFile(stub, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), "make", "-C", "..", "vulns", "GO="+stub)
		out, err := cmd.CombinedOutput()
		if (err != nil) != c.fails || !strings.Contains(string(out), c.want) {
			t.Errorf("%s: %v\n%s", c.says, err, out)
		}
	}
	makefile, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(makefile), "\ncheck: vulns\n") {
		t.Error("make check doesn't look for vulnerabilities")
	}
}
