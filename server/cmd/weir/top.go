package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	toplist "github.com/weirhq/weir/server/internal/observe/top"
	"golang.org/x/term"
)

type topView struct {
	node    adminPort
	colour  colour
	refused bool
	rule    string // "" shows all rules
	rules   bool   // show the use of rules, not clients
	k       int
	every   time.Duration

	answer  toplist.Answer
	at      time.Time // when the response arrived
	trouble string    // why the last request failed, or ""
	paused  bool
	out     io.Writer
}

func topCommand() *cobra.Command {
	var v topView
	var by string
	var once bool
	cmd := command("top", func(cmd *cobra.Command, _ []string) error {
		v.refused = by == "refused"
		switch {
		case by != "requests" && by != "refused":
			return fmt.Errorf("--by: must be requests or refused, got %q", by)
		case v.k < 1 || v.k > 200:
			return fmt.Errorf("--clients: must be from 1 to 200, got %d", v.k)
		case v.every < 200*time.Millisecond:
			return fmt.Errorf("--interval: must be at least 200ms, got %s", v.every)
		}
		body, err := v.fetch(cmd)
		if err != nil {
			return err
		}
		if v.node.asJSON {
			return printJSON(cmd, body)
		}
		out := cmd.OutOrStdout()
		v.out = out
		if !once && isTerminal(out) && term.IsTerminal(int(os.Stdin.Fd())) {
			return v.show(cmd, &screen{in: os.Stdin, out: os.Stdout})
		}
		for _, line := range v.table(0) {
			fmt.Fprintln(out, line)
		}
		if words := v.limits(); words != "" {
			fmt.Fprintln(cmd.ErrOrStderr(), words)
		}
		return nil
	}, &v.colour, &v.node)
	f := cmd.Flags()
	f.StringVar(&by, "by", "requests", "sort by requests or refused")
	complete(cmd, "by", fixed("requests", "refused"))
	f.StringVar(&v.rule, "rule", "", "only what this rule has decided")
	f.BoolVar(&v.rules, "rules", false, "show rules in place of clients: rates, last hit, last refusal")
	f.IntVar(&v.k, "clients", 50, "how many clients, up to 200")
	f.DurationVar(&v.every, "interval", time.Second, "time between looks, on a terminal")
	f.BoolVar(&once, "once", false, "print once and leave, also on a terminal")
	f.Lookup("json").Usage = "print JSON, once"
	return cmd
}

func (v *topView) fetch(cmd *cobra.Command) (sent json.RawMessage, err error) {
	q := url.Values{"by": {"requests"}, "k": {strconv.Itoa(v.k)}}
	if v.refused {
		q.Set("by", "refused")
	}
	if v.rule != "" {
		q.Set("rule", v.rule)
	}
	v.answer, sent, err = get[toplist.Answer](&v.node, cmd, http.MethodGet, "/v1/top?"+q.Encode(), nil, nil)
	v.at = time.Now()
	return sent, err
}

func (v *topView) title() string {
	by := "requests"
	switch {
	case v.rules:
		by = "rule"
	case v.refused:
		by = "refusals"
	}
	return fmt.Sprintf("weir top  %s  by %s  %s", v.at.Format(time.TimeOnly), by, count(len(v.answer.Nodes), "node")) +
		given(v.rule != "", "  rule "+cell(v.rule)) + given(v.paused, "  paused")
}

// limits returns a text about what is missing in the response, or "".
func (v *topView) limits() string {
	out := missingNodes(v.answer.Partial, v.answer.NodesMissing)
	for _, n := range v.answer.Nodes {
		if n.SampledOneIn > 1 {
			out = append(out, fmt.Sprintf("%s looks at one decision in %.0f", cell(n.Name), n.SampledOneIn))
		}
	}
	if below := v.answer.MissingBelow; below > 0 && !v.rules {
		out = append(out, fmt.Sprintf("clients below %s/s may be missing", number(below)))
	}
	return strings.Join(out, "; ")
}

