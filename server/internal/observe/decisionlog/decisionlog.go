// Package decisionlog writes down why requests were refused: a line of JSON each, and if wanted a
// sample of those that were admitted.
//
// A check never waits for it. Under a flood only the first refusals of a second are written; the
// others are counted, and a line a second says for each rule how many were left out. A disk or a
// pipe that is slow only makes these more. Lines and left-out ones together are all refusals.
//
// No line holds a secret: keys are masked, and of a path only the rule's pattern is shown.
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

// How many lines there are in a second, at most. A rule has a bound of its own, so that a flood of one doesn't hide what
// another refuses. A sample of admitted requests gets half of all, so that it never pushes out refusals.
const (
	perReason = 100 // of one rule and reason
	perSecond = 1000
)

// Stderr is the destination that is no file.
const Stderr = "stderr"

// Options of a Log. The zero value logs refusals alone.
type Options struct {
	// Sample is the part of admitted requests that is written, from 0 to 1.
	Sample float64
	// Fingerprint names the client of a request as /v1/top does. It is asked only for decisions that have a line. Nil means that
	// lines have no fingerprints.
	Fingerprint func(*weir.Request) string
	// Logger is told when the log can't be written, and when it can again. Nil means that nobody is told.
	Logger *slog.Logger
}

// Log writes decisions down. Make one with [Open].
type Log struct {
	opts  Options
	below uint64 // what the Spread of a decision of the sample doesn't exceed
	queue chan entry
	left  atomic.Int64 // how many more lines this second may have

	mu      sync.RWMutex
	tallies map[tallyKey]*tally // guarded by mu
	dropped uint64              // left out by tallies that there no longer are; guarded by mu

	written, failures atomic.Uint64

	writer
	reopen  chan struct{} // holds a value when the file is to be opened again
	closing chan struct{}
	closed  chan struct{} // when all is written
}

// entry is a decision that waits to be written. It holds no secret.
type entry struct {
	tally *tally
	line  decisionLine
}

// Open opens a log: Stderr, or a file, which is appended to. Only its owner may read a file that it makes.
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

// openFile doesn't wait for whoever reads a named pipe: without a reader it is an error.
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

// Observe is for [weir.Options]. It is told of every decision, and never waits. What is left out costs a look at a map and
// a count, and no allocation.
func (l *Log) Observe(o *weir.Observation) {
	req, d := o.Request, o.Decision
	if req.Peek || d.Allowed && req.Rejected == "" && !l.sampled(o.Spread) {
		return
	}
	t := l.tally(tallyKey{d.Rule, d.Reason, d.Allowed})
	if !claim(&t.left, 0) || !claim(&l.left, reserved(d.Allowed)) || !l.enqueue(t, o) {
		t.leftOut.Add(1)
	}
}

func (l *Log) sampled(spread uint64) bool { return l.opts.Sample > 0 && spread <= l.below }

// reserved is how many lines of a second are not for this outcome.
func reserved(allowed bool) int64 {
	if allowed {
		return perSecond / 2
	}
	return 0
}

// claim takes one of what is left, down to least. When nothing is left, it only reads, so that cores don't fight for it.
func claim(left *atomic.Int64, least int64) bool { return left.Load() > least && left.Add(-1) >= least }

// enqueue hands a decision to the goroutine that writes. It reports false if there is no room.
func (l *Log) enqueue(t *tally, o *weir.Observation) bool {
	req, d := o.Request, o.Decision
	e := entry{t, decisionLine{
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

// Reopen has the file opened again by its name, since whoever rotates logs has moved it. It doesn't wait.
func (l *Log) Reopen() {
	select {
	case l.reopen <- struct{}{}:
	default: // it holds one
	}
}

// Stats are what has become of decisions since the log was opened.
type Stats struct {
	Written  uint64 // lines, those that tell what was left out among them
	LeftOut  uint64 // decisions without a line: too many came, or their line couldn't be written
	Failures uint64 // writes that failed
}

// Stats returns what there is now.
func (l *Log) Stats() Stats {
	l.mu.RLock() // so that no tally is counted twice, or not at all
	defer l.mu.RUnlock()
	s := Stats{Written: l.written.Load(), Failures: l.failures.Load(), LeftOut: l.dropped}
	for _, t := range l.tallies {
		s.LeftOut += t.leftOut.Load()
	}
	return s
}

// Close writes what waits, for as long as that may take, and closes the file. Call it after the last decision.
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
