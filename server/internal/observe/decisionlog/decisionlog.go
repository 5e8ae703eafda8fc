// Package decisionlog logs refused requests, and optionally a sample of admitted requests, as lines of JSON.
//
// A check never waits for the log. In a flood, only the first refusals of each second are written. The others are
// counted, and one line per rule and second says how many were left out. If the disk or the pipe is slow, more of them
// are left out. The refusals that have a line and those that were left out add up to all refusals.
//
// No line contains a secret: keys are masked, and paths are replaced by the rule's pattern.
package decisionlog

import (
	"cmp"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/observer"
	"github.com/weirhq/weir/internal/shown"
	"github.com/weirhq/weir/tracing"
)

// The maximum numbers of lines per second. Each combination of a rule and a reason has its own maximum, so that a flood
// of refusals by one rule doesn't hide refusals by others. Sampled admitted requests get at most half of perSecond, so
// that they never displace refusals.
const (
	perReason = 100 // for one rule and reason
	perSecond = 1000
)

// Stderr means, as the destination of the log, standard error instead of a file.
const Stderr = "stderr"

// Options are the options of a Log. With the zero value, only refusals are logged.
type Options struct {
	// Sample is the share of admitted requests that is logged, from 0 to 1.
	Sample float64
	// Fingerprint returns the fingerprint of a request's client, as in /v1/top. It is called only for decisions that
	// get a line. If nil, lines have no fingerprints.
	Fingerprint func(*weir.Request) string
	// Logger logs when writing to the log begins to fail, and when it works again. If nil, nothing is logged.
	Logger *slog.Logger
}

// Log writes decisions to a file or to standard error. Make one with [Open].
type Log struct {
	opts  Options
	below uint64 // decisions whose Spread is at most this are in the sample
	queue chan entry
	left  atomic.Int64 // how many more lines may be written in this second

	mu      sync.RWMutex
	tallies map[tallyKey]*tally // guarded by mu
	leftOut uint64              // decisions that got no line, up to the last second; guarded by mu

	written, failures atomic.Uint64

	writer
	reopen  chan struct{} // holds a value if the file should be reopened
	closing chan struct{}
	closed  chan struct{} // closed when all queued lines are written
}

// entry is a queued decision. It contains no secrets.
type entry struct {
	tally tallyKey
	line  decisionLine
}

// Open opens a log. to is Stderr or the path of a file, to which lines are appended. If Open creates the file, only the
// owner may read it.
func Open(to string, opts Options) (*Log, error) {
	if to == Stderr {
		return start(os.Stderr, "", opts), nil
	}
	f, err := openFile(to)
	if err != nil {
		return nil, err
	}
	return start(f, to, opts), nil
}

// openFile opens a file without blocking. If the file is a named pipe without a reader, it returns an error.
func openFile(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|syscall.O_NONBLOCK, 0o600)
}

func start(out io.Writer, path string, opts Options) *Log {
	opts.Logger = cmp.Or(opts.Logger, slog.New(slog.DiscardHandler))
	l := &Log{
		opts: opts, queue: make(chan entry, perSecond), writer: writer{out: out, path: path},
		reopen: make(chan struct{}, 1), closing: make(chan struct{}), closed: make(chan struct{}),
		below: math.MaxUint64, tallies: map[tallyKey]*tally{},
	}
	if opts.Sample < 1 {
		l.below = uint64(opts.Sample * (1 << 64))
	}
	l.left.Store(perSecond)
	go l.run()
	return l
}

// Observe is for [weir.Options]. It must be called with every decision, and never blocks. For a decision that is left
// out, it looks up a map and counts, and makes no allocations.
func (l *Log) Observe(o *weir.Observation) {
	req, d := o.Request, o.Decision
	if req.Peek || d.Allowed && req.Rejected == "" && !l.sampled(o.Spread) {
		return
	}
	k := tallyKey{d.Rule, d.Reason, d.Allowed}
	t := l.tally(k)
	defer l.mu.RUnlock()
	reserved := int64(0) // how many lines of this second are reserved for refusals
	if d.Allowed {
		reserved = perSecond / 2
	}
	if !claim(&t.left, 0) || !claim(&l.left, reserved) || !l.enqueue(k, o) {
		t.leftOut.Add(1)
	}
}

func (l *Log) sampled(spread uint64) bool { return l.opts.Sample > 0 && spread <= l.below }

// claim subtracts 1 from left if left is above least, and reports whether it did. Otherwise it only reads left, so that
// cores don't contend for the cache line.
func claim(left *atomic.Int64, least int64) bool { return left.Load() > least && left.Add(-1) >= least }

// enqueue queues a decision for the writer. If the queue is full, it returns false.
func (l *Log) enqueue(k tallyKey, o *weir.Observation) bool {
	req, d := o.Request, o.Decision
	e := entry{k, decisionLine{
		Time: text(time.Now()), Outcome: observer.Outcome(d.Allowed), Reason: observer.Reason(d.Reason), Rule: d.Rule, RulesVersion: d.RulesVersion,
		Key: masked(req.APIKey), User: masked(req.User), IP: req.IP, Method: observer.Method(req.Method), Path: observer.Path(d.Policy),
		RetryAfterMS: observer.Milliseconds(d.RetryAfter), Edge: observer.Edge(req.Edge), Degraded: d.Degraded, Identity: req.Rejected,
	}}
	if d.Policy != nil {
		e.line.Policy = d.Policy.Limit.String()
	}
	if o.Entry != "" {
		e.line.Entry = shown.Entry(o.Entry)
	}
	if l.opts.Fingerprint != nil {
		e.line.Fingerprint = l.opts.Fingerprint(req)
	}
	if o.Context != nil {
		e.line.TraceID = tracing.ID(o.Context)
	}
	select {
	case l.queue <- e:
		return true
	default:
		return false
	}
}

func masked(key string) string {
	if key == "" {
		return ""
	}
	return shown.Key(key)
}

// Reopen makes the log open its file again by name, after log rotation has moved the file. It doesn't block.
func (l *Log) Reopen() {
	select {
	case l.reopen <- struct{}{}:
	default: // the file is going to be reopened anyway
	}
}

// Stats counts lines and decisions since the log was opened.
type Stats struct {
	Written  uint64 // lines that were written, including the lines that count left-out decisions
	LeftOut  uint64 // decisions without a line, because there were too many, or because the line couldn't be written
	Failures uint64 // writes that failed
}

// Stats returns the current counts.
func (l *Log) Stats() Stats {
	l.mu.RLock()
	defer l.mu.RUnlock()
	s := Stats{Written: l.written.Load(), Failures: l.failures.Load(), LeftOut: l.leftOut}
	for _, t := range l.tallies {
		s.LeftOut += t.leftOut.Load()
	}
	return s
}

// Close writes the queued decisions, for at most the duration patience, and closes the file. Call it after the last
// decision.
func (l *Log) Close(patience time.Duration) error {
	close(l.closing)
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case <-l.closed:
		return nil
	case <-late.C:
		return fmt.Errorf("the decision log took no more within %s: what waited is lost", patience)
	}
}
