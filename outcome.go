package weir

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"slices"
	"time"

	"github.com/weirhq/weir/counter"
)

// Errors of [Limiter.Finish], [Limiter.Renew], [Limiter.Release] and [KeyLimiter.Check].
var (
	ErrReceiptInvalid = errors.New("weir: the receipt is not one of ours")
	ErrReceiptExpired = errors.New("weir: the receipt has expired")
	ErrSlotLost       = errors.New("weir: the slot had ended, and there is no other")
	ErrNoClient       = errors.New("weir: the key is empty, so it names no client")
)

// Outcome is how an allowed request ended, for [Limiter.Finish]. If it is unknown, leave it zero: nothing is given back.
type Outcome struct {
	// Status is the HTTP status of the response, or 0. A rule with Statuses gives its charge back if it doesn't count this one.
	Status int
	// Abandoned: the request wasn't served, so everything that it took goes back.
	Abandoned bool
	// Amounts are what the request really used, by name. They replace what it reserved; an amount that is missing stays reserved.
	Amounts map[string]counter.Amount
	// AtLeast: the amounts are estimates. More than was reserved is charged, and nothing is given back.
	AtLeast bool
}

// held is what a decision took and may give back.
type held struct {
	once    counter.Once // of a receipt
	expires time.Duration
	age     time.Duration // of a receipt
	returns []due
}

// due is one return of an allowed request.
type due struct {
	counter.Return
	local    bool     // it was taken from Options.Local, and isn't in receipts: no other node could return it
	statuses []int    // which answers count; none means all
	amount   string   // what was reserved, or ""
	parts    []Weight // what that is made of
	cost     int64    // times which it counts
	scope    uint8    // of a receipt: see scopeOf
	home     string
	named    bool // the caller chose the hold's ID, and may use it again
}

func (h *held) add(r due) {
	r.statuses = r.Policy.Statuses
	if h.returns = append(h.returns, r); !r.local {
		h.expires = max(h.expires, r.life())
	}
}

// life is how long a receipt of it is good for.
func (r *due) life() time.Duration {
	if r.amount != "" || r.InFlight() {
		return counter.RecordTime // a slot is renewed for as long as its request takes
	}
	return refundable(r.Policy)
}

// unfinished reports whether the return depends on how its request ends.
func (r *due) unfinished() bool { return len(r.statuses) > 0 || r.amount != "" || r.InFlight() }

// refundTime is how long a receipt can give back what a check took at most, and how long a store remembers that it did. If each
// request of a monthly limit left a mark for a month, the marks would fill the store.
const refundTime = time.Hour

// refundable is how long a receipt can give back a charge of a policy.
func refundable(p *counter.Policy) time.Duration {
	return min(max(p.Memory(), time.Minute), refundTime)
}

// keep remembers what was taken, where it may have to go back: at once, when a limit that was decided
// apart from the others refuses the request; later, for a receipt, for rules that count by the answer's
// status, and for places in a queue.
func (l *Limiter) keep(ctx context.Context, req *Request, m *match, d *Decision) {
	undo := !d.Allowed
	if undo && m.refused() {
		return // the store took nothing
	}
	var h held
	for i := range m.results {
		r, c := &m.results[i], &m.charges[i]
		local := slices.Contains(m.local, i)
		later := c.N == 0 && req.Reserve > 0 && !req.Peek && c.Policy.Amount != "" // nothing was taken, but something may be booked
		switch {
		case !r.Allowed || r.Err != nil, c.Peek && !later, local && !c.InFlight() && len(c.Policy.Statuses) == 0:
			continue
		case undo && (later || c.Policy.Book || r.Again):
			continue
		}
		ret := due{Return: counter.Return{Counter: c.Counter, N: c.N, Slot: r.Slot, Hold: c.Hold}, local: local}
		ret.named = req.Repeat != (counter.Once{}) && c.Hold != nil
		if later {
			ret.Hold = &counter.Hold{} // of which there is no record
		}
		ret.Subject = slices.Clone(c.Subject)
		if c.Policy.Global && r.Local { // it goes back to where it was counted
			ret.Policy = c.Policy.With(func(d *counter.Definition) { d.Global = false })
		}
		if req.Reserve > 0 && ret.Hold != nil && c.Policy.Amount != "" && i < len(m.owners) && !local {
			ret.amount, ret.parts, ret.cost = c.Policy.Amount, l.Rules().parts(c.Policy.Amount, req), m.owners[i].cost
		}
		if r.Part == 0 || local {
			h.add(ret)
			continue
		}
		for i, part := range c.Policy.Parts {
			if ret.Policy, ret.N = part, c.Policy.Portion(r.Part-1, i, c.N); ret.N > 0 {
				h.add(ret)
			}
		}
	}
	switch {
	case h.returns == nil:
	case undo:
		_ = giveBack(ctx, l.store, h.those(func(r *due) bool { return !r.local })) // a store that fails strands them; it mints none
		_ = giveBack(ctx, l.opts.Local, h.those(func(r *due) bool { return r.local }))
	default:
		d.held = &h
		l.tellHeld(&h)
		if req.Receipt {
			d.Receipt = l.sealer.Load().seal(&h, l.opts.Now())
		}
	}
}

