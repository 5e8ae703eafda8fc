package main

import (
	"fmt"
	"io"
	"math"
	"runtime"
	"strings"
	"text/tabwriter"
	"unicode/utf8"
)

// results is all that was measured.
type results struct {
	tables     []table
	footprints []footprint
	targets    []target
}

// table finds a workload's table; an empty one if it wasn't measured.
func (r *results) table(workload string) *table {
	for i := range r.tables {
		if r.tables[i].workload == workload {
			return &r.tables[i]
		}
	}
	return &table{}
}

func (r *results) footprint(label string, keys int) footprint {
	for _, f := range r.footprints {
		if f.label == label && f.keys == keys {
			return f
		}
	}
	nan := math.NaN()
	return footprint{label, keys, nan, nan, nan, nan}
}

func (r *results) print(w io.Writer, c *config) {
	fmt.Fprintf(w, "%s %s/%s, %d goroutines on %d cores, %s per measurement after %s of warm-up.\n",
		runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.GOMAXPROCS(0), runtime.NumCPU(), c.time, c.warmup)
	fmt.Fprintln(w, "ns: wall time per check, all goroutines together. CPU ns: of all cores, garbage collection included.")
	fmt.Fprintln(w, "Ratios are medians of the ratios within each round. Limits admit every check, except where it says refused.")
	for i := range r.tables {
		r.tables[i].print(w)
	}
	printFootprints(w, r.footprints)
	printTargets(w, r.targets)
}

func (t *table) print(w io.Writer) {
	store, fast := t.row(storeName), t.fastest()
	fmt.Fprintf(w, "\n%s, rounds: %d\n", t.workload, len(t.rows[0].samples))
	rows := [][]string{{"", "ns", "range", "× Weir store", "× fastest rival", "CPU ns", "allocs"}}
	for i := range t.rows {
		r := &t.rows[i]
		ns := r.ns()
		rows = append(rows, []string{
			r.label, number(ns.median, 0), "[" + number(ns.low, 0) + "–" + number(ns.high, 0) + "]",
			number(r.ratio(store).median, 2), number(r.ratio(fast).median, 2),
			number(r.cpu().median, 0), allocs(r.allocs().median),
		})
	}
	align(w, rows)
	if n := t.disturbed(); n > 0 {
		fmt.Fprintf(w, "  ! disturbed, and left out where others are left: %d of %d measurements\n", n, len(t.rows)*len(t.rows[0].samples))
	}
	for _, s := range t.warnings {
		fmt.Fprintln(w, "  ! "+s)
	}
}

// disturbed counts the measurements that never got the cores to themselves.
func (t *table) disturbed() (n int) {
	for _, r := range t.rows {
		for _, s := range r.samples {
			if !s.calm() {
				n++
			}
		}
	}
	return n
}

func printFootprints(w io.Writer, fs []footprint) {
	if len(fs) == 0 {
		return
	}
	fmt.Fprint(w, "\nMemory: bytes of live heap per key, the key's 24 bytes included where the limiter keeps them\n")
	rows := [][]string{{"", "keys", "heap", "booked", "worst booked", "worst heap"}}
	for _, f := range fs {
		row := []string{f.label, amount(f.keys), number(f.heap, 1), "–", "–", "–"}
		if f.booked > 0 {
			row = append(row[:3], number(f.booked, 1), number(f.worst, 1), number(f.worstHeap, 1))
		}
		rows = append(rows, row)
	}
	align(w, rows)
	fmt.Fprintf(w, "  booked: what the store says. worst: the most per counter while it grew, from %s counters on; heap with its garbage.\n", amount(firstLook))
}

func printTargets(w io.Writer, ts []target) {
	fmt.Fprint(w, "\nTargets\n")
	rows := [][]string{{"", "at most", "measured", ""}}
	remarks := []string{""}
	for i := range ts {
		t := &ts[i]
		digits := 2
		if t.most == noAllocs {
			digits = 5
		}
		rows = append(rows, []string{t.name, fmt.Sprint(t.most), number(t.got, digits), t.verdict()})
		remarks = append(remarks, t.note)
	}
	align(w, rows, remarks...)
}

func number(x float64, digits int) string {
	if math.IsNaN(x) {
		return "–"
	}
	return fmt.Sprintf("%.*f", digits, x)
}

func allocs(x float64) string {
	if x < noAllocs {
		return "0"
	}
	return number(x, 2)
}

// align prints columns: the first to the left, the others to the right, and behind each row its remark, if any.
func align(w io.Writer, rows [][]string, remarks ...string) {
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
