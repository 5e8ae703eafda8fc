package main

import (
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/weirhq/weir/server/internal/load"
)

// printTable aligns and prints rows. If there is only a header, it prints nothing.
func printTable(w io.Writer, align string, rows [][]string) {
	if len(rows) < 2 {
		return
	}
	lines, _ := aligned(align, rows)
	for _, line := range lines {
		fmt.Fprintln(w, strings.TrimRight(line, " "))
	}
}

// aligned returns a line for each row, and the width of the widest line. The first row is the header. align has a
// letter for each column: r aligns it to the right, and l or a missing letter to the left. If a row is shorter than the
// header, its last cell is free text, which doesn't widen its column.
func aligned(align string, rows [][]string) (lines []string, width int) {
	widths := map[int]int{}
	for _, row := range rows {
		for i, text := range row {
			if len(row) == len(rows[0]) || i < len(row)-1 {
				widths[i] = max(widths[i], utf8.RuneCountInString(text))
			}
		}
	}
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, text := range row {
			pad := -widths[i] // a negative width pads on the right
			if i < len(align) && align[i] == 'r' {
				pad = widths[i]
			}
			cells[i] = fmt.Sprintf("%*s", pad, text)
		}
		line := strings.Join(cells, "  ")
		lines, width = append(lines, line), max(width, utf8.RuneCountInString(line))
	}
	return lines, width
}

// cell converts a text that others have written to one that fits into a table: on one line, without control characters.
func cell(text string) string { return printable(strings.Join(strings.Fields(text), " ")) }

// orDash returns cell(text), or a dash if text is empty.
func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return cell(text)
}

// given returns text if met is true, and otherwise "".
func given(met bool, text string) string {
	if met {
		return text
	}
	return ""
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func clock(t time.Time) string { return t.Local().Format(time.DateTime) }

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// wait formats a duration. Long durations have days.
func wait(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d == 0:
		return "now"
	case d >= 2*day:
		return fmt.Sprintf("%dd%dh", d/day, d%day/time.Hour)
	case d >= time.Hour:
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	}
	return d.String()
}

// roughly formats a duration like wait, but rounds it to seconds or, below 10 s, to tenths of a second.
func roughly(d time.Duration) string {
	unit := 100 * time.Millisecond
	if d >= 10*time.Second {
		unit = time.Second
	}
	if d = d.Round(unit); d <= 0 {
		return "0s"
	}
	return wait(d)
}

// ago says how long ago t was. If t is nil, it returns never.
func ago(now time.Time, t *time.Time, never string) string {
	switch {
	case t == nil:
		return never
	case now.Sub(*t) < 2*time.Second:
		return "now"
	}
	return roughly(now.Sub(*t)) + " ago"
}

// number formats a rate. Rates below 100 have one decimal, and others have none, but commas.
func number(v float64) string {
	if v < 100 {
		return fmt.Sprintf("%.1f", v)
	}
	return load.Thousands(int64(math.Round(v)))
}

func whole(n uint64) string { return load.Thousands(int64(n)) }

// percent formats a percentage. It rounds down, so that 100% is shown only for the whole.
func percent(share float64) string { return fmt.Sprintf("%.0f%%", math.Floor(100*share)) }

// between formats a number whose exact value is unknown, from its lower and upper bounds.
func between(least, most uint64) string {
	if least == most {
		return whole(least)
	}
	return whole(least) + " to " + whole(most)
}

// colour is the value of a flag that says when to use colors.
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

// on reports whether output to w should have colors.
func (c *colour) on(w io.Writer) bool {
	if *c == "auto" {
		return isTerminal(w) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	}
	return *c == "always"
}

// paint returns text in a style, if output to w has colors.
func (c *colour) paint(w io.Writer, style, text string) string {
	if !c.on(w) {
		return text
	}
	return style + text + plain
}

// verdict colors a word as good news if yes is true, and as bad news otherwise.
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

// printDiff writes a unified diff, optionally in colors.
func printDiff(w io.Writer, diff string, coloured bool) {
	head := true // until the first @@; after that, a line that begins with --- or +++ isn't a file name
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

// printable replaces characters that could control a terminal. It keeps tabs, and a \r at the end of the line.
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
