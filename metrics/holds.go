package metrics

import (
	"hash/maphash"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirhq/weir/counter"
)

var (
	slotsInUse   = desc("slots_in_use", "Slots of requests in flight that this node has taken or renewed, and that are neither released here nor over.", "rule")
	reservations = desc("reservations", "Reservations of amounts at this node since it began: all, and by how they were finished.", "state")
)

// states are the values of the label state of weir_reservations.
var states = [...]string{"reserved", "settled", "unknown", "given_back", "failed"}

// holds counts the slots and reservations that requests hold.
type holds struct {
	seed         maphash.Seed
	reservations [len(states)]atomic.Uint64

	mu    sync.Mutex        // guards the fields below
	slots map[slotOf]inSlot // includes slots whose time is over, until dropLocked
	swept time.Time         // when a full map was last swept
}

// slotOf identifies the slots that one request has of one counter.
type slotOf struct {
	id      counter.Once
	counter uint64
}

// inSlot describes the slots that one request has of one counter.
type inSlot struct {
	row *row
	n   int64
	end time.Time
}

// maxSlots is how many entries holds keeps. Beyond it, new slots aren't counted.
const maxSlots = 100_000

var _ counter.HoldObserver = (*Metrics)(nil)

// Slots counts slots in use. It is for [weir.Options]. If another node releases or renews a slot, this node counts it until its
// time is over.
func (m *Metrics) Slots(c *counter.Counter, id counter.Once, n int64, lasts time.Duration) {
	h := &m.holds
	name := slotOf{id, c.Policy.ID ^ maphash.Bytes(h.seed, c.Subject)}
	if lasts <= 0 {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.slots, name)
		return
	}
	r, now := m.row(c.Policy.Rule), time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	r.slots.Store(true)
	if len(h.slots) >= maxSlots {
		if _, known := h.slots[name]; !known && !h.sweepLocked(now) {
			return
		}
	}
	if old, known := h.slots[name]; known {
		r = old.row // receipts don't name the rule if it has several limits
	}
	h.slots[name] = inSlot{r, n, now.Add(lasts)}
}

// sweepLocked forgets slots whose time is over, at most once a second, and reports whether there is room.
func (h *holds) sweepLocked(now time.Time) bool {
	if now.Sub(h.swept) >= time.Second {
		h.swept = now
		h.dropLocked(now)
	}
	return len(h.slots) < maxSlots
}

func (h *holds) dropLocked(now time.Time) {
	maps.DeleteFunc(h.slots, func(_ slotOf, s inSlot) bool { return !s.end.After(now) })
}

// Reservation counts reservations by state. It is for [weir.Options].
func (m *Metrics) Reservation(state string) {
	if i := slices.Index(states[:], state); i >= 0 {
		m.holds.reservations[i].Add(1)
	}
}

func (h *holds) collect(ch chan<- prometheus.Metric, rows map[string]*row) {
	sum := map[string]int64{}
	for rule, r := range rows {
		if r.slots.Load() {
			sum[rule] = 0
		}
	}
	h.mu.Lock()
	h.dropLocked(time.Now())
	for _, s := range h.slots {
		sum[s.row.rule] += s.n
	}
	h.mu.Unlock()
	for rule, n := range sum {
		gauge(ch, slotsInUse, float64(n), rule)
	}
	var counts [len(states)]uint64
	for s := range counts {
		counts[s] = h.reservations[s].Load()
	}
	if counts == [len(states)]uint64{} {
		return
	}
	for s, n := range counts {
		// Use a gauge, although it only grows: for a counter, OpenMetrics would add _total to the name, which is fixed.
		gauge(ch, reservations, float64(n), states[s])
	}
}
