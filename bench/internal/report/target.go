package report

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
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

// MarshalJSON writes the target with its verdict; null stands for what wasn't measured.
func (t Target) MarshalJSON() ([]byte, error) {
	out := map[string]any{"target": t.Name, "measured": nil, "verdict": t.Verdict(), "at_most": t.Bound}
	if t.AtLeast {
		delete(out, "at_most")
		out["at_least"] = t.Bound
	}
	if !math.IsNaN(t.Got) {
		out["measured"] = t.Got
	}
	return json.Marshal(out)
}

// WriteJSON writes the results of a comparison to a file. Settings say how they were measured.
func WriteJSON(path string, settings, results any) error {
	text, err := json.MarshalIndent(map[string]any{
		"go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH, "settings": settings, "results": results,
	}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}
