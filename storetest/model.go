package storetest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"pgregory.net/rapid"
)

// Model is a store without any machinery: the arithmetic of package weir over maps. It lends.
type Model struct {
	mu      sync.Mutex // guards the maps
	now     func() time.Time
	ledgers map[key]weir.Ledger
	logs    map[key]*weir.Log
	used    map[weir.Once]bool
}

// NewModel makes an empty model with the given clock.
func NewModel(now func() time.Time) *Model {
	return &Model{now: now, ledgers: map[key]weir.Ledger{}, logs: map[key]*weir.Log{}, used: map[weir.Once]bool{}}
}

// Take decides the charges, all or nothing.
func (m *Model) Take(_ context.Context, charges []weir.Charge, results []weir.Result) {
	m.mu.Lock()
	defer m.mu.Unlock()
	copy(results, m.take(m.now().UnixMicro(), charges))
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

func (m *Model) take(now int64, charges []weir.Charge) []weir.Result {
	results := make([]weir.Result, len(charges))
	fits := make([]bool, len(charges))
	all := true
	// A counter that several charges name is asked for all their tokens, and debited once: by the first
	// that isn't in shadow, if there is one.
	charges = slices.Clone(charges)
	asked, payer := map[key]int64{}, map[key]int{}
	for i, c := range charges {
		k := keyOf(c.Counter)
		asked[k] = min(asked[k]+c.N, 2*weir.MaxTokens)
		if j, again := payer[k]; again {
			charges[i].Loan, charges[j].Loan = weir.Loan{}, weir.Loan{}
			if !charges[j].Policy.Shadow || c.Policy.Shadow {
				continue
			}
		}
		payer[k] = i
	}
	for i := range charges {
		c := &charges[i]
		c.N = asked[keyOf(c.Counter)]
		if isLog(c.Counter) {
			fits[i] = c.Policy.FitsLog(m.log(c.Counter), now, c.N)
		} else {
			_, _, fits[i] = c.Policy.Lend(m.ledgers[keyOf(c.Counter)], now, c.N, weir.Loan{})
		}
		all = all && (fits[i] || c.Policy.Shadow)
	}
	verdicts, lent := make([]weir.Verdict, len(charges)), make([]int64, len(charges))
	for i, c := range charges {
		switch {
		case fits[i] && all && !c.Peek:
			verdicts[i] = weir.Taken
		case fits[i]:
			verdicts[i] = weir.Fits
		}
		k := keyOf(c.Counter)
		switch {
		case payer[k] != i || verdicts[i] == weir.Fits:
		case !isLog(c.Counter):
			loan := c.Loan
			if !c.Policy.Lends() {
				loan = weir.Loan{}
			}
			m.ledgers[k], lent[i], _ = c.Policy.Lend(m.ledgers[k], now, c.N, loan)
		case verdicts[i] == weir.Taken:
			c.Policy.TryLog(m.log(c.Counter), now, c.N)
		}
	}
	for i, c := range charges {
		if isLog(c.Counter) {
			results[i] = c.Policy.ReportLog(m.log(c.Counter), now, c.N, verdicts[i])
		} else {
			c.Policy.ReportLend(&results[i], m.ledgers[keyOf(c.Counter)], now, c.N, lent[i], verdicts[i])
		}
	}
	return results
}

func (m *Model) giveBack(now int64, r weir.Return) {
	if isLog(r.Counter) {
		r.Policy.ReturnLog(m.log(r.Counter), now, r.N, r.Slot)
		return
	}
	l := m.ledgers[keyOf(r.Counter)]
	if r.Unspent {
		l = r.Policy.TakeBack(l, now, r.N, r.Slot, r.Slow)
	} else {
		l = r.Policy.Refund(l, now, r.N, r.Slot)
	}
	m.ledgers[keyOf(r.Counter)] = l
}

func (m *Model) reset(c weir.Counter) {
	delete(m.ledgers, keyOf(c))
	delete(m.logs, keyOf(c))
}

// agreesWithModel runs random sequences of takes, peeks, layers, returns, resets,
// changed numbers and time steps, backwards too, on the store and on the model.
//
// With lending, charges ask for more at times, and what was lent is given back.
func agreesWithModel(t *testing.T, open Open, lending bool) {
	for _, a := range Algorithms {
		t.Run(a.String(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) { walk(t, start(t, open), a, lending) })
		})
	}
}

