// Package report prints the results of measurements: medians with their spread, tables, and targets.
package report

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"
)

// Number formats a number with the given number of decimals, or a dash if it wasn't measured.
func Number(x float64, digits int) string {
	if math.IsNaN(x) {
		return "–"
	}
	return fmt.Sprintf("%.*f", digits, x)
}

// Amount formats a number in a short form, such as 10 M, 500 k or 37.
func Amount(n int) string {
	switch {
	case n >= 1_000_000 && n%100_000 == 0:
		return strings.TrimSuffix(fmt.Sprintf("%.1f", float64(n)/1e6), ".0") + " M"
	case n >= 1000 && n%1000 == 0:
		return fmt.Sprintf("%d k", n/1000)
	}
	return fmt.Sprint(n)
}

// Align prints a table. The first column is aligned left, and the others right. A row's remark is printed after it.
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

// Percent formats a share as a percentage with the given number of decimals.
func Percent(share float64, digits int) string { return Number(100*share, digits) + "%" }

// Milliseconds formats a time in milliseconds with the given number of decimals, without the unit.
func Milliseconds(d time.Duration, digits int) string { return Number(1e3*d.Seconds(), digits) }

// Spread is the median and the range of several measurements. For more than 5 measurements, the range is from the first
// to the third quartile.
type Spread struct{ Median, Low, High float64 }

// extremes is the largest number of measurements for which Low and High are the minimum and the maximum. With more
// measurements, they are the quartiles.
const extremes = 5

// SpreadOf returns the spread of numbers. It ignores NaN. The median of an even number of measurements is the mean of
// the middle two.
func SpreadOf(xs []float64) Spread {
	xs = slices.DeleteFunc(slices.Clone(xs), math.IsNaN)
	n := len(xs)
	if n == 0 {
		return Spread{math.NaN(), math.NaN(), math.NaN()}
	}
	slices.Sort(xs)
	s := Spread{(xs[(n-1)/2] + xs[n/2]) / 2, xs[0], xs[n-1]}
	if n > extremes {
		s.Low, s.High = xs[n/4], xs[n-1-n/4]
	}
	return s
}

// Range formats the range as [low–high]. It returns "" if it is unknown.
func (s Spread) Range(digits int) string {
	if math.IsNaN(s.Median) {
		return ""
	}
	return "[" + Number(s.Low, digits) + "–" + Number(s.High, digits) + "]"
}

// Target is a bound that a measured value should keep.
type Target struct {
	Name    string
	Bound   float64
	AtLeast bool    // Bound is a lower bound; otherwise it is an upper one
	Got     float64 // NaN if it wasn't measured
	Digits  int     // decimals to print; 0 means 2
	Note    string
}

// Verdict returns PASS, FAIL or "not measured".
func (t *Target) Verdict() string {
	switch {
	case math.IsNaN(t.Got):
		return "not measured"
	case t.AtLeast && t.Got >= t.Bound, !t.AtLeast && t.Got <= t.Bound:
		return "PASS"
	}
	return "FAIL"
}

// AllMet reports whether all targets are met.
func AllMet(ts []Target) bool {
	return !slices.ContainsFunc(ts, func(t Target) bool { return t.Verdict() != "PASS" })
}

// PrintTargets prints a table of targets.
func PrintTargets(w io.Writer, ts []Target) {
	fmt.Fprint(w, "\nTargets\n")
	rows := [][]string{{"", "bound", "measured", ""}}
	remarks := []string{""}
	for i := range ts {
		t := &ts[i]
		sign, digits, note := "≤ ", 2, t.Note
		if t.AtLeast {
			sign = "≥ "
		}
		if t.Digits > 0 {
			digits = t.Digits
		}
		if math.IsNaN(t.Got) {
			note = ""
		}
		rows = append(rows, []string{t.Name, sign + fmt.Sprint(t.Bound), Number(t.Got, digits), t.Verdict()})
		remarks = append(remarks, note)
	}
	Align(w, rows, remarks...)
}
