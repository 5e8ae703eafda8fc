package counter

import (
	"context"
	"time"
)

// Guard keeps out clients that keep sending requests while a rule refuses them: see [Abuse]. A limiter asks it before it decides
// charges whose policy has an Abuse, and tells it the result. It is called in the goroutine of the check, so it must be quick and
// keep nothing of the charge. If it also has a method Use(), the limiter calls that when rules with an Abuse take effect. Package
// cooldown has a Guard.
type Guard interface {
	// Cooldown returns for how long the client is kept out. Zero means that it isn't.
	Cooldown(c *Charge) time.Duration
	// Decided is told how long the client must wait: zero if the request was allowed, and [Never] if waiting doesn't help. It
	// reports whether to drop the client's connection.
	Decided(c *Charge, wait time.Duration) (drop bool)
	// Forgive ends the cooldown of a counter's client.
	Forgive(ctx context.Context, c *Counter) error
}

// HoldObserver is told which slots and reserved amounts requests hold at a limiter. It is called in the goroutine that checks,
// renews, releases or finishes, so it must be quick and keep nothing of the counter. Package metrics has a HoldObserver.
type HoldObserver interface {
	// Slots is told that n slots of a Concurrency limit were taken or renewed, and for how long; or that they were released, if
	// lasts is zero. The id tells the slots of one request from those of others.
	Slots(c *Counter, id Once, n int64, lasts time.Duration)
	// Reservation is told "reserved" when a request has reserved amounts, and later, once for all of its amounts, how the
	// reservation ended:
	//   - settled: the request was finished, and everything that it really took is known.
	//   - unknown: the request was finished, but how much of some amount it used isn't known, so what it had reserved stays taken.
	//   - given_back: the request was finished, and everything went back.
	//   - failed: the store couldn't be reached to finish the request. The caller may try again.
	Reservation(state string)
}
