package load

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// lineInterval is how often a meter writes a line if it isn't on a terminal.
const lineInterval = 5 * time.Second

// Meter shows the progress of a run: as a bar on a terminal, and elsewhere as a line now and then.
type Meter struct {
	w        io.Writer
	terminal bool
	drawn    int      // width of the bar on the screen
	told     Progress // shown last
}

// NewMeter makes a meter that writes to w.
func NewMeter(w io.Writer, terminal bool) *Meter { return &Meter{w: w, terminal: terminal} }

// Show shows progress.
func (m *Meter) Show(p Progress) {
	if p.Phase != m.told.Phase {
		m.told = Progress{Phase: p.Phase}
	}
	if !m.terminal && p.Elapsed-m.told.Elapsed < lineInterval {
		return
	}
	text := m.text(p)
	m.told = p
	if !m.terminal {
		fmt.Fprintln(m.w, text)
		return
	}
	text = bar(p) + " " + text
	// Spaces erase what a longer text left behind.
	fmt.Fprintf(m.w, "\r%s%s", text, strings.Repeat(" ", max(m.drawn-len(text), 0)))
	m.drawn = len(text)
}

// Done erases the bar.
func (m *Meter) Done() {
	if m.drawn > 0 {
		fmt.Fprintf(m.w, "\r%s\r", strings.Repeat(" ", m.drawn))
		m.drawn = 0
	}
}

func (m *Meter) text(p Progress) string {
	elapsed := p.Elapsed.Round(100 * time.Millisecond)
	switch p.Phase {
	case Warming:
		return fmt.Sprintf("warming up, %s of %s", elapsed, p.Total)
	case Finishing:
		return "waiting for answers"
	}
	s := fmt.Sprintf("%s of %s", elapsed, p.Total.Round(100*time.Millisecond))
	if d := p.Elapsed - m.told.Elapsed; d > 0 {
		s += ", " + perSecond(float64(p.Answered-m.told.Answered)/d.Seconds()) + " checks/s"
	}
	if p.Failed > 0 {
		s += ", " + Thousands(p.Failed) + " errors"
	}
	return s
}

const barWidth = 24

func bar(p Progress) string {
	full := barWidth
	if p.Total > 0 {
		full = min(int(barWidth*p.Elapsed/p.Total), barWidth)
	}
	return "[" + strings.Repeat("=", full) + strings.Repeat(" ", barWidth-full) + "]"
}
