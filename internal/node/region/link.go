package region

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/node/stake"
	"github.com/weirhq/weir/internal/rediscall"
)

// DefaultTimeout is how long a check waits for another region by default.
const DefaultTimeout = 500 * time.Millisecond

// Options of a Link. Name and Secret are required.
type Options struct {
	// Name is this node's region. Home is the home of limits whose rules name none; "" means this region.
	Name, Home string
	Secret     *Secret
	// Peers maps each other region to the addresses of its nodes.
	Peers map[string][]string
	// Timeout is how long a check may wait for another region. Zero means DefaultTimeout.
	Timeout time.Duration
	// MaxWaiting bounds how many checks of shared limits may wait for other regions at once, and a quarter of it bounds
	// those of a client that is probably above its limit. Checks beyond the bound use only the tokens that this region
	// has. Zero means no bound.
	MaxWaiting int
	Logger     *slog.Logger
}

// Link carries messages between this node and the nodes of other regions.
type Link struct {
	name, home string
	secret     *Secret
	peers      map[string]*peer
	timeout    time.Duration
	maxWaiting int
	log        *slog.Logger
	limiter    atomic.Pointer[weir.Limiter]
	store      atomic.Pointer[counter.Store]
	stakes     atomic.Pointer[stakes]
	topo       atomic.Pointer[Topology]

	mu        sync.Mutex      // guards the fields below
	strangers map[string]bool // regions that sent messages although they aren't peers
	printed   *weir.RuleSet   // print is the fingerprint of these rules
	print     string
}

// NewLink creates a Link. The link sends nothing until Run.
func NewLink(o Options) (*Link, error) {
	l := &Link{name: o.Name, home: cmp.Or(o.Home, o.Name), secret: o.Secret, peers: map[string]*peer{}, strangers: map[string]bool{}, timeout: cmp.Or(o.Timeout, DefaultTimeout), maxWaiting: cmp.Or(o.MaxWaiting, math.MaxInt), log: o.Logger}
	l.topo.Store(&Topology{Epoch: firstEpoch})
	if l.log == nil {
		l.log = slog.New(slog.DiscardHandler)
	}
	config, err := o.Secret.TLS()
	if err != nil {
		return nil, err
	}
	for name, addresses := range o.Peers {
		l.peers[name] = newPeer(l, name, addresses, config)
	}
	return l, nil
}

// HomeOf returns the home of a rule.
func (l *Link) HomeOf(rule *weir.Rule) string { return l.topology().home(cmp.Or(rule.Home, l.home)) }

// homeOf returns the name of the region that counts a limit, or "" for this region.
func (l *Link) homeOf(p *counter.Policy) string {
	if home := l.topology().home(cmp.Or(p.Home, l.home)); p.Global && home != l.name {
		return home
	}
	return ""
}

// Knows reports whether this node's settings name a region.
func (l *Link) Knows(name string) bool { return name == l.name || l.peers[name] != nil }

// meet logs that a region which isn't a peer has sent a message. It does so once for each region.
func (l *Link) meet(name string) {
	const most = 16
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.Knows(name) && !l.strangers[name] && len(l.strangers) < most {
		l.strangers[name] = true
		l.log.Warn("a region that isn't in regions.peers sends messages: the home doesn't subtract its floor, and no region borrows from it", "region", name)
	}
}

// Serve sets the limiter whose rules are compared with those of other regions, and the store that decides other
// regions' operations. That store is this region's own, without leases.
func (l *Link) Serve(limiter *weir.Limiter, store counter.Store) {
	l.limiter.Store(limiter)
	l.store.Store(&store)
}

// talk sends a message about a counter to a region and returns its reply.
func (l *Link) talk(ctx context.Context, to string, c *counter.Counter, m *stake.Message) (*stake.Message, error) {
	r, err := l.do(ctx, to, operation{Talk: &stakeMessage{wireCounter(c), *m}})
	if err == nil && r.Said == nil {
		err = errAnswer
	}
	return r.Said, err
}

