package decisionlog

import (
	"bytes"
	"encoding/json"
	"io"
	"net/netip"
	"os"
	"time"

	"github.com/weirhq/weir/internal/observer"
)

// writer holds what only the goroutine that writes the log uses.
type writer struct {
	out     io.Writer
	path    string // "" if out isn't a file
	buf     bytes.Buffer
	lines   []line // the lines in buf
	torn    bool   // the last write ended in the middle of a line
	failing bool   // the last write failed
}

// line is a line in the buffer.
type line struct {
	end   int // its end in the buffer
	tally *tally
	tells uint64 // how many left-out decisions the line reports; 0 for the line of a decision
}

// batch is about how many bytes are written at once.
const batch = 64 << 10

func (l *Log) run() {
	defer close(l.closed)
	second := time.NewTicker(time.Second)
	defer second.Stop()
	for {
		select {
		case e := <-l.queue:
			l.append(e.tally, 0, &e.line)
			l.writeQueued()
		case <-second.C:
			l.tellLeftOut()
			l.renew()
		case <-l.reopen:
			l.openAgain()
		case <-l.closing:
			l.writeQueued()
			l.tellLeftOut()
			if c, ok := l.out.(io.Closer); ok && l.path != "" {
				_ = c.Close() // flush has counted lines that couldn't be written
			}
			return
		}
	}
}

// writeQueued writes the decisions in the queue.
func (l *Log) writeQueued() {
	for {
		select {
		case e := <-l.queue:
			if l.append(e.tally, 0, &e.line); l.buf.Len() >= batch {
				l.flush()
			}
		default:
			l.flush()
			return
		}
	}
}

// tellLeftOut writes a line for each rule of which decisions were left out.
func (l *Log) tellLeftOut() {
	for _, t := range l.all() {
		if n := t.leftOut.Load() - t.told; n > 0 {
			t.told += n
			l.append(t, n, &leftOutLine{Time: text(time.Now()), LeftOut: n, Outcome: observer.Outcome(t.allowed), Reason: observer.Reason(t.reason), Rule: t.rule})
		}
	}
	l.flush()
}

// renew starts a new second: each tally may write lines again.
func (l *Log) renew() {
	drop := false
	for _, t := range l.all() {
		t.idle++
		if t.left.Swap(perReason) < perReason || t.leftOut.Load() > t.told {
			t.idle = 0
		}
		drop = drop || t.idle >= keepIdle
	}
	if drop {
		l.dropIdle()
	}
	l.left.Store(perSecond)
}

// decisionLine is the line of a decision. docs/reference/events.md describes its fields.
type decisionLine struct {
	Time         string     `json:"time"`
	Outcome      string     `json:"outcome"`
	Reason       string     `json:"reason"`
	Rule         string     `json:"rule"`
	RulesVersion int64      `json:"rules_version"`
	Policy       string     `json:"policy"`
	Entry        string     `json:"entry,omitempty"`
	Key          string     `json:"key"`
	User         string     `json:"user,omitempty"`
	Fingerprint  string     `json:"fingerprint,omitempty"`
	IP           netip.Addr `json:"ip"`
	Method       string     `json:"method"`
	Path         string     `json:"path"`
	RetryAfterMS int64      `json:"retry_after_ms"`
	Edge         string     `json:"edge"`
	Degraded     bool       `json:"degraded"`
	Identity     string     `json:"identity,omitempty"`
	TraceID      string     `json:"trace_id,omitempty"`
}

type leftOutLine struct {
	Time    string `json:"time"`
	LeftOut uint64 `json:"left_out"`
	Outcome string `json:"outcome"`
	Reason  string `json:"reason"`
	Rule    string `json:"rule"`
}

func text(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

// append adds a line to the buffer.
func (w *writer) append(t *tally, tells uint64, v any) {
	if w.torn && w.buf.Len() == 0 {
		w.buf.WriteByte('\n') // so that the torn line doesn't corrupt this one
	}
	enc := json.NewEncoder(&w.buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(err) // can't fail for strings and numbers
	}
	w.lines = append(w.lines, line{w.buf.Len(), t, tells})
}

// unread is how long a write to a named pipe may block before it fails, so that somebody hears of a pipe that nobody reads.
const unread = time.Second

// flush writes the buffer. Decisions whose lines couldn't be written count as left out.
func (l *Log) flush() {
	if len(l.lines) == 0 {
		return
	}
	if f, ok := l.out.(*os.File); ok && l.path != "" {
		_ = f.SetWriteDeadline(time.Now().Add(unread)) // for pipes; regular files have no deadlines, and need none
	}
	n, err := l.out.Write(l.buf.Bytes())
	whole := 0
	for whole < len(l.lines) && l.lines[whole].end-1 <= n { // a line that lacks only its newline is complete, because the next write adds that
		whole++
	}
	for _, lost := range l.lines[whole:] {
		if lost.tells > 0 {
			lost.tally.told -= lost.tells
		} else {
			lost.tally.leftOut.Add(1)
		}
	}
	l.written.Add(uint64(whole))
	if n > 0 {
		l.torn = l.buf.Bytes()[n-1] != '\n'
	}
	l.buf.Reset()
	l.lines = l.lines[:0]
	l.note(err)
}

// note logs the first failed write, and the first successful one after it.
func (l *Log) note(err error) {
	if err != nil {
		l.failures.Add(1)
	}
	switch failing := err != nil; {
	case failing && !l.failing:
		l.opts.Logger.Error("the decision log can't be written: decisions are left out until it can", "error", err)
	case !failing && l.failing:
		l.opts.Logger.Info("the decision log is written again")
	}
	l.failing = err != nil
}

// sameFile reports whether two open files are the same. If it can't tell, it returns true.
func sameFile(a, b *os.File) bool {
	x, errX := a.Stat()
	y, errY := b.Stat()
	return errX != nil || errY != nil || os.SameFile(x, y)
}

// openAgain opens the file that now has the log's name. If that fails, the old file stays in use.
func (l *Log) openAgain() {
	if l.path == "" {
		return
	}
	f, err := openFile(l.path)
	if err != nil {
		l.opts.Logger.Error("the decision log can't be opened again: the file that is open stays", "error", err)
		return
	}
	old := l.out.(*os.File)
	l.out, l.torn = f, l.torn && sameFile(old, f)
	_ = old.Close() // flush has counted lines that couldn't be written
}
