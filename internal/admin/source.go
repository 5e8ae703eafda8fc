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
	limiter  *weir.Limiter
	log      *slog.Logger
	mu       sync.Mutex // held while rules are put in force
	expiry   *time.Timer
	inForce  atomic.Pointer[Document]
	rejected atomic.Pointer[string] // what the file holds, if it can't be
}

// Document is rules in force and the text they were made of.
type Document struct {
	Text    []byte
	File    *rulefile.File
	Version int64
}

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

// FromStore takes rules from a rule store. Seed is in force as long as the store can't be asked, and becomes the
// first version of an empty one.
func FromStore(ctx context.Context, o rulestore.Options, seed *Document, message string, limiter *weir.Limiter) *Source {
	s := &Source{store: o.Store, limiter: limiter, log: o.Logger}
	s.enforce(seed)
	o.First = rulestore.Version{Text: seed.Text, Author: "weir", Message: message}
	if v, err := s.begin(ctx, o.First); err != nil {
		s.log.Warn("rules: their store can't be asked: until it can, these are in force", "rules", message, "error", err)
	} else {
		o.First = v
	}
	o.Apply = s.apply
	s.follower = rulestore.Follow(o)
	return s
}

// begin puts the newest version in force that can be, and writes the first one if there is none.
func (s *Source) begin(ctx context.Context, seed rulestore.Version) (rulestore.Version, error) {
	head, err := s.store.Head(ctx)
	if err == nil && head == 0 {
		var first rulestore.Version
		if first, err = s.store.Append(ctx, 0, seed); err == nil {
			return first, s.apply(first)
		}
		if errors.Is(err, rulestore.ErrConflict) { // another node has seeded it meanwhile
			head, err = s.store.Head(ctx)
		}
	}
	for err == nil && head > 0 {
		var v rulestore.Version
		if v, err = s.store.Get(ctx, head); err != nil {
			break
		}
		if s.apply(v) == nil {
			return v, nil
		}
		head = v.Parent // perhaps it is of a newer Weir
	}
	return seed, err
}

// InForce is what checks are decided by.
func (s *Source) InForce() *Document { return s.inForce.Load() }

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
		var seeding sync.WaitGroup
		defer seeding.Wait()
		seeding.Go(func() { s.seed(ctx) })
		return s.follower.Run(ctx)
	}
	return watch.File(ctx, s.file, s.inForce.Load().Text, s.save, func(err error) {
		s.log.Error("rules can't be read: the ones in force stay", "file", s.file, "error", err)
	})
}

// seed writes the first version, should the store have been out of reach when the node began, and be empty now.
func (s *Source) seed(ctx context.Context) {
	for s.follower.Current().Number == 0 {
		if head, err := s.store.Head(ctx); err == nil && head == 0 {
			_, _ = s.follower.Publish(ctx, s.follower.Current()) // another node may have been faster
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(seedEvery):
		}
	}
}

const seedEvery = time.Second

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
	s.enforce(next)
	logWarnings(s.log, next.File)
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
