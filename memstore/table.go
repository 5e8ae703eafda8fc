package memstore

import (
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/weirhq/weir"
)

// The table is extendible hashing over small segments. A segment owns a range of
// hashes, has a lock of its own, and spreads its range evenly over up to eight
// pages. It grows by one page at a time, and at eight it splits into two of four
// pages each, which moves no counter. So the table is always between two
// thirds and four fifths full, growing touches at most 2,048 slots, and pages
// are never freed or copied: growth leaves no garbage.
const (
	pageSlots = 256
	pageBytes = pageSlots * 24
	maxPages  = 8
	pageFull  = pageSlots * 15 / 16 // beyond this, probing gets long
	rootBits  = 6                   // segments to begin with: enough for every core to find its own
	logBytes  = 128                 // what a log costs beside its entries, about
)

// page is an open-addressed hash table. Counters stand in the order of their
// home positions (Robin Hood hashing), which keeps searches short in a full page, hits and misses alike.
type page [pageSlots]slot

type segment struct {
	mu     sync.Mutex // guards everything below
	prefix uint64     // the upper depth bits of every hash in here
	depth  uint8
	npages uint8
	// outgrown: all pages are there and it is crowded
	outgrown bool
	counts   [maxPages]uint16
	pages    [maxPages]*page
	logs     map[uint64]*logged
}

// logged is the counter of a sliding log.
type logged struct {
	weir.Log
	used  int64
	whole int64 // when it is empty again
	bytes int64 // what was booked for it
}

type directory struct {
	shift    uint8
	segments []atomic.Pointer[segment]
}

// table finds and keeps slots.
type table struct {
	dir   atomic.Pointer[directory]
	dirMu sync.Mutex // guards replacing dir and storing into its segments; taken with a segment's lock held, never before one
	epoch int64
	cap   int64

	pageUse atomic.Int64 // bytes of pages and segments
	logUse  atomic.Int64 // bytes of logs
	evicted atomic.Uint64
}

func (t *table) init(now, cap int64) {
	t.epoch = now - maxTime/8
	t.cap = cap
	d := &directory{shift: 64 - rootBits, segments: make([]atomic.Pointer[segment], 1<<rootBits)}
	for i := range d.segments {
		d.segments[i].Store(&segment{prefix: uint64(i), depth: rootBits})
	}
	t.dir.Store(d)
}

// lock returns the segment that owns the hash, locked.
func (t *table) lock(h uint64) *segment {
	for {
		d := t.dir.Load()
		g := d.segments[h>>d.shift].Load()
		g.mu.Lock()
		if g.owns(h) {
			return g
		}
		g.mu.Unlock() // it split meanwhile
	}
}

func (g *segment) owns(h uint64) bool { return h>>(64-g.depth) == g.prefix }

// pageOf spreads the segment's range evenly over its pages.
func (g *segment) pageOf(h uint64) int {
	i, _ := bits.Mul64(h<<g.depth, uint64(g.npages))
	return int(i)
}

// find returns the slot with this hash, or nil.
func (g *segment) find(h uint64) *slot {
	if g.npages == 0 {
		return nil
	}
	p := g.pages[g.pageOf(h)]
	if i, ok := p.search(h); ok {
		return &p[i]
	}
	return nil
}

func home(h uint64) int { return int(h % pageSlots) }

func distance(i int, h uint64) int { return (i - home(h)) & (pageSlots - 1) }

// search returns where the hash stands, or where it should.
func (p *page) search(h uint64) (int, bool) {
	i := home(h)
	for d := 0; ; d++ {
		s := &p[i]
		if s.tag == h {
			return i, true
		}
		if s.tag == 0 || distance(i, s.tag) < d {
			return i, false
		}
		i = (i + 1) & (pageSlots - 1)
	}
}

// insert makes room for a hash that isn't in the page, which isn't full.
func (p *page) insert(h uint64) *slot {
	i, _ := p.search(h)
	put := slot{tag: h}
	for j := i; put.tag != 0; j = (j + 1) & (pageSlots - 1) {
		p[j], put = put, p[j]
	}
	return &p[i]
}

// remove closes the gap, so that no search has to step over it.
func (p *page) remove(i int) {
	for {
		next := (i + 1) & (pageSlots - 1)
		if p[next].tag == 0 || distance(next, p[next].tag) == 0 {
			p[i] = slot{}
			return
		}
		p[i] = p[next]
		i = next
	}
}

// unlock ends the use of a segment, and splits it if it has outgrown its pages:
// not sooner, since a split gives away counters that the holder of the lock may be about to touch.
func (t *table) unlock(g *segment) {
	if g.outgrown {
		t.split(g)
	}
	g.mu.Unlock()
}

