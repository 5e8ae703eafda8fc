package weir

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// draws is where a simulation's choices come from: rapid, or a seed.
type draws func(what string, least, most int64) int64

func drawn(t *rapid.T) draws {
	return func(what string, least, most int64) int64 { return rapid.Int64Range(least, most).Draw(t, what) }
}

func drawnFrom(seed uint64) draws {
	r := rand.New(rand.NewPCG(seed, 0))
	return func(_ string, least, most int64) int64 { return least + r.Int64N(most-least+1) }
}

// lender is a limit of the given algorithm whose windows end, and whose buckets refill, while leases live.
func (d draws) lender(t failer, a Algorithm) *Policy {
	l := Limit{Algorithm: a, Count: d("count", 1, 300), Window: time.Duration(d("window", 100, 2000)) * time.Millisecond}
	if d("by the minute", 0, 3) == 0 {
		l.Window *= 30
	}
	if l.isBucket() {
		l.Burst = d("burst", 0, 500)
	}
	return policyOf(t, l)
}

// loan asks for tokens in any way.
func (d draws) loan(want int64) Loan {
	l := Loan{Want: want, Waiting: d("waiting", 0, want), Slow: d("slow", 0, 1) == 1}
	l.Ahead = l.Slow && d("ahead", 0, 1) == 1
	return l
}

// TestLendOfNothingIsTry: as long as nobody lends, a ledger is a state.
func TestLendOfNothingIsTry(t *testing.T) {
	for _, a := range []Algorithm{TokenBucket, LeakyBucket, LeakyQueue, FixedWindow, SlidingCounter} {
		t.Run(a.String(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				d := drawn(t)
				p := d.lender(t, a)
				if a == LeakyQueue {
					p.maxDelay = d("max delay", 0, p.fill)
				}
				var s State
				var l Ledger
				now := midnight + d("start", 0, minute)
				for range d("steps", 1, 100) {
					now += d("µs", -100*msec, sec)
					n := d("n", 0, 20)
					if d("what", 0, 5) == 0 {
						s, l = p.Return(s, now, n, now), p.Refund(l, now, n, now)
					} else {
						var ok, lends bool
						var lent int64
						s, ok = p.Try(s, now, n)
						l, lent, lends = p.Lend(l, now, n, Loan{})
						if lends != ok || lent != 0 {
							t.Fatalf("%v and %d lent, want %v and none", lends, lent, ok)
						}
					}
					if l != (Ledger{State: s}) {
						t.Fatalf("got %+v, want %+v", l, s)
					}
					var got Result
					p.ReportLend(&got, l, now, n, 0, Fits)
					if want := p.Report(s, now, n, Fits); got != want {
						t.Fatalf("reports %+v, want %+v", got, want)
					}
				}
			})
		})
	}
}

// TestABucketKeepsItsDebitsInSight: what it holds and what has left it of late are together never more than its
// capacity and what refills in the time of a lease, whoever gives back whatever.
func TestABucketKeepsItsDebitsInSight(t *testing.T) {
	for _, a := range []Algorithm{TokenBucket, LeakyBucket} {
		t.Run(a.String(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				d := drawn(t)
				p := d.lender(t, a)
				most := p.capacity + mulDiv(2*leaseSlot, p.rate.num, p.rate.den)
				var l Ledger
				now := midnight + d("start", 0, minute)
				for range d("steps", 1, 200) {
					switch d("what", 0, 5) {
					case 0:
						now += d("µs", 0, 120*msec)
					case 5:
						now += d("µs", 0, p.slowSlot)
					case 1:
						l, _, _ = p.Lend(l, now, d("n", 1, 10), Loan{})
					case 2:
						l, _, _ = p.Lend(l, now, d("n", 0, 10), d.loan(d("want", 1, 200)))
					case 3:
						l = p.TakeBack(l, now, d("n", 0, 200), now-d("age", -10*msec, 3*p.slowSlot), d("slow", 0, 1) == 1)
					case 4:
						l = p.Refund(l, now, d("n", 0, 200), now)
					}
					r := p.debits(l, now).Recent
					level := p.lendable(l, now)
					if level < -(r[0]+r[1])*micro || level > p.capacity || r[0] < 0 || r[1] < 0 {
						t.Fatalf("%d millionths of %d, debits %v", level, p.capacity, r)
					}
					if level+(r[0]+r[1])*micro > most {
						t.Fatalf("%d millionths and debits of %v are more than %d", level, r, most)
					}
				}
			})
		})
	}
}

