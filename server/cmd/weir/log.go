package main

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/weirhq/weir/internal/node/watch"
)

const (
	// logWaits is the number of bytes that may be queued to be written to the log. If the queue is full, lines are left
	// out.
	logWaits = 1 << 20
	// auditWaits is the number of bytes that the audit log may queue in addition to logWaits.
	auditWaits = 1 << 20
	// flushWithin is how long a node that ends waits until the last lines are written.
	flushWithin = 2 * time.Second
)

// logger is a node's log and its audit log, which share an output.
type logger struct {
	*slog.Logger
	audit *slog.Logger
	out   *logWriter
}

// newLogger creates a logger. The level doesn't affect the audit log.
func newLogger(to io.Writer, format string, level slog.Level) (*logger, error) {
	handler := func(w io.Writer, level slog.Level) slog.Handler {
		opts := &slog.HandlerOptions{Level: level}
		if format == "json" {
			return slog.NewJSONHandler(w, opts)
		}
		return slog.NewTextHandler(w, opts)
	}
	if format != "text" && format != "json" {
		return nil, fmt.Errorf("--log-format: must be text or json, got %q", format)
	}
	w := &logWriter{to: to, wake: watch.NewBell(), closing: make(chan struct{}), closed: make(chan struct{})}
	w.tell = slog.New(handler(to, slog.LevelInfo))
	go w.run()
	return &logger{slog.New(handler(w, level)), slog.New(handler((*auditWriter)(w), slog.LevelInfo)), w}, nil
}

// strayLog logs, at debug level, what libraries write to Go's standard logger. If a server sends bytes after its
// response, HTTP clients log them there. strayLog cuts them off, because they may contain secrets.
type strayLog struct{ *slog.Logger }

func (l strayLog) Write(line []byte) (int, error) {
	text, _, _ := strings.Cut(strings.TrimSpace(string(line)), " starting with ")
	l.Debug(text)
	return len(line), nil
}

// logWriter writes lines in the background, so that a pipe without a reader doesn't block checks. It limits the bytes
// that are queued.
type logWriter struct {
	to   io.Writer
	tell *slog.Logger // writes directly to the same output, without the queue
	wake watch.Bell

	mu      sync.Mutex // guards the fields below
	waiting []byte
	leftOut int
	audits  int // how many of the lines counted by leftOut belong to the audit log

	closing, closed chan struct{}
}

func (w *logWriter) Write(lines []byte) (int, error) { return w.write(lines, logWaits, false) }

// auditWriter is the same logWriter with a larger queue.
type auditWriter logWriter

func (w *auditWriter) Write(lines []byte) (int, error) {
	return (*logWriter)(w).write(lines, logWaits+auditWaits, true)
}

func (w *logWriter) write(lines []byte, most int, audit bool) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	full := w.leftOut > w.audits // if an earlier line was left out, a shorter one mustn't be written
	if audit {
		full = w.audits > 0
	}
	if !full && len(w.waiting)+len(lines) <= most {
		w.waiting = append(w.waiting, lines...)
	} else if w.leftOut++; audit {
		w.audits++
	}
	w.wake.Ring()
	return len(lines), nil
}

func (w *logWriter) run() {
	defer close(w.closed)
	for {
		select {
		case <-w.wake:
			w.flush()
		case <-w.closing:
			w.flush()
			return
		}
	}
}

// flush writes the queued lines, and then a line that says how many were left out.
func (w *logWriter) flush() {
	w.mu.Lock()
	waiting, leftOut, audits := w.waiting, w.leftOut, w.audits
	w.waiting, w.leftOut, w.audits = nil, 0, 0
	w.mu.Unlock()
	for line := range bytes.Lines(waiting) { // one line per write, so that other writers to the same pipe don't split lines
		_, _ = w.to.Write(line) // a failure can't be reported anywhere
	}
	if leftOut > 0 {
		w.tell.Warn("lines of this log were left out: nobody read them in time", "left_out", leftOut, "audit", audits)
	}
}

// close writes the queued lines, and reports whether this succeeded within flushWithin. Lines that come later are lost.
func (w *logWriter) close() bool {
	close(w.closing)
	select {
	case <-w.closed:
		return true
	case <-time.After(flushWithin):
		return false
	}
}
