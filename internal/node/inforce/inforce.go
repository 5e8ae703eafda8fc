// Package inforce keeps the rules by which a node decides: the document, its version, since when it has been in force,
// and whether it came from a file or a rule store. Code that shows or changes rules calls this package, which updates
// the limiter.
package inforce

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/node/rulestore"
	"github.com/weirhq/weir/internal/node/watch"
	"github.com/weirhq/weir/internal/patient"
	"github.com/weirhq/weir/internal/private"
	"github.com/weirhq/weir/internal/shown"
	"github.com/weirhq/weir/rulefile"
)

// Rules are the rules in force on a node. Create them with [FromFile] or [FromStore].
type Rules struct {
	file     string              // path of the rule file; "" with a rule store
	follower *rulestore.Follower // nil with a file
	store    rulestore.Store
	copy     *rulestore.Copy // nil if the node keeps no copy
	waiting  string          // why there are no rules yet
	applied  watch.Bell      // rung when there is a version to store in copy
	limiter  *weir.Limiter
	log      *slog.Logger
	mu       sync.Mutex                       // held while rules are put in force
	stop     func()                           // stops expire
	inForce  atomic.Pointer[Document]         // nil until there are rules
	read     atomic.Pointer[rulestore.Status] // status of the rule file
	givenUp  []*Document                      // the last few orphaned versions that were in force here
	warning  atomic.Pointer[string]           // warns of entries that orphaned versions block and that now pass
	look     watch.Bell                       // rung to read the file now
	blocks   *rulestore.Blocks                // the emergency list
}

// Document is a set of rules with the text they were compiled from.
type Document struct {
	Text    []byte
	File    *rulefile.File
	Version int64
	Hash    string    // hash of the version, if it comes from a rule store
	Since   time.Time // when the document was put in force here; zero if it never was

	read time.Time // the time at which the text was parsed; overrides that had expired then are left out
}

// Name returns the name of the document's version.
func (d *Document) Name() string { return rulestore.Version{Number: d.Version, Hash: d.Hash}.Name() }

// none is the document that is used while there are no rules.
var none = func() *Document {
	d, err := Parse("rules", []byte("rules: []\n"), 0)
	if err != nil {
		panic(err) // can't happen: the text is a constant
	}
	return d
}()

// Parse reads and compiles a document. It leaves out overrides that have expired by this node's own clock. When the
// document is put in force, that is corrected by the clock that nodes share.
func Parse(name string, text []byte, version int64) (*Document, error) {
	return parseAt(name, text, version, time.Now())
}

func parseAt(name string, text []byte, version int64, now time.Time) (*Document, error) {
	f, err := rulefile.ParseAt(name, text, now)
	if err != nil {
		return nil, err
	}
	f.Set = private.WithVersion(f.Set, version)
	return &Document{Text: text, File: f, Version: version, read: now}, nil
}

// parse reads and compiles a version of a rule store.
func (r *Rules) parse(v rulestore.Version) (*Document, error) {
	d, err := parseAt(fmt.Sprintf("version %d", v.Number), v.Text, v.Number, private.Now(r.limiter))
	if err != nil {
		return nil, err
	}
	d.Hash = v.Hash
	return d, nil
}

// FromFile puts doc, which was read from file, in force and follows the file.
func FromFile(file string, doc *Document, limiter *weir.Limiter, log *slog.Logger) *Rules {
	r := &Rules{file: file, limiter: limiter, log: log, look: watch.NewBell()}
	r.read.Store(&rulestore.Status{})
	r.begin()
	r.enforce(doc)
	logWarnings(r.log, doc.File)
	return r
}

// begin joins an empty emergency list that isn't stored anywhere, and starts the timer of expire.
func (r *Rules) begin() {
	r.Join(rulestore.OpenBlocks(context.Background(), rulestore.BlockOptions{Now: func() time.Time { return private.Now(r.limiter) }}))
	r.stop = patient.Every(clockStep, r.expire)
}

