package storetest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/ledger"
	"pgregory.net/rapid"
)

// variant is a kind of limit that random sequences run with.
type variant struct {
	counter.Algorithm
	decimal, calendar bool
}

func variants() (all []variant) {
	for _, a := range Algorithms {
		all = append(all, variant{Algorithm: a})
	}
	return append(all,
		variant{counter.TokenBucket, true, false}, variant{counter.LeakyBucket, true, false}, variant{counter.FixedWindow, true, false},
		variant{counter.FixedWindow, false, true}, variant{counter.FixedWindow, true, true}, variant{counter.Concurrency, false, false})
}

func (v variant) String() string {
	name := v.Algorithm.String()
	if v.decimal {
		name += "+decimal"
	}
	if v.calendar {
		name += "+calendar"
	}
	return name
}

// agreesWithModel runs random sequences on the store and on the model, and compares the results. They have takes, peeks,
// layers, returns, resets, slots, reservations, changed numbers, and time steps, including backward ones.
func agreesWithModel(t *testing.T, open Open, k kind) {
	for _, v := range variants() {
		t.Run(v.String(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				(&walk{T: t, h: start(t, open), variant: v, kind: k}).run()
			})
		})
	}
}

// lendsAsModel does the same with two nodes, whose charges sometimes borrow tokens, and which give these back.
func lendsAsModel(t *testing.T, open OpenLender) {
	for _, v := range variants() {
		t.Run(v.String(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				h := &harness{tb: t, now: Start}
				nodes := open(t, h.clock)
				h.Store = nodes[0]
				(&walk{T: t, h: h, variant: v, kind: all, nodes: nodes[:]}).run()
			})
		})
	}
}

// kind says what random sequences consist of.
type kind struct {
	steps   []string // repeated entries are more likely
	windows []time.Duration
	// borrows says that the store may decide from borrowed tokens. Then some buckets are large, and lend for longer, no limit
	// takes tokens past the limit, and charges to policies that lend have no holds.
	borrows bool
	// slack is a time: buckets may have more tokens than the model's by the refill of that time. See near.
	slack time.Duration
}

var (
	all = kind{
		steps:   []string{"take", "take", "take", "layers", "again", "peek", "return", "unspent", "reset", "change", "time", "time", "back"},
		windows: []time.Duration{time.Second, 7 * time.Second, time.Minute},
	}
	borrowing = kind{
		steps:   []string{"take", "take", "flurry", "flurry", "peek", "reset", "time", "time"},
		windows: []time.Duration{20 * time.Second, time.Minute},
		borrows: true,
		slack:   ledger.MaxLease + time.Millisecond, // a millisecond for rounding
	}
)

// walk is one random sequence.
type walk struct {
	*rapid.T
	variant
	kind
	h     *harness
	model *Model
	nodes []Lender // the two nodes, or nil

	window, span time.Duration // the window of the limits, and the longest step of time
	zone         counter.Calendar
	policies     [3]*counter.Policy
	books        int // the index of the policy with Book, or -1
	counts       int // the index of the policy with CountRefused, or -1
	givesBack    int
	taken        []counter.Return
	lent         []ledger.Unspent
}

func (w *walk) run() {
	t := w.T
	w.model = NewModel(w.h.clock)
	w.window = rapid.SampledFrom(w.windows).Draw(t, "window")
	w.span = w.window
	if w.calendar {
		w.zone = rapid.SampledFrom([]counter.Calendar{
			{Unit: counter.Day}, {Unit: counter.Day, Zone: "America/Santiago"}, {Unit: counter.Week, Weekday: time.Monday},
			{Unit: counter.Month}, {Unit: counter.Month, Day: 31, Zone: "Europe/Berlin"},
		}).Draw(t, "calendar")
		w.span = map[counter.CalendarUnit]time.Duration{counter.Day: 24, counter.Week: 7 * 24, counter.Month: 31 * 24}[w.zone.Unit] * time.Hour
	}
	w.books, w.counts, w.givesBack = -1, -1, -1
	if !w.borrows {
		w.counts = rapid.IntRange(-1, 2).Draw(t, "counts refused")
	}
	if !w.borrows && w.Algorithm != counter.SlidingLog && w.Algorithm != counter.LeakyQueue && w.Algorithm != counter.Concurrency {
		w.books = rapid.IntRange(-1, 2).Draw(t, "books")
	}
	if w.decimal {
		w.givesBack = rapid.IntRange(-1, 2).Draw(t, "gives back")
	}
	for i := range w.policies {
		w.number(i)
	}
	for range rapid.IntRange(1, 300).Draw(t, "steps") {
		w.step()
	}
}

