package redisstore

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/ledger"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/storetest"
)

// TestAgree checks that the same random sequences get the same results in memory and in Redis, one at a time or several in one
// script call.
func TestAgree(t *testing.T) { agree(t, storetest.Algorithms, false) }

// TestAgreeLending does the same for charges that borrow tokens and give back those that they didn't spend.
func TestAgreeLending(t *testing.T) {
	agree(t, []counter.Algorithm{counter.TokenBucket, counter.LeakyBucket, counter.FixedWindow, counter.SlidingCounter}, true)
}

func agree(t *testing.T, algorithms []counter.Algorithm, lending bool) {
	const steps, walkers = 100_000 / slowness, 8
	r := redistest.New(t, redistest.Options{})
	open := opener(t, "redis://"+r.Addr)
	t.Run("algorithms", func(t *testing.T) {
		for _, a := range algorithms {
			t.Run(a.String(), func(t *testing.T) {
				t.Parallel()
				var all sync.WaitGroup
				for i := range walkers {
					w := newWalker(t, open, limits{algorithm: a}, i, lending)
					all.Go(func() {
						if err := w.walk(steps / walkers); err != nil {
							t.Errorf("walker %d, seed %d: %v", i, *seed, err)
						}
					})
				}
				all.Wait()
			})
		}
	})
	lasting(t, r)
}

// walker makes the same random charges to a few counters in both stores.
type walker struct {
	*rand.Rand
	limits
	holding   bool // charges leave holds behind: see agree_hold_test.go
	extreme   bool // numbers of any size
	steady    bool // the clock doesn't run backwards
	lending   bool // charges ask for more at times
	alone     bool // mostly one node asks, for a little, so that it gets slow leases
	now       time.Time
	memory    [2]counter.Store // as two nodes see it
	redis     [2]*Store
	policies  []*counter.Policy
	windows   []time.Duration
	calendars []counter.Calendar // of each policy, if any
	other     counter.Algorithm  // of the third policy
	taken     []counter.Return
	unspent   []ledger.Unspent
	bases     []int64 // of accounts, for claims
	once      []step
	receipts  uint64
}

// limits says what kind of limits a walker has.
type limits struct {
	algorithm         counter.Algorithm
	decimal, calendar bool
}

func newWalker(t *testing.T, open storetest.OpenLender, l limits, i int, lending bool) *walker {
	a := l.algorithm
	w := &walker{
		Rand:    rand.New(rand.NewPCG(*seed, uint64(a)<<32+uint64(i))),
		limits:  l,
		extreme: i%4 == 3 && !lending,
		lending: lending,
		alone:   lending && i%2 == 0,
		now:     storetest.Start,
		windows: []time.Duration{time.Second, 7 * time.Second, time.Minute, time.Millisecond, 1500 * time.Microsecond},
	}
	w.steady = windowed(a) && (i%2 == 1)
	for w.other = storetest.Algorithms[w.IntN(6)]; w.steady && w.other < counter.FixedWindow; {
		w.other = storetest.Algorithms[w.IntN(6)]
	}
	clock := func() time.Time { return w.now }
	m := memstore.New(memstore.Options{Now: clock})
	w.memory = [2]counter.Store{m, m}
	if lending {
		model := storetest.NewModel(clock)
		w.memory = [2]counter.Store{model.Node(1), model.Node(2)}
	}
	for i, s := range open(t, clock) {
		w.redis[i] = s.(*Store)
	}
	w.policies = make([]*counter.Policy, 5)
	for i := range w.policies {
		w.calendars = append(w.calendars, w.drawCalendar())
		w.change(i)
	}
	return w
}

func windowed(a counter.Algorithm) bool {
	return a == counter.FixedWindow || a == counter.SlidingCounter
}

