// Command redis measures Weir against other ways to limit through Redis, in one
// run against redis-servers of its own, and holds the results against targets.
//
//	go run ./redis              # everything, about six minutes
//	go run ./redis -strict      # exit with 1 if a target is missed
//	go run ./redis -workloads goroutine -contenders 'Weir|redis_rate' -rounds 10
//	go run ./redis -keys 1000000 -clients 0
//
// Every contender has a server of its own, with the same settings, which holds every key; only
// the one that is measured has anything to do. In each round every contender is measured once,
// for a short time, in random order. With one goroutine, all share one server and take turns at every check. A
// ratio is computed within its round, and what is printed is the median over the rounds, with the
// quartiles. All contenders see the same keys in the same order, under a limit that admits
// everything and refills so slowly that no counter may be forgotten. A measurement in which any
// check was refused or failed isn't used. One during which processes that aren't part of it took
// more than a tenth of the cores is repeated, and left out if that doesn't help.
//
// Goroutines send their next check when the last one is answered, so a contender
// that is slow is asked less. Latency is the time of one such turn. Client and server
// share the cores: CPU seconds per million checks tell more than checks per second.
//
// Clients have the settings that they come with, save that rueidis neither caches nor pings.
// "Weir's EVALSHA, bare" is what Weir's store was seen to send for each key when it was alone, sent
// again by rueidis without anything around it.
//
// Memory is Redis' used_memory, divided by the counters that it has grown by.
//
// The hostile client does whatever could be costly to sliding logs that it has filled, and Redis' slow log
// tells how long each script call took: nobody else is served meanwhile.
package main
