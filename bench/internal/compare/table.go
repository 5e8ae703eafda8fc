package compare

import (
	"fmt"
	"io"

	"github.com/weirhq/weir/server/bench/internal/report"
)

// Table has the results of one workload.
type Table struct {
	Workload string
	Rows     []*Row
	Warnings []string
}

// Row has one contender's samples, one for each round.
type Row struct {
	Name    string
	Samples []Sample
}

// NewTable makes a table with an empty row for each contender.
func NewTable(workload string, contenders ...string) *Table {
	t := &Table{Workload: workload}
	for _, name := range contenders {
		t.Rows = append(t.Rows, &Row{Name: name})
	}
	return t
}

// Add adds the next round's sample to the n-th row.
func (t *Table) Add(n int, s Sample) {
	r := t.Rows[n]
	r.Samples = append(r.Samples, s)
	if s.Unexpected() == 0 {
		return
	}
	text := fmt.Sprintf("%s: %d of %d checks were not decided as expected", r.Name, s.Unexpected(), s.Checks+s.Errors)
	if len(s.Faults) > 0 {
		text += ": " + s.Faults[0].Text
	}
	t.Warnings = append(t.Warnings, text)
}

// Tables are the tables of all workloads.
type Tables []*Table

// Of returns the table of a workload, or nil if it wasn't measured.
func (ts Tables) Of(workload string) *Table {
	for _, t := range ts {
		if t.Workload == workload {
			return t
		}
	}
	return nil
}

// Row returns the row of a contender, or nil if it wasn't measured. A nil table has no rows.
func (t *Table) Row(name string) *Row {
	if t != nil {
		for _, r := range t.Rows {
			if r.Name == name {
				return r
			}
		}
	}
	return nil
}

// Spread returns the spread of a figure over the rounds.
func (r *Row) Spread(f Figure) report.Spread {
	if r == nil {
		return report.SpreadOf(nil)
	}
	return overRounds(func(i int) float64 { return f(&r.Samples[i]) }, r)
}

// Ratio returns the spread of a figure's ratio to the same figure in base. Ratios are computed within each round,
// because rounds differ.
func (r *Row) Ratio(base *Row, f Figure) report.Spread {
	if r == nil || base == nil {
		return report.SpreadOf(nil)
	}
	return overRounds(func(i int) float64 { return f(&r.Samples[i]) / f(&base.Samples[i]) }, r, base)
}

// overRounds computes the spread of a value over the rounds. It leaves out rounds with unexpected answers and, if
// others remain, rounds that other processes disturbed.
func overRounds(value func(round int) float64, rows ...*Row) report.Spread {
	rounds := len(rows[0].Samples)
	for _, r := range rows {
		rounds = min(rounds, len(r.Samples))
	}
	var all, calm []float64
	for i := range rounds {
		sound, undisturbed := true, true
		for _, r := range rows {
			sound = sound && r.Samples[i].Unexpected() == 0
			undisturbed = undisturbed && r.Samples[i].Calm()
		}
		if !sound {
			continue
		}
		all = append(all, value(i))
		if undisturbed {
			calm = append(calm, value(i))
		}
	}
	if calm == nil {
		calm = all
	}
	return report.SpreadOf(calm)
}

// Column is one column of a printed table.
type Column struct {
	Head string
	Cell func(*Row) string
}

// Print prints a table with a row for each contender, and remarks about the measurement.
func (t *Table) Print(w io.Writer, about string, columns ...Column) {
	if len(t.Rows) == 0 {
		return
	}
	fmt.Fprintf(w, "\n%s%s, rounds: %d\n", t.Workload, about, len(t.Rows[0].Samples))
	head := []string{""}
	for _, c := range columns {
		head = append(head, c.Head)
	}
	rows := [][]string{head}
	disturbed, all := 0, 0
	for _, r := range t.Rows {
		row := []string{r.Name}
		for _, c := range columns {
			row = append(row, c.Cell(r))
		}
		rows = append(rows, row)
		all += len(r.Samples)
		for i := range r.Samples {
			if !r.Samples[i].Calm() {
				disturbed++
			}
		}
	}
	report.Align(w, rows)
	if disturbed > 0 {
		fmt.Fprintf(w, "  ! disturbed, and left out where others are left: %d of %d measurements\n", disturbed, all)
	}
	for _, text := range t.Warnings {
		fmt.Fprintln(w, "  ! "+text)
	}
}

// Median returns a column with the median of a figure.
func Median(head string, f Figure, digits int) Column {
	return Column{head, func(r *Row) string { return report.Number(r.Spread(f).Median, digits) }}
}

// Range returns a column with the range of a figure.
func Range(head string, f Figure, digits int) Column {
	return Column{head, func(r *Row) string { return r.Spread(f).Range(digits) }}
}

// Ratio returns a column with the median ratio of a figure to that in another row.
func Ratio(head string, base *Row, f Figure) Column {
	return Column{head, func(r *Row) string { return report.Number(r.Ratio(base, f).Median, 2) }}
}
