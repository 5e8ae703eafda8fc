// Package rulestore keeps every version of the rules, and lets nodes follow the
// newest: in Redis beside the counters, or in a folder for a node alone.
//
// A version is written once and never changed. Two writers at the same time can't both win: each
// says which version it is based on, and the second is told that it isn't the newest any more.
//
// A number alone doesn't name a version. A failover may lose one that was
// acknowledged, and the next is given the same number. So a version has a hash,
// too, and two that differ are told apart wherever they meet. The store's is then in
// force, and the other stays in the history as an orphan.
package rulestore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// Version is the rules as someone wrote them. Number and Hash together are its name.
type Version struct {
	Number, Parent int64
	// Hash is of the text, its author and time, and the parent with its hash. Stores fill it in.
	Hash, ParentHash string
	// Line names the versions that led to it, the oldest first and its parent last, as far as they are known.
	Line            string
	Author, Message string
	Time            time.Time
	Text            []byte // the whole document, as it was written
	// Orphan: another version has its number, or the store went on without it. It was in force on some node, and isn't any more.
	Orphan bool
}

// StarterMessage is that of a first version which nobody wrote: the rules that come with the binary.
const StarterMessage = "starter rules"

// Starter reports whether nobody wrote the version.
func (v Version) Starter() bool { return v.Parent == 0 && v.Message == StarterMessage }

// Name is what people call the version: its number, and enough of its hash.
func (v Version) Name() string {
	name := strconv.FormatInt(v.Number, 10)
	if v.Hash != "" {
		name += "-" + Short(v.Hash)
	}
	return name
}

// Short is as much of a hash as people need.
func Short(hash string) string { return hash[:min(8, len(hash))] }

// Is reports whether both are one version, whatever of them is known. The hash of one that was
// written before there were hashes is known only together with its text: until then, its author and
// time must do.
func (v Version) Is(o Version) bool {
	switch {
	case v.Number != o.Number:
		return false
	case v.Hash == "" || o.Hash == "":
		return v.Parent == o.Parent && v.Author == o.Author && v.Time.UnixMilli() == o.Time.UnixMilli()
	}
	return v.Hash == o.Hash
}

// sum is the version's hash. Its number is given by the store, and its message may be added to when it is put back.
func (v Version) sum() string {
	h := sha256.New()
	fmt.Fprintf(h, "%d %s %d %q\n", v.Parent, v.ParentHash, v.Time.UnixMilli(), v.Author)
	h.Write(v.Text)
	return hex.EncodeToString(h.Sum(nil)[:16])
}

var (
	// ErrConflict is returned to a writer when the newest version isn't the one that its change is
	// based on.
	ErrConflict = errors.New("another version of the rules is the newest")
	// ErrNotFound is returned for a version that isn't there.
	ErrNotFound = errors.New("there is no such version of the rules")
	// ErrDamaged is returned for a version that isn't what was written, and by a store that holds something, but no version.
	ErrDamaged = errors.New("the rules are damaged")
)

// Store keeps versions. Nothing in it is ever overwritten.
type Store interface {
	// Head is the newest version without its text. Its number is 0 if the store is empty.
	Head(ctx context.Context) (Version, error)
	// Get returns a version, or ErrNotFound. Beside ErrDamaged comes what is known of it.
	Get(ctx context.Context, n int64) (Version, error)
	// Orphan returns the orphan of a number whose hash begins like that, or ErrNotFound.
	Orphan(ctx context.Context, n int64, hash string) (Version, error)
	// List returns up to limit versions below before, the newest first, without their texts, and with them
	// the orphans of their numbers and of numbers between them. 0 means from the newest. One that is damaged is left out, or its
	// message says so.
	List(ctx context.Context, before int64, limit int) ([]Version, error)
	// Append writes a version if the newest is still its parent, and returns it with its number, which
	// is above the parent, above floor, and above every other that was ever given. Otherwise it returns ErrConflict; and also while
	// a living node has a version above the parent, which the store must have lost and the node is about to restore. So
	// numbers are above what every living node has. A ParentHash of "" stands for the version of that number, whichever it is.
	// A Time of zero means now, by the store's clock.
	Append(ctx context.Context, floor int64, v Version) (Version, error)
	// Restore puts back a version that the store has lost, under its own number. It is the newest then, if its
	// number is above the others. If another version has the number, or this one is an orphan, it returns ErrConflict.
	Restore(ctx context.Context, v Version) error
	// Keep adds a version as an orphan, unless the store has it already.
	Keep(ctx context.Context, v Version) error
	// Watch calls f whenever it is told of a new version, which may be late, twice or out of
	// order, until ctx is done. It reconnects by itself. F isn't to wait for anything.
	Watch(ctx context.Context, f func(n int64))
	// Beat tells the others about this node, in a moment, and returns the newest version without its text, what
	// the store has of the one that is in force on this node, and which of some others it has lost, in one round trip.
	Beat(ctx context.Context, n Node, others ...Version) (Pulse, error)
	// Nodes returns the nodes that were heard in the last ten seconds, by name.
	Nodes(ctx context.Context) ([]Node, error)
}