func walk(t *rapid.T, h *harness, a weir.Algorithm, lending bool) {
	m := NewModel(nil)
	window := rapid.SampledFrom([]time.Duration{time.Second, 7 * time.Second, time.Minute}).Draw(t, "window")
	policies := make([]*weir.Policy, 3)
	number := func(i int) {
		l := weir.Limit{Algorithm: a, Count: rapid.Int64Range(1, 50).Draw(t, "count"), Window: window}
		if a <= weir.LeakyQueue {
			l.Burst = rapid.Int64Range(0, 80).Draw(t, "burst")
			if lending && rapid.Bool().Draw(t, "large") {
				l.Count, l.Burst = 10*l.Count, 10*l.Burst // of which slow leases may be had
			}
		}
		if a == weir.LeakyQueue {
			l.MaxDelay = rapid.SampledFrom([]time.Duration{0, window / 2}).Draw(t, "max delay")
		}
		policies[i] = Policy(t, fmt.Sprint("p", i), l)
		policies[i].Shadow = i == 2
	}
	for i := range policies {
		number(i)
	}
	pick := func() weir.Counter {
		return counter(rapid.SampledFrom(policies).Draw(t, "policy"), rapid.SampledFrom([]string{"s", "t"}).Draw(t, "subject"))
	}
	var taken []weir.Return
	for range rapid.IntRange(1, 300).Draw(t, "steps") {
		now := h.now.UnixMicro()
		switch rapid.SampledFrom([]string{"take", "take", "take", "layers", "again", "peek", "return", "reset", "change", "time", "time", "back"}).Draw(t, "what") {
		case "take", "peek":
			c := weir.Charge{Counter: pick(), N: rapid.Int64Range(1, 20).Draw(t, "n"), Peek: rapid.Bool().Draw(t, "peek")}
			if lending {
				c.Want, c.Slow = rapid.Int64Range(0, 20).Draw(t, "want"), rapid.Bool().Draw(t, "slow")
				c.Ahead, c.Waiting = c.Slow && rapid.Bool().Draw(t, "ahead"), rapid.Int64Range(0, 20).Draw(t, "waiting")
			}
			taken = append(taken, compare(t, h, m, now, c)...)
		case "layers":
			n, subject := rapid.Int64Range(1, 10).Draw(t, "n"), rapid.SampledFrom([]string{"s", "t"}).Draw(t, "subject")
			var cs []weir.Charge
			for _, p := range policies {
				cs = append(cs, weir.Charge{Counter: counter(p, subject), N: n})
			}
			taken = append(taken, compare(t, h, m, now, cs...)...)
		case "again":
			// Other numbers for one counter are alternatives, of which a call may name several all the same.
			p, q := policies[0], policies[rapid.IntRange(0, 1).Draw(t, "beside")]
			c, peeks := counter(p, rapid.SampledFrom([]string{"s", "t"}).Draw(t, "subject")), rapid.Bool().Draw(t, "peeks")
			cs := []weir.Charge{{Counter: c, Peek: peeks}, {Counter: counter(q, string(c.Subject)), Peek: peeks}, {Counter: c, Peek: peeks}}
			for i := range cs {
				cs[i].N = rapid.Int64Range(1, 10).Draw(t, "n")
				if lending {
					cs[i].Want = rapid.Int64Range(0, 20).Draw(t, "want")
				}
			}
			taken = append(taken, compare(t, h, m, now, cs...)...)
		case "return":
			if len(taken) > 0 {
				r := rapid.SampledFrom(taken).Draw(t, "return")
				m.giveBack(now, r)
				if err := h.GiveBack(context.Background(), weir.Once{}, 0, []weir.Return{r}); err != nil {
					t.Fatalf("give back: %v", err)
				}
			}
		case "reset":
			c := pick()
			m.reset(c)
			if err := h.Reset(context.Background(), []weir.Counter{c}); err != nil {
				t.Fatalf("reset: %v", err)
			}
		case "change":
			number(rapid.IntRange(0, 2).Draw(t, "changed"))
		case "time":
			most := window
			if lending && rapid.Bool().Draw(t, "soon") {
				most = rapid.SampledFrom([]time.Duration{weir.MaxLease, weir.MaxSlowLease}).Draw(t, "lease")
			}
			h.step(time.Duration(rapid.Int64Range(0, most.Microseconds()).Draw(t, "µs")) * time.Microsecond)
		case "back":
			h.step(-time.Duration(rapid.Int64Range(0, 3*window.Microseconds()).Draw(t, "µs")) * time.Microsecond)
		}
	}
}

func compare(t *rapid.T, h *harness, m *Model, now int64, charges ...weir.Charge) (taken []weir.Return) {
	want, got := m.take(now, charges), h.charge(charges...)
	for i, c := range charges {
		if got[i] != want[i] {
			t.Fatalf("at %d, charge %d of %d (%s, %s, %q, n %d): got %+v, want %+v",
				now, i+1, len(charges), c.Policy.Limit, c.Policy.Limit.Algorithm, c.Subject, c.N, got[i], want[i])
		}
		if got[i].Allowed && !c.Peek {
			taken = append(taken, weir.Return{Counter: c.Counter, N: c.N, Slot: got[i].Slot})
		}
		if got[i].Lent > 0 {
			taken = append(taken, weir.Return{Counter: c.Counter, N: got[i].Lent, Slot: got[i].Slot, Unspent: true, Slow: got[i].LentFor > weir.MaxLease})
		}
	}
	return taken
}
