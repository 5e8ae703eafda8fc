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
	// logWaits is how many bytes of the log may wait to be written. Further lines are left out.
	logWaits = 1 << 20
	// auditWaits is how many more bytes of the audit log may wait, whatever else is logged.
	auditWaits = 1 << 20
	// flushWithin is how long a node that ends waits for its last lines to be written.
	flushWithin = 2 * time.Second
)

// logger is a node's log and its audit log, which share an output.
type logger struct {
	*slog.Logger
	audit *slog.Logger
	out   *logWriter
}

// newLogger makes a logger. The level doesn't apply to the audit log.
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

// strayLog logs what libraries write to Go's standard logger, for debugging. HTTP clients write
// there what a server sends after its answer, which may hold secrets, so that is cut off.
type strayLog struct{ *slog.Logger }

func (l strayLog) Write(line []byte) (int, error) {
	text, _, _ := strings.Cut(strings.TrimSpace(string(line)), " starting with ")
	l.Debug(text)
	return len(line), nil
}

// logWriter writes lines in the background, so that a pipe that nobody reads doesn't block checks.
// Lines that find no room are left out, and a line says how many.
type logWriter struct {
	to   io.Writer
	tell *slog.Logger // writes to the same output, at once
	wake watch.Bell

	mu      sync.Mutex // guards what follows
	waiting []byte
	leftOut int
	audits  int // those of leftOut that belong to the audit log

	closing, closed chan struct{}
}

// Write takes whole lines.
func (w *logWriter) Write(lines []byte) (int, error) { return w.write(lines, logWaits, false) }

// auditWriter is a logWriter with more room.
type auditWriter logWriter

func (w *auditWriter) Write(lines []byte) (int, error) {
	return (*logWriter)(w).write(lines, logWaits+auditWaits, true)
}

func (w *logWriter) write(lines []byte, most int, audit bool) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	full := w.leftOut > w.audits // a shorter line must not overtake one that was left out
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

// flush writes the waiting lines, and then how many were left out.
func (w *logWriter) flush() {
	w.mu.Lock()
	waiting, leftOut, audits := w.waiting, w.leftOut, w.audits
	w.waiting, w.leftOut, w.audits = nil, 0, 0
	w.mu.Unlock()
	for line := range bytes.Lines(waiting) { // one by one, so that other writers to the same pipe don't split them
		_, _ = w.to.Write(line) // there is nowhere to report a failure
	}
	if leftOut > 0 {
		w.tell.Warn("lines of this log were left out: nobody read them in time", "left_out", leftOut, "audit", audits)
	}
}

// close writes the waiting lines, and reports whether that worked in time. Later lines are lost.
func (w *logWriter) close() bool {
	close(w.closing)
	late := time.NewTimer(flushWithin)
	defer late.Stop()
	select {
	case <-w.closed:
		return true
	case <-late.C:
		return false
	}
}
