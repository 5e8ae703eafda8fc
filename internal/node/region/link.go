package region

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/node/stake"
)

// DefaultTimeout is how long a check waits for another region, if nobody says otherwise.
const DefaultTimeout = 500 * time.Millisecond

// Options of a Link. Name and Secret are needed.
type Options struct {
	// Name is that of the node's region, and Home that of limits that name none. "" means that this is it.
	Name, Home string
	Secret     *Secret
	// Peers are addresses of nodes of the other regions, by their region.
	Peers map[string][]string
	// Timeout is how long a check may wait for another region. 0 means DefaultTimeout.
	Timeout time.Duration
	// MaxWaiting is how many checks of shared limits may wait for other regions at a time, a quarter of them of one client that is above its limit.
	// Further ones are decided by what their region has. 0 means no bound.
	MaxWaiting int
	Logger     *slog.Logger
}

// Link is what a node says to nodes of other regions, and hears of them. Make one with [NewLink].
type Link struct {
	name, home string
	secret     *Secret
	peers      map[string]*peer
	timeout    time.Duration
	maxWaiting int
	log        *slog.Logger
	limiter    atomic.Pointer[weir.Limiter]
	print      atomic.Pointer[fingerprint]
	store      atomic.Pointer[counter.Store]
	stakes     atomic.Pointer[stakes]
	topo       atomic.Pointer[Topology] // nil: nothing was said

	mu        sync.Mutex
	strangers map[string]bool // guarded by mu: regions that aren't peers and have sent something
}

// fingerprint is that of the global rules of a set.
type fingerprint struct {
	of   *weir.RuleSet
	text string
}

// NewLink makes a Link, which says nothing until it runs.
func NewLink(o Options) (*Link, error) {
	l := &Link{name: o.Name, home: cmp.Or(o.Home, o.Name), secret: o.Secret, peers: map[string]*peer{}, strangers: map[string]bool{}, timeout: cmp.Or(o.Timeout, DefaultTimeout), maxWaiting: o.MaxWaiting, log: o.Logger}
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

// HomeOf is the home of a rule.
func (l *Link) HomeOf(rule *weir.Rule) string { return l.topology().home(cmp.Or(rule.Home, l.home)) }

// homeOf is the region that a limit is counted in, or "" if that is this one.
func (l *Link) homeOf(p *counter.Policy) string {
	if home := l.topology().home(cmp.Or(p.Home, l.home)); p.Global && home != l.name {
		return home
	}
	return ""
}

// Knows reports whether this node's settings name a region.
func (l *Link) Knows(name string) bool { return name == l.name || l.peers[name] != nil }

// meet has the log say, once, that a region which isn't a peer has sent something.
func (l *Link) meet(name string) {
	const most = 16
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.Knows(name) && !l.strangers[name] && len(l.strangers) < most {
		l.strangers[name] = true
		l.log.Warn("a region that isn't in regions.peers sends messages: its floor isn't taken off the home's share, and nobody borrows of it", "region", name)
	}
}

// Serve has a limiter's rules told to the other regions, and a store answer them: that of this region, without leases.
func (l *Link) Serve(limiter *weir.Limiter, store counter.Store) {
	l.limiter.Store(limiter)
	l.store.Store(&store)
}

// talk says something about a counter to a region, and waits for its answer.
func (l *Link) talk(ctx context.Context, to string, c *counter.Counter, m *stake.Message) (*stake.Message, error) {
	r, err := l.do(ctx, to, act{Talk: &talk{wireCounter(c), *m}})
	if err == nil && r.Said == nil {
		err = errors.New("its answer makes no sense: does it run another version?")
	}
	return r.Said, err
}

// rules is the fingerprint of the global rules in force, for others to compare.
func (l *Link) rules() string {
	limiter := l.limiter.Load()
	if limiter == nil {
		return ""
	}
	set := limiter.Rules()
	if p := l.print.Load(); p != nil && p.of == set {
		return p.text
	}
	l.mu.Lock() // several peers want it at the same moment, and the log says once what is wrong with it
	defer l.mu.Unlock()
	if p := l.print.Load(); p != nil && p.of == set {
		return p.text
	}
	h := sha256.New()
	fmt.Fprintln(h, l.names()) // floors of regions that others don't know aren't theirs
	doc := set.Rules()
	for i := range doc.Rules {
		if r := doc.Rules[i]; r.Global {
			if home := l.HomeOf(&r); !l.Knows(home) {
				l.log.Warn("a rule's home is a region that this node doesn't know: see regions.peers", "rule", r.ID, "home", home)
			}
			r.Home = cmp.Or(r.Home, l.home)  // regions that disagree on it have two counters
			_ = json.NewEncoder(h).Encode(r) // it has nothing that can't be written
		}
	}
	p := &fingerprint{set, fmt.Sprintf("%x", h.Sum(nil)[:4])}
	l.print.Store(p)
	return p.text
}

// Shares reports whether regions share all limits of a rule, rather than to ask its home at every check.
func (l *Link) Shares(rule *weir.Rule) bool {
	small := func(limit counter.Limit) bool { return limit.Max() < int64(stake.LeastPerRegion*(len(l.peers)+1)) }
	return rule.Global && !rule.Strict && !rule.GiveBackUnsettled && !slices.ContainsFunc(rule.Limits, small)
}

// beatFor is how long the answer to a heartbeat is waited for. A region that is slower isn't heard.
func (l *Link) beatFor() time.Duration { return max(beatEvery, l.timeout) }

// cutOff reports whether the home of a limit wasn't heard for so long that loans are over.
func (l *Link) cutOff(p *counter.Policy) bool {
	home := l.homeOf(p)
	return home != "" && (l.peers[home] == nil || l.peers[home].silentFor() > stake.Term)
}

// Missing is the home that a limit couldn't ask when it wasn't decided, or "" if it was this region's own store that didn't decide it.
func (l *Link) Missing(p *counter.Policy) string {
	if l.sharesHere(p) && !(l.cutOff(p) && p.OnPartition == counter.FailRefuse) {
		return ""
	}
	return l.homeOf(p)
}

// Reaches reports whether the home of a rule can be asked, or is here.
func (l *Link) Reaches(rule *weir.Rule) bool {
	home := l.HomeOf(rule)
	p := l.peers[home]
	return home == l.name || p != nil && p.status().Up
}

// Run keeps in touch with the other regions until ctx is done.
func (l *Link) Run(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		l.look(ctx)
		done <- struct{}{}
	}()
	for _, p := range l.peers {
		go func() {
			p.run(ctx)
			done <- struct{}{}
		}()
	}
	for range len(l.peers) + 1 {
		<-done
	}
	if s := l.stakes.Load(); s != nil {
		s.close()
	}
	return nil
}