// Start configures how a node with a rule store starts.
type Start struct {
	// Seed becomes the first version of an empty store, with Message as its message.
	Seed    *Document
	Message string
	// Given means that the operator named the seed, so the seed is in force while the store can't be read. Starter
	// rules aren't: they would admit keys that an operator has blocked.
	Given bool
	// Empty means that the store belongs to this node alone and has no version, so the seed is also in force while the
	// store can't be written.
	Empty bool
	// Copy is this node's copy of the store's rules. If nil, the node keeps no copy.
	Copy *rulestore.Copy
}

// FromStore takes the rules from a rule store. While the store can't be read, the node's copy is in force, or else the
// seed if the operator named one. Otherwise there are no rules: checks are refused, and the node isn't ready.
func FromStore(ctx context.Context, o rulestore.Options, start Start, limiter *weir.Limiter) *Rules {
	r := &Rules{store: o.Store, copy: start.Copy, applied: watch.NewBell(), limiter: limiter, log: o.Logger}
	r.begin()
	r.waiting = waiting
	o.Seed = rulestore.Version{Text: start.Seed.Text, Author: "weir", Message: start.Message}
	if r.copy != nil {
		var unread bool
		if o.First, unread = r.load(); unread && r.copy.ReadOnly && !start.Given {
			// The folder has rules, but none of them can be read. An empty store stands in for it, and must not be
			// seeded.
			r.waiting, start.Empty, o.Seed = unreadable, false, rulestore.Version{}
		}
	}
	report := o.Report
	o.Apply, o.GivenUp, o.Report = r.apply, r.giveUp, func(n *rulestore.Node) {
		if n.Warning = r.Warning(); report != nil {
			report(n)
		}
	}
	r.follower = rulestore.Follow(o)
	r.follower.Look(ctx)
	switch {
	case r.follower.Status().FromDisk:
		r.log.Warn("the rule store can't be read: until it can, the rules that this node has kept are in force", "version", o.First.Name(), "folder", r.copy.Path)
	case r.follower.Current().Number > 0:
	case start.Given || start.Empty:
		r.enforce(start.Seed)
		r.log.Warn("the rule store can't be read or written: until it can, these rules are in force", "rules", start.Message)
	default:
		r.log.Error(r.waiting)
	}
	return r
}

const waiting = "there are no rules: the rule store can't be read, this node has kept none, and no --seed-rules were given; until the store is back, checks are answered with 503"

const unreadable = "there are no rules: those in --data can't be read, and no --seed-rules were given; until that is mended and the node started again, checks are answered with 503"

// load puts the node's copy in force. unread reports that a copy exists, or may exist, but none can be used.
func (r *Rules) load() (v rulestore.Version, unread bool) {
	v, err := r.copy.Load(func(v rulestore.Version) error {
		doc, err := r.parse(v)
		if err != nil {
			return summary(err)
		}
		r.enforce(doc)
		return nil
	})
	if err != nil {
		r.log.Warn("part of the rules that this node has kept can't be used", "in force", v.Number, "error", err)
	}
	return v, err != nil && v.Number == 0
}

// InForce returns the document by which checks are decided. If there are no rules yet (see Waiting), it returns a
// document without rules.
func (r *Rules) InForce() *Document {
	if d := r.inForce.Load(); d != nil {
		return d
	}
	return none
}

// Waiting returns why there are no rules yet, or "".
func (r *Rules) Waiting() string {
	if r.inForce.Load() != nil {
		return ""
	}
	return r.waiting
}

// Stale returns why the rules in force may not be the store's newest, or "".
func (r *Rules) Stale() string {
	switch {
	case r.follower == nil || r.inForce.Load() == nil:
	case r.follower.Status().FromDisk:
		return "the rule store can't be read: these rules are the last that this node has kept"
	case r.follower.Current().Number == 0:
		return "the rule store can't be read or written: these are the rules that it is to begin with"
	}
	return ""
}

// Status returns the follower's status. For a file, the status has only the file's error.
func (r *Rules) Status() rulestore.Status {
	if r.follower != nil {
		return r.follower.Status()
	}
	return *r.read.Load()
}

// Rejected returns the place of the error in rules that are newer than those in force, or "". Everyone may see it,
// because it quotes nothing from the rules.
func (r *Rules) Rejected() string {
	if err := r.Status().Rejected; err != nil {
		return err.Error()
	}
	return ""
}

