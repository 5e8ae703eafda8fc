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
	// Removed marks a block that an operator has lifted. The entry stays in the list, so that nodes which still block
	// it learn of the change.
	Removed bool `json:"removed,omitempty"`
}

// supersedes reports whether b replaces o, a block of the same entry. The later one wins. If both have the same time,
// one that blocks wins over one that was lifted.
func (b Block) supersedes(o Block) bool {
	if !b.Time.Equal(o.Time) {
		return b.Time.After(o.Time)
	}
	return !b.Removed && o.Removed
}

// blockSet is an emergency list. Its keys are the IDs of the entries.
type blockSet map[string]Block

// add adds the entries of o that s lacks or has in an older state, and reports whether there were any.
func (s blockSet) add(o blockSet) (news bool) {
	for id, b := range o {
		if mine, ok := s[id]; !ok || b.supersedes(mine) {
			s[id], news = b, true
		}
	}
	return news
}

// removedFor is how long a lifted block is remembered. A node that was away for longer brings the block back, and
// operators see it in every list.
const removedFor = 90 * 24 * time.Hour

// Blocks is the emergency list: blocks that apply in addition to the rules. It is for rules in a file, or in a rule
// store that can't be written. The list is kept in a file, and in Redis if nodes share one. Copies are merged, so if a
// block couldn't be written to one of them, it is written later.
type Blocks struct {
	o BlockOptions

	// syncing is held while the list is read from or written to the file or Redis, even if that takes long: two
	// concurrent writers would undo each other's changes. It guards the fields below it.
	syncing     sync.Mutex
	file, redis *copyOfBlocks // nil if the list isn't kept in the file or in Redis
	failing     bool          // the last attempt to sync failed, and that was logged

	changed func() // called after each change

	mu  sync.Mutex
	all blockSet // guarded by mu
}

// copyOfBlocks is one copy of the list, in the file or in Redis, as it was last read or written.
type copyOfBlocks struct {
	where string // for error messages
	text  string
	all   blockSet
	// swap replaces the stored text with next if the stored text is seen and next isn't "". It returns the text that it
	// found.
	swap func(ctx context.Context, seen, next string) (found string, err error)
}

// BlockOptions are the options of [OpenBlocks]. The zero value keeps the list in memory.
type BlockOptions struct {
	// File is the path of a file that keeps the list across restarts. If empty, the list isn't kept in a file.
	File string
	// Redis is a store that nodes share, through which they share the list. If nil, the node has its own list.
	Redis *redisstore.Store
	// Now is the clock that nodes share. The default is this node's clock.
	Now func() time.Time
	// Logger logs errors of reading and writing the list. If nil, nothing is logged.
	Logger *slog.Logger
}

// OpenBlocks reads the list. It waits for Redis until ctx is done. If it can't read a list, it logs that, and Run tries
// again.
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

// OnChange sets the function that is called after each change. A second call would replace the function. The function
// must not block. Call OnChange before Run, and before the first change.
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

// Put blocks an entry. On this node, the block applies at once. Put reports whether the entry wasn't blocked before.
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
	if ok && !next.Time.After(old.Time) { // the clock was set back; this change must still win
		next.Time = old.Time.Add(time.Millisecond)
	}
	b.all[next.ID] = next
	b.mu.Unlock()
	b.changed()
	return true
}

// Run keeps the copies of the list the same until ctx is done.
func (b *Blocks) Run(ctx context.Context) {
	for rediscall.Sleep(ctx, rediscall.Jittered(blocksPoll)) {
		b.Sync(ctx)
	}
}

// blocksPoll is the longest time between two syncs of the list. Other nodes must learn of a block within two seconds.
const blocksPoll = time.Second

// Sync merges the list with the copies in the file and in Redis, and writes to each what it lacks. It logs the first of
// several errors in a row. Run tries again.
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

// syncTries is how often sync reads and writes a copy if other nodes change it in between.
const syncTries = 10

// sync merges the list with a copy. Other processes may have changed the copy.
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
		if err != nil { // leave it as it is: an operator may be able to repair it
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

// snapshot returns the list without blocks that were lifted more than removedFor ago.
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
