// Package top finds the hot clients: those that send the most requests now, and those that are
// refused the most.
//
// [Top.Observe] records decisions in a small buffer for each core, and [Top.Run] counts them in sketches of bounded
// size: a node keeps a thousand entries of each kind, however many clients there are, and however long their keys are.
// Up to about ten thousand decisions a second, all decisions are counted. If there are more, one in 2^k of them is
// sampled, so that about ten thousand a second are counted.
//
// A client is identified by its API key, otherwise by its user, otherwise by its address. Clients are counted over all
// rules, and also for each rule that decides. A request with an unverified API key counts for its address as well, so
// that a flood of made-up keys shows up there. People see a fingerprint, which is a part of a keyed hash, and the
// masked name of a client.
//
// For each rule, the package also remembers its busiest keys of the last hour, in slots of ten
// seconds: see hour. Keys of up to 191 bytes are kept whole, in memory only, so that an operator
// who has a client's fingerprint can act on the client without its key.
//
// The package uses this much memory, in addition to the cap for counters:
//
//   - buffers of decisions: 536 KiB for each core up to sixteen, rounded up to a power of two,
//     and one spare buffer;
//   - sketches: four of up to 1,500 entries, 3 MiB;
//   - the hour: what its rules and keys need, 64 MiB at most;
//   - answers of other nodes, while somebody asks and for three seconds after: up to 128 MiB.
//     Small clusters use a few MiB.
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
	"github.com/weirhq/weir/metrics"
)

const (
	// drainEvery is the longest time between two drains of the buffers.
	drainEvery = 100 * time.Millisecond
	// fewest and most are the approximate bounds on how many decisions are sampled between two drains: from 16,000 to
	// 128,000 a second. Each of them costs about 200 ns, nearly all of that outside the check.
	fewest, most = 1_600, 12_800
	// buffered is how many decisions a core's buffer holds. bufferedCharges is how many charges to rules it holds, and
	// bufferedText how many bytes of subjects.
	buffered        = 1 << 10
	bufferedCharges = 4 * buffered
	// usualCharges is the number of rules above which a decision counts as several decisions in seen.
	usualCharges = 8
	bufferedText = 128 << 10
	// rarest is the highest k with which one decision in 2^k is sampled.
	rarest = 16
)

// Top finds a node's hot clients. Make one with [New]. It is safe for concurrent use.
type Top struct {
	options Options
	// below is the highest Spread that a sampled decision can have. Every check reads it, but it changes at most ten
	// times a second.
	below   atomic.Uint64
	_       [64]byte
	key     atomic.Pointer[key]
	buffers []buffer      // their number is a power of two
	full    chan struct{} // holds a value when a buffer is nearly full
	// missed is the total weight of the decisions that weren't recorded because all buffers were in use.
	missed atomic.Uint64

	mu      sync.Mutex // guards the fields below; held while decisions are counted
	began   time.Time
	now     time.Time // when decisions were last counted, by the clock that nodes share
	second  int64     // seconds since began
	slot    int64     // slots since began
	spare   written
	seen    int     // decisions since the last call of adaptLocked; a decision with many rules counts as several
	oneIn   float64 // the highest sampling weight of a decision in the window
	oneInAt int64   // the slot of that decision
	// clients and pairs each have two sketches: one of the clients with the most requests, and one of those with the
	// most refusals. In pairs, the clients are counted for each rule that decided.
	clients, pairs [2]sketch
	hour           hour
}

// Options are the options of a Top. The zero value is useful.
type Options struct {
	// Totals calls tell with the number of times that each rule was used since the node was started. Top calls it every
	// second, to get the rates of rules and the exact times of their last hits and refusals. If nil, there are no
	// rates, and the times are those of sampled decisions.
	Totals func(tell func(rule string, t metrics.Total))
	// Rules returns the rules in force, without which the subjects of keys can't be read. If nil, there are no rules.
	Rules func() *weir.RuleSet
	// Secret returns the secret that the nodes share, or nil while the secret isn't known. Nodes with the same secret
	// have the same fingerprints. If the field is nil, a random secret is used.
	Secret func() []byte
	// Now returns the time by the clock that nodes share. If nil, it is time.Now.
	Now func() time.Time
}

// New makes a Top. Decisions are counted only while [Top.Run] runs.
func New(o Options) *Top {
	if o.Now == nil {
		o.Now = time.Now
	}
	t := &Top{options: o, buffers: make([]buffer, observer.Stripes()), full: make(chan struct{}, 1), spare: newWritten(), began: time.Now()}
	for i := range t.buffers {
		t.buffers[i].written = newWritten()
	}
	t.below.Store(math.MaxUint64)
	t.key.Store(newKey(nil))
	t.clearSketches()
	t.hour = newHour()
	return t
}

// key is the key of the hash that stands for a client. Without the key, nobody can find out whether a fingerprint
// belongs to an API key that they have guessed.
type key struct {
	secret string
	k0, k1 uint64
}

func newKey(secret []byte) *key {
	k := &key{secret: string(secret)}
	if secret == nil {
		secret = make([]byte, 16)
		_, _ = rand.Read(secret) // can't fail
	}
	k.k0, k.k1 = siphash.Hash128(0x7765697220746f70, 0x636c69656e747321, secret)
	return k
}

