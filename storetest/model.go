package storetest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/ledger"
	"pgregory.net/rapid"
)

// Model is a store without any machinery: the arithmetic of packages weir and ledger over maps.
type Model struct {
	*shared
	node uint32
}

// shared is what the nodes of a model share.
type shared struct {
	mu       sync.Mutex // guards the maps
	now      func() time.Time
	accounts map[key]ledger.Account
	logs     map[key]*weir.Log
	used     map[weir.Once]bool
}

// NewModel makes an empty model with the given clock, as one node sees it.
func NewModel(now func() time.Time) *Model {
	return &Model{&shared{now: now, accounts: map[key]ledger.Account{}, logs: map[key]*weir.Log{}, used: map[weir.Once]bool{}}, 1}
}

// ID is the node's.
func (m *Model) ID() uint32 { return m.node }

// Node is the same store as another node sees it.
func (m *Model) Node(node uint32) *Model { return &Model{m.shared, node} }

// Edit changes an account by hand: for bugs that are planted, to see whether a test finds them.
func (m *Model) Edit(c weir.Counter, f func(*ledger.Account)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.accounts[keyOf(c)]
	f(&a)
	m.accounts[keyOf(c)] = a
}

// Take decides the charges, all or nothing.
func (m *Model) Take(ctx context.Context, charges []weir.Charge, results []weir.Result) {
	asks, grants := make([]ledger.Ask, len(charges)), make([]ledger.Grant, len(charges))
	for i, c := range charges {
		asks[i].Charge = c
	}
	m.Lend(ctx, asks, grants)
	for i := range grants {
		results[i] = grants[i].Result
	}
}

// Lend decides charges that would hold more tokens, all or nothing.
func (m *Model) Lend(_ context.Context, asks []ledger.Ask, grants []ledger.Grant) {
	m.mu.Lock()
	defer m.mu.Unlock()
	copy(grants, m.lend(m.now().UnixMicro(), asks))
}

// TakeBack returns lent tokens.
func (m *Model) TakeBack(_ context.Context, unspent []ledger.Unspent) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, u := range unspent {
		m.takeBack(m.now().UnixMicro(), u)
	}
	return nil
}

// GiveBack returns tokens. It remembers every Once for ever.
func (m *Model) GiveBack(_ context.Context, once weir.Once, _ time.Duration, returns []weir.Return) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if once != (weir.Once{}) {
		if m.used[once] {
			return weir.ErrUsed
		}
		m.used[once] = true
	}
	for _, r := range returns {
		m.giveBack(m.now().UnixMicro(), r)
	}
	return nil
}

// Reset makes counters untouched.
func (m *Model) Reset(_ context.Context, counters []weir.Counter) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range counters {
		m.reset(c)
	}
	return nil
}

type key struct {
	policy  uint64
	subject string
}

func keyOf(c weir.Counter) key { return key{c.Policy.ID, string(c.Subject)} }

func isLog(c weir.Counter) bool { return c.Policy.Limit.Algorithm == weir.SlidingLog }

func (m *Model) log(c weir.Counter) *weir.Log {
	l := m.logs[keyOf(c)]
	if l == nil {
		l = &weir.Log{}
		m.logs[keyOf(c)] = l
	}
	return l
}

