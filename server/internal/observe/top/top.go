// Package top knows which clients are hot: who sends the most, and who is refused the most, now.
//
// Decisions are written down by [Top.Observe], into a small buffer for each core, and counted by [Top.Run] in a sketch of bounded
// size: however many clients there are, and however long their keys, a node keeps a thousand of each kind. Up to some ten
// thousand decisions a second all are looked at. Of more, one in 2^k is, with k such that about as many remain.
//
// A client is its key, else its user, else its address. Clients are counted once over all rules, and once with the rule that binds, for
// whoever looks at one rule alone. A request whose key nobody has verified counts for its address, too: a flood that makes up a
// key for each request shows there. People see a client as a keyed hash and a mask.
//
// Of every rule the busiest keys of the last hour are remembered as well, each ten seconds apart: see hour. Those of up to 191 bytes are kept
// whole, in memory alone, so that whoever has a client's fingerprint can act on it without its key.
//
// What it takes of a node's memory, beside the counters' own cap:
//
//   - buffers of decisions: 536 KiB for each core up to sixteen, rounded up to a power of two, and as much once more;
//   - sketches: four of a thousand entries, 2 MiB, and 1 MiB of rules;
//   - the hour: what its rules and keys need, 64 MiB at most;
//   - while somebody asks, and for three seconds after, what other nodes told of the hour, up to 128 MiB; and since somebody last asked who is
//     hot, the other nodes' lists, about 350 KiB each where a node has many clients, up to 128 MiB. Who has few nodes sees a few MiB of either.
package top

import (
	"context"
	"crypto/rand"
	"math"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/observer"
	"github.com/weirhq/weir/internal/siphash"
)

const (
	// drainEvery is how often buffers are emptied, at least.
	drainEvery = 100 * time.Millisecond
	// fewest and most are how many decisions to look at in that time, about: 16,000 to 128,000 a second. To look at
	// one costs about 200 ns, nearly all of it outside the check.
	fewest, most = 1_600, 12_800
	// buffered is how many decisions a core writes down before they are counted, bufferedCharges how many rules they were charged
	// to, and bufferedText how many bytes of the subjects of those.
	buffered        = 1 << 10
	bufferedCharges = 4 * buffered
	bufferedText    = 128 << 10
	// rarest is the k of one in 2^k.
	rarest = 16
)

// Top is what a node knows of its clients. Make one with [New]. It is safe for concurrent use.
type Top struct {
	options Options
	// below is what the Spread of a decision must not exceed to be looked at. Every check reads it, and
	// it changes at most ten times a second.
	below atomic.Uint64
	_     [64]byte
	key   atomic.Pointer[key]
	lanes []lane        // a power of two
	full  chan struct{} // holds a value when a lane is about to be full
	// missed is the weight of decisions that found every lane in use.
	missed atomic.Uint64

	mu      sync.Mutex // guards what follows, and is held while buffers are counted
	began   time.Time
	now     time.Time // that the nodes share, when buffers were last counted
	second  int64     // since it began
	slot    int64     // likewise
	spare   written
	seen    int     // decisions, since it was last asked whether they are too many
	oneIn   float64 // the most that one decision stood for in a slot that still counts
	oneInAt int64   // that slot
	clients sketches
	pairs   sketches // clients with the rule that bound
	rules   rules
	hour    hour
}

// Options of a Top. The zero value is useful.
type Options struct {
	// Totals tells how often each rule was used so far. It is asked every second, and gives rules their rates, and the exact times
	// of their last hit and refusal. Nil means that there are no rates, and times are those of decisions that were looked at.
	Totals func(tell func(rule string, t Total))
	// Rules are those in force: what they count by tells who a key of the hour is. Nil means that there are none.
	Rules func() *weir.RuleSet
	// Secret is what the nodes share, or nil while that isn't known. Nodes with one secret know a client by one fingerprint. Nil means
	// a random one.
	Secret func() []byte
	// Now is the time that the nodes share. Nil means time.Now.
	Now func() time.Time
}

