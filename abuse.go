package weir

import "time"

// Abuse says what happens to a client that keeps sending requests while a rule refuses it. The rule refuses the client for a
// while whatever the counter says, and for longer each time. A refusal counts if it arrives while the client has been told to
// wait, which is in whole seconds and at least one. Requests in flight, parallel bursts, and clients that send less than twice
// what the limit admits begin no cooldown. See docs/guides/abuse.md.
type Abuse struct {
	// Refusals within Window begin a cooldown.
	Refusals int64
	Window   time.Duration
	// Cooldown is how long the first one lasts. Each that follows lasts Grow times as long as the one before it, and Most at most.
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

// check finds what can't be meant. Nil and the zero value are none.
func (a *Abuse) check(path string, bad *Problems) {
	const year = 366 * 24 * time.Hour
	switch {
	case a == nil || *a == (Abuse{}):
	case a.Refusals < 1 || a.Refusals > MaxTokens:
		bad.addf(path+".refusals", "must be from 1 to %d, got %d", int64(MaxTokens), a.Refusals)
	case a.Window < time.Second || a.Window > 24*time.Hour:
		bad.addf(path+".refusals", "must be within a second to a day, got %s", a.Window)
	case a.Cooldown < time.Second || a.Cooldown > year:
		bad.addf(path+".cooldown", "must be from 1s to 366d, got %s", a.Cooldown)
	case !(a.Grow >= 1 && a.Grow <= 100):
		bad.addf(path+".grow", "must be from 1, which is no growth, to 100, got %v", a.Grow)
	case a.Most < a.Cooldown || a.Most > year:
		bad.addf(path+".most", "must be from the first cooldown, %s, to 366d, got %s", a.Cooldown, a.Most)
	case a.Forgive < 0 || a.Forgive > year:
		bad.addf(path+".forgive", "must be from 0 to 366d, got %s", a.Forgive)
	case a.DropAfter < 0:
		bad.addf(path+".drop_after", "must be at least 1 refusal, or left out, got %d", a.DropAfter)
	}
}