// look keeps up with what other nodes of the region have heard of regions.
func (l *Link) look(ctx context.Context) {
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	for {
		_ = l.learn(ctx, nil) // the store may be lost: it is tried again
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// Status is how a peer is.
type Status struct {
	Region string `json:"region"`
	Home   bool   `json:"home,omitempty"` // of rules that name none
	// Grace: it has become a home lately, as far as is known here, and owns no more than its floor yet.
	Grace bool `json:"grace,omitempty"`
	Up    bool `json:"up"`
	// Since is since when it is up, or isn't: of one that was never heard, since this node began.
	Since time.Time     `json:"since,omitzero"`
	RTT   time.Duration `json:"-"`
	// RTTMS is RTT in milliseconds.
	RTTMS float64 `json:"rtt_ms"`
	// Epoch is what it says. SameRules: its global rules, their homes and its peers are this region's.
	Epoch     int64  `json:"epoch,omitempty"`
	SameRules bool   `json:"same_rules"`
	State     string `json:"state,omitempty"` // drained or forgotten
	// Asks is how often this node asked it for tokens and was answered, and Short how often it had less than half of what requests waited for.
	Asks  uint64 `json:"asks"`
	Short uint64 `json:"short"`
	Error string `json:"error,omitempty"` // why it isn't up
}

// Peers is how the other regions are, by name.
func (l *Link) Peers() (out []Status) {
	for _, name := range slices.Sorted(maps.Keys(l.peers)) {
		out = append(out, l.peers[name].status())
	}
	return out
}

func (l *Link) peer(home string) (*peer, error) {
	if p := l.peers[home]; p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("no region is named %q: see regions.peers", home)
}

// take has a home decide charges.
func (l *Link) take(ctx context.Context, home string, charges []counter.Charge, results []counter.Result) error {
	a := act{}
	for i := range charges {
		a.Charges = append(a.Charges, wireCharge(&charges[i]))
	}
	r, err := l.do(ctx, home, a)
	if err != nil {
		return err
	}
	if len(r.Results) != len(results) {
		return errors.New("its answer makes no sense: does it run another version?")
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
	a := act{Once: once, Keep: keep.Microseconds()}
	for i := range returns {
		a.Returns = append(a.Returns, wireReturn(&returns[i]))
	}
	r, err := l.do(ctx, home, a)
	if err == nil && r.Used {
		return counter.ErrUsed
	}
	return err
}

func (l *Link) reset(ctx context.Context, home string, counters []counter.Counter) error {
	a := act{}
	for _, c := range counters {
		a.Resets = append(a.Resets, wireCounter(&c))
	}
	_, err := l.do(ctx, home, a)
	return err
}

// do has a home carry out an act.
func (l *Link) do(ctx context.Context, home string, a act) (result, error) {
	p, err := l.peer(home)
	if err != nil {
		return result{}, err
	}
	r, err := p.do(ctx, a)
	if err == nil && r.Failed != "" {
		err = fmt.Errorf("region %s: %s", home, r.Failed)
	}
	return r, err
}
