package counter

import (
	"context"
	"errors"
	"time"
)

// Store keeps counters and decides charges. Implementations are safe for concurrent use, keep nothing of the slices they are
// given, and pass [github.com/weirhq/weir/storetest].
type Store interface {
	// Take decides the charges together, all or nothing, and overwrites results, which is as long as charges. If a charge that
	// isn't in shadow is refused, nothing is debited, and the others report whether they would have fit.
	//
	// If several charges name one counter, each of them is decided and reported as if it were for the sum.
	//
	// A charge whose [Hold] exists already fits, and takes nothing more.
	//
	// If a counter can't be reached, the result of its charge has an Err, and the others are decided without it.
	Take(ctx context.Context, charges []Charge, results []Result)

	// GiveBack returns tokens that were taken. With a non-zero once, it does so a single time for that value, and returns
	// [ErrUsed] to all nodes until keep has passed. Returns that come too late do nothing, and are no error.
	GiveBack(ctx context.Context, once Once, keep time.Duration, returns []Return) error

	// Reset makes counters untouched.
	Reset(ctx context.Context, counters []Counter) error
}

// Errors that a caller can do something about.
var (
	// ErrUsed is returned by [Store.GiveBack] for a second use of one Once.
	ErrUsed = errors.New("weir: already given back")
	// ErrNoRoom is the [Result.Err] of a charge that would need a new counter, where there is no memory for one.
	ErrNoRoom = errors.New("weir: no room for a new counter")
	// ErrPartition is the Err of a Result whose policy is Global, and whose home couldn't be asked.
	ErrPartition = errors.New("weir: the limit's home region can't be reached")
)

// FailureMode says what a rule does while its store can't be reached.
type FailureMode uint8

const (
	// FailAllow allows requests, except that this process counts on by itself if it knows the counter.
	FailAllow FailureMode = iota
	// FailRefuse refuses requests.
	FailRefuse
	// FailLocal counts requests in this process.
	FailLocal
)

// Once is an idempotency key. The zero value is none.
type Once [16]byte

// Hold is what a charge leaves behind beside its debit: a slot of a Concurrency limit until it is released, or the record of a
// debit that will be settled. A second charge with the same hold takes nothing more. It renews a slot, or repeats a check.
type Hold struct {
	ID Once
	// For is how long the hold lasts. Then a slot that wasn't renewed is free, and a record that wasn't settled is forgotten.
	For time.Duration
	// GiveBack returns what the record stands for if it isn't settled in time. The store keeps such a record for another
	// RecordTime, so that a late settlement books everything that was used.
	GiveBack bool
}

// Counter names the state of one policy for one subject.
type Counter struct {
	Policy *Policy
	// Subject identifies the client. It may hold an API key, so stores must not show it. It is valid during the call only.
	Subject []byte
}

// Values returns what the subject was made of: see [Definition.ReadSubject].
func (c *Counter) Values() [][2]string {
	if c.Policy.ReadSubject == nil {
		return nil
	}
	return c.Policy.ReadSubject(c.Subject)
}

// InFlight reports whether the counter is that of a Concurrency limit, so its tokens are slots.
func (c *Counter) InFlight() bool { return c.Policy.Limit.Algorithm == Concurrency }

// Charge is one counter asked for tokens.
type Charge struct {
	Counter
	// N is how many tokens are needed, all or none.
	N int64
	// Peek asks what would happen, and takes nothing.
	Peek bool
	// Guest means that the client could make the subject up. A store that is short of memory may return [ErrNoRoom] instead of
	// making a counter for it.
	Guest bool
	// Returnable means that the tokens may be given back. They don't come from tokens that a node has borrowed, because those
	// count as lent for a while after they are spent, and couldn't go back.
	Returnable bool
	// Hold is what the charge leaves behind, or nil. Slots always have one. It may not be changed after the call.
	Hold *Hold
}

// Return is tokens on their way back into a counter.
type Return struct {
	Counter
	N int64
	// Slot is the Result.Slot of the charge that took the tokens. 0 means the current window. A sliding log needs the real one.
	Slot int64
	// Hold is the charge's. It ends.
	Hold *Hold
	// Used settles a Return with a Hold: that many of the N tokens stay taken. If Used is more than N, the rest is booked.
	Used int64
	// Recorded makes the return depend on the record of Hold: without the record, nothing goes back and nothing is booked. So the
	// record makes a refund happen once, and the store remembers no Once for the call. If the first such return of a call has no
	// record, only slots are freed, and GiveBack returns [ErrUsed]. Callers put slots first, and returns without Recorded last.
	Recorded bool
}

// Result is what became of one charge.
type Result struct {
	// Allowed means that this charge fits. It was debited if all the others fit, too.
	Allowed bool
	// Again means that the Hold existed already, so nothing was taken now.
	Again bool
	// Local means that the charge was counted in another place, because its counter couldn't be reached. Beside an Err, it means
	// that the counter in [github.com/weirhq/weir.Options.Local] goes on from what the node knew.
	Local bool
	// Remaining is how many tokens the counter has left.
	Remaining int64
	// RetryAfter is the time until a refused charge would fit if no other came first, to the microsecond, or [Never].
	RetryAfter time.Duration
	// ResetAfter is the time until the counter is full again.
	ResetAfter time.Duration
	// Delay is how long an allowed request of a queue has to wait for its turn.
	Delay time.Duration
	// Slot says when the tokens were debited, for [Return].
	Slot int64
	// Part is the number of the part of a split limit that was asked first, from 1, or 0: see [Policy.Portion].
	Part int
	// Err is why the counter couldn't be reached, or nil. The fields above are then meaningless.
	Err error
}

const (
	// Never is the RetryAfter of a charge that is larger than its limit can ever admit.
	Never time.Duration = -1
	// RecordTime is how long a store keeps the record of a reservation.
	RecordTime = 24 * time.Hour
)