// New makes a Top. It counts while [Top.Run] runs.
func New(o Options) *Top {
	if o.Now == nil {
		o.Now = time.Now
	}
	t := &Top{options: o, lanes: make([]lane, observer.Stripes()), full: make(chan struct{}, 1), spare: newWritten(), began: time.Now()}
	for i := range t.lanes {
		t.lanes[i].written = newWritten()
	}
	t.below.Store(math.MaxUint64)
	t.key.Store(newKey(nil))
	t.clients, t.pairs = newSketches(), newSketches()
	t.rules.byID = map[string]*rule{}
	t.hour = newHour()
	return t
}

// key is the key of the hash that stands for a client. Whoever sees fingerprints can't try out keys without it.
type key struct {
	secret string
	k0, k1 uint64
}

func newKey(secret []byte) *key {
	k := &key{secret: string(secret)}
	if secret == nil {
		secret = make([]byte, 16)
		_, _ = rand.Read(secret) // never fails
	}
	k.k0, k.k1 = siphash.Hash128(0x7765697220746f70, 0x636c69656e747321, secret)
	return k
}

// lane is a core's buffer, more or less.
type lane struct {
	mu sync.Mutex // held for a moment, and only tried: nobody waits for it
	written
	lost float64 // weight of those that found no room
	_    [64]byte
}

// written is what was written down.
type written struct {
	samples []sample
	charges []charged // of the samples, in their order
	text    []byte    // of the charges
}

func newWritten() written {
	return written{make([]sample, 0, buffered), make([]charged, 0, bufferedCharges), make([]byte, 0, bufferedText)}
}

// room reports whether another decision fits, whatever it is.
func (w *written) room() bool {
	return len(w.samples) < cap(w.samples) && len(w.charges)+mostCharges <= cap(w.charges) && len(w.text)+mostCharges*subjectBytes <= cap(w.text)
}

// filling reports whether it is time to count.
func (w *written) filling() bool {
	return len(w.samples) >= cap(w.samples)/2 || len(w.charges) >= cap(w.charges)/2 || len(w.text) >= cap(w.text)/2
}

// clear forgets all of it: nothing of a client's key stays longer than it must.
func (w *written) clear() {
	clear(w.samples)
	clear(w.charges)
	clear(w.text)
	w.samples, w.charges, w.text = w.samples[:0], w.charges[:0], w.text[:0]
}

// Observe looks at a decision. It is for [weir.Options]. It allocates nothing, and waits for nobody.
func (t *Top) Observe(o *weir.Observation) {
	if below := t.below.Load(); o.Spread <= below && !o.Request.Peek {
		t.write(o, below)
	}
}

// write writes a decision down, in the first lane that is free. There is one, unless there are more threads than cores.
func (t *Top) write(o *weir.Observation, below uint64) {
	weight := float64(uint64(1) << bits.LeadingZeros64(below))
	for i := range t.lanes {
		l := &t.lanes[(int(o.Lane)+i)&(len(t.lanes)-1)]
		if !l.mu.TryLock() {
			continue
		}
		if !l.room() {
			l.lost += weight
			t.rarer(below)
		} else {
			n, k := len(l.samples), t.key.Load()
			l.samples = l.samples[:n+1]
			l.samples[n].of(o, k, weight)
			l.charge(&l.samples[n], o, k)
		}
		filling := l.filling()
		l.mu.Unlock()
		if filling {
			select {
			case t.full <- struct{}{}:
			default: // it holds one
			}
		}
		return
	}
	t.missed.Add(uint64(weight))
}

// rarer has half as many decisions looked at, unless that has been done meanwhile.
func (t *Top) rarer(below uint64) {
	if below > math.MaxUint64>>rarest {
		t.below.CompareAndSwap(below, below>>1)
	}
}

