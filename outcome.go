package weir

import (
	"cmp"
	"context"
	"errors"
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

// Outcome says how an allowed request ended, for [Limiter.Finish]. The zero Outcome means unknown, and gives nothing back.
type Outcome struct {
	// Status is the HTTP status of the response, or 0. Rules whose Statuses lack it give their charge back.
	Status int
	// Abandoned: the request wasn't served, so give back everything that it took.
	Abandoned bool
	// Amounts are what the request really used, by name. They replace the reserved amounts. A missing amount stays as reserved.
	Amounts map[string]counter.Amount
	// AtLeast: Amounts are estimates. If they exceed what was reserved, the difference is charged. Nothing is given back.
	AtLeast bool
}

// held is what a decision took and may have to give back.
type held struct {
	returns []due
	expires time.Duration // the time until its receipt expires
	age     time.Duration // the age of its receipt
	once    counter.Once  // the idempotency key of its receipt
}

// due is a charge that may have to go back.
type due struct {
	counter.Return
	local    bool     // taken from Options.Local; receipts leave it out, because no other node could return it
	statuses []int    // the HTTP statuses that count; if empty, all
	amount   string   // the name of the amount that was reserved, or ""
	parts    []Weight // what the amount is computed from
	cost     int64    // the rule's cost, which multiplies the amount
	named    bool     // the caller chose the hold's ID, and may use it again
	scope    uint8    // read from a receipt: see scopeOf
	home     string
}

func (h *held) add(r due) {
	r.statuses = r.Policy.Statuses
	if h.returns = append(h.returns, r); !r.local {
		h.expires = max(h.expires, r.life())
	}
}

// life returns how long a receipt for the charge is valid.
func (r *due) life() time.Duration {
	if r.amount != "" || r.InFlight() {
		return counter.RecordTime // slots are renewed for as long as the request takes
	}
	return refundable(r.Policy)
}

// unfinished reports whether the return depends on how the request ends.
func (r *due) unfinished() bool { return len(r.statuses) > 0 || r.amount != "" || r.InFlight() }

// refundTime is the longest time during which a receipt can give back a charge. For as long, the store keeps a mark that this
// was done. If every request of a monthly limit left a mark for a month, the marks would fill the store.
const refundTime = time.Hour

// refundable returns how long after a charge a receipt can give it back.
func refundable(p *counter.Policy) time.Duration {
	return min(max(p.Memory(), time.Minute), refundTime)
}

// keep records the charges if they may have to go back later: because of a receipt, of the response's status, of a
// reservation, or because the request is queued. If takeApart refused the request after the store took tokens for it,
// they go back at once.
func (l *Limiter) keep(ctx context.Context, req *Request, m *match, d *Decision) {
	undo := !d.Allowed
	if undo && m.refused() {
		return // the store took nothing
	}
	var h held
	for i := range m.results {
		r, c := &m.results[i], &m.charges[i]
		local := slices.Contains(m.local, i)
		later := c.N == 0 && req.Reserve > 0 && !req.Peek && c.Policy.Amount != "" // nothing was taken, but settling may charge
		switch {
		case !r.Allowed || r.Err != nil, c.Peek && !later, local && !c.InFlight() && len(c.Policy.Statuses) == 0:
			continue
		case undo && (later || c.Policy.Book || r.Again):
			continue
		}
		ret := due{Return: counter.Return{Counter: c.Counter, N: c.N, Slot: r.Slot, Hold: c.Hold}, local: local}
		ret.named = req.Repeat != (counter.Once{}) && c.Hold != nil
		if later {
			ret.Hold = &counter.Hold{} // there is no record for it
		}
		ret.Subject = slices.Clone(c.Subject)
		if c.Policy.Global && r.Local { // return it to where it was counted, in this region
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
		_ = giveBack(ctx, l.store, h.those(func(r *due) bool { return !r.local })) // if this fails, the tokens are lost
		_ = giveBack(ctx, l.opts.Local, h.those(func(r *due) bool { return r.local }))
	default:
		d.held = &h
		l.tellHeld(&h)
		if req.Receipt {
			d.Receipt = l.sealer.Load().seal(&h, l.opts.Now())
		}
	}
}

// those returns the charges for which are is true.
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

// Unfinished reports whether to call [Limiter.Finish] after the response: if a rule depends on the response's status or counts
// requests in flight, or if the request has reserved an amount.
func (d *Decision) Unfinished() bool { return d.held.any((*due).unfinished) }

// reserved reports whether the request has reserved an amount, which Finish settles.
func (d *Decision) reserved() bool { return d.held.reserves() }

// reserves reports whether the receipt's request has reserved an amount. For a receipt that can't be read, it is true.
func (l *Limiter) reserves(receipt string) bool {
	h, err := l.heldBy(&Decision{Receipt: receipt})
	return err != nil || h.reserves()
}

func (h *held) reserves() bool { return h.any(func(r *due) bool { return r.amount != "" }) }

func (h *held) any(is func(*due) bool) bool {
	return h != nil && slices.ContainsFunc(h.returns, func(r due) bool { return is(&r) })
}

// Slots returns how long the request's slots last before they must be renewed, or 0 if there are none. See [Limiter.Renew].
func (d *Decision) Slots() (ttl time.Duration) {
	for _, r := range d.held.slots() {
		if w := r.Policy.Limit.Window; ttl == 0 || w < ttl {
			ttl = w
		}
	}
	return ttl
}

// slots returns the slots that a decision took.
func (h *held) slots() (slots []*due) {
	for i := 0; h != nil && i < len(h.returns); i++ {
		if r := &h.returns[i]; r.InFlight() {
			slots = append(slots, r)
		}
	}
	return slots
}

// seal returns the decision's receipt, or makes one if the decision has slots, so that they can be renewed and released.
func (l *Limiter) seal(d Decision) (receipt string) {
	if d.Receipt != "" || !d.held.any(func(r *due) bool { return r.InFlight() && !r.local }) {
		return d.Receipt
	}
	h := *d.held
	h.returns = slices.DeleteFunc(slices.Clone(h.returns), func(r due) bool { return !r.unfinished() })
	return l.sealer.Load().seal(&h, l.opts.Now())
}

// heldBy returns what a decision took: from the decision's receipt if it has one, or else from the decision.
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

// Renew renews the slots of a request that is still in flight. If there is a receipt, &Decision{Receipt: receipt} is enough, on
// any node.
func (l *Limiter) Renew(ctx context.Context, d *Decision) error {
	h, err := l.heldBy(d)
	if h == nil {
		return err
	}
	for _, r := range h.slots() {
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

// Finish ends an allowed request, and gives back what it didn't use according to its outcome. Call it if the decision is
// [Decision.Unfinished], if it has a Delay and you don't wait, or if you have a receipt. With a receipt,
// &Decision{Receipt: receipt} is enough, on any node, and every call but the first returns [counter.ErrUsed].
//
// After another error, you may call Finish again with the same decision. If the store returned the tokens but its answer was
// lost, the tokens of a decision without a receipt may then go back twice. Slots and reservations never do.
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
			h.once = h.name() // only after a failure, because a mark uses the store's memory
		}
		d.held = h
	}
	return failed
}

// settle returns what to give back to the store, and how long the store must remember that it did.
func (h *held) settle(o Outcome) (back []counter.Return, marked time.Duration) {
	recorded := false
	for i := range h.returns {
		r := &h.returns[i]
		if r.Hold != nil && r.amount == "" && !r.InFlight() && h.age > r.Hold.For {
			r.Hold = nil // in receipts of the previous version, the record may expire before the receipt
		}
		r.Recorded = h.recorded(r)
		recorded = recorded || r.Recorded
	}
	marked = min(h.expires, refundTime)
	for _, r := range h.returns {
		if r.amount != "" && r.N == 0 {
			marked = h.expires // nothing was reserved, so no record prevents a second settlement
		}
		if r.local || h.age > r.life() && !recorded {
			continue // it has gone back already, or the store may have forgotten that it did
		}
		switch gives := o.gives(r.statuses); {
		case r.InFlight():
		case gives:
		case r.amount != "":
			r.Used, _ = r.used(o)
		case h.once != (counter.Once{}):
			r.N = 0 // keep the counter, because stores find a Once by the counters of its call
		default:
			continue
		}
		back = append(back, r.Return)
	}
	slices.SortStableFunc(back, func(a, b counter.Return) int { return cmp.Compare(order(&a), order(&b)) })
	return back, marked
}

// recorded reports whether a return by receipt depends on the record of its hold instead of a mark (see refundTime). This is
// necessary in two cases. If the caller chose the hold's ID, a check with the same ID is charged again after a refund, and the
// new receipt must work. And if a reservation is settled after refundTime, the store may have forgotten the mark of an earlier
// settlement.
func (h *held) recorded(r *due) bool {
	return h.once != (counter.Once{}) && !r.local && r.Hold != nil && r.Hold.ID != (counter.Once{}) && !r.InFlight() &&
		(r.named || r.amount != "" && r.N > 0 && h.age > refundTime)
}

// order sorts returns as [counter.Return.Recorded] requires.
func order(r *counter.Return) int {
	switch {
	case r.InFlight():
		return 0
	case r.Recorded:
		return 1
	}
	return 2
}

// Release frees the slots of a request before [Limiter.Finish]. It may be called again.
func (l *Limiter) Release(ctx context.Context, d *Decision) error {
	h, err := l.heldBy(d)
	if h == nil {
		return err
	}
	err = giveBack(ctx, l.opts.Local, h.those(func(r *due) bool { return r.InFlight() && r.local }))
	failed := giveBack(ctx, l.store, h.those(func(r *due) bool { return r.InFlight() && !r.local }))
	for _, r := range h.slots() {
		if r.local || failed == nil {
			l.tellSlot(&r.Return, false)
		}
	}
	return cmp.Or(failed, err)
}

// used returns how much of a reserved amount the request used, and whether that number is final.
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

// gives reports whether a charge goes back. Counted are the statuses that the rule counts; if empty, it counts all.
func (o Outcome) gives(counted []int) bool {
	if o.Abandoned {
		return true
	}
	return o.Status != 0 && len(counted) > 0 && !slices.Contains(counted, o.Status) && !slices.Contains(counted, o.Status/100)
}
