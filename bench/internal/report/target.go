package report

import (
	"fmt"
	"io"
	"math"
)

// Target is a promise, and what was measured of it.
type Target struct {
	Name    string
	Bound   float64
	AtLeast bool    // the bound is a lower one, instead of an upper one
	Got     float64 // NaN if it wasn't measured
	Digits  int     // decimals to print; 0 means 2
	Note    string
}

// Verdict is PASS, FAIL or "not measured".
func (t *Target) Verdict() string {
	switch {
	case math.IsNaN(t.Got):
		return "not measured"
	case t.AtLeast && t.Got >= t.Bound, !t.AtLeast && t.Got <= t.Bound:
		return "PASS"
	}
	return "FAIL"
}

// AllMet is true when every target is met.
func AllMet(ts []Target) bool {
	for i := range ts {
		if ts[i].Verdict() != "PASS" {
			return false
		}
	}
	return true
}

// PrintTargets prints a table of them.
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
