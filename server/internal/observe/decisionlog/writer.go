package decisionlog

import (
	"bytes"
	"encoding/json"
	"io"
	"net/netip"
	"os"
	"time"
)

// writer has the fields that only the goroutine that writes the log uses.
type writer struct {
	out     io.Writer
	path    string // "" if out isn't a file
	buf     bytes.Buffer
	torn    bool // the last write ended in the middle of a line
	failing bool // the last write failed
}

func (l *Log) run() {
	defer close(l.closed)
	second := time.NewTicker(time.Second)
	defer second.Stop()
	for {
		select {
		case e := <-l.queue:
			l.writeEntry(&e)
		case <-second.C:
			l.endSecond()
		case <-l.reopen:
			l.openAgain()
		case <-l.closing:
			for len(l.queue) > 0 {
				e := <-l.queue
				l.writeEntry(&e)
			}
			l.endSecond()
			if c, ok := l.out.(io.Closer); ok && l.path != "" {
				_ = c.Close() // ignore the error: write has counted the lines that couldn't be written
			}
			return
		}
	}
}

func (l *Log) writeEntry(e *entry) {
	if !l.write(&e.line) {
		l.tally(e.tally).leftOut.Add(1)
		l.mu.RUnlock()
	}
}

// decisionLine is the line about a decision. docs/reference/events.md describes the fields.
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

// unread is how long a write to a named pipe may block before it fails. A write blocks if the pipe's reader is stuck.
const unread = time.Second

// write writes a line, and reports whether it succeeded.
func (l *Log) write(v any) bool {
	l.buf.Reset()
	if l.torn {
		l.buf.WriteByte('\n') // end the incomplete line, so that it doesn't corrupt this one
	}
	enc := json.NewEncoder(&l.buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(err) // can't happen: there are only strings and numbers
	}
	if f, ok := l.out.(*os.File); ok && l.path != "" {
		_ = f.SetWriteDeadline(time.Now().Add(unread)) // for pipes; files have no deadlines, and need none
	}
	n, err := l.out.Write(l.buf.Bytes())
	l.note(err)
	if n > 0 {
		l.torn = l.buf.Bytes()[n-1] != '\n'
	}
	if n < l.buf.Len()-1 { // a line that lacks only its newline counts as complete, because the next write adds the newline
		return false
	}
	l.written.Add(1)
	return true
}

// note logs the first of several failed writes, and the first successful write after them.
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

// sameFile reports whether two open files are the same file. If it can't tell, it returns true.
func sameFile(a, b *os.File) bool {
	x, errX := a.Stat()
	y, errY := b.Stat()
	return errX != nil || errY != nil || os.SameFile(x, y)
}

// openAgain opens the file that now has the log's name. If this fails, the log continues to write to the old file.
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
	_ = old.Close() // ignore the error: write has counted the lines that couldn't be written
}