// TestALedgerTellsTimesToTheMicrosecond: a refused charge fits after RetryAfter and not before, and a
// bucket is whole after ResetAfter, while others hold tokens and give them back.
func TestALedgerTellsTimesToTheMicrosecond(t *testing.T) {
	for _, a := range []Algorithm{TokenBucket, LeakyBucket} {
		t.Run(a.String(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				d := drawn(t)
				h := ofABucket(d, d.lender(t, a))
				if err := h.run(d("steps", 1, 50)); err != nil {
					t.Fatal(err)
				}
				p, n := h.p, d("n", 1, h.p.Limit.Max())
				if d("soon", 0, 1) == 1 {
					h.l, _, _ = p.Lend(h.l, h.now, 0, d.loan(d("want", 1, 200)))
					h.l = p.Refund(h.l, h.now, d("back", 0, 300), h.now)
				}
				h.now += d("µs", 0, max(150*msec, p.slowSlot))
				fits := func(l Ledger, at, n int64) bool {
					_, _, ok := p.Lend(l, at, n, Loan{})
					return ok
				}
				var r Result
				if l, _, ok := p.Lend(h.l, h.now, n, Loan{}); !ok {
					p.ReportLend(&r, l, h.now, n, 0, Refused)
					at := h.now + r.RetryAfter.Microseconds()
					if !fits(l, at, n) || fits(l, at-1, n) {
						t.Fatalf("%+v at %d: %d fits at %d %v, and before %v", l, h.now, n, at, fits(l, at, n), fits(l, at-1, n))
					}
				}
				p.ReportLend(&r, h.l, h.now, n, 0, Fits)
				at := h.now + r.ResetAfter.Microseconds()
				if p.lendable(h.l, at) != p.capacity || r.ResetAfter > 0 && p.lendable(h.l, at-1) == p.capacity {
					t.Fatalf("%+v at %d: has %d of %d at %d", h.l, h.now, p.lendable(h.l, at), p.capacity, at)
				}
			})
		})
	}
}

// lease is lent tokens in somebody's hands.
type lease struct {
	n, slot, until int64
	slow           bool
	spent          int64 // if it is slow, and as far as the bucket doesn't know
	ripe           int64 // when all of them have refilled
}

// holders are nodes that share a counter, ask for leases, and spend them or give them back.
type holders struct {
	draws
	p        *Policy
	takeBack func(l Ledger, now, n, slot int64, slow bool) Ledger
	admit    func(now, n int64) error
	refunded func(now, n, slot int64)
	l        Ledger
	now      int64
	leases   []lease
	spent    lease // by the last who asked
	hasty    bool  // what is lent is spent before it has refilled
}

// ripe is how many of a lease's tokens may be spent by now.
func (h *holders) ripe(o lease) int64 {
	if h.hasty || h.now >= o.ripe {
		return o.n
	}
	return max(0, o.n-(mulDivCeil(o.ripe-h.now, h.p.rate.num, h.p.rate.den)+micro-1)/micro)
}

