package counter

import (
	"context"
	"time"
)

// Guard keeps out clients that keep sending requests while a rule refuses them. See [Abuse]. The implementation is in package
// cooldown. If a charge's policy has an Abuse, the limiter asks the Guard before it decides the charge, and reports the result
// afterwards, both in the goroutine of the check. So the Guard must be quick, and keep nothing of the charge. If the Guard has
// a method Use(), the limiter calls it when rules with an Abuse take effect.
type Guard interface {
	// Cooldown returns how much longer the client is kept out. Zero means that it isn't.
	Cooldown(c *Charge) time.Duration
	// Decided records the result of a check. Wait is how long the client must wait: zero if the request was allowed, and
	// [Never] if waiting doesn't help. Decided reports whether to drop the client's connection.
	Decided(c *Charge, wait time.Duration) (drop bool)
	// Forgive ends the cooldown of the counter's client.
	Forgive(ctx context.Context, c *Counter) error
}

// HoldObserver observes which slots and reserved amounts requests hold. Its methods run in the goroutine that takes or ends the
// hold, so they must be quick, and keep nothing of the counter. Package metrics has an implementation.
type HoldObserver interface {
	// Slots reports that a request took or renewed n slots of a Concurrency limit, and for how long. If lasts is zero, the
	// request released them. The id identifies the request.
	Slots(c *Counter, id Once, n int64, lasts time.Duration)
	// Reservation reports the state "reserved" when a request has reserved amounts, and later how the reservation ended:
	//  - settled: everything that the request really used is known.
	//  - unknown: some amount isn't known, so what was reserved stays taken.
	//  - given_back: everything went back.
	//  - failed: the store couldn't be reached. The caller may try again.
	Reservation(state string)
}
