package rulestore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Options of a Follower. Store, Node.Name and Apply are needed.
type Options struct {
	Store Store
	Node  Node // its name and version; the rest is filled in
	// StoreHealth says how the node's store of counters is, for the others to see. Nil means that nothing is said.
	StoreHealth func() string
	// First is what is in force at the start. Number 0 means something that isn't in the store.
	First Version
	// Apply puts a version in force, or returns what is wrong with it. It is called by one goroutine at a time, with rising numbers.
	Apply func(Version) error
	// Logger is told of versions, and of a store that is lost and back. Nil means nobody is.
	Logger *slog.Logger
	// Poll is the longest time between looks at the store. 0 means 2 s.
	Poll time.Duration
}

// Follower keeps a node at the newest version. The numbers that it applies only rise, whatever it is told and when.
//
// A version that can't be applied, and a store that can't be reached or has lost its data, change
// nothing: the last good version stays in force, and if the store has lost it, it is put back.
type Follower struct {
	o    Options
	told atomic.Int64  // the highest number heard of since it was last looked at
	wake chan struct{} // holds a value when told has one

	mu       sync.Mutex // guards what follows, and is held while a version is applied
	current  Version
	rejected Version // the newest that couldn't be applied; Number 0: none
	wrong    error   // with it
	away     bool    // the store couldn't be reached when it was last called
	lost     bool    // the store has lost what is in force here, and that was logged
}

// Follow makes a follower. It follows while [Follower.Run] runs.
func Follow(o Options) *Follower {
	if o.StoreHealth == nil {
		o.StoreHealth = func() string { return "" }
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Poll <= 0 {
		o.Poll = 2 * time.Second
	}
	return &Follower{o: o, wake: make(chan struct{}, 1), current: o.First}
}

// Run follows until ctx is done.
func (f *Follower) Run(ctx context.Context) error {
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() { f.o.Store.Watch(ctx, f.hear) })
	f.look(ctx)
	timer := time.NewTimer(jittered(f.o.Poll))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-f.wake:
			if err := f.catchUp(ctx, f.told.Swap(0)); err != nil {
				f.reached(ctx, err) // it is tried again with the next look
			}
		case <-timer.C:
			f.look(ctx)
			timer.Reset(jittered(f.o.Poll))
		}
	}
}

// Current is the version in force here.
func (f *Follower) Current() Version {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.current
}

// Rejected says what is wrong with the newest version, if it couldn't be applied: an older one is in force.
func (f *Follower) Rejected() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.wrong
}

// Publish appends a version that is based on v.Parent, and applies it here at once. If it is
// written and can't be applied here, both it and an error are returned.
func (f *Follower) Publish(ctx context.Context, v Version) (Version, error) {
	current := f.Current().Number
	written, err := f.o.Store.Append(ctx, current, v)
	if errors.Is(err, ErrConflict) && v.Parent == current {
		// It is the newest as far as we know. If the store has lost it, it is put back first.
		f.look(ctx)
		written, err = f.o.Store.Append(ctx, current, v)
	}
	if err != nil {
		return Version{}, err
	}
	if err := f.apply(written); err != nil {
		return written, fmt.Errorf("version %d is written, but can't be applied: %w", written.Number, err)
	}
	return written, nil
}

// hear is told of a number that may be old, known, or of a version that is lost. It never waits.
func (f *Follower) hear(n int64) {
	for {
		old := f.told.Load()
		if n <= old || f.told.CompareAndSwap(old, n) {
			break
		}
	}
	select {
	case f.wake <- struct{}{}:
	default: // it holds one
	}
}

// beatTimeout is the longest that a look at the store waits for its answer.
const beatTimeout = time.Second

// look asks for the newest number, and does what follows from it.
func (f *Follower) look(ctx context.Context) {
	node := f.o.Node
	current := f.Current()
	node.RulesVersion, node.Store = current.Number, f.o.StoreHealth()
	beat, cancel := context.WithTimeout(ctx, beatTimeout)
	head, err := f.o.Store.Beat(beat, node)
	cancel()
	if err == nil {
		f.mu.Lock()
		if head < f.rejected.Number {
			f.rejected, f.wrong = Version{}, nil // it is lost, and its number may come again
		}
		f.mu.Unlock()
		if head < current.Number {
			err = f.restore(ctx, current, head)
		} else {
			f.mu.Lock()
			f.lost = false
			f.mu.Unlock()
			err = f.catchUp(ctx, head)
		}
	}
	f.reached(ctx, err)
}

// restored begins the message of a version that was put back.
const restored = "restored: "

// restore puts back the version in force here, which the store has lost. Of several nodes that do, the highest wins.
func (f *Follower) restore(ctx context.Context, v Version, head int64) error {
	f.mu.Lock()
	known := f.lost
	f.lost = true
	f.mu.Unlock()
	if !known {
		f.o.Logger.Warn("the store has lost rules: those in force stay, and are put back", "version", v.Number, "newest in the store", head)
	}
	if !strings.HasPrefix(v.Message, restored) {
		v.Message = restored + v.Message
	}
	err := f.o.Store.Restore(ctx, v)
	if errors.Is(err, ErrConflict) {
		return nil // another node was faster; what it has put back is looked at next time
	}
	if err == nil {
		f.o.Logger.Info("rules put back", "version", v.Number)
	}
	return err
}

// catchUp applies a version, if it is newer than the one in force. If it can't be applied,
// the one that it is based on is tried, which this node may have missed.
func (f *Follower) catchUp(ctx context.Context, n int64) error {
	for f.news(n) {
		v, err := f.o.Store.Get(ctx, n)
		if errors.Is(err, ErrNotFound) {
			return nil // it was lost meanwhile
		}
		if err != nil {
			return err
		}
		if f.apply(v) == nil {
			return nil
		}
		n = v.Parent
	}
	return nil
}

// news: a version of this number is worth a try.
func (f *Follower) news(n int64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return n > f.current.Number && n != f.rejected.Number
}

// apply puts a version in force, unless a newer one is.
func (f *Follower) apply(v Version) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if v.Number <= f.current.Number {
		return nil
	}
	if err := f.o.Apply(v); err != nil {
		f.o.Logger.Error("rules rejected: the ones in force stay",
			"version", v.Number, "author", v.Author, "in force", f.current.Number, "error", err)
		if v.Number > f.rejected.Number {
			f.rejected, f.wrong = v, fmt.Errorf("version %d: %w", v.Number, err)
		}
		return err
	}
	f.current = v
	if v.Number > f.rejected.Number {
		f.rejected, f.wrong = Version{}, nil
	}
	f.o.Logger.Info("rules applied", "version", v.Number, "author", v.Author, "message", v.Message)
	return nil
}

// reached tells when the store is lost and when it is back.
func (f *Follower) reached(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return // it is we who left
	}
	f.mu.Lock()
	was := f.away
	f.away = err != nil
	f.mu.Unlock()
	switch {
	case err != nil && !was:
		f.o.Logger.Warn("the store of rules can't be reached: those in force stay", "version", f.Current().Number, "error", err)
	case err == nil && was:
		f.o.Logger.Info("the store of rules is back", "version", f.Current().Number)
	}
}
