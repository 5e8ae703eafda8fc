// Package cooldown keeps out abusive clients: those that keep sending requests although they were told to wait. Each further
// cooldown of a client lasts longer. Rules configure it with [counter.Abuse].
//
// A refusal counts if it arrives before the Retry-After of an earlier refusal has passed. Retry-After is in whole seconds,
// rounded up to at least one. Clients that wait as told must never be kept out, so two kinds of refusals don't count: those of
// requests that were already in flight when the client was told to wait, and a few for each wait, since a client may have
// several processes that don't know of each other's refusals. A cooldown begins only if the client has ignored its waits for
// two seconds, and sends at least twice what the limit admits. See docs/guides/abuse.md.
//
// Each node counts by itself. It shares a client's count only above the node's share of the number that begins a cooldown, and
// in batches, so a flood causes few calls. Cooldowns are announced to all nodes. Each node times them by its own clock, so
// jumps of the shared clock don't change them. If the store loses its data, nodes announce them again.
package cooldown

import (
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/shown"
)

var _ counter.Guard = (*Guard)(nil)

// Guard is a [counter.Guard]. Make one with [New], and call its Run in a goroutine.
type Guard struct {
	options Options
	key     atomic.Pointer[[2]uint64]
	former  atomic.Pointer[[2]uint64] // the previous key; nil if there was none
	shards  [shards]shard
	known   atomic.Int64 // the number of clients in memory
	kept    atomic.Int64 // how many of those have a cooldown, or had one
	used    atomic.Bool  // some rule has an Abuse, or All was called
	start   time.Time
	begun   atomic.Uint64
	sharing sharing
	dropped dropped
}

// Options configures a [Guard]. The zero value is useful.
type Options struct {
	// Now is the node's own clock. If nil, it is a clock that never jumps.
	Now func() time.Time
	// Clients is how many clients are remembered at most. Beyond it, the mildest offenders are forgotten. Zero means 262,144.
	Clients int
	// Fingerprint returns the short name by which other tools know a client, from the values of its subject. If nil, there are
	// none.
	Fingerprint func(values [][2]string) string
	// Shared connects the nodes. If nil, this is the only node.
	Shared Shared
}

// New returns a Guard.
func New(o Options) *Guard {
	g := &Guard{options: o, start: time.Now()}
	if o.Now == nil {
		// Only the monotonic clock matters here.
		g.options.Now = func() time.Time { return g.start.Add(time.Since(g.start)) }
	}
	if o.Fingerprint == nil {
		g.options.Fingerprint = func([][2]string) string { return "" }
	}
	if o.Clients <= 0 {
		g.options.Clients = 1 << 18
	}
	g.dropped.networks = map[netip.Prefix]int64{}
	for i := range g.shards {
		g.shards[i].clients = map[ID]*client{}
	}
	g.SetSecret(nil)
	return g
}

func (g *Guard) now() int64 { return g.options.Now().UnixMicro() }

// ahead returns how far the shared time is ahead of this node's, in µs.
func (g *Guard) ahead() int64 {
	if g.options.Shared == nil {
		return 0
	}
	return g.options.Shared.Now().UnixMicro() - g.now()
}

// Cooldown returns how much longer the client of a charge is kept out.
func (g *Guard) Cooldown(c *counter.Charge) time.Duration {
	g.Use()
	if g.kept.Load() == 0 || c.Policy.Abuse.Shadow {
		return 0
	}
	id := g.ID(&c.Counter)
	s := g.shard(id)
	s.mu.Lock()
	x := s.clients[id]
	ends := x.enforced()
	s.mu.Unlock()
	if x == nil {
		ends = g.rename(&c.Counter, id)
	}
	return micros(max(0, ends-g.now()))
}

// Use makes Run read other nodes' announcements. It is called once a rule has an Abuse.
func (g *Guard) Use() {
	if !g.used.Load() {
		g.used.Store(true)
	}
}

const second = int64(time.Second / time.Microsecond)

const (
	// inFlight is how long after a refusal other requests may arrive that were sent before it.
	inFlight = second / 10
	// patience is how long a client must have ignored its waits before a cooldown begins. By then, a parallel burst is over.
	patience = 2 * second
	// shortest is the shortest time over which a client's requests are compared with the limit.
	shortest = 10 * second
)