// change gives a policy new numbers. The third policy has another algorithm, and the fourth is in shadow.
//
// For algorithms with windows, another window means another field. A hash with more than eight fields drops those that are full
// again, and memstore doesn't. That would show after the clock has run back, or with a slower bucket, so a walk with many
// fields has neither.
func (w *walker) change(i int) {
	a := w.algorithm
	if i == 2 && !w.holding {
		a = w.other
	}
	for {
		l := counter.Limit{Algorithm: a, Count: 1 + w.Int64N(50), Window: w.windows[i]}
		if !windowed(a) || w.steady || i == 0 {
			l.Window = w.windows[w.IntN(3)]
		}
		if w.extreme && (!windowed(a) || w.steady) {
			l.Count = w.magnitude(counter.MaxTokens)
			l.Window = time.Duration(1000+w.magnitude(366*24*3600*1e6)) * time.Microsecond
		}
		if a <= counter.LeakyQueue {
			l.Burst = w.Int64N(80)
			if w.lending && w.IntN(2) == 0 { // so much that slow leases may be had of it
				l.Count, l.Burst = 40*l.Count, 40*l.Burst
			}
			if w.extreme && w.IntN(2) == 0 {
				l.Burst = w.magnitude(counter.MaxTokens)
			}
			if w.IntN(3) == 0 {
				l.Refill = float64(1+w.IntN(1e6)) / 1000
			}
		}
		if a == counter.LeakyQueue && w.IntN(2) == 0 {
			l.MaxDelay = time.Duration(w.magnitude(l.Window.Microseconds())) * time.Microsecond
		}
		w.amounts(i, &l)
		p, err := counter.NewPolicy(fmt.Sprint("p", i), l)
		if err != nil {
			continue // no such limit: draw another
		}
		p = p.With(func(d *counter.Definition) { d.Shadow = i == 3 })
		w.policies[i] = w.mark(i, p)
		return
	}
}

// magnitude draws a number up to most. Small numbers are as likely as large ones.
func (w *walker) magnitude(most int64) int64 {
	n := int64(1)
	for n < most && w.IntN(40) > 0 {
		n *= 1 + w.Int64N(4)
	}
	return min(most, n)
}

func (w *walker) counter() counter.Counter {
	return counter.Counter{Policy: w.policies[w.IntN(len(w.policies))], Subject: []byte{'s', byte(w.IntN(3))}}
}

// step is one request to both stores.
type step struct {
	kind    kind
	node    int
	asks    []ledger.Ask
	returns []counter.Return
	unspent []ledger.Unspent
	resets  []counter.Counter
	once    counter.Once
}

// outcome is the result of a step: the grants of a take, otherwise the error.
type outcome struct {
	grants []ledger.Grant
	err    error
}

const keepOnce = 365 * 24 * time.Hour

func (w *walker) walk(steps int) error {
	for done := 0; done < steps; {
		joined := make([]step, 1)
		if w.IntN(2) == 0 {
			joined = make([]step, 1+w.IntN(6))
		}
		for i := range joined {
			joined[i] = w.draw()
			joined[i].node = joined[0].node // of one call
		}
		want := make([]outcome, len(joined))
		for i, st := range joined {
			want[i] = perform(w.memory[st.node], st)
		}
		got, err := w.ask(joined)
		if err != nil {
			return fmt.Errorf("step %d: %w", done, err)
		}
		for i, st := range joined {
			if diff := compare(st, got[i], want[i]); diff != "" {
				return fmt.Errorf("step %d (%d of %d in a call), at %d: %s", done+i, i+1, len(joined), w.now.UnixMicro(), diff)
			}
			w.remember(st, got[i])
		}
		done += len(joined)
		w.move()
	}
	return nil
}

// move steps the clock, often by nothing and sometimes back, and now and then changes the rules.
func (w *walker) move() {
	unit := w.windows[w.IntN(len(w.windows))].Microseconds()
	if w.extreme {
		unit = w.magnitude(24 * 3600 * 1e6)
	}
	if w.lending && w.IntN(2) == 0 {
		unit = []int64{ledger.MaxLease.Microseconds(), 5_000_000}[w.IntN(2)]
	}
	step := w.IntN(12)
	if w.alone && w.IntN(20) > 0 {
		step, unit = 0, 1_000_000
	}
	if w.calendar && w.IntN(4) == 0 {
		w.toEdge()
	}
	switch step {
	case 0, 1, 2, 3:
		w.now = w.now.Add(time.Duration(w.Int64N(unit+1)) * time.Microsecond)
	case 4:
		w.now = w.now.Add(time.Duration(3*unit) * time.Microsecond)
	case 5:
		if w.steady {
			return
		}
		w.now = w.now.Add(-time.Duration(w.Int64N(3*unit)) * time.Microsecond)
	case 6:
		w.change(w.IntN(len(w.policies)))
	}
}

