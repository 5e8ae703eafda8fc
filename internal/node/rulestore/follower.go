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

	"github.com/weirhq/weir/internal/node/watch"
	"github.com/weirhq/weir/internal/rediscall"
)

// Options are the options of a Follower. Store, Node.Name, Apply and GivenUp are required.
type Options struct {
	Store Store
	Node  Node // this node's name and the version of its binary
	// Report, if not nil, fills in the fields of this node's report other than its name, version and rules.
	Report func(*Node)
	// First is the version in force at the start, read from this node's disk. If there is none, its number is 0.
	First Version
	// Seed is written as the first version of an empty store. If it has no text, the store stays empty.
	Seed Version
	// Apply puts a version in force, or returns an error that says why the version is invalid.
	// Calls never overlap.
	Apply func(Version) error
	// GivenUp is called with a version that was in force here when that version becomes an orphan, before another
	// version replaces it.
	GivenUp func(Version)
	// Logger logs applied and rejected versions, and when the store is lost and found again. If nil, nothing is logged.
	Logger *slog.Logger
	// Poll is the longest time between looks at the store. Zero means 2 s.
	Poll time.Duration
}

// Status is the state of a Follower.
type Status struct {
	// Current is the version in force here.
	Current Version
	// FromDisk means that Current is from this node's disk, and that the store hasn't been reached
	// since the start.
	FromDisk bool
	// Rejected is the error of the newest version if that version couldn't be applied, so that an older one is in
	// force.
	Rejected error
	// Rejections counts failed attempts to apply a version, including repeated ones.
	Rejections uint64
	// Failures is how many times in a row the store couldn't be reached.
	Failures int
}

// Follower keeps the newest version of a store in force on a node.
//
// If a version can't be applied, if the store can't be reached, or if the store has lost its data, the last good
// version stays in force. If the store has lost that version, the follower puts it back. If the store has continued
// without it, the store's newest version replaces it, and it stays in the history as an orphan.
type Follower struct {
	o    Options
	wake watch.Bell // rung when there may be something new in the store

	mu       sync.Mutex // guards the fields below, and is held while a version is applied
	status   Status
	recent   []Version // versions that were in force here, ascending; the last one is in force
	rejected Version   // the newest version that couldn't be applied; Number 0 if none
	told     string    // the last log message that the version in force here is missing in the store
}

// Follow creates a follower. It looks at the store only while [Follower.Run] runs.
func Follow(o Options) *Follower {
	if o.Report == nil {
		o.Report = func(*Node) {}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Poll <= 0 {
		o.Poll = 2 * time.Second
	}
	f := &Follower{o: o, wake: watch.NewBell()}
	if f.status.FromDisk = o.First.Number > 0; f.status.FromDisk {
		f.o.First = dated(o.First)
		f.remember(f.o.First)
	}
	return f
}

// unsettled is the longest time between two looks at the store while a node has no rules from the store yet, or if the
// last look failed.
const unsettled = 500 * time.Millisecond

// Run follows the store until ctx is done.
func (f *Follower) Run(ctx context.Context) error {
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() { f.o.Store.Watch(ctx, func(int64) { f.Wake() }) }) // only wake up: the number in the message may be old, or may be lost again
	for {
		f.Look(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-f.wake:
		case <-time.After(f.pause()):
		}
	}
}

func (f *Follower) pause() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.status.Current.Number == 0 || f.status.FromDisk || f.status.Failures > 0 {
		return rediscall.Jittered(min(f.o.Poll, unsettled))
	}
	return rediscall.Jittered(f.o.Poll)
}

// Current returns the version in force here.
func (f *Follower) Current() Version { return f.Status().Current }

// Status returns the state of the follower.
func (f *Follower) Status() Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status
}

// Publish appends a version that is based on v.Parent and applies it here at once. If it is written
// but can't be applied here, Publish returns both the version and an error.
func (f *Follower) Publish(ctx context.Context, v Version) (Version, error) {
	current := f.Current().Number
	written, err := f.o.Store.Append(ctx, current, v)
	if errors.Is(err, ErrConflict) && v.Parent == current {
		// As far as this node knows, its version is the newest. If the store has lost that version, Look puts it back
		// first.
		f.Look(ctx)
		written, err = f.o.Store.Append(ctx, current, v)
	}
	if err != nil {
		return Version{}, err
	}
	if err := f.apply(written, written, nil); err != nil {
		return written, fmt.Errorf("version %d is written, but can't be applied: %w", written.Number, err)
	}
	return written, nil
}

// Wake makes the follower look at the store now. It doesn't block.
func (f *Follower) Wake() { f.wake.Ring() }

// beatTimeout is how long a look at the store may take.
const beatTimeout = time.Second

