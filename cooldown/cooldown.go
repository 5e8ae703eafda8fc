// Package cooldown keeps clients out that keep coming while they are refused: for a while, and each
// time for longer. Rules say so with [weir.Abuse].
//
// A refusal counts if it comes while the client has been told to wait. The client is told whole
// seconds, so the wait that counts is the true one rounded up, and a second at least. Some refusals
// don't count, so that a client that waits as it is told is never kept out, whatever the limit:
// those of requests that were in flight when the client was told, and a few for each wait, since the
// client may have several processes that don't know of each other's refusals. No cooldown begins
// before the client has ignored its waits for two seconds, or while it sends less than twice what
// the limit admits. See docs/guides/abuse.md.
//
// A node counts by itself. With others it shares only counts that pass its part of what begins a
// cooldown, some at a time, so a flood costs no calls. Cooldowns are announced to all. A node keeps
// them by its own clock, so steps of the clock that nodes share don't lengthen or shorten them. Nodes
// announce again what is lost with the store's data.
package cooldown

import (
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
)

var _ weir.Guard = (*Guard)(nil)

// Guard is a [weir.Guard]. Make one with [New]. Its Run must run beside it.
type Guard struct {
	options Options
	key     atomic.Pointer[[2]uint64]
	former  atomic.Pointer[[2]uint64] // the key before it; nil if there was none
	shards  [shards]shard
	known   atomic.Int64 // clients in the table
	kept    atomic.Int64 // of them, those that are or were kept out
	used    atomic.Bool  // some rule has an Abuse, or somebody has asked
	start   time.Time
	begun   atomic.Uint64
	sharing sharing
	dropped dropped
}

// Options of a Guard. The zero value is useful.
type Options struct {
	// Secret is what names of clients are hashed under; nodes that share cooldowns share it. Nil means a random one. See
	// [Guard.SetSecret].
	Secret []byte
	// Now is the node's own time. If nil, it is a clock that never steps.
	Now func() time.Time
	// SharedNow is the time that nodes share, by which cooldowns are announced. It may step. If nil, it is Now.
	SharedNow func() time.Time
	// Clients is how many are remembered at a time. 0 means 262,144. When there are more, the mildest offenders are forgotten.
	Clients int
	// Fingerprint is a short name of a client, of what its subject was made of, by which other tools know it. Nil means none.
	Fingerprint func(values [][2]string) string
	// Shared is what nodes tell each other through. Nil means that there is one node.
	Shared Shared
	// Nodes is how many nodes there are. Nil means one.
	Nodes func() int
}

// New makes a Guard.
func New(o Options) *Guard {
	g := &Guard{options: o, start: time.Now()}
	if o.Now == nil {
		g.options.Now = func() time.Time { return g.start.Add(time.Since(g.start)) } // which looks at the monotonic clock alone
	}
	if o.Nodes == nil {
		g.options.Nodes = func() int { return 1 }
	}
	if o.Fingerprint == nil {
		g.options.Fingerprint = func([][2]string) string { return "" }
	}
	if o.Clients <= 0 {
		g.options.Clients = 1 << 18
	}
	for i := range g.shards {
		g.shards[i].clients = map[ID]*client{}
	}
	g.SetSecret(o.Secret)
	return g
}

func (g *Guard) now() int64 { return g.options.Now().UnixMicro() }

// ahead is how far the time that nodes share is ahead of this node's.
func (g *Guard) ahead() int64 {
	if g.options.SharedNow == nil {
		return 0
	}
	return g.options.SharedNow().UnixMicro() - g.now()
}

// Cooldown returns for how long the client of a charge is kept out.
func (g *Guard) Cooldown(c *counter.Charge) time.Duration {
	g.Use()
	if g.kept.Load() == 0 || c.Policy.Abuse.Shadow {
		return 0
	}
	id := g.ID(&c.Counter)
	s := g.shard(id)
	s.mu.Lock()
	x := s.clients[id]
	var ends int64
	if x != nil && !x.shadow {
		ends = x.ends
	}
	s.mu.Unlock()
	if x == nil {
		ends = g.rename(&c.Counter, id)
	}
	return time.Duration(max(0, ends-g.now())) * time.Microsecond
}

// Use has Run listen to other nodes from now on. It is called once rules have an Abuse.
func (g *Guard) Use() {
	if !g.used.Load() {
		g.used.Store(true)
	}
}

const second = int64(time.Second / time.Microsecond)

const (
	// inFlight is how long after an answer requests may arrive that were sent before it.
	inFlight = second / 10
	// patience is how long a client must have ignored its waits before a cooldown begins. A parallel burst is over by then.
	patience = 2 * second
	// shortest is the least time over which a client's requests are compared with what the limit admits.
	shortest = 10 * second
)

