// Package counter is the arithmetic of limits, and the interface of the stores that keep their counters.
//
// A [Limit] is an algorithm with its numbers: 100 per minute, burst 20. A [Policy] is a limit with a name, prepared for the
// arithmetic. A [Counter] is the state of one policy for one subject, usually a client. The arithmetic is pure: it takes a
// [State] and a moment in microseconds, and returns the next state. A [Store] keeps the states. It decides charges to several
// counters together: either all fit and are debited, or none is.
//
// Programs that limit requests import package weir instead. This package is for stores and their authors.
package counter
