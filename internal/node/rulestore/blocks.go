package rulestore

import (
	"cmp"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weirhq/weir/internal/rediscall"
	"github.com/weirhq/weir/redisstore"
)

// Block is an entry of the emergency list: a key, a pattern or an IP range that is refused,
// whatever the rules say.
type Block struct {
	// ID is a hash of the entry.
	ID string `json:"id"`
	// Entry is the blocked key, address or pattern. It is "" if Removed is set, so that lifted
	// blocks don't keep a client's key.
	Entry   string    `json:"entry,omitempty"`
	By      string    `json:"by,omitempty"`
	Message string    `json:"message,omitempty"`
	Time    time.Time `json:"time"`
	// Removed marks a block that an operator has lifted, so that nodes which still have the block
	// learn of it.
	Removed bool `json:"removed,omitempty"`
}

// supersedes reports whether b replaces the other block of the same entry. The later block wins; if
// both have the same time, the one that blocks wins.
func (b Block) supersedes(o Block) bool {
	if !b.Time.Equal(o.Time) {
		return b.Time.After(o.Time)
	}
	return !b.Removed && o.Removed
}

// blockSet is an emergency list, by the IDs of its entries.
type blockSet map[string]Block

// add takes over what another list has that this one lacks, and reports whether there was anything.
func (s blockSet) add(o blockSet) (news bool) {
	for id, b := range o {
		if mine, ok := s[id]; !ok || b.supersedes(mine) {
			s[id], news = b, true
		}
	}
	return news
}

// removedFor is how long a lifted block is remembered. A node that was away for longer brings the
// block back, which shows in every list.
const removedFor = 90 * 24 * time.Hour

// Blocks is the emergency list: blocks that apply in addition to the rules, when the rules are in a
// file or in a rule store that can't be written. The list is kept in a file, and in Redis if nodes
// share one. Copies are merged, so if a block couldn't be written to one of them, it is written
// later.
type Blocks struct {
	o BlockOptions

	// syncing is held while the list is read and written elsewhere, even if that takes long: two
	// concurrent writers would undo each other's changes. It guards the fields below it.
	syncing     sync.Mutex
	file, redis *copyOfBlocks // nil if the list isn't kept there
	failing     bool          // the last attempt failed, and that was logged

	changed func() // is called after each change

	mu  sync.Mutex
	all blockSet // guarded by mu
}

// copyOfBlocks is the list as it was last read or written in one place.
type copyOfBlocks struct {
	where string // for error messages
	text  string
	all   blockSet
	// swap returns the text that it finds. If that is seen, swap replaces it with next, unless next
	// is "".
	swap func(ctx context.Context, seen, next string) (found string, err error)
}

// BlockOptions configures [OpenBlocks]. The zero value keeps the list in memory.
type BlockOptions struct {
	// File keeps the list across restarts. If empty, the list isn't kept.
	File string
	// Redis is shared with other nodes, which then share the list. If nil, the node keeps its own.
	Redis *redisstore.Store
	// Now is the clock that nodes share. The default is this node's clock.
	Now func() time.Time
	// Logger logs a list that can't be read or written. If nil, nothing is logged.
	Logger *slog.Logger
}

// OpenBlocks reads the list; it waits for Redis no longer than ctx. A list that can't be read is
// logged, and read later.
func OpenBlocks(ctx context.Context, o BlockOptions) *Blocks {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	b := &Blocks{o: o, all: blockSet{}, changed: func() {}}
	if o.File != "" {
		b.file = &copyOfBlocks{where: o.File, all: blockSet{}, swap: func(_ context.Context, seen, next string) (string, error) { return swapFile(o.File, seen, next) }}
	}
	if o.Redis != nil {
		b.redis = &copyOfBlocks{where: "redis", all: blockSet{}, swap: OverRedis(o.Redis).swapBlocks}
	}
	b.Sync(ctx)
	if n := len(b.List()); n > 0 {
		o.Logger.Warn("the emergency list blocks keys or addresses beside the rules: weir keys blocks shows them", "entries", n)
	}
	return b
}

// OnChange sets the function that is called after each change. There is one, and it must not block.
// Call OnChange before Run, and before the first change.
func (b *Blocks) OnChange(f func()) { b.changed = f }

// List returns the blocked entries, newest first.
func (b *Blocks) List() []Block {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := slices.DeleteFunc(slices.Collect(maps.Values(b.all)), func(b Block) bool { return b.Removed })
	slices.SortFunc(all, func(a, b Block) int { return cmp.Or(b.Time.Compare(a.Time), strings.Compare(a.Entry, b.Entry)) })
	return all
}

// Has reports whether an entry is blocked.
func (b *Blocks) Has(entry string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	block, ok := b.all[blockID(entry)]
	return ok && !block.Removed
}

func blockID(entry string) string { return fmt.Sprintf("%.16x", sha256.Sum256([]byte(entry))) }

