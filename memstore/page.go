package memstore

import (
	"math/rand/v2"
	"runtime"
	"sync/atomic"
)

const (
	pageSlots = 256
	pageBytes = pageSlots * 24
	pageFull  = pageSlots * 15 / 16 // beyond this, probing gets long
)

// page is an open-addressed hash table. Counters stand in the order of their
// home positions (Robin Hood hashing), which keeps searches short in a full page, hits and misses alike.
//
// Any goroutine may search a page. The one that holds a slot's busy bit owns its time and level.
// Slots are put in, moved and removed only under the segment's lock, and only with their busy bit
// held, so a search that runs meanwhile can miss a counter, but never find it twice, nor one that
// isn't there.
type page [pageSlots]slot

// busy is the bit of a tag that says that the slot is in use.
const busy = 1

func home(h uint64) int { return int(h >> 1 % pageSlots) }

func distance(i int, h uint64) int { return (i - home(h)) & (pageSlots - 1) }

// hash is the slot's hash, or 0 if it is empty.
func (s *slot) hash() uint64 { return atomic.LoadUint64(&s.tag) &^ busy }

// lock takes the busy bit, or reports false when the slot isn't that of this hash any more.
//
// Bits are held for some 20 ns. A check that finds one taken backs off for ten times as long, and
// each time for twice as long as before: that lets the holder's core do a few checks with the
// counter in its cache, where trying at once would move it back and forth. Chance keeps two cores
// from meeting again in step.
func (s *slot) lock(h uint64) bool {
	const first, longest = 256, 4096
	for n := first; !atomic.CompareAndSwapUint64(&s.tag, h, h|busy); n = min(2*n, longest) {
		if s.hash() != h {
			return false
		}
		if n > first {
			runtime.Gosched() // the holder may wait for a processor
		}
		//lint:ignore SA4017 the time it takes is what it is for
		idle(n/2 + rand.IntN(n))
	}
	return true
}

// unlock gives the slot up, for a counter of this hash or, with 0, as empty.
func (s *slot) unlock(h uint64) { atomic.StoreUint64(&s.tag, h) }

// idle passes about n nanoseconds without touching memory.
//
//go:noinline
func idle(n int) (x uint32) {
	for i := range n {
		x = x*1664525 + uint32(i)
	}
	return x
}

// find returns the slot of a counter, locked, or nil. See [layout.find].
func (p *page) find(h uint64) *slot {
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

// search returns where the hash stands, or where it should.
func (p *page) search(h uint64) (int, bool) {
	i := home(h)
	for d := range pageSlots {
		tag := p[i].hash()
		if tag == h {
			return i, true
		}
		if tag == 0 || distance(i, tag) < d {
			break
		}
		i = (i + 1) & (pageSlots - 1)
	}
	return i, false
}

// insert makes room for a hash that isn't in the page, which isn't full, and returns its slot, locked.
func (p *page) insert(h uint64) *slot {
	i, _ := p.search(h)
	end := i
	for p[end].hash() != 0 {
		end = (end + 1) & (pageSlots - 1)
	}
	// From the end of the run: each counter has moved before its place is taken.
	for j := end; j != i; {
		before := (j - 1) & (pageSlots - 1)
		p.move(before, j)
		j = before
	}
	p[i].unlock(h | busy)
	return &p[i]
}

// move takes a counter to a slot that is empty or locked, and leaves its own locked.
func (p *page) move(from, to int) {
	h := p[from].hash()
	p[from].lock(h)
	p[to].when, p[to].level = p[from].when, p[from].level
	p[to].unlock(h)
}

// remove closes the gap that a locked slot leaves, so that no search has to step over it.
func (p *page) remove(i int) {
	for {
		next := (i + 1) & (pageSlots - 1)
		if h := p[next].hash(); h == 0 || distance(next, h) == 0 {
			p[i].unlock(0)
			return
		}
		p.move(next, i)
		i = next
	}
}
