package weir

import (
	"time"

	"github.com/weirhq/weir/counter"
)

// Reason says why a request was allowed or refused.
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
	// ReasonIdentityRequired: a rule refuses requests without a value that it counts by, and this request lacks one.
	ReasonIdentityRequired
	// ReasonUnavailable: there are no rules yet, or the store can't be reached and a rule refuses requests in that case.
	ReasonUnavailable
	// ReasonUnreadablePath: the path is longer than 4,096 bytes, or too ambiguous to tell which rules match it.
	ReasonUnreadablePath
	// ReasonOverloaded: an edge had no capacity for the request. Only observers see this reason.
	ReasonOverloaded
	// ReasonCooldown: the client ignored refusals, so it is refused for a while even if its limits have room.
	ReasonCooldown
)

var reasonNames = [...]string{"within", "unlimited", "bypassed", "limited", "denied", "identity_required", "unavailable", "unreadable_path", "overloaded", "cooldown"}

func (r Reason) String() string { return reasonNames[r] }

// Decision is the result of a check. Its numbers are those of the limit that binds: if the request is refused, the limit with
// the longest wait; otherwise the limit with room for the fewest such requests.
type Decision struct {
	Allowed bool
	// Degraded: some limit couldn't be counted as usual, because the store or its home region couldn't be reached or had no room.
	Degraded bool
	// Drop: close the client's connection without a response. See [counter.Abuse.DropAfter].
	Drop   bool
	Reason Reason
	n      uint8 // how many limits are in few
	// Rule is the id of the rule that binds, or "". Policy is the limit that binds, or nil.
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
	// RulesVersion is the version of the rules that decided.
	RulesVersion int64
	// Receipt is for [Limiter.Finish]. It is "" unless the request asked for it.
	Receipt string

	// Up to three limits are stored in place, so that most checks don't allocate.
	few  [3]LimitStatus
	many []LimitStatus
	held *held
}

// LimitStatus describes one limit after a check.
type LimitStatus struct {
	Policy *counter.Policy
	// Allowed: the request fits this limit. If another limit refused the request, nothing was taken.
	Allowed bool
	// Degraded: the store couldn't be reached. Remaining is unknown, and ResetAfter is the longest possible time.
	Degraded bool
	// Local: the limit was counted in [Options.Local] or in this region, since the store or the limit's home couldn't be reached.
	Local      bool
	fraction   int32 // what is left beyond Remaining, in millionths
	Remaining  int64
	RetryAfter time.Duration
	ResetAfter time.Duration
}

// set describes a limit by the result of its charge.
func (s *LimitStatus) set(p *counter.Policy, r *counter.Result) {
	s.Policy, s.Allowed, s.Degraded, s.Local = p, r.Allowed, r.Err != nil, r.Local
	s.Remaining, s.RetryAfter, s.ResetAfter = r.Remaining, r.RetryAfter, r.ResetAfter
	if p.Limit.Decimal {
		left := counter.Amount(r.Remaining)
		s.Remaining, s.fraction = left.Tokens(), int32(left%counter.Whole(1))
	}
}

// bind makes a limit the one that binds.
func (d *Decision) bind(s *LimitStatus) {
	d.Rule, d.Policy, d.Remaining, d.RetryAfter, d.ResetAfter = s.Policy.Rule, s.Policy, s.Remaining, s.RetryAfter, s.ResetAfter
}

// Left returns the exact amount that remains. Remaining is rounded down.
func (s *LimitStatus) Left() counter.Amount {
	return counter.Whole(s.Remaining) + counter.Amount(s.fraction)
}

// Limits lists every limit that applied, in the order of the rules. If servers may read the path in several ways, the limits
// for the second reading come after those for the first, and so on.
func (d *Decision) Limits() []LimitStatus {
	if d.many != nil {
		return d.many
	}
	return d.few[:d.n]
}

// Uncounted reports whether the store couldn't be reached for the limit that binds, so that its numbers are unknown.
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
