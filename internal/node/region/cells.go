package region

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/rediscall"
	"github.com/weirhq/weir/redisstore"
)

// Cells is where the stakes of a region are: values by key, each of which is changed as a whole.
type Cells interface {
	// Update replaces values by what change makes of them, at the moment of the store's clock, µs. Nothing came between: change is
	// called again if something did. A value that there isn't is empty, one that becomes empty is deleted, and one that
	// stays as it is isn't written. Keys are of one place: see redisCells. If there is no room for a new value, nothing is
	// written, and the error is counter.ErrNoRoom; values that are there change all the same.
	Update(ctx context.Context, keys []string, change func(values [][]byte, now int64) []Cell) error
	// Tight reports whether there is little room: clients that could choose their names freely get no new stakes.
	Tight() bool
}

// Cell is a value, and how long it is kept.
type Cell struct {
	Value []byte
	TTL   time.Duration
}

// maxTries is how often a change is tried while others are quicker.
const maxTries = 100

var errBusy = errors.New("too many nodes change one counter at once")

// redisCells keeps values in Redis. The arithmetic is done on nodes: Redis only compares and swaps, so there is one form of it.
type redisCells struct {
	store *redisstore.Store
	turns chan struct{} // has one element for each change under way
}

// maxUpdates is how many changes are under way at once: each has a connection of its own, with buffers of 1 MiB. The client could
// also send all through a few, but then it doesn't keep to deadlines when Redis hangs.
const maxUpdates = 32

// RedisCells keeps stakes beside the counters of a store.
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
		reply, err := m.ToArray()
		if err != nil {
			return fmt.Errorf("redis: %w", err)
		}
		now, err := reply[0].AsInt64()
		if err != nil || len(reply) != 1 && len(reply) != len(keys)+1 {
			return errors.Join(errors.New("redis: the script's reply makes no sense"), err)
		}
		if len(reply) == 1 {
			return nil
		}
		old := make([][]byte, len(keys))
		args = args[:0]
		for i := range old {
			text, err := reply[i+1].ToString()
			if err != nil {
				return fmt.Errorf("redis: %w", err)
			}
			old[i] = []byte(text)
			args = append(args, text)
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

// memoryCells keeps values in the process, for a region of one node.
type memoryCells struct {
	mu     sync.Mutex
	values map[string]kept
	sweep  int64
	clock  func() int64 // µs; tests have others
}

type kept struct {
	value []byte
	until int64
}

// maxCells is how many values are kept in the process, of a few hundred bytes each.
const maxCells = 1 << 18

// MemoryCells keeps stakes in the process.
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
			continue // its time may not have been given
		}
		if len(cell.Value) == 0 {
			delete(c.values, keys[i])
			continue
		}
		c.values[keys[i]] = kept{cell.Value, max(c.values[keys[i]].until, now+cell.TTL.Microseconds())} // as in swap.lua
	}
	return nil
}