// Look asks the store for its newest version, and applies or restores versions as needed. It logs errors.
func (f *Follower) Look(ctx context.Context) {
	f.mu.Lock()
	node, mine := f.o.Node, f.status.Current
	kept := f.upTo(mine)
	f.mu.Unlock()
	node.RulesVersion, node.RulesHash = mine.Number, mine.Hash
	if mine.Number > 0 {
		node.RulesText = TextHash(mine.Text)
	}
	f.o.Report(&node)
	beat, cancel := context.WithTimeout(ctx, beatTimeout)
	pulse, err := f.o.Store.Beat(beat, node, kept...)
	cancel()
	switch {
	case errors.Is(err, ErrDamaged) && mine.Number > 0:
		err = f.restore(ctx, mine, Version{}, kept)
	case err == nil:
		err = f.meet(ctx, mine, pulse)
	}
	f.reached(ctx, err)
	if now := f.Current(); now.Number <= mine.Number && !now.Is(mine) {
		f.Wake() // look again now: the version in force may be missing in the store
	}
}

// meet compares the version in force here with the store's newest version, and applies, restores or seeds versions as
// needed.
func (f *Follower) meet(ctx context.Context, mine Version, p Pulse) error {
	head, has := p.Head, p.Mine
	f.mu.Lock()
	if head.Number <= f.rejected.Number && !head.Is(f.rejected) {
		f.rejected, f.status.Rejected = Version{}, nil // the store has lost the rejected version
	}
	if has != Absent {
		f.status.FromDisk = false
	}
	if has == InLine {
		f.told = ""
	}
	f.mu.Unlock()
	switch {
	case mine.Number == 0 && head.Number == 0:
		return f.seed(ctx, f.o.Seed)
	case mine.Number == 0:
	case has == InLine, has == Absent && head.after(mine) == ancestor: // the store has this node's version, or will have: another node has restored a version based on it
		if err := f.putBack(ctx, p.Lost...); err != nil {
			return err
		}
	case has == Absent && f.outranks(mine, head):
		return f.restore(ctx, mine, head, p.Lost)
	case has == Absent && elder(mine, head):
		next := head.Next()
		next.Author, next.Time, next.Text, next.Message = mine.Author, mine.Time, mine.Text, restoredMessage(mine)
		return f.seed(ctx, next)
	default:
		if err := f.part(ctx, mine, head, p.Lost); err != nil {
			return err
		}
	}
	return f.catchUp(ctx, head, mine)
}

// seed writes a version, unless another node was faster or has a version to restore.
func (f *Follower) seed(ctx context.Context, v Version) error {
	if v.Text == nil {
		return nil
	}
	written, err := f.o.Store.Append(ctx, v.Parent, v)
	if errors.Is(err, ErrConflict) {
		return nil // another node was faster, or is about to restore a lost version
	}
	if err == nil {
		_ = f.apply(written, written, nil) // apply has logged the error
	}
	return err
}

// outranks reports whether the store has lost this node's version, as opposed to having continued without it. The store
// doesn't have the version now.
func (f *Follower) outranks(mine, head Version) bool {
	if head.Number == 0 {
		return true
	}
	if head.Number >= mine.Number {
		return false
	}
	if head.Parent == 0 {
		return true // the store had lost everything, and then a node without rules seeded it
	}
	switch mine.after(head) {
	case ancestor:
		return true
	case unknown:
		f.mu.Lock()
		defer f.mu.Unlock()
		return !f.status.FromDisk // a version from disk may be old, or from another store
	}
	return false
}

// elder reports whether both versions are first versions of a store, and this node's is older. In that case, the store
// was emptied, and a newer node has seeded it.
func elder(mine, head Version) bool {
	return mine.Number == head.Number && mine.Parent == 0 && head.Parent == 0 && mine.Time.Before(head.Time)
}

const restored = "restored: "

func restoredMessage(v Version) string { return restored + strings.TrimPrefix(v.Message, restored) }

// restore puts back the version in force here and earlier versions, all of which the store has lost. If several nodes
// restore versions, the highest version becomes the newest.
func (f *Follower) restore(ctx context.Context, mine, head Version, lost []Version) error {
	news := f.first("lost " + mine.Name())
	if news {
		f.o.Logger.Warn("the rule store has lost versions: the rules in force stay, and are put back", "version", mine.Name(), "newest in the store", head.Number)
	}
	if err := f.putBack(ctx, lost...); err != nil {
		return err
	}
	f.mu.Lock()
	f.status.FromDisk = false
	f.mu.Unlock()
	if news {
		f.o.Logger.Info("rules put back", "version", mine.Name())
	}
	return nil
}

// first reports whether news differs from the last message that was logged about the version in force here, and
// remembers news. It is used to log each message once.
func (f *Follower) first(news string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	was := f.told
	f.told = news
	return was != news
}