// Run counts until ctx is done.
func (t *Top) Run(ctx context.Context) error {
	ticks := time.NewTicker(drainEvery)
	defer ticks.Stop()
	for {
		tick := false
		select {
		case <-ctx.Done():
			return nil
		case <-t.full:
		case <-ticks.C:
			tick = true
		}
		t.mu.Lock()
		t.drainLocked()
		if tick {
			t.adaptLocked()
		}
		t.mu.Unlock()
	}
}

// adaptLocked has more or fewer decisions looked at, by how many were since it was last called.
func (t *Top) adaptLocked() {
	below := t.below.Load()
	switch {
	case t.seen > most:
		t.rarer(below)
	case t.seen < fewest && below != math.MaxUint64:
		t.below.CompareAndSwap(below, below<<1|1)
	}
	t.seen = 0
}

// drainLocked counts what is in the buffers. What found no room there is made up for by the others.
func (t *Top) drainLocked() {
	t.advanceLocked(time.Since(t.began))
	for i := range t.lanes {
		l := &t.lanes[i]
		l.mu.Lock()
		w, lost := l.written, l.lost
		l.written, l.lost = t.spare, 0
		l.mu.Unlock()
		if len(w.samples) > 0 {
			lost += float64(t.missed.Swap(0))
		}
		kept := 0.
		for j := range w.samples {
			kept += w.samples[j].weight
		}
		charges := w.charges
		for j := range w.samples {
			s := &w.samples[j]
			s.weight *= 1 + lost/kept
			t.count(s, charges[:s.charges], w.text)
			charges = charges[s.charges:]
		}
		t.seen += len(w.samples)
		w.clear()
		t.spare = w
	}
}

// count counts a decision.
func (t *Top) count(s *sample, charges []charged, text []byte) {
	if s.key != t.key.Load() {
		return // it was written down just before the secret changed
	}
	rule := t.rules.hit(s, charges, t.now)
	for i := range charges {
		c := &charges[i]
		t.hour.count(c, text[c.from:c.to], s.weight*s.share, t.now)
	}
	if s.weight >= t.oneIn {
		t.oneIn, t.oneInAt = s.weight, t.slot
	}
	t.countFor(s, rule)
	if s.address.kind == ip {
		s.client = s.address
		t.countFor(s, rule)
	}
}

// countFor counts a decision for its client.
func (t *Top) countFor(s *sample, rule string) {
	t.clients.count(s, "", t.slot)
	t.pairs.count(s, rule, t.slot)
}

// advanceLocked begins the second, and the slot, that has begun meanwhile.
func (t *Top) advanceLocked(age time.Duration) {
	t.now = t.options.Now()
	t.learnLocked()
	t.advanceHourLocked()
	second, slot := int64(age/time.Second), int64(age/Slot)
	if slot > t.slot {
		t.clients.decay(slot - t.slot)
		t.pairs.decay(slot - t.slot)
		t.slot = slot
		if slot-t.oneInAt > window {
			t.oneIn = 0
		}
	}
	if second == t.second {
		return
	}
	t.second = second
	if t.options.Totals != nil {
		ended := (second - 1) * int64(time.Second) / int64(Slot)
		t.options.Totals(func(id string, total Total) { t.rules.count(id, total, ended, t.now) })
	}
}

// learnLocked looks whether the nodes share another secret by now. Every answer does, so that none shows fingerprints that nobody knows a
// moment later.
func (t *Top) learnLocked() {
	if t.options.Secret == nil {
		return
	}
	if secret := t.options.Secret(); secret != nil && string(secret) != t.key.Load().secret {
		t.key.Store(newKey(secret)) // nobody is known by the fingerprints of another
		t.clients, t.pairs = newSketches(), newSketches()
	}
}

// Learn learns the secret that the nodes share, if it is known. It is for a node that is about to begin.
func (t *Top) Learn() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.drainLocked()
}

func (t *Top) advanceHourLocked() {
	var set *weir.RuleSet
	if t.options.Rules != nil {
		set = t.options.Rules()
	}
	t.hour.advance(t.now, t.key.Load(), set)
}
