package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
)

// colour says when to print in colours.
type colour string

var colours = []string{"auto", "always", "never"}

func (c *colour) register(cmd *cobra.Command) {
	*c = "auto"
	cmd.Flags().Var(parsed[colour]{c, "when", parseColour, func(c colour) string { return string(c) }}, "color", "auto (on a terminal, unless NO_COLOR is set), always or never")
	complete(cmd, "color", fixed(colours...))
}

func parseColour(text string) (colour, error) {
	if !slices.Contains(colours, text) {
		return "", fmt.Errorf("must be auto, always or never, got %q", text)
	}
	return colour(text), nil
}

// on reports whether output to w should have colours.
func (c *colour) on(w io.Writer) bool {
	if *c == "auto" {
		return isTerminal(w) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	}
	return *c == "always"
}

// paint returns text in a style, if output to w has colours.
func (c *colour) paint(w io.Writer, style, text string) string {
	if !c.on(w) {
		return text
	}
	return style + text + plain
}

// verdict paints a word that means yes or no.
func (c *colour) verdict(w io.Writer, yes bool, word string) string {
	if yes {
		return c.paint(w, green, word)
	}
	return c.paint(w, red, word)
}

const (
	bold  = "\x1b[1m"
	red   = "\x1b[31m"
	green = "\x1b[32m"
	amber = "\x1b[33m"
	cyan  = "\x1b[36m"
	plain = "\x1b[0m"
)

// printDiff writes a unified diff, optionally in colours.
func printDiff(w io.Writer, diff string, coloured bool) {
	head := true // a removed "-- " looks like a file's name, which only comes before the first @@
	for line := range strings.Lines(diff) {
		line, end := strings.CutSuffix(line, "\n")
		line = printable(line)
		style := ""
		switch {
		case strings.HasPrefix(line, "@@"):
			style, head = cyan, false
		case head:
			style = bold
		case strings.HasPrefix(line, "-"):
			style = red
		case strings.HasPrefix(line, "+"):
			style = green
		}
		if coloured && style != "" {
			line = style + line + plain
		}
		if end {
			line += "\n"
		}
		fmt.Fprint(w, line)
	}
}

// printable replaces characters that could control a terminal, since others wrote the text. It
// keeps tabs, and the \r of CRLF.
func printable(line string) string {
	line, crlf := strings.CutSuffix(line, "\r")
	line = strings.Map(func(r rune) rune {
		if r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r)) {
			return unicode.ReplacementChar
		}
		return r
	}, line)
	if crlf {
		line += "\r"
	}
	return line
}
