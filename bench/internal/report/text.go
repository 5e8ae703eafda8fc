package report

import (
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"
)

// Number writes x with so many decimals; a dash if it wasn't measured.
func Number(x float64, digits int) string {
	if math.IsNaN(x) {
		return "–"
	}
	return fmt.Sprintf("%.*f", digits, x)
}

// Amount writes 10 M, 500 k, 37.
func Amount(n int) string {
	switch {
	case n >= 1_000_000 && n%100_000 == 0:
		return strings.TrimSuffix(fmt.Sprintf("%.1f", float64(n)/1e6), ".0") + " M"
	case n >= 1000 && n%1000 == 0:
		return fmt.Sprintf("%d k", n/1000)
	}
	return fmt.Sprint(n)
}

// Align prints a table whose columns line up: the first is aligned to the left, the others to the right. A row's remark, if
// it has one, follows the row.
func Align(w io.Writer, rows [][]string, remarks ...string) {
	width := 0
	for _, r := range rows {
		width = max(width, utf8.RuneCountInString(r[0]))
	}
	var b strings.Builder
	tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	for i, r := range rows {
		pad := strings.Repeat(" ", width-utf8.RuneCountInString(r[0]))
		fmt.Fprintf(tw, "%s%s\t%s\t", r[0], pad, strings.Join(r[1:], "\t"))
		if i < len(remarks) {
			fmt.Fprint(tw, "  ", remarks[i])
		}
		fmt.Fprintln(tw)
	}
	_ = tw.Flush()
	for line := range strings.Lines(b.String()) {
		fmt.Fprintln(w, strings.TrimRight(line, " \n"))
	}
}

// Percent writes a share with so many decimals.
func Percent(share float64, digits int) string { return Number(100*share, digits) + "%" }

// Milliseconds writes a time with so many decimals, without its unit.
func Milliseconds(d time.Duration, digits int) string { return Number(1e3*d.Seconds(), digits) }
