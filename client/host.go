package client

import (
	"math/rand/v2"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// How many policies and places are remembered for a host.
const (
	maxQuotas = 64
	maxPlaces = 1024
)

// host is what a Transport knows about one host. Nothing is sent, waited for or reported while the lock is held.
type host struct {
	name string

	mu       sync.Mutex
	quotas   map[string]*quota
	places   map[string]*place
	pause    time.Time // no request is sent before this time
	inFlight int       // requests whose answers haven't been read to the end
	pending  int       // requests without an answer
	open     int       // how many requests may be pending until the host has sent limits
	lastSent time.Time
	refusals int           // refusals in a row that didn't say how long to wait
	budget   float64       // how many repeats are allowed now
	users    int           // requests that use this host, so that it isn't forgotten
	changed  chan struct{} // closed when waiting requests have to look again; nil if none waits
	paused   chan struct{} // closed when a pause begins
}

// place is a method and a path, which decide which policies count a request. Requests to a place queue: the first waits until
// the limits allow it, the others for their turn.
type place struct {
	turn     chan struct{}
	quotas   []*quota
	known    bool // an answer has named these quotas
	pending  int
	lastSent time.Time
}

// placesOf returns how many places have requests that a policy counts.
func (h *host) placesOf(q *quota) (n int) {
	for _, p := range h.places {
		if slices.Contains(p.quotas, q) {
			n++
		}
	}
	return n
}

// call is a request under way.
type call struct {
	place   *place
	tickets []ticket
}

// placeOf returns the place of a request. /v1/orders/17 and /v1/orders/18 are the same place.
func (h *host) placeOf(method, path string) *place {
	key := method + " " + shape(path)
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.places[key]
	if p == nil {
		if len(h.places) >= maxPlaces {
			for k := range h.places { // any of them: its next answer teaches it again
				delete(h.places, k)
				break
			}
		}
		p = &place{turn: make(chan struct{}, 1)}
		for _, q := range h.quotas {
			if n := h.placesOf(q); n > 0 && n == len(h.places) { // it counts requests to all other places, so probably to this one
				p.quotas = append(p.quotas, q)
			}
		}
		h.places[key] = p
	}
	return p
}

var withDigits = regexp.MustCompile("[^/]*[0-9][^/]*")

// shape returns a path with a star for each part that contains digits, except versions such as v1.
func shape(path string) string {
	return withDigits.ReplaceAllStringFunc(cut(path, 256), func(part string) string {
		if len(part) <= 3 && (part[0] == 'v' || part[0] == 'V') {
			return part
		}
		return "*"
	})
}

// quotaOf returns the quota of a policy, and adds it if need be. It returns nil if there are too many.
func (h *host) quotaOf(name string, now time.Time) *quota {
	if q := h.quotas[name]; q != nil {
		return q
	}
	if len(h.quotas) >= maxQuotas {
		for k, old := range h.quotas { // forget one that has no effect anymore
			if old.pending == 0 && h.placesOf(old) == 0 && !old.pause.After(now) {
				delete(h.quotas, k)
				break
			}
		}
		if len(h.quotas) >= maxQuotas {
			return nil
		}
	}
	q := &quota{name: strings.Clone(name), at: now}
	h.quotas[q.name] = q
	return q
}

// relief is how long a request without an answer blocks others, where only a few may be sent at a time.
const relief = time.Second

// ready returns when a request to a place may go, and which policy determines that. A time up to now means at once.
func (h *host) ready(p *place, now time.Time) (at time.Time, policy string) {
	at = h.pause
	for _, q := range p.quotas {
		if t := q.ready(now); t.After(at) {
			at, policy = t, q.name
		}
	}
	if !p.known {
		for _, q := range h.quotas { // any of them may count this request
			if q.pause.After(at) {
				at, policy = q.pause, q.name
			}
		}
		if p.pending > 0 {
			at = later(at, p.lastSent.Add(relief))
		}
	}
	if h.pending >= h.open {
		at = later(at, h.lastSent.Add(relief))
	}
	return at, policy
}

// send counts a request that is sent now.
func (h *host) send(p *place, now time.Time) *call {
	c := &call{place: p, tickets: make([]ticket, len(p.quotas))}
	for i, q := range p.quotas {
		c.tickets[i] = q.send(now)
	}
	p.pending++
	h.inFlight++
	h.pending++
	h.lastSent, p.lastSent = now, now
	return c
}

// verdict is what an answer means for other requests.
type verdict struct {
	refused bool
	wait    time.Duration
	policy  string
}

// answer learns from an answer. res is nil if there was none.
func (h *host) answer(c *call, res *http.Response, now time.Time) (v verdict) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pending--
	c.place.pending--
	for i := range c.tickets {
		c.tickets[i].of.answer(now, &c.tickets[i])
	}
	defer h.wake()
	if res == nil {
		return v
	}
	rs := readHeaders(res.Header, now)
	v.refused = refused(res)
	quotas := h.read(c, &rs, now, v.refused)
	c.learnPlace(quotas, rs.complete)
	if !v.refused {
		h.refusals = 0
		h.open++
		if len(h.quotas) > 0 {
			h.open = 1 << 30
		}
		return v
	}
	v.wait, v.policy = h.refuse(&rs, quotas, now)
	return v
}