// putBack puts versions back into the history. If another version already has the same number, the version that is put
// back becomes an orphan.
func (f *Follower) putBack(ctx context.Context, versions ...Version) error {
	for _, v := range versions {
		v.Message = restoredMessage(v)
		err := f.o.Store.PutBack(ctx, v)
		if errors.Is(err, ErrConflict) {
			v.Orphan = true
			err = f.o.Store.PutBack(ctx, v)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// part gives up the version in force here, because the store has continued without it. First it stores that version as
// an orphan, together with earlier versions that the store lacks. Once another version is in force here, no node may
// have them anymore.
func (f *Follower) part(ctx context.Context, mine, head Version, lost []Version) error {
	for _, v := range lost {
		v.Orphan = true
		if err := f.o.Store.PutBack(ctx, v); err != nil {
			return err
		}
	}
	if f.first("parted " + mine.Name()) {
		f.o.Logger.Warn("the rule store has gone on without the rules in force here: this node takes the store's, and its own stay in the history as an orphan",
			"version", mine.Name(), "author", mine.Author, "message", mine.Message, "newest in the store", head.Name(), "its author", head.Author)
		f.o.GivenUp(mine)
	}
	return nil
}

// catchUp applies the store's newest version, unless it is in force already. If the newest version can't be applied,
// catchUp tries its parent, which this node may have missed. A node without rules never takes starter rules that way:
// the operators who replaced them don't want them back. It stays without rules, and isn't ready.
func (f *Follower) catchUp(ctx context.Context, head, mine Version) error {
	for v := head; f.news(v, head); {
		got, err := f.o.Store.Get(ctx, v.Number)
		switch {
		case errors.Is(err, ErrNotFound):
			return nil // the store has lost it in the meantime
		case errors.Is(err, ErrDamaged):
			got.Number, got.Hash = v.Number, v.Hash
		case err != nil:
			return err
		case got.Starter() && !v.Is(head) && f.Current().Number == 0:
			return nil
		}
		if f.apply(got, mine, err) == nil {
			return nil
		}
		v = Version{Number: got.Parent, Hash: got.ParentHash}
	}
	return nil
}

// news reports whether a version should be tried: it is neither in force nor rejected, and it is higher than the
// version in force, or the store's newest.
func (f *Follower) news(v, head Version) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return v.Number > 0 && !v.Is(f.status.Current) && !v.Is(f.rejected) && (v.Number > f.status.Current.Number || v.Is(head))
}

// apply puts v in force if its number is higher than that of the version in force, or if the version in force is the
// one that v should replace. It rejects v if err isn't nil, which means that v couldn't be read, or if v can't be
// applied.
func (f *Follower) apply(v, instead Version, err error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if v.Is(f.status.Current) || v.Number <= f.status.Current.Number && !instead.Is(f.status.Current) {
		return nil
	}
	if err == nil {
		err = f.o.Apply(v)
	}
	if err != nil {
		f.status.Rejections++
		f.o.Logger.Error("rules rejected: the ones in force stay",
			"version", v.Number, "author", v.Author, "in force", f.status.Current.Number, "error", err)
		if v.Number > f.rejected.Number {
			f.rejected, f.status.Rejected = v, fmt.Errorf("version %d: %w", v.Number, err)
		}
		return err
	}
	f.remember(v)
	f.status.FromDisk = false
	if v.Number >= f.rejected.Number {
		f.rejected, f.status.Rejected = Version{}, nil
	}
	f.o.Logger.Info("rules applied", "version", v.Number, "hash", Short(v.Hash), "author", v.Author, "message", v.Message)
	return nil
}

// Bounds on the versions that are remembered, in case the store loses more than one: the number of versions, and the
// bytes of their texts.
const (
	recentVersions = 8
	recentBytes    = 8 << 20
)

func (f *Follower) remember(v Version) {
	f.status.Current, f.recent = v, f.upTo(v) // versions with higher numbers have become orphans
	bytes := 0
	for i, kept := range slices.Backward(f.recent) {
		bytes += len(kept.Text)
		if n := len(f.recent) - i; n > recentVersions || n > 1 && bytes > recentBytes {
			f.recent = f.recent[i+1:]
			break
		}
	}
}

// upTo returns v and the remembered versions with lower numbers, ascending. Callers hold the lock.
func (f *Follower) upTo(v Version) []Version {
	if v.Number == 0 {
		return nil
	}
	below := slices.DeleteFunc(slices.Clone(f.recent), func(o Version) bool { return o.Number >= v.Number })
	return append(below, v)
}

// reached logs when the store is lost and when it is back.
func (f *Follower) reached(ctx context.Context, err error) {
	if ctx.Err() != nil && err != nil {
		return // this node is shutting down
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	version, was := f.status.Current.Number, f.status.Failures
	if f.status.Failures++; err == nil {
		f.status.Failures = 0
	}
	switch {
	case err != nil && was == 0:
		f.o.Logger.Warn("the rule store can't be reached: the rules in force stay", "version", version, "error", err)
	case err == nil && was > 0:
		f.o.Logger.Info("the rule store is back", "version", version)
	}
}
