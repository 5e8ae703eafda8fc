// Package counter is the arithmetic of limits, and the contract of the stores that keep their counters.
//
// A [Limit] is an algorithm with its numbers: 100 per minute, burst 20. Under a name, ready to count, it is a [Policy]. A
// [Counter] is the state of one policy for one subject, mostly a client. The arithmetic is pure: it takes a [State] and a moment
// in microseconds, and returns the next state. A [Store] keeps the states, and decides charges to several counters together, all
// or nothing.
//
// Programs that limit requests import package weir instead. This package is for stores and for their authors.
package counter