func (w *walker) draw() step {
	if w.alone && w.IntN(60) > 0 {
		c := w.counter()
		q := ledger.Ask{Charge: counter.Charge{Counter: c, N: 1 + w.Int64N(max(1, c.Policy.Limit.Max()/64))}, Want: 1 + w.Int64N(8)}
		q.Claim = w.claim(c.Policy)
		return step{kind: kindTake, asks: []ledger.Ask{q}}
	}
	switch w.IntN(10) {
	case 0:
		return w.drawReturn()
	case 1:
		if w.IntN(3) == 0 {
			return step{kind: kindReset, resets: []counter.Counter{w.counter(), w.counter()}}
		}
	case 2, 3:
		if w.lending {
			return w.drawUnspent()
		}
	}
	st := step{kind: kindTake, node: w.IntN(10) / 9}
	for range 1 + w.IntN(2)*w.IntN(4) {
		c := w.counter()
		if !st.names(c) {
			q := ledger.Ask{Charge: counter.Charge{Counter: c, N: w.amount(c.Policy), Peek: w.IntN(5) == 0}}
			q.Hold = w.drawHold(&q.Charge)
			if w.lending && w.IntN(2) == 0 {
				q.Waiting, q.Want = w.amount(c.Policy)*w.Int64N(2), w.amount(c.Policy)*w.Int64N(2)
				q.Claim = w.claim(c.Policy)
			}
			st.asks = append(st.asks, q)
		}
	}
	return st
}

func (st *step) names(c counter.Counter) bool {
	for _, o := range st.asks {
		if o.Policy.Name == c.Policy.Name && string(o.Subject) == string(c.Subject) {
			return true
		}
	}
	return false
}

func (w *walker) amount(p *counter.Policy) int64 {
	if p.Limit.Decimal {
		return w.decimalAmount(p)
	}
	switch w.IntN(8) {
	case 0:
		return w.magnitude(2 * counter.MaxTokens)
	case 1:
		return p.Limit.Max() + w.Int64N(3) - 1 + 1/p.Limit.Max()
	}
	return 1 + w.Int64N(max(1, p.Limit.Max()/4))
}

func (w *walker) drawReturn() step {
	if len(w.once) > 0 && w.IntN(4) == 0 {
		return w.once[w.IntN(len(w.once))]
	}
	st := step{kind: kindGiveBack}
	for range w.IntN(4) {
		if len(w.taken) == 0 {
			break
		}
		back := w.taken[len(w.taken)-1-w.IntN(min(len(w.taken), 30))]
		switch w.IntN(6) {
		case 0:
			back.Slot += w.Int64N(3) - 1
		case 1:
			back.Slot -= back.Policy.Limit.Window.Microseconds()
		case 2:
			back.N += w.Int64N(100)
		case 3:
			back.Policy = w.policies[w.IntN(len(w.policies))] // by the numbers of now, or another's altogether
		}
		w.settle(&back)
		st.returns = append(st.returns, back)
	}
	if w.IntN(3) == 0 {
		w.receipts++
		binary.LittleEndian.PutUint64(st.once[:], w.receipts)
		w.once = append(w.once, st)              // a receipt names the same returns each time
		w.once = w.once[max(0, len(w.once)-10):] // and isn't remembered forever
	}
	return st
}

// claim draws a node's account of a counter. It is usually the account as it was a moment ago.
func (w *walker) claim(p *counter.Policy) (c ledger.Claim) {
	if p.Limit.Algorithm > counter.LeakyBucket || len(w.bases) == 0 || w.IntN(2) == 0 {
		return c
	}
	at := w.now.UnixMicro() - w.Int64N(1000)
	c = ledger.Claim{Base: w.bases[len(w.bases)-1-w.IntN(min(len(w.bases), 4))], Held: w.Int64N(min(10, p.Limit.Max()) + 1)}
	c.State = p.AtLevel(w.Int64N((p.Limit.Max()-c.Held)*1_000_000+1), max(1, at))
	return c
}

func (w *walker) drawUnspent() step {
	st := step{kind: kindTakeBack, node: w.IntN(2)}
	for range w.IntN(3) {
		if len(w.unspent) == 0 {
			break
		}
		u := w.unspent[len(w.unspent)-1-w.IntN(min(len(w.unspent), 10))]
		switch w.IntN(6) {
		case 0:
			u.Interval += w.Int64N(3) - 1
		case 1:
			u.N += w.Int64N(100)
		case 2:
			u.Claim = w.claim(u.Policy)
		}
		st.unspent = append(st.unspent, u)
	}
	return st
}

// remember keeps what can be given back later.
func (w *walker) remember(st step, o outcome) {
	for i, g := range o.grants {
		c := st.asks[i]
		if g.Allowed && !c.Peek {
			w.taken = append(w.taken, counter.Return{Counter: c.Counter, N: c.N, Slot: g.Slot, Hold: c.Hold})
		}
		if g.Lent > 0 {
			w.unspent = append(w.unspent, ledger.Unspent{Counter: c.Counter, N: 1 + w.Int64N(g.Lent), Interval: g.Interval})
		}
		if g.Account.Time > 0 {
			w.bases = append(w.bases, g.Account.Time)
		}
	}
	w.taken = w.taken[max(0, len(w.taken)-200):]
	w.unspent, w.bases = w.unspent[max(0, len(w.unspent)-50):], w.bases[max(0, len(w.bases)-50):]
}