// those are the returns that are of a kind.
func (h *held) those(are func(*due) bool) (out []counter.Return) {
	for i := range h.returns {
		if r := &h.returns[i]; are(r) {
			out = append(out, r.Return)
		}
	}
	return out
}

func giveBack(ctx context.Context, s counter.Store, returns []counter.Return) error {
	if returns == nil {
		return nil
	}
	return s.GiveBack(ctx, counter.Once{}, 0, returns)
}

// Unfinished reports whether [Limiter.Finish] is due once the request has been
// answered: a rule counts by the answer's status, or requests in flight, or the request has reserved an amount.
func (d *Decision) Unfinished() bool { return d.held.any((*due).unfinished) }

// reserved is private.Reserved.
func (d *Decision) reserved() bool { return d.held.reserves() }

// reserves is private.Reserves.
func (l *Limiter) reserves(receipt string) bool {
	h, err := l.heldBy(&Decision{Receipt: receipt})
	return err != nil || h.reserves()
}

func (h *held) reserves() bool { return h.any(func(r *due) bool { return r.amount != "" }) }

func (h *held) any(is func(*due) bool) bool {
	return h != nil && slices.ContainsFunc(h.returns, func(r due) bool { return is(&r) })
}

// Slots reports how long the request's slots last before they must be renewed, or 0 if it has none. See [Limiter.Renew].
func (d *Decision) Slots() (ttl time.Duration) {
	for r := range d.held.slots() {
		if w := r.Policy.Limit.Window; ttl == 0 || w < ttl {
			ttl = w
		}
	}
	return ttl
}

// slots are the slots that a decision took.
func (h *held) slots() iter.Seq[*due] {
	return func(yield func(*due) bool) {
		for i := 0; h != nil && i < len(h.returns); i++ {
			if r := &h.returns[i]; r.InFlight() && !yield(r) {
				return
			}
		}
	}
}

// seal is private.Seal.
func (l *Limiter) seal(d Decision) (receipt string) {
	if d.Receipt != "" || !d.held.any(func(r *due) bool { return r.InFlight() && !r.local }) {
		return d.Receipt
	}
	h := *d.held
	h.returns = slices.DeleteFunc(slices.Clone(h.returns), func(r due) bool { return !r.unfinished() })
	return l.sealer.Load().seal(&h, l.opts.Now())
}

// heldBy is what a decision took: by its receipt, if it has one.
func (l *Limiter) heldBy(d *Decision) (*held, error) {
	if d.Receipt == "" {
		return d.held, nil
	}
	h, err := l.sealer.Load().open(d.Receipt, l.opts.Now())
	if h != nil && d.held != nil {
		h.returns = append(h.returns, slices.DeleteFunc(slices.Clone(d.held.returns), func(r due) bool { return !r.local })...)
	}
	return h, err
}

// Renew makes the slots of a request that is still in flight last from now on. &Decision{Receipt: receipt} stands for
// a decision of any node.
func (l *Limiter) Renew(ctx context.Context, d *Decision) error {
	h, err := l.heldBy(d)
	if h == nil {
		return err
	}
	for r := range h.slots() {
		store := l.store
		if r.local {
			store = l.opts.Local
		}
		var results [1]counter.Result
		store.Take(ctx, []counter.Charge{{Counter: r.Counter, N: r.N, Returnable: true, Hold: r.Hold}}, results[:])
		if err = errors.Join(err, results[0].Err); results[0].Err == nil {
			if l.tellSlot(&r.Return, results[0].Allowed); !results[0].Allowed {
				err = errors.Join(err, ErrSlotLost)
			}
		}
	}
	return err
}

