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

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/storetest"
)

// TestAgree: the same random sequences give the same answers in memory and in
// Redis, each asked by itself or several in one script call.
func TestAgree(t *testing.T) { agree(t, storetest.Algorithms, false) }

// TestAgreeLending: likewise where charges would hold more, and give back what they didn't spend.
func TestAgreeLending(t *testing.T) {
	agree(t, []weir.Algorithm{weir.TokenBucket, weir.LeakyBucket, weir.FixedWindow, weir.SlidingCounter}, true)
}

func agree(t *testing.T, algorithms []weir.Algorithm, lending bool) {
	const steps, walkers = 100_000 / slowness, 8
	r := redistest.New(t, redistest.Options{})
	open := opener(t, "redis://"+r.Addr)
	t.Run("algorithms", func(t *testing.T) {
		for _, a := range algorithms {
			t.Run(a.String(), func(t *testing.T) {
				t.Parallel()
				var all sync.WaitGroup
				for i := range walkers {
					w := newWalker(t, open, a, i, lending)
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

// TestAgreeOnADebt that outlives its lease, since the bucket was made slower: what is lent ahead leaves less than none.
func TestAgreeOnADebt(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	w := newWalker(t, opener(t, "redis://"+r.Addr), weir.TokenBucket, 0, true)
	p := storetest.Policy(t, "p", weir.Limit{Count: 100, Window: time.Minute})
	slower := storetest.Policy(t, "p", weir.Limit{Count: 1, Window: time.Hour, Burst: 100})
	take := func(p *weir.Policy, n int64, l weir.Loan) step {
		return step{kind: kindTake, charges: []weir.Charge{{Counter: weir.Counter{Policy: p, Subject: []byte("s")}, N: n, Loan: l}}}
	}
	back := step{kind: kindGiveBack, returns: []weir.Return{{Counter: weir.Counter{Policy: slower, Subject: []byte("s")}, N: 1}}}
	for i, one := range []struct {
		after time.Duration
		step
	}{
		{0, take(p, 100, weir.Loan{})},
		{time.Second, take(p, 1, weir.Loan{Want: 8, Slow: true, Ahead: true})},
		{time.Minute, back},
		{0, take(slower, 1, weir.Loan{})},
		{6*time.Hour + 30*time.Minute, take(slower, 1, weir.Loan{})},
		{2 * time.Hour, take(slower, 1, weir.Loan{})},
	} {
		w.now = w.now.Add(one.after)
		got, want := perform(w.redis, one.step), perform(w.memory, one.step)
		if diff := compare(one.step, got, want); diff != "" {
			t.Fatalf("step %d: %s", i, diff)
		}
		if one.kind == kindTake && got.results[0].Allowed != (i != 3 && i != 4) {
			t.Fatalf("step %d: %+v", i, got.results[0])
		}
	}
}

// walker walks at random over a few counters in both stores.
type walker struct {
	*rand.Rand
	algorithm weir.Algorithm
	extreme   bool // numbers of any size
	steady    bool // the clock doesn't run backwards
	lending   bool // charges ask for more at times
	now       time.Time
	memory    weir.Store
	redis     *Store
	policies  []*weir.Policy
	windows   []time.Duration
	other     weir.Algorithm // of the third policy
	taken     []weir.Return
	once      []step
	receipts  uint64
}

func newWalker(t *testing.T, open storetest.Open, a weir.Algorithm, i int, lending bool) *walker {
	w := &walker{
		Rand:      rand.New(rand.NewPCG(*seed, uint64(a)<<32+uint64(i))),
		algorithm: a,
		extreme:   i%4 == 3 && !lending,
		lending:   lending,
		now:       storetest.Start,
		windows:   []time.Duration{time.Second, 7 * time.Second, time.Minute, time.Millisecond, 1500 * time.Microsecond},
	}
	w.steady = windowed(a) && (i%2 == 1)
	for w.other = storetest.Algorithms[w.IntN(6)]; w.steady && w.other < weir.FixedWindow; {
		w.other = storetest.Algorithms[w.IntN(6)]
	}
	clock := func() time.Time { return w.now }
	w.memory = memstore.New(memstore.Options{Now: clock})
	if lending {
		w.memory = storetest.NewModel(clock)
	}
	w.redis = open(t, clock).(*Store)
	w.policies = make([]*weir.Policy, 5)
	for i := range w.policies {
		w.change(i)
	}
	return w
}

func windowed(a weir.Algorithm) bool { return a == weir.FixedWindow || a == weir.SlidingCounter }

// change gives a policy new numbers. The third is of another algorithm, the fourth in shadow.
//
// Another window is another field, where the algorithm counts windows. A hash of
// more than eight fields forgets those that are whole again, which a clock
// that then runs back, or a slower bucket, would have had a use for: memstore
// doesn't forget them. So where there are many fields, there is neither.
func (w *walker) change(i int) {
	a := w.algorithm
	if i == 2 {
		a = w.other
	}
	for {
		l := weir.Limit{Algorithm: a, Count: 1 + w.Int64N(50), Window: w.windows[i]}
		if !windowed(a) || w.steady || i == 0 {
			l.Window = w.windows[w.IntN(3)]
		}
		if w.extreme && (!windowed(a) || w.steady) {
			l.Count = w.magnitude(weir.MaxTokens)
			l.Window = time.Duration(1000+w.magnitude(366*24*3600*1e6)) * time.Microsecond
		}
		if a <= weir.LeakyQueue {
			l.Burst = w.Int64N(80)
			if w.lending && w.IntN(2) == 0 { // so much that slow leases may be had of it
				l.Count, l.Burst = 40*l.Count, 40*l.Burst
			}
			if w.extreme && w.IntN(2) == 0 {
				l.Burst = w.magnitude(weir.MaxTokens)
			}
			if w.IntN(3) == 0 {
				l.Refill = float64(1+w.IntN(1e6)) / 1000
			}
		}
		if a == weir.LeakyQueue && w.IntN(2) == 0 {
			l.MaxDelay = time.Duration(w.magnitude(l.Window.Microseconds())) * time.Microsecond
		}
		p, err := weir.NewPolicy(fmt.Sprint("p", i), l)
		if err != nil {
			continue // no such limit: draw another
		}
		p.Shadow = i == 3
		w.policies[i] = p
		return
	}
}

// magnitude is a number up to most, as often small as large.
func (w *walker) magnitude(most int64) int64 {
	n := int64(1)
	for n < most && w.IntN(40) > 0 {
		n *= 1 + w.Int64N(4)
	}
	return min(most, n)
}

func (w *walker) counter() weir.Counter {
	return weir.Counter{Policy: w.policies[w.IntN(len(w.policies))], Subject: []byte{'s', byte(w.IntN(3))}}
}

// step is one question to both stores.
type step struct {
	kind    kind
	charges []weir.Charge
	returns []weir.Return
	resets  []weir.Counter
	once    weir.Once
}

// outcome is the answer to it: of a take the results, otherwise the error.
type outcome struct {
	results []weir.Result
	err     error
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
		}
		want := make([]outcome, len(joined))
		for i, st := range joined {
			want[i] = perform(w.memory, st)
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

// move steps the clock, often not at all, at times back, and changes rules now and then.
func (w *walker) move() {
	unit := w.windows[w.IntN(len(w.windows))].Microseconds()
	if w.extreme {
		unit = w.magnitude(24 * 3600 * 1e6)
	}
	if w.lending && w.IntN(2) == 0 {
		unit = weir.MaxLease.Microseconds()
	}
	switch w.IntN(12) {
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
	switch w.IntN(10) {
	case 0:
		return w.drawReturn()
	case 1:
		if w.IntN(3) == 0 {
			return step{kind: kindReset, resets: []weir.Counter{w.counter(), w.counter()}}
		}
	case 2, 3:
		if w.lending {
			return w.drawReturn()
		}
	}
	st := step{kind: kindTake}
	for range 1 + w.IntN(2)*w.IntN(4) {
		c := w.counter()
		if !st.names(c) {
			st.charges = append(st.charges, weir.Charge{Counter: c, N: w.amount(c.Policy), Peek: w.IntN(5) == 0})
			if w.lending && w.IntN(2) == 0 {
				last := &st.charges[len(st.charges)-1]
				last.Want, last.Slow = w.amount(c.Policy), w.IntN(2) == 0
				last.Waiting, last.Ahead = w.Int64N(last.Want+1), last.Slow && w.IntN(2) == 0
				if last.Slow && len(w.taken) > 0 {
					o := w.taken[w.IntN(len(w.taken))]
					last.Spent, last.SpentSlot = w.Int64N(o.N+1), o.Slot
				}
			}
		}
	}
	return st
}

func (st *step) names(c weir.Counter) bool {
	for _, o := range st.charges {
		if o.Policy.Name == c.Policy.Name && string(o.Subject) == string(c.Subject) {
			return true
		}
	}
	return false
}

func (w *walker) amount(p *weir.Policy) int64 {
	switch w.IntN(8) {
	case 0:
		return w.magnitude(2 * weir.MaxTokens)
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
		case 4:
			back.Unspent, back.Slow = w.lending && w.IntN(2) == 0, w.IntN(2) == 0
		case 3:
			back.Policy = w.policies[w.IntN(len(w.policies))] // by the numbers of now, or another's altogether
		}
		st.returns = append(st.returns, back)
	}
	if w.IntN(3) == 0 {
		w.receipts++
		binary.LittleEndian.PutUint64(st.once[:], w.receipts)
		w.once = append(w.once, st)              // a receipt names the same returns each time
		w.once = w.once[max(0, len(w.once)-10):] // and isn't remembered for ever
	}
	return st
}

// remember keeps what may be given back.
func (w *walker) remember(st step, o outcome) {
	for i, r := range o.results {
		if c := st.charges[i]; r.Allowed && !c.Peek {
			w.taken = append(w.taken, weir.Return{Counter: c.Counter, N: c.N, Slot: r.Slot})
			if r.Lent > 0 {
				w.taken = append(w.taken, weir.Return{Counter: c.Counter, N: 1 + w.Int64N(r.Lent), Slot: r.Slot, Unspent: true, Slow: r.LentFor > weir.MaxLease})
			}
		}
	}
	if len(w.taken) > 200 {
		w.taken = append(w.taken[:0], w.taken[100:]...)
	}
}

func perform(s weir.Store, st step) (o outcome) {
	ctx := context.Background()
	switch st.kind {
	case kindTake:
		o.results = make([]weir.Result, len(st.charges))
		s.Take(ctx, st.charges, o.results)
	case kindGiveBack:
		o.err = s.GiveBack(ctx, st.once, keepOnce, st.returns)
	case kindReset:
		o.err = s.Reset(ctx, st.resets)
	}
	return o
}

// ask puts one question as callers do, and several into one script call.
func (w *walker) ask(steps []step) ([]outcome, error) {
	if len(steps) == 1 {
		return []outcome{perform(w.redis, steps[0])}, nil
	}
	parts := make([]*part, len(steps))
	var acts []*act
	for i, st := range steps {
		parts[i] = w.part(st)
		acts = append(acts, &parts[i].act)
	}
	if err := w.redis.call(context.Background(), &w.redis.lanes[0], acts); err != nil {
		return nil, err
	}
	answers := make([]outcome, len(steps))
	for i, p := range parts {
		switch {
		case p.kind == kindTake:
			answers[i].results = make([]weir.Result, len(p.charges))
			p.report(answers[i].results, !p.refused())
		case p.used:
			answers[i].err = weir.ErrUsed
		}
	}
	return answers, nil
}

func (w *walker) part(st step) *part {
	p := &part{act: act{kind: st.kind}}
	add := func(c weir.Counter) *charge {
		key, _ := w.redis.names.Load().subject(&c)
		p.indices = append(p.indices, len(p.charges))
		p.charges = append(p.charges, charge{policy: c.Policy, key: key})
		return &p.charges[len(p.charges)-1]
	}
	for _, c := range st.charges {
		add(c.Counter).take(&c)
	}
	for _, r := range st.returns {
		add(r.Counter).giveBack(&r)
	}
	for _, c := range st.resets {
		add(c)
	}
	if st.once != (weir.Once{}) {
		tag := int(st.once[0]) % tags
		if len(st.returns) > 0 {
			_, tag = w.redis.names.Load().subject(&st.returns[0].Counter)
		}
		p.once, p.keep = w.redis.names.Load().once(st.once, tag), keepOnce.Milliseconds()
	}
	return p
}

func compare(st step, got, want outcome) string {
	if got.err != want.err {
		return fmt.Sprintf("%v: got error %v, want %v", st, got.err, want.err)
	}
	var text strings.Builder
	for i := range want.results {
		if got.results[i] != want.results[i] {
			c := st.charges[i]
			fmt.Fprintf(&text, "\ncharge %d of %d (%s %+v, subject %q, n %d, want %d, peek %v):\n got %+v\nwant %+v",
				i+1, len(st.charges), c.Policy.Name, c.Policy.Limit, c.Subject, c.N, c.Want, c.Peek, got.results[i], want.results[i])
		}
	}
	return text.String()
}
