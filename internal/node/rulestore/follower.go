package rulestore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weirhq/weir/internal/rediscall"
)

// Options of a Follower. Store, Node.Name and Apply are needed.
type Options struct {
	Store Store
	Node  Node // its name and version; the rest is filled in
	// StoreHealth fills in how the node's store of counters is, for the others to see. Nil means that nothing is said.
	StoreHealth func(*Node)
	// Warning is what else the others should see of this node, or "". Nil means that there is nothing.
	Warning func() string
	// First is what is in force at the start, from this node's disk. Number 0 means that nothing of a store is.
	First Version
	// Seed is what an empty store begins with. Without a text it stays empty.
	Seed Version
	// Apply puts a version in force, or returns what is wrong with it. It is called by one goroutine at a time.
	Apply func(Version) error
	// GivenUp is told of a version that was in force here and becomes an orphan, before another takes its place. Nil means nobody is.
	GivenUp func(Version)
	// Logger is told of versions, and of a store that is lost and back. Nil means nobody is.
	Logger *slog.Logger
	// Poll is the longest time between looks at the store. 0 means 2 s.
	Poll time.Duration
}

// Follower keeps a node at the newest version of its store.
//
// A version that can't be applied, and a store that can't be reached or has lost its data, change
// nothing: the last good version stays in force, and if the store has lost it, it is put back. Where the store went
// on without it, the store's is taken, and what this node had stays in the history as an orphan.
type Follower struct {
	o    Options
	wake chan struct{} // holds a value when there is something to look at

	mu       sync.Mutex // guards what follows, and is held while a version is applied
	current  Version
	recent   []Version // that were in force here, rising, the last is current
	disk     bool      // current is from this node's disk, and the store hasn't been asked about it
	rejected Version   // the newest that couldn't be applied; Number 0: none
	wrong    error     // with it
	failures int       // how often in a row the store couldn't be reached; 0: it could when it was last called
	rejects  uint64    // versions that couldn't be applied, each as often as it was tried
	lost     bool      // the store has lost what is in force here, and that was logged
	parted   Version   // that was in force here, and is an orphan, and that was logged
}

// Follow makes a follower. It follows while [Follower.Run] runs.
func Follow(o Options) *Follower {
	if o.StoreHealth == nil {
		o.StoreHealth = func(*Node) {}
	}
	if o.Warning == nil {
		o.Warning = func() string { return "" }
	}
	if o.GivenUp == nil {
		o.GivenUp = func(Version) {}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Poll <= 0 {
		o.Poll = 2 * time.Second
	}
	f := &Follower{o: o, wake: make(chan struct{}, 1), disk: o.First.Number > 0}
	if f.disk {
		f.o.First = dated(o.First)
		f.remember(f.o.First)
	}
	return f
}

// unsettled is the longest time between looks of a node that has no rules from the store yet, or whose last look failed.
const unsettled = 500 * time.Millisecond

// Run follows until ctx is done.
func (f *Follower) Run(ctx context.Context) error {
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() { f.o.Store.Watch(ctx, f.hear) })
	f.Look(ctx)
	timer := time.NewTimer(f.pause())
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-f.wake:
		case <-timer.C:
		}
		f.Look(ctx)
		timer.Reset(f.pause())
	}
}

func (f *Follower) pause() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.current.Number == 0 || f.disk || f.failures > 0 {
		return rediscall.Jittered(min(f.o.Poll, unsettled))
	}
	return rediscall.Jittered(f.o.Poll)
}

// Current is the version in force here.
func (f *Follower) Current() Version {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.current
}

// FromDisk reports whether what is in force was kept by this node, and the store hasn't been reached since it started.
func (f *Follower) FromDisk() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.disk
}

// Rejected says what is wrong with the newest version, if it couldn't be applied: an older one is in force.
func (f *Follower) Rejected() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.wrong
}

// Failures is how often in a row the store couldn't be reached.
func (f *Follower) Failures() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failures
}

// Rejections is how often a version couldn't be applied.
func (f *Follower) Rejections() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rejects
}

// Publish appends a version that is based on v.Parent, and applies it here at once. If it is
// written and can't be applied here, both it and an error are returned.
func (f *Follower) Publish(ctx context.Context, v Version) (Version, error) {
	current := f.Current().Number
	written, err := f.o.Store.Append(ctx, current, v)
	if errors.Is(err, ErrConflict) && v.Parent == current {
		// It is the newest as far as we know. If the store has lost it, it is put back first.
		f.Look(ctx)
		written, err = f.o.Store.Append(ctx, current, v)
	}
	if err != nil {
		return Version{}, err
	}
	if err := f.apply(written, written); err != nil {
		return written, fmt.Errorf("version %d is written, but can't be applied: %w", written.Number, err)
	}
	return written, nil
}

// Wake has the store looked at now. It never waits.
func (f *Follower) Wake() { f.hear(0) }

// hear is told of a number that may be old, known, or of a version that is lost: a reason to look, no more. It never waits.
func (f *Follower) hear(int64) {
	select {
	case f.wake <- struct{}{}:
	default: // it holds one
	}
}

