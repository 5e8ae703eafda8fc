package main

import (
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// Control sequences for the terminal: enter switches to the alternate screen, hides the cursor, and makes
// long lines be cut off.
const (
	enter = "\x1b[?1049h\x1b[?25l\x1b[?7l"
	leave = "\x1b[?7h\x1b[?25h\x1b[?1049l"
	// A frame overwrites the last one. Terminals that support it show the frame all at once, so that nothing flickers.
	frame    = "\x1b[?2026h\x1b[H"
	frameEnd = "\x1b[K\x1b[J\x1b[?2026l"
	lineEnd  = "\x1b[K\r\n"
)

// resized is how often to check whether the size of the terminal has changed.
const resized = 200 * time.Millisecond

// screen is a terminal that displays weir top.
type screen struct {
	in, out *os.File
	before  *term.State // the state to restore at the end
}

func (s *screen) enter() (err error) {
	if s.before, err = term.MakeRaw(int(s.in.Fd())); err == nil {
		_, err = s.out.WriteString(enter)
	}
	return err
}

func (s *screen) leave() {
	_, _ = s.out.WriteString(leave)
	_ = term.Restore(int(s.in.Fd()), s.before)
}

// suspend stops the process. When it is resumed, suspend sets up the terminal again.
func (s *screen) suspend(resumed <-chan os.Signal) error {
	s.leave()
	select {
	case <-resumed: // discard the signal of an earlier stop
	default:
	}
	if err := stopSelf(); err != nil {
		return err
	}
	<-resumed
	return s.enter()
}

// show displays the list until the user leaves, or the process is told to end.
func (v *topView) show(cmd *cobra.Command, s *screen) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	signals, resumed := make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGABRT, stop)
	signal.Notify(resumed, resume)
	defer signal.Stop(signals)
	defer signal.Stop(resumed)

	keys := make(chan []byte)
	go read(s.in, keys)
	answers := make(chan *topView, 1) // has room for the response to one request
	look, size := time.NewTicker(v.every), time.NewTicker(resized)
	defer look.Stop()
	defer size.Stop()
	var width, height int
	asking, again, redraw := false, false, true
	for {
		if w, h, err := term.GetSize(int(s.out.Fd())); err == nil && (w != width || h != height || redraw) {
			width, height = w, h
			if _, err := s.out.WriteString(v.draw(w, h)); err != nil {
				return err
			}
		}
		redraw = true
		select {
		case <-cmd.Context().Done():
			return nil
		case sig := <-signals:
			if sig != stop {
				return nil
			}
			if err := s.suspend(resumed); err != nil {
				return err
			}
		case typed, open := <-keys:
			if !open {
				return nil // the terminal is closed
			}
			done, changed := v.press(typed)
			if done {
				return nil
			}
			again = again || changed
		case <-look.C:
			again = again || !v.paused
			redraw = false
		case <-size.C:
			redraw = false
		case next := <-answers:
			asking = false
			if next.trouble != "" {
				v.trouble = next.trouble
			} else if next.refused == v.refused && next.rule == v.rule { // ignore the response if the user has asked for a different list since
				v.answer, v.at, v.trouble = next.answer, next.at, ""
			}
		}
		if again && !asking {
			asking, again = true, false
			next := &topView{node: v.node, refused: v.refused, rule: v.rule, k: v.k}
			go func() {
				if _, err := next.fetch(cmd); err != nil {
					next.trouble = cell(err.Error())
				}
				answers <- next
			}()
		}
	}
}

func read(in *os.File, keys chan<- []byte) {
	defer close(keys)
	for {
		buf := make([]byte, 64)
		n, err := in.Read(buf)
		if err != nil {
			return
		}
		keys <- buf[:n]
	}
}

// press handles typed keys. done says that the user wants to leave, and ask that the node must be asked again.
func (v *topView) press(typed []byte) (done, ask bool) {
	if typed[0] == 0x1b { // an escape sequence, for example of an arrow key: ignore it
		v.typing = nil
		return false, false
	}
	for len(typed) > 0 {
		r, n := utf8.DecodeRune(typed)
		typed = typed[n:]
		switch {
		case r == 3: // Ctrl-C
			return true, false
		case r == 26: // in raw mode, the terminal doesn't handle Ctrl-Z itself
			stopJob()
		case v.typing != nil && r == '\r':
			v.rule, v.typing, ask = strings.TrimSpace(*v.typing), nil, true
		case v.typing != nil && (r == 0x7f || r == '\b'):
			_, last := utf8.DecodeLastRuneInString(*v.typing)
			*v.typing = (*v.typing)[:len(*v.typing)-last]
		case v.typing != nil:
			if unicode.IsPrint(r) && len(*v.typing) < 100 {
				*v.typing += string(r)
			}
		case r == 'q':
			return true, false
		case r == 'r' || r == 'x':
			v.refused, v.rules, ask = r == 'x', false, true
		case r == 'p' || r == ' ':
			v.paused = !v.paused
			ask = !v.paused
		case r == 't':
			v.rules = !v.rules
		case r == 'f' || r == '/':
			v.typing = new(string)
		}
	}
	return done, ask
}

func (v *topView) paint(style, text string) string {
	if !v.coloured || text == "" {
		return text
	}
	return style + text + plain
}

func (v *topView) draw(width, height int) string {
	below := v.paint(amber, v.limits())
	if v.trouble != "" {
		below = v.paint(red, v.trouble)
	}
	foot := "r requests  x refused  p pause  f one rule  t rules  q leave"
	if v.typing != nil {
		foot = "rule (empty: every rule): " + *v.typing + "_"
	}
	lines := v.table(width)
	lines[0] = v.paint(bold, lines[0])
	lines = slices.Concat([]string{v.paint(bold, v.title())}, lines[:max(0, min(len(lines), height-3))], []string{below, v.paint(cyan, foot)})
	return frame + strings.Join(lines, lineEnd) + frameEnd
}
