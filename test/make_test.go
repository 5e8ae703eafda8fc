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
	t.Parallel()
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

// make install puts the binary where PREFIX says, and tells how if it can't.
func TestMakeInstall(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	makefile, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "Makefile"), string(makefile))
	stub := filepath.Join(dir, "go")
	script(t, stub, "#!/bin/sh\nmkdir -p bin && echo built > bin/weir\n")
	install := func(prefix string) (string, error) {
		out, err := exec.CommandContext(t.Context(), "make", "-C", dir, "install", "GO="+stub, "PREFIX="+prefix).CombinedOutput()
		return string(out), err
	}
	prefix := filepath.Join(dir, "usr")
	if out, err := install(prefix); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if info, err := os.Stat(filepath.Join(prefix, "bin", "weir")); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("installed: %v, %v", info, err)
	}
	if out, err := install(stub); err == nil || !strings.Contains(out, "try make install PREFIX=") {
		t.Errorf("into a file: %v\n%s", err, out)
	}
}

// script writes a command.
func script(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
}