func perform(s counter.Store, st step) (o outcome) {
	ctx := context.Background()
	switch st.kind {
	case kindTake:
		o.grants = make([]ledger.Grant, len(st.asks))
		if l, ok := s.(storetest.Lender); ok {
			l.Lend(ctx, st.asks, o.grants)
			break
		}
		charges, results := make([]counter.Charge, len(st.asks)), make([]counter.Result, len(st.asks))
		for i := range st.asks {
			charges[i] = st.asks[i].Charge
		}
		s.Take(ctx, charges, results)
		for i, r := range results {
			o.grants[i].Result = r
		}
	case kindTakeBack:
		o.err = s.(storetest.Lender).TakeBack(ctx, st.unspent)
	case kindGiveBack:
		o.err = s.GiveBack(ctx, st.once, keepOnce, st.returns)
	case kindReset:
		o.err = s.Reset(ctx, st.resets)
	}
	return o
}

// ask sends a step as callers do, or several in one script call.
func (w *walker) ask(steps []step) ([]outcome, error) {
	if len(steps) == 1 {
		return []outcome{perform(w.redis[steps[0].node], steps[0])}, nil
	}
	redis := w.redis[steps[0].node]
	parts := make([]*part, len(steps))
	var acts []*act
	for i, st := range steps {
		parts[i] = redis.part(st)
		acts = append(acts, &parts[i].act)
	}
	if err := redis.call(context.Background(), &redis.joiners[0], acts); err != nil {
		return nil, err
	}
	answers := make([]outcome, len(steps))
	for i, p := range parts {
		switch {
		case p.kind == kindTake:
			answers[i].grants = make([]ledger.Grant, len(p.charges))
			redis.report(p, outcomes{grants: answers[i].grants}, !p.refused())
		case p.used:
			answers[i].err = counter.ErrUsed
		}
	}
	return answers, nil
}

func (s *Store) part(st step) *part {
	p := &part{act: act{kind: st.kind}}
	add := func(c counter.Counter) *charge {
		key, _ := s.names.Load().subject(&c)
		p.indices = append(p.indices, len(p.charges))
		p.charges = append(p.charges, charge{policy: c.Policy, key: key})
		return &p.charges[len(p.charges)-1]
	}
	for i := range st.asks {
		add(st.asks[i].Counter).ask(&st.asks[i].Charge, &st.asks[i])
	}
	for _, r := range st.returns {
		add(r.Counter).settle(&r)
	}
	for _, u := range st.unspent {
		c := add(u.Counter)
		c.giveBack(u.N, u.Interval)
		c.claim = u.Claim
	}
	for _, c := range st.resets {
		add(c)
	}
	if st.once != (counter.Once{}) {
		tag := int(st.once[0]) % tags
		if len(st.returns) > 0 {
			_, tag = s.names.Load().subject(&st.returns[0].Counter)
		}
		p.once, p.keep = s.names.Load().once(st.once, tag), keepOnce.Milliseconds()
	}
	return p
}

func compare(st step, got, want outcome) string {
	if got.err != want.err {
		return fmt.Sprintf("%v: got error %v, want %v", st, got.err, want.err)
	}
	var text strings.Builder
	for i := range want.grants {
		g, w, c := got.grants[i], want.grants[i], st.asks[i]
		if (g.Account.Node == 0) == (w.Account.Node == 0) { // nodes have other names in the model
			g.Account.Node, w.Account.Node = 0, 0
		}
		if w.Lent == 0 { // and a lease's time says nothing where there is none; memstore doesn't lend
			g.LeaseTime, g.Interval, w.LeaseTime, w.Interval = 0, 0, 0, 0
		}
		if w.Now == 0 {
			g.Now = 0
		}
		if w.Account.Since == 0 && g.Account.Since == 0 { // what is full may be forgotten; the results tell of the rest
			g.Account, w.Account = ledger.Account{}, ledger.Account{}
		}
		if g != w {
			fmt.Fprintf(&text, "\nask %d of %d (%s %+v, subject %q, %+v):\n got %+v\nwant %+v",
				i+1, len(st.asks), c.Policy.Name, c.Policy.Limit, c.Subject, c, g, w)
		}
	}
	return text.String()
}
