package counter

import "time"

// Abuse says what happens to a client that keeps sending requests while a rule refuses it. After too many refusals a cooldown
// begins: the rule refuses the client for a while whatever the counter says, and for longer each time. A refusal counts if it
// arrives before the Retry-After of an earlier refusal has passed; that time is in whole seconds, at least one. Requests in
// flight, parallel bursts, and clients that send less than twice what the limit admits don't cause cooldowns. See
// docs/guides/abuse.md.
type Abuse struct {
	// Refusals is how many refusals within Window begin a cooldown.
	Refusals int64
	Window   time.Duration
	// Cooldown is how long the first cooldown lasts. Each later one lasts Grow times as long as the one before, up to Most.
	Cooldown time.Duration
	Grow     float64
	Most     time.Duration
	// Forgive is how long after a cooldown's end the client starts over, so that its next cooldown is a first one.
	Forgive time.Duration
	// DropAfter is how many refusals in a row get a response. Then the client's connections are closed. 0 means no limit.
	DropAfter int64
	// Shadow makes cooldowns count and appear in reports, but refuse no request.
	Shadow bool
}