func (h *holders) ask(n, want int64) error {
	loan := h.loan(want)
	if len(h.leases) > 0 {
		o := &h.leases[h.draws("lease", 0, int64(len(h.leases)-1))]
		loan.Spent, loan.SpentSlot = h.draws("spent", 0, o.spent), o.slot
		o.spent -= loan.Spent
	}
	l, lent, ok := h.p.Lend(h.l, h.now, n, loan)
	h.l = l
	if !ok {
		return nil
	}
	var r Result
	h.p.ReportLend(&r, l, h.now, n, lent, Taken)
	longest := MaxLease
	if l.Pace != Fast {
		longest = MaxSlowLease
	}
	if r.Lent != lent || lent > 0 && (r.LentFor <= 0 || r.LentFor > longest) || lent == 0 && r.LentFor != 0 {
		return fmt.Errorf("%d lent: %+v", lent, r)
	}
	if lent > 0 {
		o := lease{n: lent, slot: r.Slot, until: h.now + r.LentFor.Microseconds(), slow: r.LentFor > MaxLease}
		if o.ripe = h.now + r.LentBy.Microseconds(); o.ripe > o.until {
			return fmt.Errorf("%d lent, of which the last refills at %d, for until %d", lent, o.ripe, o.until)
		}
		h.leases = append(h.leases, o)
	}
	h.spent = lease{n: n, slot: r.Slot}
	return h.admit(h.now, n)
}

// giveBack returns some of what has been held for the longest.
func (h *holders) giveBack(n int64) {
	o := &h.leases[0]
	h.l = h.takeBack(h.l, h.now, n, o.slot, o.slow)
	if o.n -= n; o.n == 0 {
		h.leases = h.leases[1:]
	}
}

// hoard keeps what is held, and takes more, by giving it back and asking anew before it ends.
func (h *holders) hoard() error {
	for range h.draws("rounds", 1, 20) {
		h.pass(h.draws("µs", 0, 40*msec))
		for range len(h.leases) {
			h.giveBack(h.leases[0].n)
			if err := h.ask(0, h.p.Limit.Max()); err != nil {
				return err
			}
		}
		if err := h.ask(0, h.p.Limit.Max()); err != nil {
			return err
		}
	}
	return nil
}

func (h *holders) refund(n int64) {
	h.spent.n -= n
	h.l = h.p.Refund(h.l, h.now, n, h.spent.slot)
	h.refunded(h.now, n, h.spent.slot)
}

func (h *holders) spend(i int, n int64) error {
	o := &h.leases[i]
	if o.n -= n; o.slow {
		o.spent += n
	}
	return h.admit(h.now, n)
}

// pass lets time pass, and leases with it.
func (h *holders) pass(us int64) {
	h.now += us
	living := h.leases[:0]
	for _, o := range h.leases {
		if o.n+o.spent > 0 && h.now < o.until {
			living = append(living, o)
		}
	}
	h.leases = living
}

// burst spends all there is: what is held, and what is left.
func (h *holders) burst() error {
	for i, o := range h.leases {
		if err := h.spend(i, h.ripe(o)); err != nil {
			return err
		}
	}
	h.pass(0)
	for n := h.p.Limit.Max(); n > 0; n /= 2 {
		if err := h.ask(n, 0); err != nil {
			return err
		}
	}
	return nil
}

// run does what holders may do, in any order.
func (h *holders) run(steps int64) error {
	h.now = midnight + h.draws("start", 0, minute)
	for range steps {
		var err error
		switch what := h.draws("what", 0, 9); {
		case what <= 1:
			h.pass(h.draws("µs", 0, 30*msec))
		case what == 2:
			h.pass(h.draws("µs", 0, max(300*msec, h.p.slowSlot)))
		case what <= 4:
			err = h.ask(h.draws("n", 0, 20), h.draws("want", 0, 200))
		case what == 5:
			h.refund(h.draws("n", 0, h.spent.n))
		case what == 6:
			err = h.burst()
		case what == 7:
			err = h.hoard()
		case len(h.leases) == 0:
		case what == 8:
			h.giveBack(h.draws("n", 0, h.leases[0].n))
		case what == 9:
			i := h.draws("lease", 0, int64(len(h.leases)-1))
			err = h.spend(int(i), h.draws("n", 0, h.ripe(h.leases[i])))
		}
		if err != nil {
			return err
		}
		h.pass(0)
	}
	return h.burst()
}

