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

// How many hosts are remembered, and how many policies and routes of each. A forgotten one is learned again from its next answer.
const (
	maxHosts    = 1024
	maxPolicies = 64
	maxRoutes   = 1024
)

// relief is how long a request without an answer blocks others, where only a few may be sent at a time.
const relief = time.Second

// How many repeats a host allows at first, which is also the most that it saves up, and how often a request is sent at most.
const (
	budgetReserve = 10
	maxTries      = 4
)

// host is what a Transport knows about one host. Nothing is sent or waited for while the lock is held.
type host struct {
	name string

	mu       sync.Mutex
	policies map[string]*policy
	routes   map[string]*route
	pause    time.Time // no request is sent before this time
	inFlight int       // requests whose answers haven't been read to the end
	pending  int       // requests without an answer
	open     int       // how many requests may be pending until the host has sent limits
	lastSent time.Time
	refusals int           // refusals in a row that didn't say how long to wait
	budget   float64       // how many repeats are allowed now
	changed  chan struct{} // closed when waiting requests have to look again; nil if none waits
	paused   chan struct{} // closed when a pause begins
}

func newHost(name string) *host {
	return &host{
		name: name, policies: map[string]*policy{}, routes: map[string]*route{}, open: 1, budget: budgetReserve,
		paused: make(chan struct{}),
	}
}

// route is a method and a path, which decide which policies count a request. Requests to a route queue: the first waits until
// the limits allow it, the others for their turn.
type route struct {
	turn     chan struct{}
	policies []*policy // those that the newest answer has named
	answered bool
	pending  int
	lastSent time.Time
}

// call is a request under way, with the policies that have counted it.
type call struct {
	route   *route
	tickets []ticket
	at      time.Time
}

// get returns a map's entry. It adds it if need be, in place of any other if the map is full.
func get[V any](m map[string]*V, key string, most int, add func() *V) *V {
	if v := m[key]; v != nil {
		return v
	}
	for k := range m {
		if len(m) < most {
			break
		}
		delete(m, k)
	}
	m[key] = add()
	return m[key]
}

// routeOf returns the route of a request. /v1/orders/17 and /v1/orders/18 are the same route.
func (h *host) routeOf(req *http.Request) *route {
	h.mu.Lock()
	defer h.mu.Unlock()
	return get(h.routes, req.Method+" "+shape(req.URL.Path), maxRoutes, func() *route { return &route{turn: make(chan struct{}, 1)} })
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

// ready returns when a request to a route may go, and which policy determines that. A time up to now means at once.
func (h *host) ready(r *route, now time.Time) (at time.Time, by string) {
	at = h.pause
	for _, p := range r.policies {
		if t := p.ready(now); t.After(at) {
			at, by = t, p.name
		}
	}
	if !r.answered {
		for _, p := range h.policies { // any of them may count this request
			if p.pause.After(at) {
				at, by = p.pause, p.name
			}
		}
		if r.pending > 0 {
			at = later(at, r.lastSent.Add(relief))
		}
	}
	if h.pending >= h.open {
		at = later(at, h.lastSent.Add(relief))
	}
	return at, by
}

// send counts a request that is sent now.
func (h *host) send(r *route, now time.Time) *call {
	c := &call{route: r, at: now, tickets: make([]ticket, len(r.policies))}
	for i, p := range r.policies {
		c.tickets[i] = p.send(now)
	}
	r.pending++
	h.inFlight++
	h.pending++
	h.lastSent, r.lastSent = now, now
	return c
}

// answer learns from an answer, or from its absence if res is nil. For a refusal, wait is how long requests pause.
func (h *host) answer(c *call, res *http.Response, now time.Time) (wait time.Duration, refused bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	defer h.wake()
	h.pending--
	c.route.pending--
	for _, t := range c.tickets {
		t.of.pending--
	}
	if res == nil {
		return 0, false
	}
	rs := readHeaders(res.Header, now)
	named := make([]*policy, 0, len(rs.policies))
	for i := range rs.policies {
		r := &rs.policies[i]
		p := get(h.policies, r.name, maxPolicies, func() *policy { return &policy{name: strings.Clone(r.name)} })
		var t *ticket
		if i := slices.IndexFunc(c.tickets, func(t ticket) bool { return t.of == p }); i >= 0 {
			t = &c.tickets[i]
		}
		p.read(t, c.at, now, r)
		named = append(named, p)
	}
	if len(named) > 0 || !c.route.answered {
		c.route.policies, c.route.answered = named, true
	}
	if asksToWait(res) {
		return h.refuse(&rs, named, now), true
	}
	h.refusals = 0
	h.open++
	if len(named) > 0 {
		h.open = 1 << 30
		return 0, false
	}
	for _, t := range c.tickets { // perhaps the host sends numbers only with refusals
		t.of.known = t.of.known && t.of.left >= 1
	}
	return 0, false
}

// refuse begins a pause, and returns how long it is.
func (h *host) refuse(rs *readings, named []*policy, now time.Time) time.Duration {
	wait, by := rs.retry, (*policy)(nil)
	if len(named) == 1 {
		by = named[0]
	}
	for i, r := range rs.policies {
		if r.left >= 0 && r.left < 1 {
			by = named[i]
			if wait < 0 && r.reset > 0 {
				wait = r.reset
			}
			break
		}
	}
	if wait < 0 {
		h.refusals++
		most := min(time.Minute, 500*time.Millisecond<<min(h.refusals, 8))
		wait = max(10*time.Millisecond, rand.N(most)) // exponential, with full jitter
	}
	h.open = 1 // until an answer gives numbers, requests start again one by one
	if by != nil {
		by.refuse(now, wait)
	} else {
		h.pause = later(h.pause, now.Add(wait))
	}
	close(h.paused)
	h.paused = make(chan struct{})
	return wait
}

// release ends a request whose answer was read to the end.
func (h *host) release() {
	h.mu.Lock()
	h.inFlight--
	h.wake()
	h.mu.Unlock()
}

// wake has all waiting requests look again.
func (h *host) wake() {
	if h.changed != nil {
		close(h.changed)
		h.changed = nil
	}
}

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