// read updates the quotas with what an answer says about policies, and returns these quotas.
func (h *host) read(c *call, rs *readings, now time.Time, refused bool) []*quota {
	quotas := make([]*quota, 0, len(rs.policies))
	binding := -1.
	for i := range rs.policies {
		r := &rs.policies[i]
		q := h.quotaOf(r.name, now)
		if q == nil {
			continue
		}
		quotas = append(quotas, q)
		if r.other {
			continue
		}
		t := c.ticket(q)
		if !refused {
			q.read(now, t, r)
		} else {
			if t != nil {
				q.correct(1) // a refusal takes nothing
			}
			q.numbers(now, r)
		}
		if r.left >= 0 && (binding < 0 || r.left < binding) {
			binding = r.left
		}
	}
	for i := range rs.policies { // a policy without a number has at least as much left as the lowest number that is given
		if q := h.quotas[rs.policies[i].name]; q != nil && q.told && rs.policies[i].left < 0 && binding > q.level {
			q.correct(binding - q.level)
		}
	}
	return quotas
}

func (c *call) ticket(q *quota) *ticket {
	for i := range c.tickets {
		if c.tickets[i].of == q {
			return &c.tickets[i]
		}
	}
	return nil
}

// learnPlace updates which policies count requests to a place, after an answer has named them.
func (c *call) learnPlace(quotas []*quota, complete bool) {
	p := c.place
	if p.known && !complete { // the answer has named some of them
		for _, q := range p.quotas {
			if !slices.Contains(quotas, q) {
				quotas = append(quotas, q)
			}
		}
	}
	for i := range c.tickets {
		if q := c.tickets[i].of; !slices.Contains(quotas, q) {
			q.correct(1) // it didn't count the request
		}
	}
	p.quotas, p.known = quotas, true
}

// refuse begins a pause. It returns how long the pause is, and the policy that refused, if that is known.
func (h *host) refuse(rs *readings, quotas []*quota, now time.Time) (time.Duration, string) {
	wait, by := rs.retry, (*quota)(nil)
	for i := range rs.policies {
		r := &rs.policies[i]
		if q := h.quotas[r.name]; q != nil && r.left >= 0 && r.left < 1 {
			if wait < 0 && r.reset > 0 {
				wait = r.reset
			}
			if by == nil {
				by = q
			}
		}
	}
	if by == nil && len(quotas) == 1 {
		by = quotas[0]
	}
	if wait < 0 {
		h.refusals++
		most := min(time.Minute, 500*time.Millisecond<<min(h.refusals, 8))
		wait = max(10*time.Millisecond, rand.N(most)) // exponential, with full jitter
	}
	defer func() { close(h.paused); h.paused = make(chan struct{}) }()
	if by == nil {
		h.pause = later(h.pause, now.Add(wait))
		h.open = 1 // it isn't known which policy refused, so requests are sent one at a time
		return wait, ""
	}
	by.refuse(now, wait)
	return wait, by.name
}

// release ends a request whose answer was read to the end.
func (h *host) release() {
	h.mu.Lock()
	h.inFlight--
	h.wake()
	h.mu.Unlock()
}

func (h *host) idle() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.users == 0 && h.inFlight == 0
}

// leave ends a request's use of the host.
func (h *host) leave() {
	h.mu.Lock()
	h.users--
	h.mu.Unlock()
}

// wake has all waiting requests look again.
func (h *host) wake() {
	if h.changed != nil {
		close(h.changed)
		h.changed = nil
	}
}

// budgetReserve is how many repeats a host allows at first, and the most that it saves up. maxTries is how often a request is
// sent at most.
const (
	budgetReserve = 10
	maxTries      = 4
)

// mayRepeat takes a repeat from the budget if there is one.
func (h *host) mayRepeat() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.budget < 1 {
		return false
	}
	h.budget--
	return true
}