// File returns the path of the rule file, or "" with a rule store.
func (r *Rules) File() string { return r.file }

// Store returns the rule store, or nil with a file.
func (r *Rules) Store() rulestore.Store { return r.store }

// ErrEmpty is returned for a rule store that has no version yet.
var ErrEmpty = errors.New("the rule store is empty")

// Newest returns the version that a change must be based on. It is the store's newest version, even if this node
// doesn't have it yet. With the error rulestore.ErrDamaged, it returns what is known about that version.
func (r *Rules) Newest(ctx context.Context) (rulestore.Version, error) {
	if r.follower == nil {
		doc := r.InForce()
		return rulestore.Version{Number: doc.Version, Text: doc.Text}, nil
	}
	for range 2 {
		head, err := r.store.Head(ctx)
		if err != nil {
			return head, err
		}
		if mine := r.follower.Current(); mine.Number > 0 && head.Is(mine) {
			return mine, nil
		}
		r.follower.Look(ctx) // restores versions that the store has lost, or never had
	}
	head, err := r.store.Head(ctx)
	if err != nil {
		return head, err
	}
	v, err := r.store.Get(ctx, head.Number)
	if err != nil && head.Number == 0 && !errors.Is(err, rulestore.ErrDamaged) {
		err = ErrEmpty
	}
	return v, err
}

// Publish makes a version the newest and puts it in force on this node at once: see
// [rulestore.Follower.Publish].
func (r *Rules) Publish(ctx context.Context, v rulestore.Version) (rulestore.Version, error) {
	return r.follower.Publish(ctx, v)
}

// Run keeps the rules up to date until ctx is done.
func (r *Rules) Run(ctx context.Context) error {
	defer r.stop()
	var keeping sync.WaitGroup
	defer keeping.Wait()
	keeping.Go(func() { r.blocks.Run(ctx) })
	if r.copy != nil {
		keeping.Go(func() { r.keep(ctx) })
	}
	if r.follower != nil {
		return r.follower.Run(ctx)
	}
	return watch.File(ctx, r.file, rulefile.MaxSize, r.inForce.Load().Text, r.look, r.save, func(err error) {
		r.log.Error("rules can't be read: the ones in force stay", "file", r.file, "error", err)
	})
}

// Look makes the node read the rule file or the rule store now, without waiting until a change is noticed. It doesn't
// wait for the result.
func (r *Rules) Look() {
	if r.follower != nil {
		r.follower.Wake()
	} else {
		r.look.Ring()
	}
}

// keep stores a copy of the rules whenever they change, so that the node can start without the store. If it can't write
// to the folder, it logs that once.
func (r *Rules) keep(ctx context.Context) {
	failing := false
	for {
		select {
		case <-r.applied:
		case <-ctx.Done():
			return
		}
		err := r.copy.Save(r.follower.Current())
		switch {
		case err != nil && !failing:
			r.log.Warn("rules can't be kept on disk: if this node starts without the rule store, it has older rules or none", "error", err)
		case err == nil && failing:
			r.log.Info("rules are kept on disk again")
		}
		failing = err != nil
	}
}

// save applies the file's new text. An invalid file is logged and changes nothing.
func (r *Rules) save(text []byte) {
	next, err := parseAt(r.file, text, r.inForce.Load().Version+1, private.Now(r.limiter))
	status := r.Status()
	if status.Rejected = summary(err); err != nil {
		status.Rejections++
	}
	r.read.Store(&status)
	if err != nil {
		r.logRejected(err)
		return
	}
	r.enforce(next)
	r.log.Info("rules applied", "file", r.file, "version", next.Version, "rules", len(next.File.Rules.Rules))
	logWarnings(r.log, next.File)
}

// apply puts a version of the rule store in force.
func (r *Rules) apply(v rulestore.Version) error {
	next, err := r.parse(v)
	if err != nil {
		r.logRejected(err)
		return summary(err)
	}
	r.enforce(next)
	logWarnings(r.log, next.File)
	r.applied.Ring()
	return nil
}