func (m *Model) lend(now int64, asks []ledger.Ask) []ledger.Grant {
	grants := make([]ledger.Grant, len(asks))
	fits := make([]bool, len(asks))
	all := true
	// A counter that several charges name is asked for all their tokens, and debited once: by the first
	// that isn't in shadow, if there is one.
	asks = slices.Clone(asks)
	asked, payer := map[key]int64{}, map[key]int{}
	for i, c := range asks {
		k := keyOf(c.Counter)
		asked[k] = min(asked[k]+c.N, 2*weir.MaxTokens)
		if j, again := payer[k]; again {
			asks[i].Want, asks[i].Waiting, asks[j].Want, asks[j].Waiting = 0, 0, 0, 0
			if !asks[j].Policy.Shadow || c.Policy.Shadow {
				continue
			}
		}
		payer[k] = i
	}
	for i := range asks {
		c := &asks[i]
		c.N = asked[keyOf(c.Counter)]
		fits[i] = m.fits(now, c)
		all = all && (fits[i] || c.Policy.Shadow)
	}
	verdicts := make([]weir.Verdict, len(asks))
	for i := range asks {
		c := &asks[i]
		switch {
		case fits[i] && (all || c.Policy.Book) && !c.Peek:
			verdicts[i] = weir.Taken
		case fits[i]:
			verdicts[i] = weir.Fits
		}
		if payer[keyOf(c.Counter)] == i && verdicts[i] != weir.Fits {
			grants[i].Lent = m.charge(now, c)
		}
	}
	for i := range asks {
		m.report(now, &asks[i], verdicts[i], &grants[i])
	}
	return grants
}

func (m *Model) fits(now int64, c *ledger.Ask) (fits bool) {
	a := m.accounts[keyOf(c.Counter)]
	switch {
	case isLog(c.Counter):
		return c.Policy.FitsLog(m.log(c.Counter), now, c.N)
	case ledger.Lends(c.Policy):
		_, _, fits = a.Lend(c.Policy, now, m.node, c)
	default:
		_, fits = try(&c.Charge, a.State, now)
	}
	return fits
}

func try(c *weir.Charge, s weir.State, now int64) (weir.State, bool) {
	if c.Peek {
		return c.Policy.Try(s, now, c.N)
	}
	return c.Policy.Debit(s, now, c.N)
}

// charge takes what a charge asks for, if it fits, and returns what it was lent.
func (m *Model) charge(now int64, c *ledger.Ask) (lent int64) {
	a := m.accounts[keyOf(c.Counter)]
	switch {
	case isLog(c.Counter):
		c.Policy.TryLog(m.log(c.Counter), now, c.N)
		return 0
	case ledger.Lends(c.Policy):
		a, lent, _ = a.Lend(c.Policy, now, m.node, c)
	default:
		a.State, _ = try(&c.Charge, a.State, now)
	}
	m.accounts[keyOf(c.Counter)] = a
	return lent
}

func (m *Model) report(now int64, c *ledger.Ask, v weir.Verdict, g *ledger.Grant) {
	a := m.accounts[keyOf(c.Counter)]
	switch {
	case isLog(c.Counter):
		g.Result = c.Policy.ReportLog(m.log(c.Counter), now, c.N, v)
	case ledger.Lends(c.Policy):
		a.Report(c.Policy, &g.Result, now, c.N, v)
		g.Account, g.Now = a, now
		g.LeaseTime, g.Interval = a.Lease(c.Policy, now, m.node)
	default:
		c.Policy.ReportTo(&g.Result, a.State, now, c.N, v)
	}
}

func (m *Model) giveBack(now int64, r weir.Return) {
	k := keyOf(r.Counter)
	switch {
	case isLog(r.Counter):
		r.Policy.ReturnLog(m.log(r.Counter), now, r.N, r.Slot)
	case ledger.Lends(r.Policy):
		m.accounts[k] = m.accounts[k].Refund(r.Policy, now, r.N, r.Slot)
	default:
		m.accounts[k] = ledger.Account{State: r.Policy.Return(m.accounts[k].State, now, r.N, r.Slot)}
	}
}

func (m *Model) takeBack(now int64, u ledger.Unspent) {
	m.accounts[keyOf(u.Counter)] = m.accounts[keyOf(u.Counter)].TakeBack(u.Policy, now, m.node, &u)
}

func (m *Model) reset(c weir.Counter) {
	delete(m.accounts, keyOf(c))
	delete(m.logs, keyOf(c))
}

// agreesWithModel runs random sequences of takes, peeks, layers, returns, resets,
// changed numbers and time steps, backwards too, on the store and on the model.
func agreesWithModel(t *testing.T, open Open, k kind) {
	for _, a := range Algorithms {
		t.Run(a.String(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				h := start(t, open)
				walk(t, h, a, k, nil)
			})
		})
	}
}

