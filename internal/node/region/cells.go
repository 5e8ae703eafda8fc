package region

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/rediscall"
	"github.com/weirhq/weir/redisstore"
)

// Cells stores a region's stakes: small values by key, each changed as a whole.
type Cells interface {
	// Update atomically replaces the values of keys with those that change returns. It passes change the current
	// values, and the time of the store's clock in µs. If another writer was faster, it calls change again. A missing
	// value is empty; a value that becomes empty is deleted; an unchanged value isn't written. All keys must be in one
	// hash slot. If a new value doesn't fit into the store, Update writes nothing and returns counter.ErrNoRoom;
	// existing values can still change.
	Update(ctx context.Context, keys []string, change func(values [][]byte, now int64) []Cell) error
	// Tight reports whether the store's memory is nearly full. If so, clients that could choose their names freely get
	// no new stakes.
	Tight() bool
}

// Cell is a value, and how long the store keeps it.
type Cell struct {
	Value []byte
	TTL   time.Duration
}

const maxTries = 100

var errBusy = errors.New("too many nodes are changing this counter")

// redisCells keeps values in Redis. Redis only compares and swaps values. Nodes do the arithmetic, so that it exists
// only once, in Go.
type redisCells struct {
	store *redisstore.Store
	turns chan struct{} // holds one element for each update in progress
}

// maxUpdates bounds concurrent updates. Each of them uses its own connection, with buffers of 1 MiB. Sharing a few
// connections would need less memory, but then the client misses deadlines when Redis hangs.
const maxUpdates = 32

// RedisCells keeps stakes in the Redis in which a store keeps its counters.
func RedisCells(store *redisstore.Store) Cells {
	return redisCells{store, make(chan struct{}, maxUpdates)}
}

//go:embed lua
var files embed.FS

var swap = rediscall.NewScript(files, "swap")

func (c redisCells) Update(ctx context.Context, keys []string, change func([][]byte, int64) []Cell) error {
	if err := c.store.Lost(); err != nil {
		return err
	}
	select {
	case c.turns <- struct{}{}:
		defer func() { <-c.turns }()
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", redisstore.ErrUnavailable, ctx.Err())
	}
	names := make([]string, len(keys))
	for i, key := range keys {
		names[i] = c.store.Prefix() + key
	}
	var args []string
	for range maxTries {
		m, err := swap.Run(ctx, c.store, rediscall.Once, names, args...)
		if re, is := rueidis.IsRedisErr(err); is && strings.HasPrefix(re.Error(), "OOM") {
			return c.store.Full()
		}
		if err != nil {
			return fmt.Errorf("%w: %w", redisstore.ErrUnavailable, err)
		}
		reply, err := m.AsStrSlice()
		if err != nil || len(reply) != 1 && len(reply) != len(keys)+1 {
			return errors.Join(errors.New("redis: unexpected reply of the script"), err)
		}
		now, err := strconv.ParseInt(reply[0], 10, 64)
		if err != nil || len(reply) == 1 {
			return err
		}
		args = slices.Clone(reply[1:])
		old := make([][]byte, len(keys))
		for i, value := range args {
			old[i] = []byte(value)
		}
		changed := false
		for i, cell := range change(old, now) {
			changed = changed || string(cell.Value) != args[i]
			args = append(args, string(cell.Value), strconv.FormatInt(max(1, cell.TTL.Milliseconds()), 10))
		}
		if !changed {
			return nil
		}
	}
	return errBusy
}

func (c redisCells) Tight() bool { return c.store.Tight() }

// memoryCells keeps values in this process, for a region with one node.
type memoryCells struct {
	mu     sync.Mutex
	values map[string]kept
	sweep  int64
	clock  func() int64 // µs; replaced in tests
}

type kept struct {
	value []byte
	until int64
}

// maxCells bounds how many values the process keeps. Each takes a few hundred bytes.
const maxCells = 1 << 18

// MemoryCells keeps stakes in this process.
func MemoryCells() Cells {
	return &memoryCells{values: map[string]kept{}, clock: func() int64 { return time.Now().UnixMicro() }}
}

func (c *memoryCells) Tight() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.values) >= maxCells*3/4
}

func (c *memoryCells) Update(_ context.Context, keys []string, change func([][]byte, int64) []Cell) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock()
	if now >= c.sweep {
		for key, v := range c.values {
			if now >= v.until {
				delete(c.values, key)
			}
		}
		c.sweep = now + time.Minute.Microseconds()
	}
	old := make([][]byte, len(keys))
	for i, key := range keys {
		if v := c.values[key]; now < v.until {
			old[i] = v.value
		}
	}
	if _, there := c.values[keys[0]]; !there && len(c.values) >= maxCells {
		return counter.ErrNoRoom
	}
	for i, cell := range change(old, now) {
		if bytes.Equal(cell.Value, old[i]) {
			continue // an unchanged value may have no TTL
		}
		if len(cell.Value) == 0 {
			delete(c.values, keys[i])
			continue
		}
		c.values[keys[i]] = kept{cell.Value, max(c.values[keys[i]].until, now+cell.TTL.Microseconds())} // never shorten the time, as in swap.lua
	}
	return nil
}