// buffer holds decisions that haven't been counted. There is about one buffer for each core.
type buffer struct {
	mu sync.Mutex // held only for a moment; checks only call TryLock, so they never wait
	written
	lost float64 // sampling weight of the decisions that didn't fit into the buffer
	_    [64]byte
}

// written has recorded decisions.
type written struct {
	samples []sample
	charges []charged // the charges of all samples, in the same order
	text    []byte    // the subjects of the charges
}

func newWritten() written {
	return written{make([]sample, 0, buffered), make([]charged, 0, bufferedCharges), make([]byte, 0, bufferedText)}
}

// room reports whether a decision with the given number of limits fits.
func (w *written) room(limits int) bool {
	most := min(limits, mostCharges)
	return len(w.samples) < cap(w.samples) && len(w.charges)+most <= cap(w.charges) && len(w.text)+most*subjectBytes <= cap(w.text)
}

// filling reports whether the buffer is so full that it should be drained.
func (w *written) filling() bool {
	return len(w.samples) >= cap(w.samples)/2 || len(w.charges) >= cap(w.charges)/2 || len(w.text) >= cap(w.text)/2
}

// clear empties and overwrites the buffer, so that no parts of API keys stay in memory.
func (w *written) clear() {
	clear(w.samples)
	clear(w.charges)
	clear(w.text)
	w.samples, w.charges, w.text = w.samples[:0], w.charges[:0], w.text[:0]
}

// Observe records a decision. It is for [weir.Options]. It makes no allocations, and doesn't block.
func (t *Top) Observe(o *weir.Observation) {
	if below := t.below.Load(); o.Spread <= below && !o.Request.Peek {
		t.write(o, below)
	}
}

// write records a decision in the first buffer that isn't in use. All of them are in use only if there are more threads
// than cores.
func (t *Top) write(o *weir.Observation, below uint64) {
	weight := float64(uint64(1) << bits.LeadingZeros64(below))
	for i := range t.buffers {
		l := &t.buffers[(int(o.Stripe)+i)&(len(t.buffers)-1)]
		if !l.mu.TryLock() {
			continue
		}
		if !l.room(len(o.Charges)) {
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
			default: // Run has already been woken
			}
		}
		return
	}
	t.missed.Add(uint64(weight))
}

// rarer halves the share of decisions that are sampled, unless another goroutine has already changed it from below.
func (t *Top) rarer(below uint64) {
	if below > math.MaxUint64>>rarest {
		t.below.CompareAndSwap(below, below>>1)
	}
}

// Run counts the recorded decisions until ctx is done.
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

// adaptLocked adapts the share of decisions that are sampled to the number of decisions since the last call.
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

// drainLocked counts the decisions in the buffers. It gives them more weight, to make up for the decisions that didn't
// fit.
func (t *Top) drainLocked() {
	t.advanceLocked(time.Since(t.began))
	for i := range t.buffers {
		l := &t.buffers[i]
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
		t.seen += max(len(w.samples), len(w.charges)/usualCharges)
		w.clear()
		t.spare = w
	}
}

// count counts a sample.
func (t *Top) count(s *sample, charges []charged, text []byte) {
	if s.key != t.key.Load() {
		return // the sample was recorded just before the secret changed
	}
	for i := range charges {
		c := &charges[i]
		t.hour.count(c, text[c.from:c.to], s.weight, t.now)
	}
	if s.weight >= t.oneIn {
		t.oneIn, t.oneInAt = s.weight, t.slot
	}
	refusals := 0.
	if s.refused {
		refusals = s.weight
	}
	for {
		for i, weight := range [...]float64{s.weight, refusals} {
			t.clients[i].count(s, "", t.slot, weight)
			t.pairs[i].count(s, s.rule, t.slot, weight)
		}
		if s.address.kind != ip || s.client == s.address {
			return
		}
		s.client = s.address
	}
}

// advanceLocked sets the current second and slot.
func (t *Top) advanceLocked(age time.Duration) {
	t.now = t.options.Now()
	t.learnLocked()
	var set *weir.RuleSet
	if t.options.Rules != nil {
		set = t.options.Rules()
	}
	t.hour.advance(t.now, t.key.Load(), set)
	second, slot := int64(age/time.Second), int64(age/Slot)
	if slot > t.slot {
		for i := range t.clients {
			t.clients[i].decay(slot - t.slot)
			t.pairs[i].decay(slot - t.slot)
		}
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
		t.options.Totals(func(id string, total metrics.Total) { t.hour.use(id, total, ended, t.now) })
	}
}

// learnLocked switches to the secret that nodes share, as soon as it is known. It is called at the beginning of every
// answer, so that no answer shows fingerprints that become invalid a moment later.
func (t *Top) learnLocked() {
	if t.options.Secret == nil {
		return
	}
	if secret := t.options.Secret(); secret != nil && string(secret) != t.key.Load().secret {
		t.key.Store(newKey(secret)) // discard the counts, because they belong to fingerprints made with the old secret
		t.clearSketches()
	}
}

func (t *Top) clearSketches() {
	for i := range t.clients {
		t.clients[i].clear()
		t.pairs[i].clear()
	}
}

// Learn switches to the secret that nodes share, if it is known. A node calls Learn when it starts.
func (t *Top) Learn() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.drainLocked()
}
