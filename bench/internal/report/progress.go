package report

import (
	"fmt"
	"io"
	"time"
)

// Progress prints a line for each step of a measurement.
type Progress struct {
	w     io.Writer
	steps int
	total int
	start time.Time
}

// NewProgress begins to count that many steps.
func NewProgress(w io.Writer, total int) *Progress {
	return &Progress{w: w, total: total, start: time.Now()}
}

// Step prints what begins now.
func (p *Progress) Step(format string, args ...any) {
	p.steps++
	fmt.Fprintf(p.w, "%4d of %d  %4.0fs  %s\n", p.steps, p.total, time.Since(p.start).Seconds(), fmt.Sprintf(format, args...))
}

// Done prints how long everything took.
func (p *Progress) Done() {
	fmt.Fprintf(p.w, "done in %s\n", time.Since(p.start).Round(time.Second))
}
