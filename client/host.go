package client

import (
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// Bounds of what is remembered of a host.
const (
	maxQuotas = 64
	maxPlaces = 1024
)

// host is what a Transport knows of one host. Nothing is sent, waited for or told with the lock held.
type host struct {
	name string

	mu       sync.Mutex
	quotas   map[string]*quota
	places   map[string]*place
	pause    time.Time // of all requests
	inFlight int       // until their bodies are read
	pending  int       // until they are answered
	open     int       // how many may be pending, while the host has not said what it bears
	lastSent time.Time
	refusals int           // in a row, that didn't say how long to wait
	budget   float64       // of repeats
	users    int           // requests that hold it
	changed  chan struct{} // closed when a request may go that couldn't before; nil if none waits for it
	paused   chan struct{} // closed when a pause begins
}

// place is a method and a path, which decide what policies count a request.
type place struct{ lane *lane }

// placesOf returns how many places a policy counts.
func (h *host) placesOf(q *quota) (n int) {
	for _, p := range h.places {
		if slices.Contains(p.lane.quotas, q) {
			n++
		}
	}
	return n
}

// lane is a queue of requests that the same policies count. The first waits until it may go, the others for their turn.
type lane struct {
	turn     chan struct{}
	quotas   []*quota
	known    bool // an answer has said which policies those are
	pending  int
	lastSent time.Time
}

// call is a request under way.
type call struct {
	place   *place
	lane    *lane
	tickets []ticket
}

func newHost(name string) *host {
	return &host{
		name: name, quotas: map[string]*quota{}, places: map[string]*place{}, open: 1, budget: budgetReserve,
		paused: make(chan struct{}),
	}
}

// placeOf finds where a request goes. /v1/orders/17 and /v1/orders/18 are one place.
func (h *host) placeOf(method, path string) *place {
	key := method + " " + shape(path)
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.places[key]
	if p == nil {
		if len(h.places) >= maxPlaces {
			for k := range h.places { // any: it is learned anew by its next answer
				delete(h.places, k)
				break
			}
		}
		p = &place{lane: &lane{turn: make(chan struct{}, 1)}}
		for _, q := range h.quotas {
			if n := h.placesOf(q); n > 0 && n == len(h.places) { // it counts requests to all other places
				p.lane.quotas = append(p.lane.quotas, q)
			}
		}
		h.places[key] = p
	}
	return p
}

// shape is a path with a star for each part that has digits in it, but for versions such as v1.
func shape(path string) string {
	path = cut(path, 256)
	if !strings.ContainsAny(path, "0123456789") {
		return path
	}
	parts := strings.Split(path, "/")
	for i, part := range parts {
		if strings.ContainsAny(part, "0123456789") && !(len(part) <= 3 && (part[0] == 'v' || part[0] == 'V')) {
			parts[i] = "*"
		}
	}
	return strings.Join(parts, "/")
}

// setQuotas says what policies count a place's requests.
func (h *host) setQuotas(p *place, quotas []*quota) {
	for _, other := range h.places {
		if l := other.lane; l.known && slices.Equal(l.quotas, quotas) {
			p.lane = l
			return
		}
	}
	if !p.lane.known {
		p.lane.known, p.lane.quotas = true, quotas // those who wait in it needn't move
		return
	}
	p.lane = &lane{turn: make(chan struct{}, 1), known: true, quotas: quotas}
}

// quotaOf finds a policy by its name; nil if there are too many.
func (h *host) quotaOf(name string, now time.Time) *quota {
	if q := h.quotas[name]; q != nil {
		return q
	}
	if len(h.quotas) >= maxQuotas {
		for k, old := range h.quotas { // one that means nothing any more
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

// relief is how long a host may take to answer before another request is tried, where one at a time is sent.
const relief = time.Second

// ready says when a request of a lane may go, and which policy says so; now or earlier means at once.
func (h *host) ready(l *lane, now time.Time) (at time.Time, policy string) {
	at = h.pause
	quotas := l.quotas
	for _, q := range quotas {
		if t := q.ready(now); t.After(at) {
			at, policy = t, q.name
		}
	}
	if !l.known {
		for _, q := range h.quotas { // any of them may count this one
			if q.pause.After(at) {
				at, policy = q.pause, q.name
			}
		}
		if l.pending > 0 {
			at = later(at, l.lastSent.Add(relief))
		}
	}
	if h.pending >= h.open {
		at = later(at, h.lastSent.Add(relief))
	}
	return at, policy
}

// send counts a request that goes now.
func (h *host) send(p *place, now time.Time) *call {
	l := p.lane
	c := &call{place: p, lane: l, tickets: make([]ticket, len(l.quotas))}
	for i, q := range l.quotas {
		c.tickets[i] = q.send(now)
	}
	l.pending++
	h.inFlight++
	h.pending++
	h.lastSent, l.lastSent = now, now
	return c
}

// verdict is what an answer means for others.
type verdict struct {
	refused bool
	wait    time.Duration
	policy  string
}

// answer learns from an answer; res is nil if there was none.
func (h *host) answer(c *call, res *http.Response, now time.Time) (v verdict) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pending--
	c.lane.pending--
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
	h.learnPlace(c, quotas, rs.complete)
	if !v.refused {
		h.refusals = 0
		h.open++
		if len(h.quotas) > 0 {
			h.open = 1 << 30
		}
		return v
	}
	v.wait, v.policy = h.refuse(c, &rs, quotas, now)
	return v
}

// read passes on what an answer says of policies, and returns them.
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
				q.giveBack() // a refusal takes nothing
			}
			q.numbers(now, r)
		}
		if r.left >= 0 && (binding < 0 || r.left < binding) {
			binding = r.left
		}
	}
	for i := range rs.policies { // those with nothing to say have more left than the one that speaks
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

// learnPlace says what policies count requests to a place, now that an answer has named them.
func (h *host) learnPlace(c *call, quotas []*quota, complete bool) {
	p := c.place
	if !complete && p.lane.known {
		for _, q := range p.lane.quotas { // the answer has named some of them
			if !slices.Contains(quotas, q) {
				quotas = append(quotas, q)
			}
		}
	}
	slices.SortFunc(quotas, func(a, b *quota) int { return strings.Compare(a.name, b.name) })
	for i := range c.tickets {
		if q := c.tickets[i].of; !slices.Contains(quotas, q) {
			q.giveBack()
		}
	}
	if !p.lane.known || !slices.Equal(p.lane.quotas, quotas) {
		h.setQuotas(p, quotas)
	}
}

// refuse begins a pause.
func (h *host) refuse(c *call, rs *readings, quotas []*quota, now time.Time) (time.Duration, string) {
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
		wait = backOff(h.refusals)
	}
	defer func() { close(h.paused); h.paused = make(chan struct{}) }()
	if by == nil {
		h.pause = later(h.pause, now.Add(wait))
		h.open = 1 // it has not said what it bears
		return wait, ""
	}
	by.refuse(now, wait)
	return wait, by.name
}

// backOff is a time to wait when nobody has said how long: exponential, with full jitter.
func backOff(refusals int) time.Duration {
	most := min(time.Minute, 500*time.Millisecond<<min(refusals, 8))
	return max(10*time.Millisecond, rand.N(most))
}

// release ends a request whose body was read.
func (h *host) release() {
	h.mu.Lock()
	h.inFlight--
	h.wake()
	h.mu.Unlock()
}

// leave ends the use of the host by a request.
func (h *host) leave() {
	h.mu.Lock()
	h.users--
	h.mu.Unlock()
}

// wake has those look again whose turn it is.
func (h *host) wake() {
	if h.changed != nil {
		close(h.changed)
		h.changed = nil
	}
}

// Repeats may be a tenth of all requests, and a few more.
const (
	budgetReserve = 10
	maxTries      = 4
)

// mayRepeat takes a repeat from the budget.
func (h *host) mayRepeat() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.budget < 1 {
		return false
	}
	h.budget--
	return true
}
