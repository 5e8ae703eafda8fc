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
	// Cooldown is how long the first one lasts. Each that follows lasts Grow times as long as the one before it, and Most at
	// most.
	Cooldown time.Duration
	Grow     float64
	Most     time.Duration
	// Forgive is how long after a cooldown's end without another the next one is a first one.
	Forgive time.Duration
	// DropAfter so many refusals in a row, connections are closed instead of answered. 0 means never.
	DropAfter int64
	// Shadow cooldowns are counted and reported, and refuse nobody.
	Shadow bool
}