// add returns a new slot for a hash that the locked segment owns and doesn't
// hold. Slots found before may have moved.
func (t *table) add(g *segment, h uint64, now int64) *slot {
	if g.npages == 0 {
		t.pageUse.Add(pageBytes) // the first page is granted whatever the cap
		g.pages[0], g.npages = new(page), 1
	}
	i := g.pageOf(h)
	if int(g.counts[i]) >= pageFull-pageSlots/32 || g.crowded() {
		i = t.makeRoom(g, h, now)
	}
	g.counts[i]++
	return g.pages[i].insert(h)
}

// crowded: more than four fifths of the slots are taken.
func (g *segment) crowded() bool {
	n := 0
	for _, c := range g.counts[:g.npages] {
		n += int(c)
	}
	return n*5 > int(g.npages)*pageSlots*4
}

// makeRoom returns a page of the segment for the hash that isn't full: by
// forgetting idle counters, by growing, or, at the cap, by forgetting the counter that matters least.
func (t *table) makeRoom(g *segment, h uint64, now int64) int {
	// At the cap the segment isn't searched for each new counter: evict meets the idle ones, too.
	if t.pageUse.Load()+pageBytes <= t.pageCap() && t.reclaim(g, now) < pageSlots/4 {
		if g.npages == maxPages {
			g.outgrown = true
		} else if t.book(pageBytes) {
			g.grow()
		}
	}
	i := g.pageOf(h)
	if int(g.counts[i]) >= pageFull {
		t.evict(g.pages[i], h, now)
		g.counts[i]--
	}
	return i
}

// reclaim forgets the counters that are whole again.
func (t *table) reclaim(g *segment, now int64) (freed int) {
	for k := range int(g.npages) {
		p := g.pages[k]
		for i := 0; i < pageSlots; {
			if p[i].tag != 0 && p[i].worth(now, t.epoch) == 0 {
				p.remove(i) // which may have brought another one here
				g.counts[k]--
				freed++
				continue
			}
			i++
		}
	}
	return freed
}

// evict removes, of the counters near a hash's home, the one closest to untouched.
func (t *table) evict(p *page, h uint64, now int64) {
	const sample = 32
	victim, least := 0, float32(2)
	for i, seen := home(h), 0; seen < sample; i = (i + 1) & (pageSlots - 1) {
		if p[i].tag == 0 {
			continue
		}
		seen++
		if w := p[i].worth(now, t.epoch); w < least {
			victim, least = i, w
		}
	}
	p.remove(victim)
	t.evicted.Add(1)
}

// grow adds a page, which the caller has booked.
func (g *segment) grow() {
	n := int(g.npages)
	g.pages[n] = new(page)
	g.npages++
	// From the last page to the first: a counter stays where it is, or moves one page up.
	for k := n - 1; k >= 0; k-- {
		p := g.pages[k]
		for i := 0; i < pageSlots; {
			h := p[i].tag
			if h == 0 || g.pageOf(h) == k {
				i++
				continue
			}
			*g.pages[k+1].insert(h) = p[i]
			g.counts[k+1]++
			p.remove(i)
			g.counts[k]--
		}
	}
}

// split hands the upper half of the segment's range, and the pages it fills, to a new segment.
func (t *table) split(g *segment) {
	g.outgrown = false
	up := &segment{prefix: g.prefix<<1 | 1, depth: g.depth + 1, npages: maxPages / 2}
	g.prefix, g.depth, g.npages = g.prefix<<1, g.depth+1, maxPages/2
	copy(up.pages[:], g.pages[maxPages/2:])
	copy(up.counts[:], g.counts[maxPages/2:])
	clear(g.pages[maxPages/2:])
	clear(g.counts[maxPages/2:])
	for h, l := range g.logs {
		if up.owns(h) {
			if up.logs == nil {
				up.logs = map[uint64]*logged{}
			}
			up.logs[h] = l
			delete(g.logs, h)
		}
	}

	t.dirMu.Lock()
	defer t.dirMu.Unlock()
	d := t.dir.Load()
	if up.depth > 64-d.shift {
		wide := &directory{shift: d.shift - 1, segments: make([]atomic.Pointer[segment], 2*len(d.segments))}
		for i := range wide.segments {
			wide.segments[i].Store(d.segments[i/2].Load())
		}
		d = wide
		t.dir.Store(d)
	}
	run := 1 << (64 - d.shift - up.depth)
	for i := range run {
		d.segments[int(up.prefix)*run+i].Store(up)
	}
}

// pageCap leaves an eighth of the cap to logs, and more when they have it already.
func (t *table) pageCap() int64 { return t.cap - max(t.logUse.Load(), t.cap/8) }

// book reserves memory for pages, if the cap allows it.
func (t *table) book(bytes int64) bool {
	if t.pageUse.Add(bytes) <= t.pageCap() {
		return true
	}
	t.pageUse.Add(-bytes)
	return false
}
