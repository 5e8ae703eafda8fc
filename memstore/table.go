package memstore

import (
	"math/bits"
	"sync"
	"sync/atomic"
)

// The table is extendible hashing over small segments. A segment owns a range of hashes, spread evenly
// over up to eight pages. It grows one page at a time. With eight pages, it splits into two segments of
// four pages each, which moves no counter. So the table is always between two thirds and four fifths full.
// Growing touches at most 2,048 cells, and leaves no garbage, since pages are never freed or copied.
//
// To find and change an existing counter, code needs no lock but the counter's busy bit, which is in the
// cache line that a check needs anyway. To add, move or remove counters, code holds the segment's lock.
const (
	maxPages = 8
	rootBits = 6 // initially 2^6 segments, enough that cores rarely need the same one
)

// layout says which pages a segment's counters are in. It is immutable: a segment that grows gets a
// new one.
type layout struct {
	prefix uint64 // the upper depth bits of every hash in the segment
	depth  uint8
	npages uint8
	pages  [maxPages]*page
	owner  *segment
}

type segment struct {
	mu       sync.Mutex // guards everything below
	layout   *layout    // the current layout
	outgrown bool       // all eight pages are allocated and too full, so the segment must split
	counts   [maxPages]uint16
	beside   map[uint64]*beside
}

type directory struct {
	shift   uint8
	layouts []atomic.Pointer[layout]
}

// table finds and keeps counters.
type table struct {
	dir atomic.Pointer[directory]
	// dirMu guards replacing dir and storing into it. It may be locked while a segment's lock is
	// held, but no segment's lock may be taken while it is held.
	dirMu sync.Mutex
	epoch int64
	cap   int64

	pageUse   atomic.Int64 // bytes of pages
	besideUse atomic.Int64 // bytes of logs and holds
	evicted   atomic.Uint64
}

func (t *table) init(now, cap int64) {
	t.epoch = now - maxTime/8
	t.cap = cap
	d := &directory{shift: 64 - rootBits, layouts: make([]atomic.Pointer[layout], 1<<rootBits)}
	for i := range d.layouts {
		g := &segment{}
		g.layout = &layout{prefix: uint64(i), depth: rootBits, owner: g}
		d.layouts[i].Store(g.layout)
	}
	t.dir.Store(d)
}

func (t *table) lookup(h uint64) *layout {
	d := t.dir.Load()
	return d.layouts[h>>d.shift].Load()
}

func (l *layout) owns(h uint64) bool { return h>>(64-l.depth) == l.prefix }

// pageOf returns the index of the hash's page. It spreads the segment's range evenly over its pages.
func (l *layout) pageOf(h uint64) int {
	i, _ := bits.Mul64(h<<l.depth, uint64(l.npages))
	return int(i & (maxPages - 1))
}

// page returns the page for the hash, or nil if the segment has none yet.
func (l *layout) page(h uint64) *page { return l.pages[l.pageOf(h)] }

// find returns the counter's cell, locked, or nil. Without the segment's lock, nil can also mean
// that the counter is being moved.
func (l *layout) find(h uint64) *cell {
	p := l.page(h)
	if p == nil {
		return nil
	}
	return p.find(h)
}

// lock returns the segment that owns the hash, locked.
func (t *table) lock(h uint64) *segment {
	for {
		g := t.lookup(h).owner
		g.mu.Lock()
		if g.layout.owns(h) {
			return g
		}
		g.mu.Unlock() // the segment has split in the meantime
	}
}

// unlock unlocks a segment. If the segment has outgrown its pages, unlock splits it first; an
// earlier split could hand away counters that the holder of the lock is still working on.
func (t *table) unlock(g *segment) {
	if g.outgrown {
		t.split(g)
	}
	g.mu.Unlock()
}

// add returns a new cell, locked, for a hash that the locked segment owns but doesn't contain.
func (t *table) add(g *segment, h uint64, now int64) *cell {
	if g.layout.npages == 0 {
		t.pageUse.Add(pageBytes) // the first page is granted regardless of the cap
		t.grow(g)
	}
	i := g.layout.pageOf(h)
	if int(g.counts[i]) >= pageFull-pageCells/32 || g.crowded() {
		i = t.makeRoom(g, h, now)
	}
	g.counts[i]++
	return g.layout.pages[i].insert(h)
}

// crowded reports whether more than four fifths of the cells are taken.
func (g *segment) crowded() bool {
	n := 0
	for _, c := range g.counts {
		n += int(c)
	}
	return n*5 > int(g.layout.npages)*pageCells*4
}

