// Package load makes load on a limiter and measures what comes back: it is
// behind the command weir bench.
//
// A [Plan] says how much load, of how many clients and for how long; a [Target] is
// where requests go: [InProcess] or [HTTP]. [Run] makes the load and returns a [Report].
//
// In a closed loop each worker sends its next request when the last one is
// answered. That shows how much a target can do, and says little about
// latency: while the target stalls, nothing is sent, and what wasn't sent
// wasn't slow. In an open loop requests are due at times that
// don't depend on answers, and latency counts from the time that a request was due, so that
// each request held up by a stall shows it. How many requests are in
// flight is bounded in both: a request that finds all places taken is sent late,
// and if the time is over first, it is dropped. Both are counted.
package load