// Decided is told how long the client of a charge must wait.
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
			x.row = 0
			if now >= min(x.until, x.answered+second) { // a busy bucket admits a request now and then, which doesn't end the wait
				x.until, x.unaware = 0, min(x.unaware+1, unaware)
			}
			g.dropped.set(x, 0)
		}
		return false
	}
	if x == nil {
		x = g.add(s, id, now)
		x.rule, x.unaware = c.Policy.Rule, unaware
	}
	if x.n > 0 && x.shadow && !a.Shadow {
		g.kept.Add(-1)
		x.n, x.begun, x.ends, x.forgets, x.shadow = 0, 0, 0, 0, false // cooldowns in shadow don't count once the rule is enforced
	}
	x.row++
	if now >= x.ends && x.refused(now, wait, a) && now >= x.since+patience {
		seen := time.Duration(max(now-x.window, shortest)) * time.Microsecond
		if x.count >= needed(a, c, min(seen, a.Window)) {
			g.begin(x, id, now, a, &c.Counter)
		} else if g.options.Shared != nil {
			g.sharing.count(x, id, needed(a, c, a.Window), g.options.Nodes(), c)
		}
	}
	if a.DropAfter == 0 || x.row <= a.DropAfter || a.Shadow {
		return false
	}
	if c.Policy.ByIP {
		if !x.network.IsValid() {
			x.network = networkOf(c.Values())
		}
		g.dropped.set(x, max(x.ends, x.until))
	}
	return true
}

// needed is how many refusals begin a cooldown: as many as the rule says, and no fewer than the requests that the limit
// admits in that time. A client with fewer sends less than twice what the limit admits.
func needed(a *weir.Abuse, c *counter.Charge, in time.Duration) int64 {
	l := &c.Policy.Limit
	if l.Algorithm == weir.Concurrency {
		return a.Refusals // slots have no rate
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
	return max(a.Refusals, int64(min(rate/cost*in.Seconds(), weir.MaxTokens)))
}

// client is what is known of a client that was refused. Times are in µs.
type client struct {
	rule     string
	answered int64 // when the client was told to wait
	until    int64 // the earliest end of the waits that it was told since then
	latest   int64 // the end of the wait that it was told last
	since    int64 // since when it has ignored its waits
	window   int64 // since when refusals are counted
	count    int64
	told     int64 // of count, what the other nodes know
	row      int64 // refusals, one after the other
	unaware  int64 // how many more requests may come from processes of the client that weren't told to wait

	n       int    // cooldowns, one after the other
	begun   int64  // when the last cooldown began
	ends    int64  // when it ends
	forgets int64  // when the client is forgiven
	said    int64  // its end as it was announced, by the time that nodes share
	heard   uint64 // the latest sharing.round in which its announcement was read or written
	shadow  bool
	network netip.Prefix // of a client that is an address, and is dropped
	shown   string
	print   string
}

// refused reports whether a refusal counts.
func (x *client) refused(now int64, wait time.Duration, a *weir.Abuse) bool {
	if wait < 0 {
		return false // the cost can never fit, so the client isn't told to wait
	}
	until := now + max(second, (wait.Microseconds()+second-1)/second*second)
	if now >= x.latest {
		x.since = now
	}
	x.latest = until
	if now >= x.until {
		// Each process of a client is told its own time to wait. If each waits as told, each sends one request during the next wait.
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

// begin keeps a client out. Its shard is locked.
func (g *Guard) begin(x *client, id ID, now int64, a *weir.Abuse, c *counter.Counter) {
	n := 1
	if now < x.forgets {
		n = x.n + 1
	}
	begun, values := now+g.ahead(), c.Values()
	ends := begun + lasts(a, n).Microseconds()
	word := Cooldown{
		ID: id, Rule: c.Policy.Rule, Client: describe(values), Fingerprint: g.options.Fingerprint(values), N: n, Shadow: a.Shadow,
		Begun: time.UnixMicro(begun), Ends: time.UnixMicro(ends), Forgets: time.UnixMicro(ends + a.Forgive.Microseconds()),
	}
	g.take(x, &word, begun-now)
	g.begun.Add(1)
	if g.options.Shared != nil {
		x.heard = g.sharing.announce(word)
	}
}

// lasts is how long the nth cooldown of a client lasts.
func lasts(a *weir.Abuse, n int) time.Duration {
	d := float64(a.Cooldown)
	for ; n > 1 && d < float64(a.Most); n-- {
		d *= a.Grow
	}
	return time.Duration(min(d, float64(a.Most)))
}

// take puts a cooldown in force. Its times are by the clock that nodes share, which is ahead of this node's by the given µs. Its
// shard is locked.
func (g *Guard) take(x *client, c *Cooldown, ahead int64) {
	if x.n == 0 {
		g.kept.Add(1)
	}
	x.rule, x.shown, x.print, x.n, x.shadow = c.Rule, c.Client, c.Fingerprint, c.N, c.Shadow
	x.said, x.begun, x.ends, x.forgets = c.Ends.UnixMicro(), 0, c.Ends.UnixMicro()-ahead, c.Forgets.UnixMicro()-ahead
	if !c.Begun.IsZero() { // a node of the version before doesn't say it
		x.begun = c.Begun.UnixMicro() - ahead
	}
	x.until, x.latest, x.window, x.count, x.told = 0, 0, 0, 0, 0
}

// Cooldown is a client that is kept out.
type Cooldown struct {
	ID          ID        `json:"id"`
	Rule        string    `json:"rule"`
	Client      string    `json:"client,omitempty"`      // as people may see it
	Fingerprint string    `json:"fingerprint,omitempty"` // as other tools know it
	N           int       `json:"n"`                     // how many there were, one after the other; 0: it is lifted
	Begun       time.Time `json:"begun,omitzero"`
	Ends        time.Time `json:"ends"`
	Forgets     time.Time `json:"forgets"`
	Shadow      bool      `json:"shadow,omitempty"`
}
