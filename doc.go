// Package weir is a rate limiter: a request goes in, a decision comes out.
//
// The words, from the outside in:
//
//   - A [Request] is what an edge knows of a call, and its cost.
//   - A [Rule] says which requests it applies to, what it counts by, and its limits.
//     Rules are compiled once into an immutable [RuleSet].
//   - A [Limit] is an algorithm with its numbers: 100 per minute, burst 20. Under a
//     name, ready to count, it is a [Policy].
//   - A subject is the client that a rule counts: the values of its By dimensions.
//   - A [Counter] is the state of one policy for one subject, kept in a [Store].
//   - A [Charge] asks one counter for tokens, and gets a [Result].
//   - A [Decision] sums up: allowed or refused, what is left, when to retry.
//
// One check, end to end: [Limiter.Check] loads the RuleSet in force and turns each limit that
// applies into a charge. The store decides all charges together, all or nothing, and the most
// restrictive limit speaks for the decision. Nothing is allocated.
//
// This package does no I/O and has no dependencies. Times are whole microseconds.
//
// Most programs want [NewLimiter] and [Limiter.Check], and packages memstore and rulefile.
package weir
