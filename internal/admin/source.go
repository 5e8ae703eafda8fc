package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/rulestore"
	"github.com/weirhq/weir/internal/watch"
	"github.com/weirhq/weir/rulefile"
)

// Source is the rules in force on a node, and where they come from: a file that is the truth, or a rule store.
type Source struct {
	file     string              // "" with a rule store
	follower *rulestore.Follower // nil with a file
	store    rulestore.Store
	copy     *rulestore.Copy // nil: none
	waiting  string          // why there are no rules, while there are none
	applied  chan struct{}   // holds a value when there is something to keep in it
	limiter  *weir.Limiter
	log      *slog.Logger
	mu       sync.Mutex // held while rules are put in force
	expiry   *time.Timer
	inForce  atomic.Pointer[Document] // nil: nothing yet
	rejected atomic.Pointer[string]   // what the file holds, if it can't be
}

// Document is rules in force and the text they were made of.
type Document struct {
	Text    []byte
	File    *rulefile.File
	Version int64
	Hash    string // of the version, if it is of a rule store
}

// none stands for the rules while there are none.
var none = func() *Document {
	d, err := Parse("rules", []byte("rules: []\n"), 0)
	if err != nil {
		panic(err) // it is ours
	}
	return d
}()

// Parse reads and compiles a document.
func Parse(name string, text []byte, version int64) (*Document, error) {
	f, err := rulefile.Parse(name, text)
	if err != nil {
		return nil, err
	}
	f.Set = f.Set.WithVersion(version)
	return &Document{Text: text, File: f, Version: version}, nil
}

// FromFile takes rules from a file that was read into doc, and from then on whenever it is saved.
func FromFile(file string, doc *Document, limiter *weir.Limiter, log *slog.Logger) *Source {
	s := &Source{file: file, limiter: limiter, log: log}
	s.enforce(doc)
	return s
}

// Start is how a node with a rule store begins.
type Start struct {
	// Seed becomes the first version of a store that is empty, and Message says where it is from.
	Seed    *Document
	Message string
	// Given: it was named by the operator, so that it serves while the store can't be read. Starter rules don't: who has
	// blocked a key would find it let in.
	Given bool
	// Empty: the store is this node's own, and has no version. So the seed serves also while it can't be written.
	Empty bool
	// Copy is where this node keeps what it has of the store. Nil means that it doesn't.
	Copy *rulestore.Copy
}

// FromStore takes rules from a rule store. While that can't be read, those are in force that this node has kept, or
// else the seed, if it was given; or else none: checks are refused, and the node isn't ready.
func FromStore(ctx context.Context, o rulestore.Options, start Start, limiter *weir.Limiter) *Source {
	s := &Source{store: o.Store, copy: start.Copy, applied: make(chan struct{}, 1), limiter: limiter, log: o.Logger}
	s.waiting = waiting
	o.Seed = rulestore.Version{Text: start.Seed.Text, Author: "weir", Message: start.Message}
	if s.copy != nil {
		var unread bool
		if o.First, unread = s.load(); unread && s.copy.ReadOnly && !start.Given {
			// The folder is the rule store of a node alone, and isn't empty, though what stands in for it is.
			s.waiting, start.Empty, o.Seed = unreadable, false, rulestore.Version{}
		}
	}
	o.Apply = s.apply
	s.follower = rulestore.Follow(o)
	s.follower.Look(ctx)
	switch {
	case s.follower.FromDisk():
		s.log.Warn("rules: their store can't be read: until it can, those that this node has kept are in force", "version", o.First.Name(), "folder", s.copy.Path)
	case s.follower.Current().Number > 0:
	case start.Given || start.Empty:
		s.enforce(start.Seed)
		s.log.Warn("rules: their store can't be read or written: until it can, these are in force", "rules", start.Message)
	default:
		s.log.Error(s.waiting)
	}
	return s
}

const waiting = "there are no rules: the rule store can't be read, this node has kept none, and no --seed-rules were given; until the store is back, checks are answered with 503"

const unreadable = "there are no rules: those in --data can't be read, and no --seed-rules were given; until that is mended and the node started again, checks are answered with 503"

// load puts in force what this node has kept. Unread: there is something, or may be, and none of it can be used.
func (s *Source) load() (v rulestore.Version, unread bool) {
	v, err := s.copy.Load(func(v rulestore.Version) error {
		doc, err := Parse(fmt.Sprintf("version %d", v.Number), v.Text, v.Number)
		if err != nil {
			return summary(err)
		}
		doc.Hash = v.Hash
		s.enforce(doc)
		return nil
	})
	if err != nil {
		s.log.Warn("rules: not all that this node has kept can be used", "in force", v.Number, "error", err)
	}
	return v, err != nil && v.Number == 0
}

// InForce is what checks are decided by. Without any it is a document without rules: see Waiting.
func (s *Source) InForce() *Document {
	if d := s.inForce.Load(); d != nil {
		return d
	}
	return none
}

// Waiting says why there are no rules yet, or "".
func (s *Source) Waiting() string {
	if s.inForce.Load() != nil {
		return ""
	}
	return s.waiting
}

