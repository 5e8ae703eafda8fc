package region

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/redisstore"
)

// TestCells checks the contract of all kinds of cells: values change together, and are kept at least as long as
// requested.
func TestCells(t *testing.T) {
	redis, store := openRedis(t)
	memory := MemoryCells().(*memoryCells)
	for name, c := range map[string]struct {
		Cells
		left func(key string) time.Duration // how long a value is kept
	}{
		"memory": {memory, func(key string) time.Duration {
			return time.Duration(memory.values[key].until-memory.clock()) * time.Microsecond
		}},
		"redis": {RedisCells(store), func(key string) time.Duration {
			ms, err := redis.Do(t.Context(), "PTTL", store.Prefix()+key)
			if err != nil {
				t.Fatal(err)
			}
			return time.Duration(ms.(int64)) * time.Millisecond
		}},
	} {
		write := func(was string, cells ...Cell) {
			t.Helper()
			keys := []string{"{k}", "{k}:a", "{k}:b"}[:len(cells)]
			if err := c.Update(t.Context(), keys, func(values [][]byte, _ int64) []Cell {
				if got := fmt.Sprintf("%s", values); got != was {
					t.Errorf("%s: %s is there, want %s", name, got, was)
				}
				return cells
			}); err != nil {
				t.Fatal(name, err)
			}
		}
		value := func(text string, ttl time.Duration) Cell { return Cell{[]byte(text), ttl} }
		write("[  ]", value("1", time.Hour), value("2", time.Hour), value("", 0))
		write("[1 2 ]", value("1", 0), value("3", time.Minute), value("4", time.Minute))
		write("[1 3 4]", value("5", 2*time.Hour), value("3", 0), value("", 0))
		write("[5 3 ]", value("5", 0), value("3", 0), value("", 0))
		for key, least := range map[string]time.Duration{"{k}": 2 * time.Hour, "{k}:a": time.Hour} {
			if d := c.left(key); d > least || d < least-time.Minute {
				t.Errorf("%s: %s is kept for %v, want %v", name, key, d, least)
			}
		}
	}
}

// TestCellsOfAProcess checks that cells in memory expire, and that their number is limited. At the limit, existing
// cells can still change.
func TestCellsOfAProcess(t *testing.T) {
	c, now := MemoryCells().(*memoryCells), int64(1)
	c.clock = func() int64 { return now }
	update := func(key string, n byte) (was []byte, err error) {
		err = c.Update(context.Background(), []string{key}, func(values [][]byte, _ int64) []Cell {
			was = values[0]
			return []Cell{{[]byte{n}, time.Second}}
		})
		return was, err
	}
	_, _ = update("a", 1)
	now += 999_999
	if was, _ := update("a", 2); len(was) == 0 {
		t.Error("the value expired too early")
	}
	now += 1_000_000
	if was, _ := update("a", 3); len(was) > 0 {
		t.Error("the value is kept for too long")
	}
	for i := range maxCells - 1 {
		c.values[fmt.Sprint(i)] = kept{until: math.MaxInt64}
	}
	if _, err := update("b", 1); !errors.Is(err, counter.ErrNoRoom) {
		t.Errorf("one more than there is room for: %v", err)
	}
	if was, err := update("a", 4); err != nil || len(was) == 0 {
		t.Errorf("one that is there: %v", err)
	}
}

// TestCellsShareConnections checks that many concurrent changes use only a few connections, and that changes that wait
// for a connection observe their deadlines.
func TestCellsShareConnections(t *testing.T) {
	redis, store := openRedis(t)
	cells := RedisCells(store)
	connections := func() int {
		t.Helper()
		list, err := redis.Do(t.Context(), "CLIENT", "LIST")
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(fmt.Sprint(list), "\n")
	}
	before := connections()
	var all sync.WaitGroup
	for i := range 400 {
		all.Go(func() {
			for range 20 {
				if err := cells.Update(t.Context(), []string{fmt.Sprintf("{%d}", i)}, func(values [][]byte, _ int64) []Cell {
					return []Cell{{append(values[0], 'x'), time.Hour}}
				}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	const own = 4 // the most that the store opens on demand
	if n := connections(); n > before+maxUpdates+own {
		t.Errorf("%d connections, and %d before", n, before)
	}

	if err := redis.Stop(); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	for i := range 400 {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			if err := cells.Update(ctx, []string{fmt.Sprintf("{%d}", i)}, nil); !errors.Is(err, redisstore.ErrUnavailable) {
				t.Errorf("Redis hangs: %v", err)
			}
		})
	}
	all.Wait()
	if d := time.Since(begun); d > 45*time.Second { // each has 100 ms; if all shared one pipe, they would wait for its timeout of a minute
		t.Errorf("they waited for %v", d)
	}
	if err := redis.Cont(); err != nil {
		t.Fatal(err)
	}
}
