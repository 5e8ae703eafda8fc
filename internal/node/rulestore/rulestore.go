// Package rulestore keeps every version of the rules, and lets nodes follow the newest version. Versions are kept in
// Redis, with the counters, or in a folder for a single node.
//
// A version is written once and never changed. If two writers write at the same time, only one succeeds: each names the
// version that its change is based on, and the second gets an error, because a newer version exists.
//
// A failover can lose the newest version, and the next version gets the same number. So every version also has a hash.
// If a node still has the lost version in force, the node takes the store's newest version, and adds the lost one to
// the history as an orphan.
package rulestore

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Version is one version of the rules. Number and Hash together identify it. Stores keep its JSON in addition to the
// number and the text.
type Version struct {
	Number     int64  `json:"-"`
	Parent     int64  `json:"parent"`
	ParentHash string `json:"parent_hash"`
	// Line names the known ancestors, the oldest first and the parent last.
	Line string `json:"line,omitempty"`
	// Hash is the hash of the text, the author, the time, and the parent's number and hash. Stores fill it in.
	Hash    string    `json:"hash"`
	Author  string    `json:"author"`
	Message string    `json:"message"`
	Time    time.Time `json:"time"`
	Text    []byte    `json:"-"` // the whole document as it was written
	// Orphan means that another version has the number, or that the store continued without this version. An orphan was
	// in force on some node and no longer is.
	Orphan bool `json:"-"`
}

// StarterMessage is the message of a first version with the rules that come with the binary. No operator wrote it.
const StarterMessage = "starter rules"

// Starter reports whether the version is the rules that come with the binary.
func (v Version) Starter() bool { return v.Parent == 0 && v.Message == StarterMessage }

// Name returns the version's number and the start of its hash.
func (v Version) Name() string {
	name := strconv.FormatInt(v.Number, 10)
	if v.Hash != "" {
		name += "-" + Short(v.Hash)
	}
	return name
}

// Short returns the first 8 characters of a hash.
func Short(hash string) string { return hash[:min(8, len(hash))] }

// Is reports whether both are the same version.
func (v Version) Is(o Version) bool { return v.Number == o.Number && v.Hash == o.Hash }