// lendsAsModel is the same with two nodes, whose charges would hold more at times, and give back what was lent.
func lendsAsModel(t *testing.T, open OpenLender) {
	for _, a := range Algorithms {
		t.Run(a.String(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				h := &harness{tb: t, now: Start}
				nodes := open(t, h.clock)
				h.Store = nodes[0]
				walk(t, h, a, all, nodes[:])
			})
		})
	}
}

// kind says what random sequences are made of.
type kind struct {
	steps   []string // what stands here more often happens more often
	windows []time.Duration
	large   bool // some buckets are large, and lend for longer
	past    bool // some limits take tokens past the limit
	// slack is by what refills in which time buckets may have more than the model's: see near.
	slack time.Duration
}

var (
	all = kind{
		steps:   []string{"take", "take", "take", "layers", "again", "peek", "return", "unspent", "reset", "change", "time", "time", "back"},
		windows: []time.Duration{time.Second, 7 * time.Second, time.Minute},
		past:    true,
	}
	borrowing = kind{
		steps:   []string{"take", "take", "flurry", "flurry", "peek", "reset", "time", "time"},
		windows: []time.Duration{20 * time.Second, time.Minute},
		large:   true,
		slack:   ledger.MaxLease + time.Millisecond, // for what is rounded on the way
	}
)

