package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

func TestDiffsHaveColors(t *testing.T) {
	const diff = "--- version 1\n+++ new\n@@ -1,4 +1,4 @@\n rules:\n--- a comment\n+++ another\n-  - a\n+  - b"
	const want = "\x1b[1m--- version 1\x1b[0m\n\x1b[1m+++ new\x1b[0m\n\x1b[36m@@ -1,4 +1,4 @@\x1b[0m\n rules:\n" +
		"\x1b[31m--- a comment\x1b[0m\n\x1b[32m+++ another\x1b[0m\n\x1b[31m-  - a\x1b[0m\n\x1b[32m+  - b\x1b[0m"
	for coloured, want := range map[bool]string{true: want, false: diff} {
		var got bytes.Buffer
		if printDiff(&got, diff, coloured); got.String() != want {
			t.Errorf("coloured %v:\n%q\nwant\n%q", coloured, got.String(), want)
		}
	}
}

func TestDiffsCannotCommandATerminal(t *testing.T) {
	var got bytes.Buffer
	printDiff(&got, "@@ -1 +1 @@\r\n+\ta: \x1b[2Jb\u009b1A\u202e\r\n", false)
	if want := "@@ -1 +1 @@\r\n+\ta: \uFFFD[2Jb\uFFFD1A\uFFFD\r\n"; got.String() != want {
		t.Errorf("%q, want %q", got.String(), want)
	}
}

func TestColorIsForTerminals(t *testing.T) {
	terminal, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0) // a device, like a terminal
	if err != nil {
		t.Fatal(err)
	}
	defer terminal.Close()
	for _, c := range []struct {
		when, noColor, term string
		terminal, file      bool
	}{
		{"auto", "", "xterm", true, false},
		{"auto", "1", "xterm", false, false},
		{"auto", "", "dumb", false, false},
		{"always", "1", "dumb", true, true},
		{"never", "", "xterm", false, false},
	} {
		t.Setenv("NO_COLOR", c.noColor)
		t.Setenv("TERM", c.term)
		when, err := parseColour(c.when)
		if err != nil {
			t.Fatal(err)
		}
		if when.on(terminal) != c.terminal || when.on(&bytes.Buffer{}) != c.file {
			t.Errorf("%+v: %t on a terminal, %t in a file", c, when.on(terminal), when.on(&bytes.Buffer{}))
		}
	}
	if _, err := parseColour("sometimes"); err == nil || !strings.Contains(err.Error(), `must be auto, always or never, got "sometimes"`) {
		t.Error(err)
	}
}
