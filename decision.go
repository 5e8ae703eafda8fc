package weir

import (
	"time"

	"github.com/weirhq/weir/counter"
)

// Reason says why a decision is what it is.
type Reason uint8

const (
	// ReasonWithin: the request fits every limit that applies.
	ReasonWithin Reason = iota
	// ReasonUnlimited: no rule applies.
	ReasonUnlimited
	// ReasonBypassed: the allow list lets the request through.
	ReasonBypassed
	// ReasonLimited: a limit is used up. Waiting helps, unless RetryAfter is Never.
	ReasonLimited
	// ReasonDenied: the deny list refuses the request.
	ReasonDenied
	// ReasonIdentityRequired: a rule refuses requests that lack what it counts by.
	ReasonIdentityRequired
	// ReasonUnavailable: there are no rules yet, or the store can't be reached and a rule refuses requests then.
	ReasonUnavailable
	// ReasonUnreadablePath: the path is longer than 4,096 bytes, or too ambiguous to tell which rules match it.
	ReasonUnreadablePath
	// ReasonOverloaded: an edge had no room for the request. Only observers see it.
	ReasonOverloaded
	// ReasonCooldown: the client ignored refusals, so it is refused for a while even if its limits have room.
	ReasonCooldown
)

var reasonNames = [...]string{"within", "unlimited", "bypassed", "limited", "denied", "identity_required", "unavailable", "unreadable_path", "overloaded", "cooldown"}

func (r Reason) String() string { return reasonNames[r] }

// Decision is the answer to a check. Its numbers are those of the limit that binds: if the request is refused, the one with
// the longest wait, otherwise the one with room for the fewest such requests.
type Decision struct {
	Allowed bool
	// Degraded: the store couldn't be reached for some limit. A FailLocal rule that counted on its own isn't degraded.
	Degraded bool
	Reason   Reason
	// Rule is the id of the rule that binds, or "". Policy is its limit, or nil.
	Rule   string
	Policy *counter.Policy
	// Remaining is how many tokens are left.
	Remaining int64
	// RetryAfter is the time until a refused request would be allowed if no other came first, or Never.
	RetryAfter time.Duration
	// ResetAfter is the time until the counter is full again.
	ResetAfter time.Duration
	// Delay is how long an allowed request should wait for its turn.
	Delay time.Duration
	// Drop: this client isn't worth a response. See [counter.Abuse.DropAfter].
	Drop bool
	// RulesVersion is the version of the rules that decided.
	RulesVersion int64
	// Receipt, if the request asked for one, is for [Limiter.Finish].
	Receipt string

	// A few limits fit into the decision, so that a check needn't allocate.
	few  [3]LimitStatus
	many []LimitStatus
	n    int
	held *held
}

// LimitStatus is how one limit stands after a check.
type LimitStatus struct {
	Policy *counter.Policy
	// Allowed: this limit has room. A refused request takes nothing from it.
	Allowed bool
	// Degraded: the store couldn't be reached. Remaining is unknown, and ResetAfter is the longest possible time.
	Degraded bool
	// Local: the limit was counted in [Options.Local], or in this region, because the store or the limit's home couldn't be
	// reached.
	Local      bool
	Remaining  int64
	RetryAfter time.Duration
	ResetAfter time.Duration

	left int64 // Remaining in the policy's units
}

// Left is how much remains, exactly. Remaining is rounded down.
func (s *LimitStatus) Left() counter.Amount { return s.Policy.Exact(s.left) }

// Limits lists every limit that applied, in the order of the rules. If servers may read the path in several ways, the limits
// of one reading come after those of another.
func (d *Decision) Limits() []LimitStatus {
	if d.many != nil {
		return d.many
	}
	return d.few[:d.n]
}

// Uncounted reports whether the store couldn't be reached for the limit that binds, so its numbers are unknown.
func (d *Decision) Uncounted() bool {
	if !d.Degraded {
		return false
	}
	for _, l := range d.Limits() {
		if l.Policy == d.Policy {
			return l.Degraded
		}
	}
	return true
}