// rules returns the fingerprint of the global rules in force, for other regions to compare.
func (l *Link) rules() string {
	limiter := l.limiter.Load()
	if limiter == nil {
		return ""
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	set := limiter.Rules()
	if l.print != "" && l.printed == set {
		return l.print
	}
	h := sha256.New()
	fmt.Fprintln(h, l.names()) // if regions know different regions, they compute different floors
	for _, r := range set.Rules().Rules {
		if r.Global {
			if home := l.HomeOf(&r); !l.Knows(home) {
				l.log.Warn("a rule's home is a region that this node doesn't know: see regions.peers", "rule", r.ID, "home", home)
			}
			r.Home = cmp.Or(r.Home, l.home)  // if regions disagree about the home, they use two counters
			_ = json.NewEncoder(h).Encode(r) // can't fail: everything in a rule can be written as JSON
		}
	}
	l.printed, l.print = set, fmt.Sprintf("%x", h.Sum(nil)[:4])
	return l.print
}

// Shares reports whether regions share all limits of a rule. Otherwise they ask the rule's home on every check.
func (l *Link) Shares(rule *weir.Rule) bool {
	small := func(limit counter.Limit) bool { return limit.Max() < int64(stake.LeastPerRegion*(len(l.peers)+1)) }
	return rule.Global && !rule.Strict && !rule.GiveBackUnsettled && !slices.ContainsFunc(rule.Limits, small)
}

// beatFor is how long a heartbeat waits for its answer. A slower region counts as silent.
func (l *Link) beatFor() time.Duration { return max(beatEvery, l.timeout) }

// cutOff reports whether a limit's home has been silent for so long that the loans from it have ended.
func (l *Link) cutOff(p *counter.Policy) bool {
	home := l.homeOf(p)
	return home != "" && (l.peers[home] == nil || l.peers[home].silentFor() > stake.Term)
}

// Missing returns the name of the home that couldn't be reached to decide a limit, or "" if this region's own store
// failed.
func (l *Link) Missing(p *counter.Policy) string {
	if l.sharesHere(p) && !(l.cutOff(p) && p.OnPartition == counter.FailRefuse) {
		return ""
	}
	return l.homeOf(p)
}

// Reaches reports whether this node can reach the home of a rule. It always reaches its own region.
func (l *Link) Reaches(rule *weir.Rule) bool {
	home := l.HomeOf(rule)
	p := l.peers[home]
	return home == l.name || p != nil && p.status().Up
}

// Run exchanges heartbeats with the other regions until ctx is done.
func (l *Link) Run(ctx context.Context) error {
	var running sync.WaitGroup
	running.Go(func() { // learns of topology changes that other nodes of this region have stored
		for ok := true; ok; ok = rediscall.Sleep(ctx, beatEvery) {
			_ = l.learn(ctx, nil, 0) // after an error, the next round tries again
		}
	})
	for _, p := range l.peers {
		running.Go(func() { p.run(ctx) })
	}
	running.Wait()
	if s := l.stakes.Load(); s != nil {
		s.close()
	}
	return nil
}

// Status is the state of a peer.
type Status struct {
	Region string `json:"region"`
	Home   bool   `json:"home,omitempty"` // the home of rules that name none
	// Grace reports that, as far as this node knows, the region has recently become a home, and
	// still owns no more than its floor.
	Grace bool `json:"grace,omitempty"`
	Up    bool `json:"up"`
	// Since is when Up last changed, or when this node started if it has never heard from the
	// region.
	Since time.Time `json:"since,omitzero"`
	// RTTMS is how many milliseconds the last heartbeat and its answer took.
	RTTMS float64 `json:"rtt_ms"`
	// Epoch is the epoch that the region reported. SameRules reports that the region has the same global rules, homes
	// and peers as this region.
	Epoch     int64  `json:"epoch,omitempty"`
	SameRules bool   `json:"same_rules"`
	State     string `json:"state,omitempty"` // drained or forgotten
	// Asks counts this node's requests for tokens that the region has answered. Short counts those to which the region
	// lent less than half of what was needed.
	Asks  uint64 `json:"asks"`
	Short uint64 `json:"short"`
	Error string `json:"error,omitempty"` // why it is down
}

// Peers returns the state of the other regions, by name.
func (l *Link) Peers() (out []Status) {
	for _, name := range slices.Sorted(maps.Keys(l.peers)) {
		out = append(out, l.peers[name].status())
	}
	return out
}

func (l *Link) take(ctx context.Context, home string, charges []counter.Charge, results []counter.Result) error {
	a := operation{}
	for _, c := range charges {
		w := wireCounter(&c.Counter)
		w.N, w.Peek, w.Guest, w.Hold = c.N, c.Peek, c.Guest, c.Hold
		a.Charges = append(a.Charges, w)
	}
	r, err := l.do(ctx, home, a)
	if err != nil {
		return err
	}
	if len(r.Results) != len(results) {
		return errAnswer
	}
	copy(results, r.Results)
	for _, i := range r.NoRoom {
		if i >= 0 && i < len(results) {
			results[i] = counter.Result{Err: fmt.Errorf("region %s: %w", home, counter.ErrNoRoom)}
		}
	}
	return nil
}

func (l *Link) giveBack(ctx context.Context, home string, once counter.Once, keep time.Duration, returns []counter.Return) error {
	a := operation{Once: once, Keep: keep.Microseconds()}
	for _, r := range returns {
		w := wireCounter(&r.Counter)
		w.N, w.Slot, w.Hold, w.Used, w.Recorded = r.N, r.Slot, r.Hold, r.Used, r.Recorded
		a.Returns = append(a.Returns, w)
	}
	r, err := l.do(ctx, home, a)
	if err == nil && r.Used {
		return counter.ErrUsed
	}
	return err
}

func (l *Link) reset(ctx context.Context, home string, counters []counter.Counter) error {
	a := operation{}
	for _, c := range counters {
		a.Resets = append(a.Resets, wireCounter(&c))
	}
	_, err := l.do(ctx, home, a)
	return err
}

func (l *Link) do(ctx context.Context, home string, a operation) (result, error) {
	p := l.peers[home]
	if p == nil {
		return result{}, fmt.Errorf("no region is named %q: see regions.peers", home)
	}
	r, err := p.do(ctx, a)
	if err == nil && r.Failed != "" {
		err = fmt.Errorf("region %s: %s", home, r.Failed)
	}
	return r, err
}
