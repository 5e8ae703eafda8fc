package load

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

// screen is a line of a terminal.
type screen struct {
	line []byte
	at   int
}

func (s *screen) Write(p []byte) (int, error) {
	for _, c := range p {
		if c == '\r' {
			s.at = 0
			continue
		}
		if s.at == len(s.line) {
			s.line = append(s.line, ' ')
		}
		s.line[s.at] = c
		s.at++
	}
	return len(p), nil
}

func TestMeterOnATerminal(t *testing.T) {
	var s screen
	m := &Meter{W: &s, Terminal: true}
	for _, c := range []struct {
		show Progress
		want string
	}{
		{Progress{Phase: Warming, Elapsed: 500 * time.Millisecond, Total: time.Second}, "warming up, 500ms of 1s"},
		{Progress{Phase: Measuring, Elapsed: 200 * time.Millisecond, Total: 10 * time.Second, Answered: 300}, "200ms of 10s, 1,500 checks/s"},
		{Progress{Phase: Measuring, Elapsed: 5200 * time.Millisecond, Total: 10 * time.Second, Answered: 10_300, Failed: 7}, "5.2s of 10s, 2,000 checks/s, 7 errors"},
		{Progress{Phase: Finishing}, "waiting for answers"},
	} {
		m.Show(c.show)
		if got := strings.TrimRight(string(s.line), " "); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
	if m.Done(); strings.TrimSpace(string(s.line)) != "" || s.at != 0 {
		t.Errorf("left %q", s.line)
	}
}

func TestMeterElsewhereWritesLines(t *testing.T) {
	var w bytes.Buffer
	m := &Meter{W: &w}
	for _, phase := range []Phase{Warming, Measuring} {
		for d := ProgressInterval; d <= 12*time.Second; d += ProgressInterval {
			p := Progress{Phase: phase, Elapsed: d, Total: 12 * time.Second}
			if phase == Measuring {
				p.Answered = int64(d / time.Millisecond)
			}
			m.Show(p)
		}
	}
	m.Show(Progress{Phase: Finishing})
	m.Done()
	const want = `warming up, 5s of 12s
warming up, 10s of 12s
5s of 12s, 1,000 checks/s
10s of 12s, 1,000 checks/s
`
	if w.String() != want {
		t.Errorf("got\n%s", w.String())
	}
}