// Finish ends an allowed request: what its outcome says it shouldn't have taken goes back, once.
// Call it for decisions that are [Decision.Unfinished], for those with a Delay that isn't waited
// for, and whenever the caller has a receipt. A receipt outlives its decision and its node:
// &Decision{Receipt: receipt} stands for both. It can be finished a single time, by any node, after
// which the error is [counter.ErrUsed].
//
// After another error Finish may be called again with the same decision. If the store did its work and only its answer was
// lost, tokens of a decision without a receipt then go back twice, but never three times; slots and reservations once.
func (l *Limiter) Finish(ctx context.Context, d *Decision, o Outcome) error {
	h, err := l.heldBy(d)
	d.held = nil
	if h == nil {
		return err
	}
	err = giveBack(ctx, l.opts.Local, h.those(func(r *due) bool { return r.local && (r.InFlight() || o.gives(r.statuses)) }))
	back, marked := h.settle(o)
	var failed error
	if back != nil {
		failed = l.store.GiveBack(ctx, h.once, marked, back)
	}
	l.tellEnded(h, o, failed)
	if failed == nil {
		return err
	}
	if !errors.Is(failed, counter.ErrUsed) {
		h.returns = slices.DeleteFunc(h.returns, func(r due) bool { return r.local })
		if h.once == (counter.Once{}) {
			h.once = h.name() // a mark costs the store memory, so the first attempt goes without
		}
		d.held = h
	}
	return failed
}

// settle returns what goes back to the store, and for how long the store remembers that it did.
func (h *held) settle(o Outcome) (back []counter.Return, marked time.Duration) {
	recorded := false
	for i := range h.returns {
		r := &h.returns[i]
		if r.Hold != nil && r.amount == "" && !r.InFlight() && h.age > r.Hold.For {
			r.Hold = nil // the receipt is of the version before, and its record ended while the tokens were still taken
		}
		r.Recorded = h.recorded(r)
		recorded = recorded || r.Recorded
	}
	marked = min(h.expires, refundTime)
	for _, r := range h.returns {
		if r.amount != "" && r.N == 0 {
			marked = h.expires // nothing was reserved, so there is no record that keeps a second settlement from being booked
		}
		if r.local || h.age > r.life() && !recorded {
			continue // it went back already, or the mark that it did may be forgotten by now
		}
		switch gives := o.gives(r.statuses); {
		case r.InFlight():
		case gives:
		case r.amount != "":
			r.Used, _ = r.used(o)
		case h.once != (counter.Once{}):
			r.N = 0 // stores find a Once by the counters that it comes with; a check of the same name is decided anew
		default:
			continue
		}
		back = append(back, r.Return)
	}
	slices.SortStableFunc(back, func(a, b counter.Return) int { return cmp.Compare(order(&a), order(&b)) })
	return back, marked
}

// recorded reports whether the record of a hold makes a return by receipt happen once, so that it needs no other mark. Two kinds of
// returns go by it. If the caller chose the id of the check, a check with that id is charged again after a refund, and its new
// receipt must work. And when a reservation is settled after refundTime, the mark of an earlier settlement may be forgotten.
func (h *held) recorded(r *due) bool {
	return h.once != (counter.Once{}) && !r.local && r.Hold != nil && r.Hold.ID != (counter.Once{}) && !r.InFlight() &&
		(r.named || r.amount != "" && r.N > 0 && h.age > refundTime)
}

// order sorts returns as [counter.Return.Recorded] asks for.
func order(r *counter.Return) int {
	switch {
	case r.InFlight():
		return 0
	case r.Recorded:
		return 1
	}
	return 2
}

// Release frees the slots of a request, and leaves what else it took as it is, for Finish. It may be repeated.
func (l *Limiter) Release(ctx context.Context, d *Decision) error {
	h, err := l.heldBy(d)
	if h == nil {
		return err
	}
	err = giveBack(ctx, l.opts.Local, h.those(func(r *due) bool { return r.InFlight() && r.local }))
	failed := giveBack(ctx, l.store, h.those(func(r *due) bool { return r.InFlight() && !r.local }))
	for r := range h.slots() {
		if r.local || failed == nil {
			l.tellSlot(&r.Return, false)
		}
	}
	return cmp.Or(failed, err)
}

// used is what a request really took of what it had reserved, and whether that is known.
func (r *due) used(o Outcome) (n int64, known bool) {
	a, known := o.Amounts[r.amount]
	if !known {
		if a, known = made(r.parts, o.Amounts); !known {
			return r.N, false
		}
	}
	n = times(min(max(a, 0), counter.MaxAmount), r.cost)
	if o.AtLeast {
		return max(n, r.N), false
	}
	return n, true
}

// gives reports whether what a rule took goes back. It counts the given statuses, or all.
func (o Outcome) gives(counted []int) bool {
	if o.Abandoned {
		return true
	}
	return o.Status != 0 && len(counted) > 0 && !slices.Contains(counted, o.Status) && !slices.Contains(counted, o.Status/100)
}