// number gives a policy new random numbers.
func (w *walk) number(i int) {
	t, a := w.T, w.Algorithm
	l := counter.Limit{Algorithm: a, Count: rapid.Int64Range(1, 50).Draw(t, "count"), Window: w.window}
	if a <= counter.LeakyQueue {
		l.Burst = rapid.Int64Range(0, 80).Draw(t, "burst")
		if (w.nodes != nil || w.borrows) && rapid.Bool().Draw(t, "large") {
			l.Count, l.Burst = 10*l.Count, 10*l.Burst // lends for longer
		}
	}
	if a == counter.LeakyQueue {
		l.MaxDelay = rapid.SampledFrom([]time.Duration{0, w.window / 2}).Draw(t, "max delay")
	}
	if w.decimal {
		l.Decimal, l.Fraction = true, counter.Amount(rapid.SampledFrom([]int64{0, 1, 500_000, 999_999}).Draw(t, "fraction"))
	}
	if w.calendar {
		l.Calendar, l.Window = w.zone, w.span
	}
	p := Policy(t, fmt.Sprint("p", i), l)
	p = p.With(func(d *counter.Definition) {
		d.Shadow, d.Book, d.CountRefused, d.GivesBack = i == 2, i == w.books, i == w.counts, i == w.givesBack
	})
	w.policies[i] = p
}

func (w *walk) subject() string { return rapid.SampledFrom([]string{"s", "t"}).Draw(w.T, "subject") }

func (w *walk) pick() counter.Counter {
	return named(rapid.SampledFrom(w.policies[:]).Draw(w.T, "policy"), w.subject())
}

// cost draws a cost between least and most tokens, in the units of the policies.
func (w *walk) cost(least, most int64) int64 {
	if !w.decimal {
		return rapid.Int64Range(least, most).Draw(w.T, "n")
	}
	return rapid.Int64Range(least, most*1_000_000).Draw(w.T, "millionths")
}

// hold draws a hold for a charge, or returns nil. There are few IDs, so that a hold often exists already.
func (w *walk) hold(p *counter.Policy, id byte) *counter.Hold {
	if p.Limit.Algorithm != counter.Concurrency && (id > holdNames/2 || w.borrows && ledger.Lends(p)) {
		return nil
	}
	return &counter.Hold{
		ID:       counter.Once{0: id, 15: 1},
		For:      rapid.SampledFrom([]time.Duration{time.Millisecond, w.window / 3, 2 * w.window}).Draw(w.T, "for"),
		GiveBack: p.GivesBack && rapid.Bool().Draw(w.T, "give back"),
	}
}

const holdNames = 12

func (w *walk) name() byte { return byte(rapid.IntRange(1, holdNames).Draw(w.T, "hold")) }

// charge compares the results of charges, and remembers the tokens that were taken.
func (w *walk) charge(charges ...counter.Charge) {
	t := w.T
	if w.nodes == nil {
		w.taken = append(w.taken, compare(t, w.h, w.model, charges, w.slack)...)
		return
	}
	node := rapid.SampledFrom([]int{0, 0, 0, 0, 0, 0, 0, 1}).Draw(t, "node")
	asks := make([]ledger.Ask, len(charges))
	for i, c := range charges {
		asks[i] = ledger.Ask{Charge: c}
		if c.Hold == nil && rapid.Bool().Draw(t, "borrows") {
			asks[i].Want, asks[i].Waiting = rapid.Int64Range(0, 20).Draw(t, "want"), rapid.Int64Range(0, 5).Draw(t, "waiting")
		}
	}
	back, more := compareLend(t, w.nodes[node], w.model.Node(uint32(node+1)), asks)
	w.taken, w.lent = append(w.taken, back...), append(w.lent, more...)
}

