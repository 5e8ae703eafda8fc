// Package load generates load on a limiter and measures the answers. The command weir bench is made of it, and so are the
// measurements in the bench module.
//
// A [Plan] says how much load to make, from how many clients and for how long. A [Target] receives the requests: limiters
// in this process ([InProcess]), a server ([HTTP]), or whatever else a caller brings. [Run] makes the load and returns a
// [Report].
//
// In a closed loop, each worker sends its next request when the last one is answered. That shows how much a target can do,
// but little about latency: while the target stalls, nothing is sent that could be slow. In an open loop, requests are due
// at times that don't depend on answers, and latency counts from when a request was due, so every request that a stall
// holds up shows it. Both loops bound the requests in flight. In an open loop, a request that is due while all workers are
// busy is sent late, and dropped if the time is over before a worker is free. The report counts both.
package load