// beatTimeout is the longest that a look at the store waits for its answer.
const beatTimeout = time.Second

// Look asks for the newest version, and does what follows from it. Errors are logged.
func (f *Follower) Look(ctx context.Context) {
	node := f.o.Node
	mine := f.Current()
	node.RulesVersion, node.RulesHash, node.Warning = mine.Number, mine.Hash, f.o.Warning()
	if mine.Number > 0 {
		node.RulesText = TextHash(mine.Text)
	}
	f.o.StoreHealth(&node)
	beat, cancel := context.WithTimeout(ctx, beatTimeout)
	pulse, err := f.o.Store.Beat(beat, node, f.before(mine)...)
	cancel()
	switch {
	case errors.Is(err, ErrDamaged) && mine.Number > 0:
		err = f.restore(ctx, mine, Version{})
	case err == nil:
		err = f.meet(ctx, mine, pulse)
	}
	f.reached(ctx, err)
	if now := f.Current(); now.Number <= mine.Number && !now.Is(mine) {
		f.Wake() // nobody needs to wait until it is put back
	}
}

// meet does what follows from what is in force here and what is the newest in the store.
func (f *Follower) meet(ctx context.Context, mine Version, p Pulse) error {
	head, has := p.Head, p.Mine
	f.mu.Lock()
	if head.Number <= f.rejected.Number && !head.Is(f.rejected) {
		f.rejected, f.wrong = Version{}, nil // it is lost
	}
	if has != Absent {
		f.lost, f.disk = false, false
	}
	f.mu.Unlock()
	switch {
	case mine.Number == 0 && head.Number == 0:
		return f.seed(ctx, f.o.Seed)
	case mine.Number == 0:
	case has == InLine || has == Textless:
		lost := p.Lost // another node has put back what is in force, and didn't have these
		if has == Textless {
			lost = append(lost, mine)
		}
		if err := f.putBack(ctx, lost...); err != nil {
			return err
		}
	case has == Absent && f.outranks(mine, head):
		return f.restore(ctx, mine, head)
	case has == Absent && elder(mine, head):
		next := head.Next()
		next.Author, next.Time, next.Text, next.Message = mine.Author, mine.Time, mine.Text, restoredMessage(mine)
		return f.seed(ctx, next)
	case has == Absent && head.after(mine) == ancestor: // another node has put back what came after it
		if err := f.putBack(ctx, append(p.Lost, mine)...); err != nil {
			return err
		}
	default:
		if err := f.part(ctx, mine, head, has, p.Lost); err != nil {
			return err
		}
	}
	return f.catchUp(ctx, head, mine)
}

// seed writes a version where no living node has a higher one.
func (f *Follower) seed(ctx context.Context, v Version) error {
	if v.Text == nil {
		return nil
	}
	written, err := f.o.Store.Append(ctx, v.Parent, v)
	if errors.Is(err, ErrConflict) {
		return nil // another node was faster, or is about to put back what was lost
	}
	if err == nil {
		_ = f.apply(written, written) // it has said why not
	}
	return err
}

// outranks: the store, which doesn't have this node's version, has lost it, rather than gone on without it.
func (f *Follower) outranks(mine, head Version) bool {
	if head.Number == 0 {
		return true
	}
	if head.Number >= mine.Number {
		return false
	}
	if head.Parent == 0 {
		return true // it had lost everything, and a node that knew of nothing has seeded it since
	}
	switch mine.after(head) {
	case ancestor:
		return true
	case unknown:
		f.mu.Lock()
		defer f.mu.Unlock()
		return !f.disk // nobody knows how old that is, or of which store
	}
	return false
}

// elder: both are the first versions of a store, and this node's is the older one. So the store was emptied and seeded by a newer node.
func elder(mine, head Version) bool {
	return mine.Number == head.Number && mine.Parent == 0 && head.Parent == 0 && mine.Time.Before(head.Time)
}

// restored begins the message of a version that was put back.
const restored = "restored: "

func restoredMessage(v Version) string { return restored + strings.TrimPrefix(v.Message, restored) }

// restore puts back the version in force here, which the store has lost, and those before it. Of several nodes that do, the highest wins.
func (f *Follower) restore(ctx context.Context, mine, head Version) error {
	f.mu.Lock()
	known := f.lost
	f.lost = true
	f.mu.Unlock()
	if !known {
		f.o.Logger.Warn("the store has lost rules: those in force stay, and are put back", "version", mine.Name(), "newest in the store", head.Number)
	}
	if err := f.putBack(ctx, append(f.before(mine), mine)...); err != nil {
		return err
	}
	f.mu.Lock()
	f.disk = false
	f.mu.Unlock()
	if !known {
		f.o.Logger.Info("rules put back", "version", mine.Name())
	}
	return nil
}