// enforce puts a document in force.
func (r *Rules) enforce(d *Document) {
	r.mu.Lock()
	defer r.mu.Unlock()
	// The document may have been parsed by this node's own clock. If that clock is ahead, overrides seem to have
	// expired, and the first check would cut the bucket of a key with an override to the usual limit.
	r.replace(r.byNow(d))
}

// replace is enforce with the lock held.
func (r *Rules) replace(d *Document) {
	if d.Since.IsZero() {
		d.Since = time.Now()
	}
	r.limiter.SetRules(r.joined(d.File.Set))
	r.inForce.Store(d)
	r.compare(d)
}

// byNow returns the document parsed again at the time that nodes share, if other overrides apply then.
func (r *Rules) byNow(d *Document) *Document {
	now := private.Now(r.limiter)
	if next := d.File.NextExpiry; !now.Before(d.read) && (next.IsZero() || now.Before(next)) {
		return d
	}
	again, err := parseAt(d.File.Name, d.Text, d.Version, now)
	if err != nil {
		r.log.Error("rules can't be read again: what has expired stays in force", "error", err)
		return d
	}
	again.Hash, again.Since = d.Hash, d.Since
	return again
}

// clockStep is how often the node looks for overrides and blocks that have expired. It can't wait for the expiry
// itself: it may have read the rules before it knew the time that nodes share, and the shared clock may be set.
const clockStep = 100 * time.Millisecond

// expire parses the document in force again if other overrides apply by now. It always returns true, so that the timer
// calls it again.
func (r *Rules) expire() (again bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if d := r.inForce.Load(); d != nil {
		if next := r.byNow(d); next != d {
			if at := d.File.NextExpiry; !at.IsZero() && !next.read.Before(at) {
				r.log.Info("an override has expired", "version", d.Version)
			}
			r.replace(next)
		}
	}
	return true
}

func (r *Rules) logRejected(err error) {
	var problems rulefile.Problems
	if !errors.As(err, &problems) {
		r.log.Error("rules rejected: the ones in force stay", "error", err)
		return
	}
	for _, p := range problems {
		r.log.Error("rules rejected: the ones in force stay", "at", place(p), "error", p.Text)
	}
}

const mostWarnings = 20

func logWarnings(log *slog.Logger, f *rulefile.File) {
	for i, w := range f.Warnings {
		if i == mostWarnings {
			log.Warn(fmt.Sprintf("rules: and %d more warnings: weir rules lint shows all", len(f.Warnings)-i), "file", f.Name)
			return
		}
		log.Warn("rules", "at", place(w), "warning", masked(w.Text, &f.Rules))
	}
}

var quoted = regexp.MustCompile(`"(\\.|[^"\\])*"`)

// masked returns a warning in a form that may be logged. It masks quoted list entries, because they may be keys. Names
// of rules, layers and tiers stay readable.
func masked(text string, rules *weir.Rules) string {
	return quoted.ReplaceAllStringFunc(text, func(q string) string {
		word, err := strconv.Unquote(q)
		if err == nil && strings.Contains(word, "…") {
			return q // the warning has already masked it
		}
		if err == nil && slices.ContainsFunc(rules.Rules, func(r weir.Rule) bool {
			return word == r.ID || word == r.Layer || word == r.Tier || slices.ContainsFunc(r.Tiers, func(t weir.Tier) bool { return word == t.Name })
		}) {
			return q
		}
		return strconv.Quote(shown.Entry(word))
	})
}

// place returns the file, line and column of a problem. It leaves out the problem's path and text, because both may
// contain a key.
func place(p rulefile.Problem) string { return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column) }

// summary says at which places rules are wrong, without quoting them.
func summary(err error) error {
	var problems rulefile.Problems
	if !errors.As(err, &problems) {
		return err
	}
	if len(problems) == 1 {
		return fmt.Errorf("a problem at %s: weir rules lint shows it", place(problems[0]))
	}
	return fmt.Errorf("%d problems, the first at %s: weir rules lint shows them", len(problems), place(problems[0]))
}

// ReadFile reads and compiles a rule file.
func ReadFile(path string, version int64) (*Document, error) {
	text, err := watch.Read(path, rulefile.MaxSize)
	if err != nil {
		return nil, err
	}
	return Parse(path, text, version)
}