// Pulse is what a store answers to a beat.
type Pulse struct {
	Head Version // without its text; Number 0: the store is empty
	Mine Presence
	Lost []Version
}

// Presence is what a store has of a version.
type Presence uint8

const (
	Absent Presence = iota
	InLine          // it is one of those that led to the newest, or that itself
	Orphaned
	Textless // it is in line, but somebody has deleted its text
)

var (
	_ Store = (*Dir)(nil)
	_ Store = (*Redis)(nil)
)

// Node is what the others know of a node.
type Node struct {
	Name         string
	Region       string           // "": nobody said
	Version      string           // of its binary
	RulesVersion int64            // in force there; 0: none of the store's
	RulesHash    string           // of that version
	RulesText    string           // see [TextHash]
	InFile       bool             // its rules are those of a file: the number is the file's own, and says nothing to others
	Store        string           // how its store is
	Since        time.Time        // when it was first lost; zero while it isn't
	Lost         []string         // the servers that can't be reached
	Warning      string           // what its operator should look at; "": nothing
	Outputs      map[string]int64 // how long models' answers are there, in tokens
	Seen         time.Time
}

// TextHash is the beginning of the SHA-256 of rules' text. Whether nodes have the same rules shows by it alone where they have them
// from files, whose versions each numbers for itself.
func TextHash(text []byte) string { return fmt.Sprintf("%.4x", sha256.Sum256(text)) }

// about is what is kept of a version beside its text.
type about struct {
	Parent     int64     `json:"parent"`
	ParentHash string    `json:"parent_hash"`
	Line       string    `json:"line,omitempty"`
	Hash       string    `json:"hash"`
	Author     string    `json:"author"`
	Message    string    `json:"message"`
	Time       time.Time `json:"time"`
}

func aboutOf(v Version) about {
	return about{v.Parent, v.ParentHash, v.Line, v.Hash, v.Author, v.Message, v.Time}
}

func (a about) version(n int64) Version {
	return Version{Number: n, Parent: a.Parent, ParentHash: a.ParentHash, Line: a.Line, Hash: a.Hash, Author: a.Author, Message: a.Message, Time: a.Time}
}

// dated is the version with its hash, and with a time that reads the same after it was written down.
func dated(v Version) Version {
	if v.Time.IsZero() {
		v.Time = time.Now()
	}
	v.Time = v.Time.UTC().Truncate(time.Millisecond)
	v.Hash = v.sum()
	return v
}

// checked is the version with its text, if that is what was written.
func checked(v Version, text []byte) (Version, error) {
	v.Text = text
	if sum := v.sum(); v.Hash == "" {
		v.Hash = sum // it is from before there were hashes
	} else if sum != v.Hash {
		v.Text = nil
		return v, fmt.Errorf("%w: version %s isn't what was written", ErrDamaged, v.Name())
	}
	return v, nil
}

func conflict(parent Version, head Version) error {
	return fmt.Errorf("%w: it is %s, not %s", ErrConflict, head.Name(), parent.Name())
}

// ErrAwaited is returned to a writer while a node is about to put back a version that the store has
// lost. It is an ErrConflict.
var ErrAwaited = fmt.Errorf("%w: the store has lost versions that a node is about to put back: try again in a moment", ErrConflict)

func awaited(n int64) error { return fmt.Errorf("%w: version %d", ErrAwaited, n) }

func taken(v Version) error {
	return fmt.Errorf("%w: %s isn't it, and can't be put back", ErrConflict, v.Name())
}

func missing(n int64) error { return fmt.Errorf("%w: %d", ErrNotFound, n) }
