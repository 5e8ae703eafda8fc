package counter

import "time"

// Abuse says what happens to a client that keeps sending requests while a rule refuses it. The rule refuses the client for a
// while whatever the counter says, and for longer each time. A refusal counts if it arrives while the client has been told to
// wait, which is in whole seconds and at least one. Requests in flight, parallel bursts, and clients that send less than twice
// what the limit admits begin no cooldown. See docs/guides/abuse.md.
type Abuse struct {
	// Refusals within Window begin a cooldown.
	Refusals int64
	Window   time.Duration
	// Cooldown is how long the first one lasts. Each further one lasts Grow times as long, up to Most.
	Cooldown time.Duration
	Grow     float64
	Most     time.Duration
	// Forgive is how long after the end of a cooldown the client starts over at the first one.
	Forgive time.Duration
	// DropAfter is how many refusals in a row are answered. After that, connections are closed. 0 means that all are answered.
	DropAfter int64
	// Shadow cooldowns are counted and reported, and refuse no request.
	Shadow bool
}