func (w *walk) step() {
	t, ctx := w.T, context.Background()
	switch rapid.SampledFrom(w.steps).Draw(t, "what") {
	case "take", "peek":
		c := counter.Charge{Counter: w.pick(), N: w.cost(0, 20), Peek: rapid.Bool().Draw(t, "peek")}
		if !c.Peek || w.borrows {
			c.N = max(c.N, 1)
		}
		if !c.Peek {
			c.Hold = w.hold(c.Policy, w.name())
		}
		w.charge(c)
	case "flurry": // many small costs, so that a node borrows
		c, gap := w.pick(), rapid.Int64Range(0, w.window.Microseconds()/20).Draw(t, "gap")
		for range rapid.IntRange(1, 30).Draw(t, "takes") {
			w.charge(counter.Charge{Counter: c, N: 1, Hold: w.hold(c.Policy, w.name())})
			w.h.step(time.Duration(gap) * time.Microsecond)
		}
	case "layers":
		n, subject, name := w.cost(1, 10), w.subject(), w.name()
		var cs []counter.Charge
		for _, p := range w.policies {
			cs = append(cs, counter.Charge{Counter: named(p, subject), N: n, Hold: w.hold(p, name)})
		}
		w.charge(cs...)
	case "again":
		// Policies with the same ID are alternatives, but a call may still name several of them.
		p, q := w.policies[0], w.policies[rapid.IntRange(0, 1).Draw(t, "beside")]
		c, peeks := named(p, w.subject()), rapid.Bool().Draw(t, "peeks")
		cs := []counter.Charge{{Counter: c, Peek: peeks}, {Counter: named(q, string(c.Subject)), Peek: peeks}, {Counter: c, Peek: peeks}}
		name := w.name()
		first := w.hold(p, name)
		for i := range cs {
			cs[i].N = w.cost(1, 10)
			switch {
			case peeks:
			case cs[i].Policy == p:
				cs[i].Hold = first
			default:
				cs[i].Hold = w.hold(q, name)
			}
		}
		w.charge(cs...)
	case "return":
		w.giveBack()
	case "unspent":
		if len(w.lent) > 0 {
			back := []ledger.Unspent{rapid.SampledFrom(w.lent).Draw(t, "unspent")}
			_ = w.model.TakeBack(ctx, back)
			if err := w.nodes[0].TakeBack(ctx, back); err != nil {
				t.Fatalf("take back: %v", err)
			}
		}
	case "reset":
		c := []counter.Counter{w.pick()}
		_ = w.model.Reset(ctx, c)
		if err := w.h.Reset(ctx, c); err != nil {
			t.Fatalf("reset: %v", err)
		}
	case "change":
		w.number(rapid.IntRange(0, 2).Draw(t, "changed"))
	case "time":
		w.h.step(w.pause())
	case "back":
		w.h.step(-time.Duration(rapid.Int64Range(0, 3*w.span.Microseconds()).Draw(t, "µs")) * time.Microsecond)
	}
}

// pause draws a time to let pass: up to a window, or about as long as a lease or a record of returned tokens lasts.
func (w *walk) pause() time.Duration {
	most := w.span
	switch {
	case w.nodes != nil && rapid.Bool().Draw(w.T, "soon"):
		most = rapid.SampledFrom([]time.Duration{ledger.MaxLease, 10 * time.Second}).Draw(w.T, "lease")
	case w.calendar && rapid.Bool().Draw(w.T, "within"):
		most = w.window
	case w.givesBack >= 0 && rapid.IntRange(0, 9).Draw(w.T, "a day") == 9:
		most = counter.RecordTime + 2*w.window
	}
	return time.Duration(rapid.Int64Range(0, most.Microseconds()).Draw(w.T, "µs")) * time.Microsecond
}

// giveBack returns, settles or releases earlier charges, or charges that were never made. For amounts, a request may
// have used a part, or more than it was charged.
func (w *walk) giveBack() {
	t, ctx := w.T, context.Background()
	back := counter.Return{Counter: w.pick()}
	switch {
	case rapid.IntRange(0, 5).Draw(t, "taken") > 0:
		if len(w.taken) == 0 {
			return
		}
		back = rapid.SampledFrom(w.taken).Draw(t, "return")
		if !w.borrows && rapid.Bool().Draw(t, "slot unknown") {
			back.Slot = 0
		}
	default:
		back.N = w.cost(1, 10)
		if back.Hold = w.hold(back.Policy, w.name()); back.Hold == nil {
			return
		}
	}
	if back.Policy.Limit.Algorithm == counter.Concurrency && rapid.IntRange(0, 3).Draw(t, "any slots") == 0 {
		back.Hold = nil // releases the slots that end first
	}
	if back.Hold != nil && w.decimal {
		back.Used = rapid.Int64Range(0, 3*back.N).Draw(t, "used")
	}
	if back.Hold != nil && back.Policy.Limit.Algorithm != counter.Concurrency {
		back.Recorded = rapid.Bool().Draw(t, "recorded")
	}
	want := w.model.GiveBack(ctx, counter.Once{}, 0, []counter.Return{back})
	if err := w.h.GiveBack(ctx, counter.Once{}, 0, []counter.Return{back}); err != want {
		t.Fatalf("give back: %v, want %v", err, want)
	}
}