// Stale says that the rules in force aren't those of the store, which can't be read, or "".
func (s *Source) Stale() string {
	switch {
	case s.follower == nil || s.inForce.Load() == nil:
	case s.follower.FromDisk():
		return "the rule store can't be read: these rules are the last that this node has kept"
	case s.follower.Current().Number == 0:
		return "the rule store can't be read or written: these are the rules that it is to begin with"
	}
	return ""
}

// Rejected says that there are newer rules than those in force, which can't be, and where; or "". It is for everyone, and quotes nothing of them.
func (s *Source) Rejected() string {
	if s.follower != nil {
		if err := s.follower.Rejected(); err != nil {
			return err.Error()
		}
		return ""
	}
	if r := s.rejected.Load(); r != nil {
		return *r
	}
	return ""
}

// Run keeps the rules up to date until ctx is done.
func (s *Source) Run(ctx context.Context) error {
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.expiry != nil {
			s.expiry.Stop()
		}
	}()
	if s.follower != nil {
		var keeping sync.WaitGroup
		defer keeping.Wait()
		keeping.Go(func() { s.keep(ctx) })
		return s.follower.Run(ctx)
	}
	return watch.File(ctx, s.file, s.inForce.Load().Text, s.save, func(err error) {
		s.log.Error("rules can't be read: the ones in force stay", "file", s.file, "error", err)
	})
}

// keep keeps what is put in force, for a start without the store. A folder that can't be written is told once.
func (s *Source) keep(ctx context.Context) {
	failing := false
	for {
		select {
		case <-s.applied:
		case <-ctx.Done():
			return
		}
		if s.copy == nil {
			continue
		}
		err := s.copy.Save(s.follower.Current())
		switch {
		case err != nil && !failing:
			s.log.Warn("rules can't be kept on disk: started without the rule store, this node would have older ones or none", "error", err)
		case err == nil && failing:
			s.log.Info("rules are kept on disk again")
		}
		failing = err != nil
	}
}

// save takes what the file holds now. What can't be is reported and changes nothing.
func (s *Source) save(text []byte) {
	old := s.inForce.Load()
	next, err := Parse(s.file, text, old.Version+1)
	if err != nil {
		short := summary(err).Error()
		s.rejected.Store(&short)
		s.logRejected(err)
		return
	}
	s.rejected.Store(nil)
	s.enforce(next)
	s.log.Info("rules applied", "file", s.file, "version", next.Version, "rules", len(next.File.Rules.Rules))
	logWarnings(s.log, next.File)
}

// apply puts a version of the rule store in force.
func (s *Source) apply(v rulestore.Version) error {
	next, err := Parse(fmt.Sprintf("version %d", v.Number), v.Text, v.Number)
	if err != nil {
		s.logRejected(err)
		return summary(err)
	}
	next.Hash = v.Hash
	s.enforce(next)
	logWarnings(s.log, next.File)
	select {
	case s.applied <- struct{}{}:
	default: // it holds one
	}
	return nil
}

// enforce puts a document in force, and has it read again when something in it expires.
func (s *Source) enforce(d *Document) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replace(d)
}

// replace is called with the lock held.
func (s *Source) replace(d *Document) {
	s.limiter.SetRules(d.File.Set)
	s.inForce.Store(d)
	if s.expiry != nil {
		s.expiry.Stop()
		s.expiry = nil
	}
	if at := d.File.NextExpiry; !at.IsZero() {
		s.expiry = time.AfterFunc(time.Until(at), func() { s.expire(d) })
	}
}

// expire reads a document again that is still in force, now that something in it has expired.
func (s *Source) expire(d *Document) {
	next, err := Parse(fmt.Sprintf("version %d", d.Version), d.Text, d.Version)
	if err != nil {
		s.log.Error("rules can't be read again: what has expired stays", "error", err)
		return
	}
	next.Hash = d.Hash
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inForce.Load() != d {
		return // there are newer rules
	}
	s.log.Info("an override has expired", "version", d.Version)
	s.replace(next)
}

func (s *Source) logRejected(err error) {
	var problems rulefile.Problems
	if !errors.As(err, &problems) {
		s.log.Error("rules rejected: the ones in force stay", "error", err)
		return
	}
	for _, p := range problems {
		s.log.Error("rules rejected: the ones in force stay", "at", place(p), "error", p.Text)
	}
}

func logWarnings(log *slog.Logger, f *rulefile.File) {
	for _, w := range f.Warnings {
		log.Warn("rules", "at", place(w), "warning", w.Text)
	}
}

// place is where a problem is. Its path, and the line itself, may hold somebody's key: those are not for logs.
func place(p rulefile.Problem) string { return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column) }

// summary says where rules are wrong, without quoting them.
func summary(err error) error {
	var problems rulefile.Problems
	if !errors.As(err, &problems) {
		return err
	}
	if len(problems) == 1 {
		return fmt.Errorf("a problem at %s", place(problems[0]))
	}
	return fmt.Errorf("%d problems, the first at %s", len(problems), place(problems[0]))
}

// ReadFile reads and compiles the rules of a file.
func ReadFile(path string, version int64) (*Document, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, text, version)
}