// putBack puts versions back into the history: each under its number, or as an orphan if another has that.
func (f *Follower) putBack(ctx context.Context, versions ...Version) error {
	for _, v := range versions {
		v.Message = restoredMessage(v)
		err := f.o.Store.Restore(ctx, v)
		if errors.Is(err, ErrConflict) {
			err = f.o.Store.Keep(ctx, v)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// part gives up the version in force here, since the store has gone on without it. First of all it is kept as an orphan, with those before it
// that the store doesn't have either: once another is in force here, nobody may have them any more.
func (f *Follower) part(ctx context.Context, mine, head Version, has Presence, lost []Version) error {
	for _, v := range append(lost, mine) {
		if has == Orphaned && v.Is(mine) {
			continue
		}
		if err := f.o.Store.Keep(ctx, v); err != nil {
			return err
		}
	}
	f.mu.Lock()
	known := f.parted.Is(mine)
	f.parted = mine
	f.mu.Unlock()
	if !known {
		f.o.Logger.Warn("the store has gone on without the rules in force here: its own are taken, and these stay in the history as an orphan",
			"version", mine.Name(), "author", mine.Author, "message", mine.Message, "newest in the store", head.Name(), "its author", head.Author)
		f.o.GivenUp(mine)
	}
	return nil
}

// catchUp applies the newest version, unless it is in force. If it can't be applied, the one that
// it is based on is tried, which this node may have missed: but not what the store was seeded with
// by a node of its own accord. Operators who have replaced the starter rules don't want them back,
// and a node without rules isn't ready.
func (f *Follower) catchUp(ctx context.Context, head, mine Version) error {
	for v := head; f.news(v, head); {
		got, err := f.o.Store.Get(ctx, v.Number)
		switch {
		case errors.Is(err, ErrNotFound):
			return nil // it was lost meanwhile
		case errors.Is(err, ErrDamaged):
			got.Number, got.Hash = v.Number, v.Hash
			f.reject(got, err)
		case err != nil:
			return err
		case got.Starter() && !v.Is(head) && f.Current().Number == 0:
			return nil
		case f.apply(got, mine) == nil:
			return nil
		}
		v = Version{Number: got.Parent, Hash: got.ParentHash}
	}
	return nil
}

// news: the version is worth a try.
func (f *Follower) news(v, head Version) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return v.Number > 0 && !v.Is(f.current) && !v.Is(f.rejected) && (v.Number > f.current.Number || v.Is(head))
}

// apply puts a version in force, in place of a certain one or of any with a lower number.
func (f *Follower) apply(v, instead Version) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if v.Is(f.current) || v.Number <= f.current.Number && !instead.Is(f.current) {
		return nil
	}
	if err := f.o.Apply(v); err != nil {
		f.rejectLocked(v, err)
		return err
	}
	f.remember(v)
	f.disk = false
	if v.Number >= f.rejected.Number {
		f.rejected, f.wrong = Version{}, nil
	}
	f.o.Logger.Info("rules applied", "version", v.Number, "hash", Short(v.Hash), "author", v.Author, "message", v.Message)
	return nil
}

func (f *Follower) reject(v Version, why error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rejectLocked(v, why)
}

func (f *Follower) rejectLocked(v Version, why error) {
	f.rejects++
	f.o.Logger.Error("rules rejected: the ones in force stay",
		"version", v.Number, "author", v.Author, "in force", f.current.Number, "error", why)
	if v.Number > f.rejected.Number {
		f.rejected, f.wrong = v, fmt.Errorf("version %d: %w", v.Number, why)
	}
}

// How many versions that were in force are remembered, in case the store has lost more than one, and how long their
// texts may be together.
const (
	recentVersions = 8
	recentBytes    = 8 << 20
)

// remember makes a version the current one.
func (f *Follower) remember(v Version) {
	for len(f.recent) > 0 && f.recent[len(f.recent)-1].Number >= v.Number {
		f.recent = f.recent[:len(f.recent)-1] // they are orphans
	}
	f.current, f.recent = v, append(f.recent, v)
	first, bytes := len(f.recent)-1, len(v.Text)
	for first > 0 && len(f.recent)-first < recentVersions {
		if bytes += len(f.recent[first-1].Text); bytes > recentBytes {
			break
		}
		first--
	}
	f.recent = slices.Delete(f.recent, 0, first)
}

// before are the versions that led to a certain one, as far as they are remembered, rising.
func (f *Follower) before(mine Version) (all []Version) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, v := range f.recent {
		if v.Number < mine.Number {
			all = append(all, v)
		}
	}
	return all
}

// reached tells when the store is lost and when it is back.
func (f *Follower) reached(ctx context.Context, err error) {
	if ctx.Err() != nil && err != nil {
		return // this node has left
	}
	f.mu.Lock()
	was := f.failures > 0
	if f.failures++; err == nil {
		f.failures = 0
	}
	f.mu.Unlock()
	switch {
	case err != nil && !was:
		f.o.Logger.Warn("the store of rules can't be reached: those in force stay", "version", f.Current().Number, "error", err)
	case err == nil && was:
		f.o.Logger.Info("the store of rules is back", "version", f.Current().Number)
	}
}
