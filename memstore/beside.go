package memstore

import (
	"math/rand/v2"

	"github.com/weirhq/weir/counter"
)

// beside is what a counter keeps outside of the pages: the entries of a sliding log, and its holds. The holds are the slots of
// a concurrency limit, or the records of reservations and of repeatable checks. The counter's segment keeps it under the
// counter's hash.
type beside struct {
	log   *counter.Log // nil if it has no entries
	holds *holdList    // nil if it has no holds
	slots bool         // the holds are slots, and the counter has no other state
	used  int64        // how much of the log's limit is used: see [counter.Policy.SpentLog]
	last  int64        // when the log will be empty, or when the last hold ends
	bytes int64        // its share of besideUse
}

// besideBytes is the approximate size of an empty beside with its map entry, and holdsBytes that of an empty holdList.
const (
	besideBytes = 144
	holdsBytes  = 136
)

// noHolds is what holdsOf returns for counters without holds. It is never written.
var noHolds holdList

// holdsOf returns a counter's holds. If there are none, the caller must not change the result.
func (g *segment) holdsOf(h uint64) *holdList {
	if b := g.beside[h]; b != nil && b.holds != nil {
		return b.holds
	}
	return &noHolds
}

// logOf returns a counter's log, or a new empty one that the segment doesn't keep.
func (g *segment) logOf(h uint64) *counter.Log {
	if b := g.beside[h]; b != nil && b.log != nil {
		return b.log
	}
	return &counter.Log{}
}

// put returns the counter's beside, and makes one if there is none.
func (g *segment) put(h uint64) *beside {
	b := g.beside[h]
	if b == nil {
		if g.beside == nil {
			g.beside = map[uint64]*beside{}
		}
		b = &beside{}
		g.beside[h] = b
	}
	return b
}

// log debits a sliding log if the charge is taken, and returns the charge's result.
func (t *table) log(st *step, p *counter.Policy, now int64, taken bool) counter.Result {
	l := st.segment.logOf(st.hash)
	if taken && !st.again && !st.there {
		p.TryLog(l, now, st.n)
		st.segment.put(st.hash).log = l
	}
	r := p.ReportLog(l, now, st.n, verdict(st.fits, taken))
	t.account(st.segment, st.hash, p, now)
	return r
}

// hold records or renews the hold of a charge that was taken.
func (t *table) hold(g *segment, h uint64, p *counter.Policy, of *counter.Hold, now, n, slot int64) {
	b := g.put(h)
	if b.slots = isSlots(p); b.holds == nil {
		b.holds = &holdList{}
	}
	b.holds.hold(p, of, now, n, slot)
}

// account updates a beside's size and worth, and drops it if it is empty. If memory is short, it evicts others.
func (t *table) account(g *segment, h uint64, p *counter.Policy, now int64) {
	b := g.beside[h]
	if b == nil {
		return
	}
	b.used, b.last = 0, 0
	if b.log != nil {
		if b.used, b.last = p.SpentLog(b.log); b.used == 0 {
			b.log = nil
		}
	}
	if b.holds != nil && b.holds.len() == 0 {
		b.holds = nil
	}
	if b.log == nil && b.holds == nil {
		t.drop(g, h)
		return
	}
	if t.resize(b); t.overBeside() {
		t.evictBeside(g, h, now)
	}
}

func (t *table) resize(b *beside) {
	size := int64(besideBytes)
	if b.log != nil {
		size += int64(b.log.Size())
	}
	if b.holds != nil {
		size += int64(b.holds.size()) + holdsBytes
		b.last = max(b.last, b.holds.lastEnd())
	}
	t.besideUse.Add(size - b.bytes)
	b.bytes = size
}

func (t *table) drop(g *segment, h uint64) {
	if b := g.beside[h]; b != nil {
		t.besideUse.Add(-b.bytes)
		delete(g.beside, h)
	}
}

// forget removes a counter of any algorithm, with its holds.
func (t *table) forget(g *segment, h uint64) {
	t.drop(g, h)
	if s := g.layout.find(h); s != nil {
		k := g.layout.pageOf(h)
		p := g.layout.pages[k]
		at, _ := p.search(h)
		p.remove(at)
		g.counts[k]--
	}
}

func (t *table) overBeside() bool { return t.besideUse.Load() > t.cap-t.pageUse.Load() }

// evictBeside evicts logs and holds until the rest fits the cap. It starts with those whose eviction lets clients take the fewest
// extra tokens. It evicts from the given locked segment, and from other segments whose lock is free. It spares the counter that
// was just written, and evicts slots in use last.
func (t *table) evictBeside(g *segment, keep uint64, now int64) {
	d := t.dir.Load()
	t.evictSome(d, g, keep, now, false, 64) // bounded, since there may be nothing but slots
	t.halve(g, keep)
	t.evictSome(d, g, keep, now, true, 4*len(d.layouts))
}

func (t *table) evictSome(d *directory, g *segment, keep uint64, now int64, inUse bool, tries int) {
	t.evictFrom(g, keep, now, inUse)
	for ; tries > 0 && t.overBeside(); tries-- {
		// Don't wait for the lock: locking out of order could deadlock.
		o := d.layouts[rand.IntN(len(d.layouts))].Load().owner
		if o != g && o.mu.TryLock() {
			t.evictFrom(o, keep, now, inUse)
			o.mu.Unlock()
		}
	}
}

// evictFrom evicts at most half of a segment's logs and holds.
func (t *table) evictFrom(g *segment, keep uint64, now int64, inUse bool) {
	const sample = 16
	for n := len(g.beside) / 2; n > 0 && t.overBeside(); n-- {
		victim, least, seen := uint64(0), int64(never), 0
		for h, b := range g.beside { // map order is random, which makes this a random sample
			if w := b.worth(now, inUse); h != keep && w < least {
				victim, least = h, w
			}
			if seen++; seen > sample {
				break
			}
		}
		if least == never {
			return
		}
		if b := g.beside[victim]; b.log != nil && b.holds != nil {
			b.holds = nil // evict the records first, and keep the log
			t.resize(b)
		} else {
			t.drop(g, victim)
		}
		t.evicted.Add(1)
	}
}

// never is the worth of a beside that must not be evicted.
const never = maxUsed + 2

// worth says how many extra tokens an eviction would let clients take: none for records, and for slots in use more than for
// any log.
func (b *beside) worth(now int64, inUse bool) int64 {
	switch {
	case b.last <= now, b.holds != nil && !b.slots:
		return 0
	case !b.slots:
		return b.used
	case inUse:
		return maxUsed + 1
	}
	return never
}

// halve drops the older half of a counter's records again and again, until memory is within the cap or one record is left. The
// tokens of dropped records aren't given back, so nothing is admitted twice.
func (t *table) halve(g *segment, h uint64) {
	for b := g.beside[h]; b != nil && b.holds != nil && !b.slots && b.holds.len() > 1 && t.overBeside(); t.resize(b) {
		b.holds.drop((b.holds.len() + 1) / 2)
	}
}