// makeRoom returns the index of a page that has room for the hash. It removes counters that are
// full again, grows the segment, or, at the cap, evicts the counter whose loss matters least.
func (t *table) makeRoom(g *segment, h uint64, now int64) int {
	// At the cap, don't scan the segment for each new counter: evict prefers counters that are full
	// again anyway.
	if t.pageUse.Load()+pageBytes <= t.pageCap() && t.reclaim(g, now) < pageCells/4 {
		switch {
		case g.layout.npages == maxPages:
			g.outgrown = true
		case t.pageUse.Add(pageBytes) <= t.pageCap():
			t.grow(g)
		default: // other segments took the memory
			t.pageUse.Add(-pageBytes)
		}
	}
	i := g.layout.pageOf(h)
	if int(g.counts[i]) >= pageFull {
		t.evict(g.layout.pages[i], h, now)
		g.counts[i]--
	}
	return i
}

// reclaim removes the counters that are full again, and returns how many there were.
func (t *table) reclaim(g *segment, now int64) (freed int) {
	for k, p := range g.layout.pages[:g.layout.npages] {
		for i := 0; i < pageCells; {
			h := p[i].hash()
			if h == 0 {
				i++
				continue
			}
			p[i].lock(h)
			if p[i].worth(now, t.epoch) > 0 {
				p[i].unlock(h)
				i++
				continue
			}
			p.remove(i) // this may have moved another counter here
			g.counts[k]--
			freed++
		}
	}
	return freed
}

// evict removes one of the counters near the hash's home: the one that has used the least of its limit.
func (t *table) evict(p *page, h uint64, now int64) {
	const sample = 16
	victim, least := -1, float32(2)
	for i, seen := home(h), 0; seen < sample; i = (i + 1) & (pageCells - 1) {
		tag := p[i].hash()
		if tag == 0 {
			continue
		}
		seen++
		p[i].lock(tag)
		if w := p[i].worth(now, t.epoch); w < least {
			if victim >= 0 {
				p[victim].unlock(p[victim].hash())
			}
			victim, least = i, w
			continue // keep it locked until a better victim is found
		}
		p[i].unlock(tag)
	}
	p.remove(victim)
	t.evicted.Add(1)
}

// grow adds a page to the segment. The caller has accounted for its memory.
func (t *table) grow(g *segment) {
	n := int(g.layout.npages)
	next := *g.layout
	next.pages[n] = new(page)
	next.npages++
	// Go from the last page to the first: each counter stays where it is or moves up one page.
	for k := n - 1; k >= 0; k-- {
		p := next.pages[k]
		for i := 0; i < pageCells; {
			h := p[i].hash()
			if h == 0 || next.pageOf(h) == k {
				i++
				continue
			}
			p[i].lock(h)
			to := next.pages[k+1].insert(h)
			to.when, to.level = p[i].when, p[i].level
			to.unlock(h)
			g.counts[k+1]++
			p.remove(i)
			g.counts[k]--
		}
	}
	t.publish(g, &next)
}

// split moves the upper half of the segment's range, with its pages, to a new segment.
func (t *table) split(g *segment) {
	const half = maxPages / 2
	g.outgrown = false
	old := g.layout
	up := &segment{}
	low := &layout{prefix: old.prefix << 1, depth: old.depth + 1, npages: half, owner: g}
	high := &layout{prefix: old.prefix<<1 | 1, depth: old.depth + 1, npages: half, owner: up}
	copy(low.pages[:], old.pages[:half])
	copy(high.pages[:], old.pages[half:])
	copy(up.counts[:], g.counts[half:])
	clear(g.counts[half:])
	for h, b := range g.beside {
		if high.owns(h) {
			*up.put(h) = *b
			delete(g.beside, h)
		}
	}
	t.publish(up, high)
	t.publish(g, low)
}

// publish makes a layout the current one of its segment.
func (t *table) publish(g *segment, l *layout) {
	g.layout = l
	t.dirMu.Lock()
	defer t.dirMu.Unlock()
	d := t.dir.Load()
	for l.depth > 64-d.shift {
		wide := &directory{shift: d.shift - 1, layouts: make([]atomic.Pointer[layout], 2*len(d.layouts))}
		for i := range wide.layouts {
			wide.layouts[i].Store(d.layouts[i/2].Load())
		}
		d = wide
		t.dir.Store(d)
	}
	run := 1 << (64 - d.shift - l.depth)
	for i := range run {
		d.layouts[int(l.prefix)*run+i].Store(l)
	}
}

// pageCap returns the cap for pages. It leaves an eighth of the memory to logs and holds, or what
// they already use if that is more.
func (t *table) pageCap() int64 { return t.cap - max(t.besideUse.Load(), t.cap/8) }

// each calls f with every segment, locked.
func (t *table) each(f func(*segment)) {
	for h, last := uint64(0), false; !last; {
		g := t.lock(h)
		f(g)
		h = (g.layout.prefix + 1) << (64 - g.layout.depth)
		last = h == 0
		g.mu.Unlock()
	}
}
