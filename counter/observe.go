package counter

import (
	"context"
	"time"
)

// Guard keeps out clients that keep sending requests while a rule refuses them: see [Abuse], and package cooldown, which has a
// Guard. A limiter asks the Guard before it decides charges whose policy has an Abuse, and tells it the result, in the goroutine
// of the check. So the Guard must be quick, and keep nothing of the charge. If it has a method Use(), the limiter calls that
// when rules with an Abuse take effect.
type Guard interface {
	// Cooldown returns for how long the client is kept out. Zero means that it isn't.
	Cooldown(c *Charge) time.Duration
	// Decided is told how long the client must wait: zero if the request was allowed, and [Never] if waiting doesn't help. It
	// reports whether to drop the client's connection.
	Decided(c *Charge, wait time.Duration) (drop bool)
	// Forgive ends the cooldown of a counter's client.
	Forgive(ctx context.Context, c *Counter) error
}

// HoldObserver is told which slots and reserved amounts requests hold, in the goroutine that takes or ends them. It must be
// quick and keep nothing of the counter. Package metrics has one.
type HoldObserver interface {
	// Slots is told that a request took or renewed n slots of a Concurrency limit, and for how long. If lasts is zero, it released
	// them. The id identifies the request.
	Slots(c *Counter, id Once, n int64, lasts time.Duration)
	// Reservation is told "reserved" when a request has reserved amounts, and later how that ended:
	//   - settled: everything that the request really took is known.
	//   - unknown: some amount isn't known, so what was reserved stays taken.
	//   - given_back: everything went back.
	//   - failed: the store couldn't be reached. The caller may try again.
	Reservation(state string)
}
