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
	// ReasonUnavailable: the store can't be reached, and a rule refuses requests then; or there are no rules yet.
	ReasonUnavailable
	// ReasonUnreadablePath: the path is longer than 4,096 bytes, or can be read in so many ways that the limits
	// on it can't be told.
	ReasonUnreadablePath
	// ReasonOverloaded: an edge has no room for the request. No check gives it; it is for [Options.Observe] alone.
	ReasonOverloaded
	// ReasonCooldown: the client kept coming while it was refused, and is refused for a while whatever its limits have left.
	ReasonCooldown
)

var reasonNames = [...]string{"within", "unlimited", "bypassed", "limited", "denied", "identity_required", "unavailable", "unreadable_path", "overloaded", "cooldown"}

func (r Reason) String() string { return reasonNames[r] }

// Decision is the answer to a check. The fields from Rule to Delay come from
// the limit that binds: of a refusal, the one with the longest wait; otherwise the
// one that leaves room for the fewest such requests.
type Decision struct {
	Allowed bool
	// Degraded: the store couldn't be reached for a limit that applies. A rule with FailLocal that
	// counted by itself instead is reported as usual.
	Degraded bool
	Reason   Reason
	// Rule is the id of the rule that binds, or "".
	Rule string
	// Policy is the limit that binds, or nil.
	Policy *counter.Policy
	// Remaining is how many tokens are left.
	Remaining int64
	// RetryAfter, of a refusal, is the time until the request would be allowed if it alone retries, or Never.
	RetryAfter time.Duration
	// ResetAfter is the time until the counter that binds is full again.
	ResetAfter time.Duration
	// Delay is how long an allowed request should wait for its turn.
	Delay time.Duration
	// Drop: the client was refused so often in a row that it isn't worth an answer. See [counter.Abuse.DropAfter].
	Drop bool
	// RulesVersion is the version of the rules that decided.
	RulesVersion int64
	// Receipt gives back what was taken, if one was asked for. See [Limiter.Finish].
	Receipt string

	// Few limits fit inside the decision, so that a check needn't allocate.
	few  [3]LimitStatus
	many []LimitStatus
	n    int
	held *held
}

// LimitStatus is how one limit stands after a check.
type LimitStatus struct {
	Policy *counter.Policy
	// Allowed: this limit has room. In a refused request nothing was taken from it.
	Allowed bool
	// Degraded: the store couldn't be reached. Remaining says nothing, and ResetAfter is the longest that it can take.
	Degraded bool
	// Local: the store couldn't be reached, and the limit was counted in [Options.Local] instead; or the limit's home couldn't,
	// and it was counted in this region.
	Local      bool
	Remaining  int64
	RetryAfter time.Duration
	ResetAfter time.Duration

	left int64 // in the policy's units
}

// Left is how much remains, exactly: of a limit on an amount, Remaining is rounded down.
func (s *LimitStatus) Left() counter.Amount { return s.Policy.Exact(s.left) }

// Limits lists every limit that applied, in the order of the rules. If servers may read the path
// in several ways, those of each reading follow each other.
func (d *Decision) Limits() []LimitStatus {
	if d.many != nil {
		return d.many
	}
	return d.few[:d.n]
}

// Uncounted reports whether the limit that binds couldn't be reached, so that its
// numbers say nothing. One that was counted binds before one that wasn't, unless the latter refuses.
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