// table returns a line for each client or rule. Lines have at most width characters; if width is 0, there is no
// maximum.
func (v *topView) table(width int) []string {
	if v.rules {
		rows := [][]string{{"RULE", "REQ/S", "REFUSED/S", "IN SHADOW/S", "LAST HIT", "LAST REFUSAL"}}
		never := "none in " + roughly(v.at.Sub(v.answer.RulesSince))
		for _, r := range v.answer.Rules {
			rows = append(rows, []string{cell(r.Rule), number(r.Requests), number(r.Refused), number(r.Shadow), ago(v.at, r.LastHit, never), ago(v.at, r.LastRefusal, never)})
		}
		lines, _ := aligned("lrrrrr", rows)
		return lines
	}
	if len(v.answer.Clients) == 0 {
		some := "No client" + given(v.answer.MissingBelow > 0, " above "+number(v.answer.MissingBelow)+"/s")
		// The rates cover only completed slots of time, so a new request shows up a little later.
		return []string{fmt.Sprintf("%s in the last %.0f seconds; a new request shows up after about %.0f s.", some, v.answer.WindowSeconds, v.answer.SlotSeconds)}
	}
	rows := [][]string{{"CLIENT", "", "REQ/S", "REFUSED/S", "RULE"}}
	for _, c := range v.answer.Clients {
		requests := number(c.Requests) + given(c.PlusMinus >= 0.1, " ±"+number(c.PlusMinus))
		rule := cell(c.Rule) + given(c.MoreRules > 0, fmt.Sprintf(" +%d", c.MoreRules))
		rows = append(rows, []string{cell(c.Client), c.Fingerprint, requests, number(c.Refused), rule})
	}
	lines, used := aligned("llrrl", rows)
	room := toplist.Slots
	if width > 0 {
		room = min(room, width-used-2)
	}
	if room < 5 {
		return lines
	}
	lines[0] += "  " + "LAST MINUTE"[:min(room, len("LAST MINUTE"))]
	for i := range v.answer.Clients {
		c := &v.answer.Clients[i]
		past, style := c.History.Requests, green
		if v.refused {
			past, style = c.History.Refused, red
		}
		lines[i+1] += "  " + v.colour.paint(v.out, style, sparkline(past[toplist.Slots-room:]))
	}
	return lines
}

// sparkline draws counts as bars. The highest count is a full block.
func sparkline(counts []uint32) string {
	const bars = "▁▂▃▄▅▆▇█"
	most := slices.Max(counts)
	var b strings.Builder
	for _, n := range counts {
		if n == 0 {
			b.WriteByte(' ')
			continue
		}
		i := int(math.Ceil(8*float64(n)/float64(most))) - 1
		b.WriteString(bars[3*i : 3*i+3]) // each bar takes three bytes
	}
	return b.String()
}

// enter switches to the alternate screen, hides the cursor, and cuts off long lines.
const (
	enter = "\x1b[?1049h\x1b[?25l\x1b[?7l"
	leave = "\x1b[?7h\x1b[?25h\x1b[?1049l"
	// Each frame overwrites the previous one. Terminals that support this sequence show the frame all at once, so that
	// nothing flickers.
	frame    = "\x1b[?2026h\x1b[H"
	frameEnd = "\x1b[K\x1b[J\x1b[?2026l"
	lineEnd  = "\x1b[K\r\n"
)

// resized is how often to check whether the size of the terminal has changed.
const resized = 200 * time.Millisecond

// screen is a terminal that displays weir top.
type screen struct {
	in, out *os.File
	before  *term.State // the terminal's state, restored at the end
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

// show displays the list until the user ends the command, or the process is told to end.
func (v *topView) show(cmd *cobra.Command, s *screen) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGABRT)
	defer signal.Stop(signals)

	keys := make(chan []byte)
	go read(s.in, keys)
	answers := make(chan *topView, 1) // one request is in flight at a time
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
		case <-signals:
			return nil
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
			} else if next.refused == v.refused { // otherwise, the user has asked for a different list in the meantime
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

// press handles typed keys. done reports that the user wants to end the command. ask reports that the node must be
// asked again.
func (v *topView) press(typed []byte) (done, ask bool) {
	if typed[0] == 0x1b { // an escape sequence, for example of an arrow key: ignore it
		return false, false
	}
	for _, key := range typed {
		switch key {
		case 'q', 3: // 3 is Ctrl-C
			return true, false
		case 'r', 'x':
			v.refused, v.rules, ask = key == 'x', false, true
		case 'p', ' ':
			v.paused = !v.paused
			ask = !v.paused
		case 't':
			v.rules = !v.rules
		}
	}
	return done, ask
}

func (v *topView) draw(width, height int) string {
	below := v.colour.paint(v.out, amber, v.limits())
	if v.trouble != "" {
		below = v.colour.paint(v.out, red, v.trouble)
	}
	const foot = "r requests  x refused  p pause  t rules  q leave"
	lines := v.table(width)
	lines[0] = v.colour.paint(v.out, bold, lines[0])
	lines = slices.Concat([]string{v.colour.paint(v.out, bold, v.title())}, lines[:max(0, min(len(lines), height-3))], []string{below, v.colour.paint(v.out, cyan, foot)})
	return frame + strings.Join(lines, lineEnd) + frameEnd
}