// Put blocks an entry, at once on this node. It reports whether the entry wasn't blocked before.
func (b *Blocks) Put(entry, by, message string) bool {
	return b.set(entry, Block{Entry: entry, By: by, Message: message})
}

// Remove lifts a block. It reports whether there was one.
func (b *Blocks) Remove(entry, by string) bool {
	return b.set(entry, Block{By: by, Removed: true})
}

func (b *Blocks) set(entry string, next Block) bool {
	next.ID, next.Time = blockID(entry), b.o.Now().UTC().Truncate(time.Millisecond)
	b.mu.Lock()
	old, ok := b.all[next.ID]
	if next.Removed == (!ok || old.Removed) {
		b.mu.Unlock()
		return false
	}
	if ok && !next.Time.After(old.Time) { // the clock was set back, but this change is still the later one
		next.Time = old.Time.Add(time.Millisecond)
	}
	b.all[next.ID] = next
	b.mu.Unlock()
	b.changed()
	return true
}

// Run keeps the copies of the list in step until ctx is done.
func (b *Blocks) Run(ctx context.Context) {
	for rediscall.Sleep(ctx, rediscall.Jittered(blocksPoll)) {
		b.Sync(ctx)
	}
}

// blocksPoll is the longest time between looks at the list. Other nodes must learn of a block
// within two seconds.
const blocksPoll = time.Second

// Sync merges the list with those in the file and in Redis, and writes to each what it lacks. It
// logs errors once; Run tries again.
func (b *Blocks) Sync(ctx context.Context) (inFile, inRedis error) {
	b.syncing.Lock()
	defer b.syncing.Unlock()
	inFile = b.sync(ctx, b.file) // first, since Redis may be slow
	inRedis = b.sync(ctx, b.redis)
	if ctx.Err() != nil {
		return inFile, inRedis
	}
	err := errors.Join(inFile, inRedis)
	switch {
	case err != nil && !b.failing:
		b.o.Logger.Warn("the emergency list can't be read or written everywhere: it applies here, and is tried again", "error", err)
	case err == nil && b.failing:
		b.o.Logger.Info("the emergency list is read and written again")
	}
	b.failing = err != nil
	return inFile, inRedis
}

// syncTries is how often a copy is read and written again when other nodes are faster.
const syncTries = 10

// sync merges the list with a copy, which also has what other processes have written.
func (b *Blocks) sync(ctx context.Context, c *copyOfBlocks) error {
	if c == nil {
		return nil
	}
	for range syncTries {
		all, next := b.snapshot(), ""
		if maps.Clone(c.all).add(all) {
			next = all.encode()
		}
		found, err := c.swap(ctx, c.text, next)
		if err != nil {
			return err
		}
		if found == c.text {
			if next != "" {
				c.text, c.all = next, all
			}
			return nil
		}
		there, err := decodeBlocks(found)
		if err != nil { // don't overwrite it: an operator may be able to repair it
			return fmt.Errorf("%s: %w", c.where, err)
		}
		c.text, c.all = found, there
		b.mu.Lock()
		news := b.all.add(there)
		b.mu.Unlock()
		if news {
			b.changed()
		}
	}
	return fmt.Errorf("%s: other nodes were faster", c.where)
}

func (r *Redis) swapBlocks(ctx context.Context, seen, next string) (string, error) {
	reply, err := r.run(ctx, blocksScript, []string{r.blocks}, fmt.Sprintf("%x", sha1.Sum([]byte(seen))), next)
	if err != nil || len(reply) == 0 {
		return seen, err
	}
	return reply[0], nil
}

func swapFile(path, seen, next string) (string, error) {
	text, err := os.ReadFile(path)
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return "", err
	case string(text) != seen || next == "":
		return string(text), nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", err
	}
	return seen, writeWhole(path, []byte(next))
}

// snapshot returns the list without lifted blocks that are too old to matter.
func (b *Blocks) snapshot() blockSet {
	now := b.o.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	maps.DeleteFunc(b.all, func(_ string, block Block) bool { return block.Removed && now.Sub(block.Time) > removedFor })
	return maps.Clone(b.all)
}

func (s blockSet) encode() string {
	all := slices.SortedFunc(maps.Values(s), func(a, b Block) int { return strings.Compare(a.ID, b.ID) })
	text, _ := json.Marshal(map[string]any{"blocks": all}) // can't fail
	return string(text)
}

func decodeBlocks(text string) (blockSet, error) {
	var in struct {
		Blocks []Block `json:"blocks"`
	}
	if text != "" {
		if err := json.Unmarshal([]byte(text), &in); err != nil {
			return nil, fmt.Errorf("%w: the emergency list isn't one that Weir wrote", ErrDamaged)
		}
	}
	all := make(blockSet, len(in.Blocks))
	for _, b := range in.Blocks {
		all[b.ID] = b
	}
	return all, nil
}
