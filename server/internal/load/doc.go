// Package load generates load on a limiter and measures the answers. The command weir bench and the measurements in the
// bench module use it.
//
// A [Plan] says how much load to generate, from how many clients, and for how long. A [Target] receives the requests:
// limiters in this process ([InProcess]), a server ([HTTP]), or any other implementation. [Run] generates the load and
// returns a [Report].
//
// In a closed loop, each worker sends its next request when the last one is answered. That shows how much a target can
// do, but little about latency: while the target stalls, no further requests are sent that would be slow. In an open
// loop, requests are due at times that don't depend on answers, and latency counts from when a request was due, so a
// stall shows in the latency of every request that it delays. Both loops limit the requests in flight. In an open loop,
// a request that is due while all workers are busy is sent late, or dropped if the run ends before a worker is free.
// The report counts both kinds.
package load
