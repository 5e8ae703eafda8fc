package counter

import (
	"context"
	"errors"
	"time"
)

// Store keeps counters and decides charges. Implementations are safe for
// concurrent use, keep nothing of the slices they are given, and pass
// [github.com/weirhq/weir/storetest].
type Store interface {
	// Take decides the charges together, all or nothing, and writes what became of each into
	// results, which is as long as charges and completely overwritten. When any charge that isn't
	// in shadow is refused, nothing is debited; the others report that they would have fit.
	//
	// A counter that several charges name is asked for all of their tokens, once: each
	// of those charges is decided, and reported, as if it were for the sum, and lends nothing.
	//
	// A charge whose [Hold] is there already fits, and takes nothing more.
	//
	// A charge whose counter couldn't be reached has its Err set and is neither
	// allowed nor refused; the others are decided as if it weren't there.
	Take(ctx context.Context, charges []Charge, results []Result)

	// GiveBack returns tokens that were taken. With a non-zero once, it does so
	// a single time for that value and answers [ErrUsed] ever after,
	// whichever node asks, until keep has passed. What came too late is void,
	// and no error.
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

// Once names an act that must happen a single time. The zero value names none.
type Once [16]byte

// Hold is what a charge leaves behind beside its debit: a slot of a Concurrency limit until it is released, or the record
// of a debit that will be settled. A charge whose hold is there already takes nothing more: it renews a slot, and repeats
// a check without being charged twice.
type Hold struct {
	ID Once
	// For is how long it lasts. A slot that isn't renewed is free again then. A record that isn't settled is forgotten.
	For time.Duration
	// GiveBack returns what a record stands for at its end, unless it was settled. Such a record is kept for RecordTime beyond
	// that, so that a late settlement books all that was used.
	GiveBack bool
}

// Counter names the state of one policy for one subject.
type Counter struct {
	Policy *Policy
	// Subject is the client that the policy counts, in an encoding without ambiguities. It may hold
	// an API key: stores must not show it. Valid during the call only.
	Subject []byte
}

// Values are what the subject was made of: see [Definition.ReadSubject].
func (c *Counter) Values() [][2]string {
	if c.Policy.ReadSubject == nil {
		return nil
	}
	return c.Policy.ReadSubject(c.Subject)
}

// InFlight reports whether what is taken of the counter, and goes back, are slots of a Concurrency limit.
func (c *Counter) InFlight() bool { return c.Policy.Limit.Algorithm == Concurrency }

// Charge is one counter asked for tokens.
type Charge struct {
	Counter
	// N is how many tokens are needed, all or none.
	N int64
	// Peek asks what would happen, and takes nothing.
	Peek bool
	// Guest: the client could choose the subject freely. A store that is short of memory may answer
	// [ErrNoRoom] instead of making a new counter for it.
	Guest bool
	// Returnable: what it takes may be given back. It isn't taken from tokens that a node has
	// borrowed: those count as lent for a while after they are spent, and would have no place to go
	// back to.
	Returnable bool
	// Hold, if any, is what the charge leaves behind, if it is taken. Every charge of a Concurrency limit that isn't a peek
	// has one. It may not be changed after the call.
	Hold *Hold
}

// Return is tokens on their way back into a counter.
type Return struct {
	Counter
	N int64
	// Slot is the Result.Slot of the charge that took them. 0, for who doesn't know it, means the window that it is now; a
	// log needs the moment.
	Slot int64
	// Hold is that of the charge, if it had one. The hold ends.
	Hold *Hold
	// Used is how many of N stay taken after all, of a Return with a Hold. What is beyond N is taken as well, whatever is left.
	Used int64
	// Recorded makes the return depend on the record of Hold: if the record isn't there, nothing goes back and nothing is booked.
	// The record makes a refund happen once, so the store remembers no Once for a call with such a return. If the first such
	// return of the call has no record, only slots are freed, and GiveBack returns [ErrUsed]. Callers put slots first, and
	// returns that aren't Recorded last.
	Recorded bool
}

// Result is what became of one charge.
type Result struct {
	// Allowed: this charge fits. Whether it was debited depends on its siblings.
	Allowed bool
	// Again: its Hold was there already, and nothing was taken now.
	Again bool
	// Local: it was counted apart from where the limit's counter is, which couldn't be reached. Beside an Err it means that
	// the counter in [github.com/weirhq/weir.Options.Local] goes on from what the node knew of it.
	Local bool
	// Remaining is how many tokens the counter has left.
	Remaining int64
	// RetryAfter, of a refusal, is the time until this charge alone would fit: not a
	// microsecond less. [Never] if no waiting helps.
	RetryAfter time.Duration
	// ResetAfter is the time until the counter is full again.
	ResetAfter time.Duration
	// Delay is how long an allowed request of a queue has to wait for its turn.
	Delay time.Duration
	// Slot names when the tokens were debited, for giving them back.
	Slot int64
	// Part, of a split limit, is the number of the part that was asked first, from 1: see [Policy.Portion]. 0 means that the
	// limit was counted as one.
	Part int
	// Err: the counter couldn't be reached, and the fields above say nothing.
	Err error
}

const (
	// Never is the RetryAfter of a charge that is larger than its limit can ever admit.
	Never time.Duration = -1
	// RecordTime is how long a store keeps the record of a reservation.
	RecordTime = 24 * time.Hour
)