func walk(t *rapid.T, h *harness, a weir.Algorithm, k kind, nodes []Lender) {
	m := NewModel(h.clock)
	window := rapid.SampledFrom(k.windows).Draw(t, "window")
	policies := make([]*weir.Policy, 3)
	books, counts := -1, -1 // which of them, if any
	if k.past {
		counts = rapid.IntRange(-1, 2).Draw(t, "counts refused")
	}
	if k.past && a != weir.SlidingLog && a != weir.LeakyQueue {
		books = rapid.IntRange(-1, 2).Draw(t, "books")
	}
	number := func(i int) {
		l := weir.Limit{Algorithm: a, Count: rapid.Int64Range(1, 50).Draw(t, "count"), Window: window}
		if a <= weir.LeakyQueue {
			l.Burst = rapid.Int64Range(0, 80).Draw(t, "burst")
			if (nodes != nil || k.large) && rapid.Bool().Draw(t, "large") {
				l.Count, l.Burst = 10*l.Count, 10*l.Burst // which lends for longer
			}
		}
		if a == weir.LeakyQueue {
			l.MaxDelay = rapid.SampledFrom([]time.Duration{0, window / 2}).Draw(t, "max delay")
		}
		policies[i] = Policy(t, fmt.Sprint("p", i), l)
		policies[i].Shadow = i == 2
		policies[i].Book, policies[i].CountRefused = i == books, i == counts
	}
	for i := range policies {
		number(i)
	}
	pick := func() weir.Counter {
		return counter(rapid.SampledFrom(policies).Draw(t, "policy"), rapid.SampledFrom([]string{"s", "t"}).Draw(t, "subject"))
	}
	ctx := context.Background()
	var taken []weir.Return
	var lent []ledger.Unspent
	charge := func(charges ...weir.Charge) {
		if nodes == nil {
			taken = append(taken, compare(t, h, m, charges, k.slack)...)
			return
		}
		node := rapid.SampledFrom([]int{0, 0, 0, 0, 0, 0, 0, 1}).Draw(t, "node")
		asks := make([]ledger.Ask, len(charges))
		for i, c := range charges {
			asks[i] = ledger.Ask{Charge: c}
			if rapid.Bool().Draw(t, "borrows") {
				asks[i].Want, asks[i].Waiting = rapid.Int64Range(0, 20).Draw(t, "want"), rapid.Int64Range(0, 5).Draw(t, "waiting")
			}
		}
		back, more := compareLend(t, nodes[node], m.Node(uint32(node+1)), asks)
		taken, lent = append(taken, back...), append(lent, more...)
	}
	for range rapid.IntRange(1, 300).Draw(t, "steps") {
		switch rapid.SampledFrom(k.steps).Draw(t, "what") {
		case "take", "peek":
			c := weir.Charge{Counter: pick(), N: rapid.Int64Range(0, 20).Draw(t, "n"), Peek: rapid.Bool().Draw(t, "peek")}
			if !c.Peek || !k.past {
				c.N = max(c.N, 1)
			}
			charge(c)
		case "flurry": // of small costs, for which a node borrows
			c, gap := pick(), rapid.Int64Range(0, window.Microseconds()/20).Draw(t, "gap")
			for range rapid.IntRange(1, 30).Draw(t, "takes") {
				charge(weir.Charge{Counter: c, N: 1})
				h.step(time.Duration(gap) * time.Microsecond)
			}
		case "layers":
			n, subject := rapid.Int64Range(1, 10).Draw(t, "n"), rapid.SampledFrom([]string{"s", "t"}).Draw(t, "subject")
			var cs []weir.Charge
			for _, p := range policies {
				cs = append(cs, weir.Charge{Counter: counter(p, subject), N: n})
			}
			charge(cs...)
		case "again":
			// Other numbers for one counter are alternatives, of which a call may name several all the same.
			p, q := policies[0], policies[rapid.IntRange(0, 1).Draw(t, "beside")]
			c, peeks := counter(p, rapid.SampledFrom([]string{"s", "t"}).Draw(t, "subject")), rapid.Bool().Draw(t, "peeks")
			cs := []weir.Charge{{Counter: c, Peek: peeks}, {Counter: counter(q, string(c.Subject)), Peek: peeks}, {Counter: c, Peek: peeks}}
			for i := range cs {
				cs[i].N = rapid.Int64Range(1, 10).Draw(t, "n")
			}
			charge(cs...)
		case "return":
			if len(taken) > 0 {
				back := []weir.Return{rapid.SampledFrom(taken).Draw(t, "return")}
				if k.past && rapid.Bool().Draw(t, "slot unknown") {
					back[0].Slot = 0
				}
				_ = m.GiveBack(ctx, weir.Once{}, 0, back)
				if err := h.GiveBack(ctx, weir.Once{}, 0, back); err != nil {
					t.Fatalf("give back: %v", err)
				}
			}
		case "unspent":
			if len(lent) > 0 {
				back := []ledger.Unspent{rapid.SampledFrom(lent).Draw(t, "unspent")}
				_ = m.TakeBack(ctx, back)
				if err := nodes[0].TakeBack(ctx, back); err != nil {
					t.Fatalf("take back: %v", err)
				}
			}
		case "reset":
			c := []weir.Counter{pick()}
			_ = m.Reset(ctx, c)
			if err := h.Reset(ctx, c); err != nil {
				t.Fatalf("reset: %v", err)
			}
		case "change":
			number(rapid.IntRange(0, 2).Draw(t, "changed"))
		case "time":
			most := window
			if nodes != nil && rapid.Bool().Draw(t, "soon") {
				most = rapid.SampledFrom([]time.Duration{ledger.MaxLease, 10 * time.Second}).Draw(t, "lease")
			}
			h.step(time.Duration(rapid.Int64Range(0, most.Microseconds()).Draw(t, "µs")) * time.Microsecond)
		case "back":
			h.step(-time.Duration(rapid.Int64Range(0, 3*window.Microseconds()).Draw(t, "µs")) * time.Microsecond)
		}
	}
}

