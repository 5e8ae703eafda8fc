// Package weir is a rate limiter: a request goes in, a decision comes out.
//
// Most programs want [NewLimiter] and [Limiter.Check], and packages memstore and rulefile.
//
//   - A [Rule] says which requests it applies to, what it counts by, and its limits.
//     [Compile] makes rules an immutable [RuleSet].
//   - A [Limit] is an algorithm with its numbers: 100 per minute, burst 20. Under a
//     name, ready to count, it is a [Policy].
//   - A [Counter] is the state of one policy for one subject, the client that the rule counts.
//
// A check makes a [Charge] of each limit that applies to the [Request]. The [Store] decides them
// together, all or nothing, and the most restrictive limit speaks for the [Decision].
//
// This package does no I/O and has no dependencies. Times are whole microseconds.
package weir