// ofABucket are holders of a bucket's tokens. An error is more than capacity + rate × (T + 100 ms) in a time T.
func ofABucket(d draws, p *Policy) *holders {
	// How far what was admitted is ahead of the rate, at most over all times that end now; in parts of a millionth.
	ahead, last := int64(0), int64(midnight)
	most := p.capacity*p.rate.den + 2*leaseSlot*p.rate.num
	h := &holders{draws: d, p: p, takeBack: p.TakeBack}
	h.admit = func(now, n int64) error {
		ahead, last = max(0, ahead-(now-last)*p.rate.num)+n*micro*p.rate.den, now
		if ahead > most {
			return fmt.Errorf("admitted %d where %d is the most, of %s", ahead, most, p.Limit)
		}
		return nil
	}
	h.refunded = func(now, n, _ int64) {
		ahead, last = max(0, ahead-(now-last)*p.rate.num-n*micro*p.rate.den), now
	}
	return h
}

func TestHoldersOfABucketStayInItsBound(t *testing.T) {
	for _, a := range []Algorithm{TokenBucket, LeakyBucket} {
		t.Run(a.String(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				d := drawn(t)
				if err := ofABucket(d, d.lender(t, a)).run(d("steps", 20, 200)); err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}

// TestGivingBackNaivelyBreaksTheBound: the simulation finds what the debits are for.
func TestGivingBackNaivelyBreaksTheBound(t *testing.T) {
	for _, a := range []Algorithm{TokenBucket, LeakyBucket} {
		t.Run(a.String(), func(t *testing.T) {
			const seeds = 1000
			broken := 0
			for seed := range uint64(seeds) {
				d := drawnFrom(seed)
				if err := ofABucket(d, d.lender(t, a)).run(100); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
				d = drawnFrom(seed)
				h := ofABucket(d, d.lender(t, a))
				h.takeBack = func(l Ledger, now, n, slot int64, _ bool) Ledger {
					return Ledger{State: h.p.Return(l.State, now, n, slot)}
				}
				if h.run(100) != nil {
					broken++
				}
			}
			t.Logf("%d of %d broke the bound", broken, seeds)
			if broken == 0 {
				t.Error("tokens were given back into the level alone, and nothing happened")
			}
		})
	}
}

// TestSpendingTooSoonBreaksTheBound: the simulation finds what it is for that tokens are spent when they have refilled.
func TestSpendingTooSoonBreaksTheBound(t *testing.T) {
	for seed := range uint64(1000) {
		d := drawnFrom(seed)
		h := ofABucket(d, d.lender(t, TokenBucket))
		h.hasty = true
		if h.run(100) != nil {
			return
		}
	}
	t.Error("tokens were spent before they had refilled, and nothing happened")
}

// TestHoldersOfAWindowStayInItsCount: what is admitted in a window, and, of a sliding counter, in the one before as
// far as it counts, is never more than the count.
func TestHoldersOfAWindowStayInItsCount(t *testing.T) {
	for _, a := range []Algorithm{FixedWindow, SlidingCounter} {
		t.Run(a.String(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				d := drawn(t)
				p := d.lender(t, a)
				var s State // of what was admitted, and nothing else
				h := &holders{draws: d, p: p, takeBack: p.TakeBack}
				h.admit = func(now, n int64) error {
					next, ok := p.Try(s, now, n)
					if !ok {
						return fmt.Errorf("admitted %d more than %s, after %+v", n, p.Limit, s)
					}
					s = next
					return nil
				}
				h.refunded = func(now, n, slot int64) { s = p.Return(s, now, n, slot) }
				if err := h.run(d("steps", 20, 200)); err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}
