// Package rulestore keeps every version of the rules, and lets nodes follow the
// newest: in Redis beside the counters, or in a folder for a node alone.
//
// A version is written once and never changed. Two who write at the same time
// can't both win: each says which version it is based on, and the second is told
// that it isn't the newest any more.
package rulestore

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Version is the rules as someone wrote them.
type Version struct {
	Number, Parent  int64
	Author, Message string
	Time            time.Time
	Text            []byte // the whole document, as it was written
}

var (
	// ErrConflict is returned to who writes when another version is the newest than the one that theirs is based on.
	ErrConflict = errors.New("another version of the rules is the newest")
	// ErrNotFound is returned for a version that isn't there.
	ErrNotFound = errors.New("there is no such version of the rules")
)

// Store keeps versions. Nothing in it is ever overwritten.
type Store interface {
	// Head is the number of the newest version, or 0 if there is none yet.
	Head(ctx context.Context) (int64, error)
	// Get returns a version, or ErrNotFound.
	Get(ctx context.Context, n int64) (Version, error)
	// List returns up to limit versions below before, the newest first, without their texts. 0 means from the newest.
	List(ctx context.Context, before int64, limit int) ([]Version, error)
	// Append writes a version if the newest is still its parent, and returns it with its number, which
	// is above the parent and above floor. Otherwise it returns ErrConflict; and also while a living node has
	// a version above the parent, which the store must have lost and the node is about to restore. So
	// numbers are above what every living node has. A Time of zero means now.
	Append(ctx context.Context, floor int64, v Version) (Version, error)
	// Restore puts back a version that the store has lost, under its own number, which is
	// above the store's newest. Otherwise it returns ErrConflict.
	Restore(ctx context.Context, v Version) error
	// Watch calls f whenever it is told of a new version, which may be late, twice or out of
	// order, until ctx is done. It reconnects by itself. F isn't to wait for anything.
	Watch(ctx context.Context, f func(n int64))
	// Beat tells the others about this node, and returns the newest version's number, in one round trip.
	Beat(ctx context.Context, n Node) (head int64, err error)
	// Nodes returns the nodes that were heard in the last ten seconds, by name.
	Nodes(ctx context.Context) ([]Node, error)
}

var (
	_ Store = (*Dir)(nil)
	_ Store = (*Redis)(nil)
)

// Node is what the others know of a node.
type Node struct {
	Name         string
	Version      string // of its binary
	RulesVersion int64  // in force there; 0: none of the store's
	Store        string // how its store is
	Seen         time.Time
}

// about is what is kept of a version beside its text.
type about struct {
	Parent  int64     `json:"parent"`
	Author  string    `json:"author"`
	Message string    `json:"message"`
	Time    time.Time `json:"time"`
}

func aboutOf(v Version) about { return about{v.Parent, v.Author, v.Message, v.Time} }

func (a about) version(n int64) Version {
	return Version{Number: n, Parent: a.Parent, Author: a.Author, Message: a.Message, Time: a.Time}
}

// dated is the version with a time that reads the same after it was written down.
func dated(v Version) Version {
	if v.Time.IsZero() {
		v.Time = time.Now()
	}
	v.Time = v.Time.UTC().Truncate(time.Millisecond)
	return v
}

func conflict(parent, head int64) error {
	return fmt.Errorf("%w: it is %d, not %d", ErrConflict, head, parent)
}

// ErrAwaited is returned to who writes while a node is about to put back a version that the store has lost. It is an ErrConflict.
var ErrAwaited = fmt.Errorf("%w: the store has lost versions that a node is about to put back: try again in a moment", ErrConflict)

func awaited(n int64) error { return fmt.Errorf("%w: version %d", ErrAwaited, n) }

func notAbove(n, head int64) error {
	return fmt.Errorf("%w: it is %d, and %d isn't above it", ErrConflict, head, n)
}

func missing(n int64) error { return fmt.Errorf("%w: %d", ErrNotFound, n) }
