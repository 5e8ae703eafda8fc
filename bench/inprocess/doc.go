// Command bench measures Weir's in-process store and its whole check against
// other limiters for Go, in one process, and holds the results against targets.
//
//	go run ./inprocess                 # everything, about five minutes
//	go run ./inprocess -strict            # exit with 1 if a target is missed
//	go run ./inprocess -workloads uniform -contenders 'Weir|go-limiter' -rounds 3
//
// Times on small shared machines are noise; ratios taken in one run are not. So
// contenders take turns: in each round every one of them is measured once, each
// on a fresh store, in an order that rotates. A ratio is computed within its round, and
// what is printed is the median over the rounds. All contenders see the same keys
// in the same order, under the same limit, which admits everything. A measurement during
// which other processes took more than a tenth of the cores is repeated, and left out
// if that doesn't help: a limiter that gets one of two cores meets no contention.
//
// What each is given:
//
//   - As many goroutines as GOMAXPROCS. Nanoseconds per check are wall time divided by the
//     checks of all goroutines together: on two cores, a check takes a core twice as long.
//   - Room for its keys beforehand, where it can be asked for; no sweeping during the run; no
//     response headers to write, where that can be turned off. Rivals that keep the
//     key they were given keep a reference into the key array, which spares them the cache miss
//     that comparing with a copy costs; -clone takes that away, as requests do.
//   - A store that holds every key before the clock starts.
package main
