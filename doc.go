// Package weir is a rate limiter: a request goes in, a decision comes out.
//
// Most programs want [NewLimiter] and [Limiter.Check], with rulefile and memstore.
//
//   - A [Rule] says which requests it applies to, what it counts by, and its limits.
//     [Compile] makes rules an immutable [RuleSet].
//   - A [Limit] is an algorithm with its numbers: 100 per minute, burst 20. Under a
//     name, ready to count, it is a [counter.Policy].
//   - A [counter.Counter] is the state of one policy for one subject: a client, mostly.
//
// A check charges every limit that applies to a [Request]. The [counter.Store] decides the charges together,
// all or nothing. The most restrictive limit speaks for the [Decision].
//
// This package does no I/O and has no dependencies. Times are whole microseconds.
package weir
