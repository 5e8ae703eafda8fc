package memstore

import (
	"math/rand/v2"

	"github.com/weirhq/weir/counter"
)

// log debits a sliding log if the charge is taken, and reports.
func (t *table) log(st *step, p *counter.Policy, now int64, taken bool) counter.Result {
	g, h := st.segment, st.hash
	l := g.logs[h]
	if l == nil {
		l = &logged{}
	}
	if taken && !st.again && !st.there {
		p.TryLog(&l.Log, now, st.n)
		if g.logs == nil {
			g.logs = map[uint64]*logged{}
		}
		g.logs[h] = l
	}
	r := p.ReportLog(&l.Log, now, st.n, verdict(st.fits, taken))
	if g.logs[h] == l {
		t.account(g, h, l, p)
		if t.overLogs() {
			t.evictLogs(g, h, now)
		}
	}
	return r
}

// account updates the memory and the worth of a log, and drops it if it is empty.
func (t *table) account(g *segment, h uint64, l *logged, p *counter.Policy) {
	if l.used, l.whole = p.SpentLog(&l.Log); l.used == 0 {
		t.dropLog(g, h)
		return
	}
	size := int64(l.Size()) + logBytes
	t.logUse.Add(size - l.bytes)
	l.bytes = size
}

func (t *table) dropLog(g *segment, h uint64) {
	if l := g.logs[h]; l != nil {
		t.logUse.Add(-l.bytes)
		delete(g.logs, h)
	}
}

// forget removes a counter of any kind, with its holds.
func (t *table) forget(g *segment, h uint64) {
	t.dropLog(g, h)
	t.dropHolds(g, h)
	if s := g.layout.find(h); s != nil {
		k := g.layout.pageOf(h)
		p := g.layout.pages[k]
		at, _ := p.search(h)
		p.remove(at)
		g.counts[k]--
	}
}

func (t *table) overLogs() bool { return t.logUse.Load() > t.cap-t.pageUse.Load() }

// evictLogs evicts holds and logs until the rest fits the cap, starting with those that give the
// least away, from the given locked segment and from others whose lock is free. It spares the
// counter that was just written, and evicts slots in use last.
func (t *table) evictLogs(g *segment, keep uint64, now int64) {
	d := t.dir.Load()
	t.evictSome(d, g, keep, now, false, 64) // bounded: there may be nothing but slots
	t.halve(g, keep)
	t.evictSome(d, g, keep, now, true, 4*len(d.layouts))
}

func (t *table) evictSome(d *directory, g *segment, keep uint64, now int64, inUse bool, tries int) {
	t.evictFrom(g, keep, now, inUse)
	for ; tries > 0 && t.overLogs(); tries-- {
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
	for n := (len(g.logs) + len(g.holds)) / 2; n > 0 && t.overLogs(); n-- {
		victim, drop, least := uint64(0), t.dropLog, int64(never)
		try := func(h uint64, worth, ends int64, from func(*segment, uint64)) {
			if ends <= now {
				worth = 0
			}
			if h != keep && worth < least {
				victim, drop, least = h, from, worth
			}
		}
		const sample = 8
		seen := 0
		for h, l := range g.logs { // map order is random, which makes this a random sample
			if try(h, l.used, l.whole, t.dropLog); seen == sample {
				break
			}
			seen++
		}
		seen = 0
		for h, hs := range g.holds {
			if try(h, hs.worth(inUse), hs.last, t.dropHolds); seen == sample {
				break
			}
			seen++
		}
		if least == never {
			return
		}
		drop(g, victim)
		t.evicted.Add(1)
	}
}

// never is the worth of counters that must not be evicted.
const never = maxUsed + 2

// worth says how much evicting the holds would give away: nothing for records, more than any log
// for slots in use.
func (hs *held) worth(inUse bool) int64 {
	switch {
	case !hs.slots:
		return 0
	case inUse:
		return maxUsed + 1
	}
	return never
}