func compare(t *rapid.T, h *harness, m *Model, charges []weir.Charge, slack time.Duration) (taken []weir.Return) {
	want := make([]weir.Result, len(charges))
	before := maps.Clone(m.accounts)
	m.Take(context.Background(), charges, want)
	got := h.charge(charges...)
	differ := admits(charges, got) != admits(charges, want)
	for i, c := range charges {
		if got[i] != want[i] && !near(c.Policy, got[i], want[i], slack, differ) {
			t.Fatalf("at %d, charge %d of %d (%s, %s, %q, n %d): got %+v, want %+v",
				h.now.UnixMicro(), i+1, len(charges), c.Policy.Limit, c.Policy.Limit.Algorithm, c.Subject, c.N, got[i], want[i])
		}
		differ = differ || got[i].Allowed != want[i].Allowed
		if got[i].Allowed && !c.Peek {
			taken = append(taken, weir.Return{Counter: c.Counter, N: c.N, Slot: got[i].Slot})
		}
	}
	if differ {
		m.follow(before, charges, got)
	}
	return taken
}

// admits: no limit refuses the request.
func admits(charges []weir.Charge, results []weir.Result) bool {
	for i, r := range results {
		if !r.Allowed && !charges[i].Policy.Shadow {
			return false
		}
	}
	return true
}

// near: a bucket has no more than the model's and what refills in some time, and no less than what didn't refill
// in two intervals, in which the store takes spent tokens to be out. If the one admits the request that the other refuses,
// then only how long that lasts can be compared.
func near(p *weir.Policy, got, want weir.Result, slack time.Duration, differ bool) bool {
	late := 2*ledger.Interval(p) + slack
	after := func(got, want time.Duration) bool {
		return got == want || got != weir.Never && want != weir.Never && got >= want-slack && got <= want+late
	}
	switch {
	case !ledger.Lends(p) || p.Limit.Algorithm > weir.LeakyBucket || got.Slot != want.Slot || got.Delay != want.Delay:
		return false
	case got.Allowed != want.Allowed:
		return after(got.RetryAfter, want.RetryAfter)
	case differ:
		return true
	}
	tokens := func(d time.Duration) int64 { return p.Refill(d.Microseconds())/1_000_000 + 1 }
	return after(got.RetryAfter, want.RetryAfter) && after(got.ResetAfter, want.ResetAfter) &&
		got.Remaining <= want.Remaining+tokens(slack) && got.Remaining >= want.Remaining-tokens(late)
}

// follow has the model go on from an answer that differs from its own. A bucket may owe a little then.
func (m *Model) follow(before map[key]ledger.Account, charges []weir.Charge, results []weir.Result) {
	now, took := m.now().UnixMicro(), admits(charges, results)
	m.accounts = before
	for i, c := range charges {
		if a := m.accounts[keyOf(c.Counter)]; took && results[i].Allowed && !c.Peek {
			a.State = c.Policy.AtLevel(c.Policy.Level(a.State, now)-c.N*1_000_000, now)
			m.accounts[keyOf(c.Counter)] = a
		}
	}
}

func compareLend(t *rapid.T, node, m Lender, asks []ledger.Ask) (taken []weir.Return, lent []ledger.Unspent) {
	want, got := make([]ledger.Grant, len(asks)), make([]ledger.Grant, len(asks))
	m.Lend(context.Background(), asks, want)
	node.Lend(context.Background(), asks, got)
	for i, c := range asks {
		// Nodes have other names in the model, and a lease's time says nothing where there is none.
		if g, w := &got[i], &want[i]; (g.Account.Node == 0) == (w.Account.Node == 0) {
			g.Account.Node, w.Account.Node = 0, 0
			if g.Lent == 0 && w.Lent == 0 {
				g.LeaseTime, g.Interval, w.LeaseTime, w.Interval = 0, 0, 0, 0
			}
		}
		if got[i] != want[i] {
			t.Fatalf("ask %d of %d (%s, %s, %q, %+v): got %+v, want %+v", i+1, len(asks), c.Policy.Limit, c.Policy.Limit.Algorithm, c.Subject, c, got[i], want[i])
		}
		if got[i].Allowed && !c.Peek {
			taken = append(taken, weir.Return{Counter: c.Counter, N: c.N, Slot: got[i].Slot})
		}
		if got[i].Lent > 0 {
			lent = append(lent, ledger.Unspent{Counter: c.Counter, N: got[i].Lent, Interval: got[i].Interval})
		}
	}
	return taken, lent
}
