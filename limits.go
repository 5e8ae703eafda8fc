package weir

import "github.com/weirhq/weir/counter"

// Limit is an algorithm with its numbers, such as 100 per minute with a burst of 20.
type Limit = counter.Limit

// Names for use in limits and rules.
const (
	// The algorithms of a [Limit]. TokenBucket, the default, is right for most limits: see [counter.Algorithm].
	TokenBucket    = counter.TokenBucket
	LeakyBucket    = counter.LeakyBucket
	LeakyQueue     = counter.LeakyQueue
	FixedWindow    = counter.FixedWindow
	SlidingLog     = counter.SlidingLog
	SlidingCounter = counter.SlidingCounter
	Concurrency    = counter.Concurrency

	// What a rule does while the store can't be reached. The default is FailAllow: see [counter.FailureMode].
	FailAllow  = counter.FailAllow
	FailRefuse = counter.FailRefuse
	FailLocal  = counter.FailLocal

	// Never is the RetryAfter of a request that costs more than its limit can ever admit.
	Never = counter.Never
)

// PerSecond returns a token bucket of n tokens that refills at n tokens a second.
func PerSecond(n int64) Limit { return counter.PerSecond(n) }

// PerMinute returns a token bucket of n tokens that refills at n tokens a minute.
func PerMinute(n int64) Limit { return counter.PerMinute(n) }

// PerHour returns a token bucket of n tokens that refills at n tokens an hour.
func PerHour(n int64) Limit { return counter.PerHour(n) }

// ParseLimit reads a limit such as "100/minute", "5/15m", "20 per second", or "50/month", which counts calendar months.
func ParseLimit(s string) (Limit, error) { return counter.ParseLimit(s) }
