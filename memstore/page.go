package memstore

import (
	"math/rand/v2"
	"runtime"
	"sync/atomic"
)

const (
	pageCells = 256
	pageBytes = pageCells * 24
	pageFull  = pageCells * 15 / 16 // fuller pages make probing too slow
)

// page is an open-addressed hash table. Its counters are in the order of their home positions
// (Robin Hood hashing), which keeps searches short in a full page, whether they hit or miss.
//
// Any goroutine may search a page. A cell's time and level belong to the goroutine that holds its busy
// bit. Cells are inserted, moved and removed only under the segment's lock and with their busy bit held.
// So a concurrent search can miss a counter, but it never finds a counter twice, or one that isn't there.
type page [pageCells]cell

// busy is the bit of a tag that marks the cell as locked.
const busy = 1

func home(h uint64) int { return int(h >> 1 % pageCells) }

func distance(i int, h uint64) int { return (i - home(h)) & (pageCells - 1) }

// hash returns the cell's hash, or 0 if the cell is empty.
func (c *cell) hash() uint64 { return atomic.LoadUint64(&c.tag) &^ busy }

// lock takes the busy bit. It returns false if the cell no longer holds this hash.
//
// A bit is held for about 20 ns. A check that finds it taken backs off for ten times as long, and
// doubles that each time: the holder's core can then do several checks with the counter in its
// cache, where immediate retries would bounce the cache line between cores. The backoff is random,
// so that two cores don't collide in step.
func (c *cell) lock(h uint64) bool {
	const first, longest = 256, 4096
	for n := first; !atomic.CompareAndSwapUint64(&c.tag, h, h|busy); n = min(2*n, longest) {
		if c.hash() != h {
			return false
		}
		if n > first {
			runtime.Gosched() // the holder may be waiting for a processor
		}
		//lint:ignore SA4017 the time it takes is what it is for
		idle(n/2 + rand.IntN(n))
	}
	return true
}

// unlock releases the cell to the counter of this hash, or as empty if h is 0.
func (c *cell) unlock(h uint64) { atomic.StoreUint64(&c.tag, h) }

// idle spends about n nanoseconds without touching memory.
//
//go:noinline
func idle(n int) (x uint32) {
	for i := range n {
		x = x*1664525 + uint32(i)
	}
	return x
}

// find returns the counter's cell, locked, or nil. See [layout.find].
func (p *page) find(h uint64) *cell {
	for {
		i, ok := p.search(h)
		if !ok {
			return nil
		}
		if p[i].lock(h) {
			return &p[i]
		}
	}
}

// search returns the index of the hash, or the index where it belongs.
func (p *page) search(h uint64) (int, bool) {
	i := home(h)
	for d := range pageCells {
		tag := p[i].hash()
		if tag == h {
			return i, true
		}
		if tag == 0 || distance(i, tag) < d {
			break
		}
		i = (i + 1) & (pageCells - 1)
	}
	return i, false
}

// insert makes room for a hash that isn't in the page, and returns its cell, locked. The page must
// not be full.
func (p *page) insert(h uint64) *cell {
	i, _ := p.search(h)
	end := i
	for p[end].hash() != 0 {
		end = (end + 1) & (pageCells - 1)
	}
	// Start at the end of the run, so that each counter has moved before its cell is overwritten.
	for j := end; j != i; {
		before := (j - 1) & (pageCells - 1)
		p.move(before, j)
		j = before
	}
	p[i].unlock(h | busy)
	return &p[i]
}

// move copies a counter to a cell that is empty or locked, and leaves its old cell locked.
func (p *page) move(from, to int) {
	h := p[from].hash()
	p[from].lock(h)
	p[to].when, p[to].level = p[from].when, p[from].level
	p[to].unlock(h)
}

// remove empties a locked cell and closes the gap, so that no search has to step over it.
func (p *page) remove(i int) {
	for {
		next := (i + 1) & (pageCells - 1)
		if h := p[next].hash(); h == 0 || distance(next, h) == 0 {
			p[i].unlock(0)
			return
		}
		p.move(next, i)
		i = next
	}
}
