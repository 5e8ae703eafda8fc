package counter

import (
	"context"
	"errors"
	"time"
)

// Store keeps counters and decides charges. Implementations are safe for concurrent use, retain none of the slices passed to
// them, and pass the tests of [github.com/weirhq/weir/storetest].
type Store interface {
	// Take decides the charges together and writes one result for each charge; results must be as long as charges. If a charge
	// that isn't in shadow is refused, nothing is debited, and the other results say whether their charges would have fit.
	//
	// If several charges name one counter, each of them is decided and reported as if it asked for their sum.
	//
	// A charge whose [Hold] exists already fits, and takes nothing more.
	//
	// If a counter can't be reached, the result of its charge has an Err, and the others are decided without it.
	Take(ctx context.Context, charges []Charge, results []Result)

	// GiveBack returns tokens that were taken. If once isn't zero, only its first use returns them; until keep has passed,
	// further uses return [ErrUsed] on every node. Returns that come too late do nothing, and are no error.
	GiveBack(ctx context.Context, once Once, keep time.Duration, returns []Return) error

	// Reset makes counters as if they had never been used.
	Reset(ctx context.Context, counters []Counter) error
}

// Errors that a caller can do something about.
var (
	// ErrUsed is what [Store.GiveBack] returns for a second use of the same Once.
	ErrUsed = errors.New("weir: already given back")
	// ErrNoRoom is the [Result.Err] of a charge that needs a new counter when there is no memory for one.
	ErrNoRoom = errors.New("weir: no room for a new counter")
	// ErrPartition is the [Result.Err] of a charge to a Global policy whose home region couldn't be reached.
	ErrPartition = errors.New("weir: the limit's home region can't be reached")
)

// FailureMode says what a rule does while its store can't be reached.
type FailureMode uint8

const (
	// FailAllow allows requests. But if this process knows the counter, it goes on counting by itself.
	FailAllow FailureMode = iota
	// FailRefuse refuses requests.
	FailRefuse
	// FailLocal counts requests in this process.
	FailLocal
)

// Once is an idempotency key. The zero Once means that there is no key.
type Once [16]byte

// Hold is what a charge leaves behind beside its debit: a slot of a Concurrency limit until it is released, or the record of a
// reservation that will be settled. A second charge with the same hold takes nothing more; it renews the slot or repeats the
// check.
type Hold struct {
	ID Once
	// For is how long the hold lasts. Then, a slot that wasn't renewed is free, and a record that wasn't settled is forgotten.
	For time.Duration
	// GiveBack makes the store return the reservation if it isn't settled in time. The store then keeps the record for another
	// RecordTime, so that a late settlement can still charge what was used.
	GiveBack bool
}

// Counter identifies the state of one policy for one subject.
type Counter struct {
	Policy *Policy
	// Subject identifies the client. It may contain an API key, so stores must not show it. It is valid only during the call.
	Subject []byte
}

// Values returns the names and values of the dimensions that the subject was made from: see [Definition.ReadSubject].
func (c *Counter) Values() [][2]string {
	if c.Policy.ReadSubject == nil {
		return nil
	}
	return c.Policy.ReadSubject(c.Subject)
}

// InFlight reports whether the counter belongs to a Concurrency limit, so that its tokens are slots.
func (c *Counter) InFlight() bool { return c.Policy.Limit.Algorithm == Concurrency }

// Charge asks one counter for tokens.
type Charge struct {
	Counter
	// N is how many tokens the charge needs. It takes all of them or none.
	N int64
	// Peek reports what would happen, and takes nothing.
	Peek bool
	// Guest means that the client could have invented the subject. A store that is short of memory may return [ErrNoRoom]
	// instead of creating a counter for it.
	Guest bool
	// Returnable means that the tokens may be given back later. A node takes them from the store, not from tokens that it has
	// borrowed: borrowed tokens count as lent for a while after they are spent, and couldn't go back to the counter.
	Returnable bool
	// Hold is what the charge leaves behind, or nil. Charges to Concurrency limits always have one. Callers don't change it
	// later.
	Hold *Hold
}

// Return gives tokens back to a counter.
type Return struct {
	Counter
	N int64
	// Slot is the Result.Slot of the charge. 0 means the current window. Sliding logs need the exact value.
	Slot int64
	// Hold is the hold of the charge, or nil. The return ends it.
	Hold *Hold
	// Used settles a Return with a Hold: that many of the N tokens stay taken. If Used is more than N, the difference is
	// charged, too, even if it doesn't fit.
	Used int64
	// Recorded makes the return depend on the record of its Hold: without the record, nothing goes back and nothing is charged.
	// So a refund happens only once, and the store doesn't have to remember the call's Once. If the first such return of a call
	// has no record, GiveBack only frees slots, and returns [ErrUsed]. Callers put slots first, and returns without Recorded
	// last.
	Recorded bool
}

// Result says how one charge was decided.
type Result struct {
	// Allowed means that this charge fits. It was debited if all other charges fit, too.
	Allowed bool
	// Again means that the Hold existed already, so this call took nothing.
	Again bool
	// Local means that the charge was counted elsewhere, because its counter couldn't be reached. Together with an Err, it
	// means that the counter in [github.com/weirhq/weir.Options.Local] continues from what the node knew of the counter.
	Local bool
	// Remaining is how many tokens the counter has left.
	Remaining int64
	// RetryAfter is the time until a refused charge would fit if no other charge came first, to the microsecond, or [Never].
	RetryAfter time.Duration
	// ResetAfter is the time until the counter is full again.
	ResetAfter time.Duration
	// Delay is how long an allowed request must wait for its turn in a queue.
	Delay time.Duration
	// Slot says when the tokens were debited. A [Return] of them needs it.
	Slot int64
	// Part is the number of the part of a split limit that was charged first, from 1. 0 means that the limit isn't split.
	Part int
	// Err is why the counter couldn't be reached, or nil. If it is set, ignore the fields above, except Local.
	Err error
}

const (
	// Never is the RetryAfter of a charge that is larger than the limit can ever admit.
	Never time.Duration = -1
	// RecordTime is how long a store keeps the record of a reservation.
	RecordTime = 24 * time.Hour
)
