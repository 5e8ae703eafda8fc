package memstore

import (
	"math/rand/v2"

	"github.com/weirhq/weir"
)

// log takes a charge from a sliding log, if it may, and reports.
func (t *table) log(st *step, p *weir.Policy, now int64, taken bool) weir.Result {
	g, h := st.segment, st.hash
	l := g.logs[h]
	if l == nil {
		l = &logged{}
	}
	if taken && !st.again {
		p.TryLog(&l.Log, now, st.n)
		if g.logs == nil {
			g.logs = map[uint64]*logged{}
		}
		g.logs[h] = l
	}
	r := p.ReportLog(&l.Log, now, st.n, verdict(st.fits, taken))
	if g.logs[h] == l {
		t.rebook(g, h, l, p)
		if t.logUse.Load() > t.cap-t.pageUse.Load() {
			t.evictLogs(g, h, now)
		}
	}
	return r
}

// rebook brings a log's memory and its worth up to date, and drops it when it is empty.
func (t *table) rebook(g *segment, h uint64, l *logged, p *weir.Policy) {
	if l.used, l.whole = p.SpentLog(&l.Log); l.used == 0 {
		t.forget(g, h)
		return
	}
	size := int64(l.Size()) + logBytes
	t.logUse.Add(size - l.bytes)
	l.bytes = size
}

// forget removes a counter, of whichever kind.
func (t *table) forget(g *segment, h uint64) {
	if l := g.logs[h]; l != nil {
		t.logUse.Add(-l.bytes)
		delete(g.logs, h)
		return
	}
	if s := g.layout.find(h); s != nil {
		k := g.layout.pageOf(h)
		p := g.layout.pages[k]
		at, _ := p.search(h)
		p.remove(at)
		g.counts[k]--
	}
}

// evictLogs evicts logs, those closest to untouched first, until the rest fits the cap: in the
// given locked segment, and in others that happen to be free. The log just written stays.
func (t *table) evictLogs(g *segment, keep uint64, now int64) {
	t.evictFrom(g, keep, now)
	d := t.dir.Load()
	for try := 0; try < 4*len(d.layouts) && t.overLogs(); try++ {
		// Waiting for a lock out of order could be waiting for ever.
		o := d.layouts[rand.IntN(len(d.layouts))].Load().owner
		if o != g && o.mu.TryLock() {
			t.evictFrom(o, keep, now)
			o.mu.Unlock()
		}
	}
}

func (t *table) overLogs() bool { return t.logUse.Load() > t.cap-t.pageUse.Load() }

// evictFrom evicts half of a segment's logs at most.
func (t *table) evictFrom(g *segment, keep uint64, now int64) {
	for n := len(g.logs) / 2; n > 0 && t.overLogs(); n-- {
		const sample = 8
		victim, least, seen := uint64(0), int64(maxUsed+1), 0
		for h, l := range g.logs { // in random order
			if h == keep {
				continue
			}
			worth := l.used
			if l.whole <= now {
				worth = 0
			}
			if worth < least {
				victim, least = h, worth
			}
			if seen++; seen == sample {
				break
			}
		}
		if seen == 0 {
			return
		}
		t.forget(g, victim)
		t.evicted.Add(1)
	}
}
