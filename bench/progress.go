package main

import (
	"fmt"
	"io"
	"time"
)

// progress says on one line each what is being measured.
type progress struct {
	w        io.Writer
	i, total int
	start    time.Time
}

func (p *progress) step(format string, args ...any) {
	p.i++
	fmt.Fprintf(p.w, "%4d of %d  %4.0fs  %s\n", p.i, p.total, time.Since(p.start).Seconds(), fmt.Sprintf(format, args...))
}

func (p *progress) done() {
	fmt.Fprintf(p.w, "done in %s\n", time.Since(p.start).Round(time.Second))
}