// Decided records the result of a check. Wait is how long the client was told to wait, or 0 if the request was admitted. It
// reports whether to drop the client's connection.
func (g *Guard) Decided(c *counter.Charge, wait time.Duration) (drop bool) {
	if wait == 0 && g.known.Load() == 0 {
		return false
	}
	id, now := g.ID(&c.Counter), g.now()
	s := g.shard(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	x, a := s.clients[id], c.Policy.Abuse
	unaware := min(a.Refusals, c.Policy.Limit.Max())
	if wait == 0 {
		if x != nil {
			x.streak = 0
			// A bucket under load admits a request now and then. This alone doesn't end the wait.
			if now >= min(x.until, x.answered+second) {
				x.until, x.unaware = 0, min(x.unaware+1, unaware)
			}
			g.dropped.set(x, 0)
		}
		return false
	}
	if x == nil {
		x = g.add(s, id, now)
		x.unaware = unaware
	}
	if x.last != nil && x.last.Shadow && !a.Shadow {
		g.kept.Add(-1)
		x.last, x.ends, x.forgets = nil, 0, 0 // the rule is enforced now, so forget its shadow cooldowns
	}
	x.streak++
	if now >= x.ends && x.refused(now, wait, a) && now >= x.since+patience {
		seen := micros(max(now-x.window, shortest))
		if x.count >= needed(a, c, min(seen, a.Window)) {
			g.begin(x, id, now, a, &c.Counter)
		} else if g.options.Shared != nil {
			g.sharing.count(x, id, needed(a, c, a.Window), g.options.Shared.Nodes(), c)
		}
	}
	if a.DropAfter == 0 || x.streak <= a.DropAfter || a.Shadow {
		return false
	}
	if c.Policy.ByIP {
		if !x.network.IsValid() {
			if values := c.Values(); len(values) == 1 {
				x.network, _ = shown.Network(values[0][1])
			}
		}
		g.dropped.set(x, max(x.ends, x.until))
	}
	return true
}

// needed returns how many refusals within the given time begin a cooldown: the rule's Refusals, but at least the number of
// requests that the limit admits in that time. With fewer refusals, a client sends less than twice what the limit admits.
func needed(a *counter.Abuse, c *counter.Charge, in time.Duration) int64 {
	l := &c.Policy.Limit
	if l.Algorithm == weir.Concurrency {
		return a.Refusals // concurrency limits have no rate
	}
	rate := l.Refill
	if rate == 0 {
		rate = float64(l.Amount()) / 1e6 / l.Window.Seconds()
	}
	cost := float64(c.N)
	if l.Decimal {
		cost /= 1e6
	}
	if cost <= 0 {
		cost = 1
	}
	return max(a.Refusals, int64(min(rate/cost*in.Seconds(), counter.MaxTokens)))
}

// client is a client that was refused. Times are in µs, by this node's clock.
type client struct {
	answered int64 // when the current wait began
	until    int64 // the earliest end of the waits that the client was told since answered
	latest   int64 // the end of the wait that the client was told last
	since    int64 // since when the client has ignored its waits
	window   int64 // since when refusals are counted
	count    int64
	told     int64 // the part of count that was shared with other nodes
	streak   int64 // consecutive refusals
	unaware  int64 // how many more refusals may be of processes of the client that weren't told to wait

	last    *Cooldown // the latest cooldown as announced, by the shared time; nil if there was none
	ends    int64     // when the cooldown ends
	forgets int64     // when the client is forgiven
	heard   uint64    // the latest sharing.round in which the cooldown's announcement was read or written

	network netip.Prefix // the client's address or network, if its connections may be dropped
}

// enforced returns when the client's cooldown ends, or 0 if there is none or it is in shadow.
func (x *client) enforced() int64 {
	if x == nil || x.last == nil || x.last.Shadow {
		return 0
	}
	return x.ends
}

// refused records a refusal, and reports whether it counts toward a cooldown.
func (x *client) refused(now int64, wait time.Duration, a *counter.Abuse) bool {
	if wait < 0 {
		return false // the cost never fits, so the client wasn't told to wait
	}
	until := now + max(second, (wait.Microseconds()+second-1)/second*second)
	if now >= x.latest {
		x.since = now
	}
	x.latest = until
	if now >= x.until {
		// Each process of a client is told its own wait. Even if all wait as told, each may send one request during the next
		// wait.
		x.answered, x.until, x.unaware = now, until, max(x.unaware, a.Refusals/4)
		return false
	}
	x.until = min(x.until, until)
	if now < x.answered+inFlight {
		return false
	}
	if x.unaware > 0 {
		x.unaware--
		return false
	}
	if now >= x.window+a.Window.Microseconds() {
		x.window, x.count, x.told = now, 0, 0
	}
	x.count++
	return true
}

// begin starts a cooldown. The caller holds the shard's lock.
func (g *Guard) begin(x *client, id ID, now int64, a *counter.Abuse, c *counter.Counter) {
	n := 1
	if now < x.forgets {
		n = x.last.N + 1
	}
	begun, values := now+g.ahead(), c.Values()
	ends := begun + lasts(a, n).Microseconds()
	next := Cooldown{
		ID: id, Rule: c.Policy.Rule, Client: describe(values), Fingerprint: g.options.Fingerprint(values), N: n, Shadow: a.Shadow,
		Begun: time.UnixMicro(begun), Ends: time.UnixMicro(ends), Forgets: time.UnixMicro(ends + a.Forgive.Microseconds()),
	}
	g.take(x, &next, begun-now)
	g.begun.Add(1)
	if g.options.Shared != nil {
		x.heard = g.sharing.announce(next)
	}
}

// lasts returns how long a client's nth cooldown lasts.
func lasts(a *counter.Abuse, n int) time.Duration {
	d := float64(a.Cooldown)
	for ; n > 1 && d < float64(a.Most); n-- {
		d *= a.Grow
	}
	return time.Duration(min(d, float64(a.Most)))
}

// take makes a cooldown effective. Its times are shared times, which are ahead of this node's clock by ahead µs. The caller
// holds the shard's lock.
func (g *Guard) take(x *client, c *Cooldown, ahead int64) {
	if x.last == nil {
		g.kept.Add(1)
	}
	last := *c
	x.last, x.ends, x.forgets = &last, c.Ends.UnixMicro()-ahead, c.Forgets.UnixMicro()-ahead
	x.until, x.latest, x.window, x.count, x.told = 0, 0, 0, 0, 0
}

// Cooldown describes a client that is kept out. Nodes announce it as JSON.
type Cooldown struct {
	ID          ID        `json:"id"`
	Rule        string    `json:"rule"`
	Client      string    `json:"client,omitempty"`      // masked, for operators
	Fingerprint string    `json:"fingerprint,omitempty"` // the name by which other tools know the client
	N           int       `json:"n"`                     // consecutive cooldowns; 0 lifts the cooldown
	Begun       time.Time `json:"begun,omitzero"`        // nodes of the previous version don't send it
	Ends        time.Time `json:"ends"`
	Forgets     time.Time `json:"forgets"`
	Shadow      bool      `json:"shadow,omitempty"`
}