// sum returns the version's hash. The hash doesn't cover the number, which the store assigns, or the message, which
// changes when the version is restored.
func (v Version) sum() string {
	h := sha256.New()
	fmt.Fprintf(h, "%d %s %d %q\n", v.Parent, v.ParentHash, v.Time.UnixMilli(), v.Author)
	h.Write(v.Text)
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// lineLength is how many of its ancestors a version names. If a store has lost more versions than that, a node that has
// just started can't tell whether it is still the same store.
const lineLength = 100

// Next returns a new version whose parent is this one. The caller adds the text, the author and the reason.
func (v Version) Next() Version {
	if v.Number == 0 {
		return Version{}
	}
	line := append(v.line(), v.Name())
	return Version{Parent: v.Number, ParentHash: v.Hash, Line: strings.Join(line[max(0, len(line)-lineLength):], " ")}
}

// line returns the names of a version's ancestors. Versions from releases without lines name only their parent.
func (v Version) line() []string {
	if v.Line == "" && v.Parent > 0 {
		return []string{Version{Number: v.Parent, Hash: v.ParentHash}.Name()}
	}
	return strings.Fields(v.Line)
}

// descent says whether one version is an ancestor of another, as far as known.
type descent uint8

const (
	stranger descent = iota // the version isn't an ancestor of the other one
	ancestor                // the version is an ancestor of the other one
	unknown                 // the version is older than all ancestors that the other one names
)

// after says whether an older version is an ancestor of this one.
func (v Version) after(old Version) descent {
	line := v.line()
	i, found := slices.BinarySearchFunc(line, old.Number, func(name string, n int64) int {
		number, _, _ := strings.Cut(name, "-")
		m, _ := strconv.ParseInt(number, 10, 64)
		return cmp.Compare(m, n)
	})
	switch {
	case found && (line[i] == old.Name() || !strings.Contains(line[i], "-")):
		return ancestor
	case i == 0 && !found && len(line) > 0:
		return unknown
	}
	return stranger
}

var (
	// ErrConflict is returned to a writer whose change isn't based on the newest version.
	ErrConflict = errors.New("another version of the rules is the newest")
	// ErrNotFound is returned for a version that doesn't exist.
	ErrNotFound = errors.New("there is no such version of the rules")
	// ErrDamaged is returned for a version whose text differs from what was written, and by a store that holds
	// something other than versions.
	ErrDamaged = errors.New("the rules are damaged")
)

// Store keeps versions. It never overwrites one.
type Store interface {
	// Head returns the newest version without its text. Its number is 0 if the store is empty.
	Head(ctx context.Context) (Version, error)
	// Get returns a version, or ErrNotFound. With the error ErrDamaged, it returns what is known about the version.
	Get(ctx context.Context, n int64) (Version, error)
	// Orphan returns the orphan that has the number, and whose hash starts with the given one. If there is none, it
	// returns ErrNotFound.
	Orphan(ctx context.Context, n int64, hash string) (Version, error)
	// List returns up to limit versions whose numbers are lower than before, newest first, and the orphans in that
	// range. It returns them without texts. If before is 0, the list starts at the newest version. A damaged version is
	// left out, or its message says that it is damaged.
	List(ctx context.Context, before int64, limit int) ([]Version, error)
	// Append writes a version if its parent is still the newest version, and returns it with its number. The number is
	// higher than the parent's, higher than floor, and higher than every number that was ever assigned. If the newest
	// version is another one, Append returns ErrConflict. It also returns ErrConflict while a living node has a version
	// higher than the parent: the store must have lost that version, and the node is about to restore it. A ParentHash
	// of "" means any version with the parent's number. A zero Time means now, by the store's clock.
	Append(ctx context.Context, floor int64, v Version) (Version, error)
	// PutBack writes a version that the store lacks, under its own number. If its number is the highest, it becomes the
	// newest version. If another version has the number, or if this one is an orphan in the store, PutBack returns
	// ErrConflict. If v.Orphan is set, PutBack writes the version as an orphan, unless the store already has the
	// version in any form.
	PutBack(ctx context.Context, v Version) error
	// Watch calls f when another process has written a version, until ctx is done. Calls may be late, repeated or out
	// of order. Watch reconnects by itself. f must not block.
	Watch(ctx context.Context, f func(n int64))
	// Beat reports this node to the others. In the same round trip, it asks about versions that were in force on this
	// node, in ascending order. The last of them is in force now.
	Beat(ctx context.Context, n Node, kept ...Version) (Pulse, error)
}

// Pulse is a store's answer to a beat.
type Pulse struct {
	Head Version   // without its text; Number 0 if the store is empty
	Mine Presence  // whether the store has the version in force on the node; Absent if the node has none
	Lost []Version // versions that the store lacks, or of which it lacks the text
}

// Presence says whether a store has a version, and as what.
type Presence uint8

const (
	Absent Presence = iota
	InLine          // as the newest version, or one of its ancestors
	Orphaned
)

var (
	_ Store = (*Dir)(nil)
	_ Store = (*Redis)(nil)
)

// Node is the information that other nodes have about a node. As JSON, it is the node's report about itself.
type Node struct {
	Name         string           `json:"-"`
	Region       string           `json:"region,omitempty"`  // "" if unknown
	Version      string           `json:"version"`           // the version of its binary
	RulesVersion int64            `json:"rules"`             // the version in force on the node; 0 if its rules don't come from the store
	RulesHash    string           `json:"hash"`              // the hash of that version
	RulesText    string           `json:"text,omitempty"`    // see [TextHash]
	InFile       bool             `json:"-"`                 // its rules come from a file, so other nodes ignore its version numbers
	Store        string           `json:"store"`             // the state of its store
	Since        time.Time        `json:"since,omitzero"`    // when the node lost its store; zero if it hasn't
	Lost         []string         `json:"lost,omitempty"`    // servers that it can't reach
	Warning      string           `json:"warning,omitempty"` // what the node's operator should look at; "" if nothing
	Outputs      map[string]int64 `json:"outputs,omitempty"` // by model, an estimate of how many tokens its answers have
	Seen         time.Time        `json:"-"`
}

// TextHash returns the start of the SHA-256 of a text. It shows whether nodes have the same rules even if they read
// them from files, whose versions each node numbers for itself.
func TextHash(text []byte) string { return fmt.Sprintf("%.4x", sha256.Sum256(text)) }

// sortVersions sorts versions newest first. Orphans come after the version that has the same number.
func sortVersions(all []Version) {
	orphan := func(v Version) string {
		if v.Orphan {
			return v.Hash
		}
		return ""
	}
	slices.SortFunc(all, func(a, b Version) int {
		return cmp.Or(cmp.Compare(b.Number, a.Number), cmp.Compare(orphan(a), orphan(b)))
	})
}

// dated returns the version with its hash. It rounds the time, so that the time doesn't change when it is written and
// read back.
func dated(v Version) Version {
	if v.Time.IsZero() {
		v.Time = time.Now()
	}
	v.Time = v.Time.UTC().Truncate(time.Millisecond)
	v.Hash = v.sum()
	return v
}

// checked returns the version with its text. If the text isn't what was written, it returns ErrDamaged.
func checked(v Version, text []byte) (Version, error) {
	v.Text = text
	if v.sum() != v.Hash {
		v.Text = nil
		return v, fmt.Errorf("%w: version %s isn't what was written", ErrDamaged, v.Name())
	}
	return v, nil
}

// conflict returns the error of Append if head isn't the parent of v.
func conflict(v, head Version) error {
	return fmt.Errorf("%w: it is %s, not %s", ErrConflict, head.Name(), Version{Number: v.Parent, Hash: v.ParentHash}.Name())
}

// ErrAwaited is returned to a writer while a node is about to put back a version that the store has lost.
// errors.Is(ErrAwaited, ErrConflict) is true.
var ErrAwaited = fmt.Errorf("%w: the store has lost versions that a node is about to put back: try again in a moment", ErrConflict)

func awaited(n int64) error { return fmt.Errorf("%w: version %d", ErrAwaited, n) }

func taken(v Version) error {
	return fmt.Errorf("%w: %s isn't it, and can't be put back", ErrConflict, v.Name())
}

func missing(n int64) error { return fmt.Errorf("%w: %d", ErrNotFound, n) }
