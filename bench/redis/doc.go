// Command redis compares Weir with other ways to limit through Redis, in one run against redis-servers of its own, and
// compares the results with targets.
//
//	go run ./bench/redis              # everything, about six minutes
//	go run ./bench/redis -strict      # exit with 1 if a target is missed
//	go run ./bench/redis -workloads goroutine -contenders 'Weir|redis_rate' -rounds 10
//	go run ./bench/redis -keys 1000000 -clients 0
//
// Every contender has a server of its own that holds every key, with the same settings; only the contender that is being
// measured has anything to do. Each round measures every contender once, for a short time, in random order. With one
// goroutine, all contenders share one server and take turns at every check. A ratio is computed within its round, and the
// median and the quartiles over the rounds are printed. All contenders see the same keys, under a limit that admits
// everything and refills so slowly that no counter may be forgotten. A measurement with a refused or failed check isn't
// used. A measurement during which other processes took more than a tenth of the cores is repeated, and left out if that
// doesn't help.
//
// Goroutines send their next check when the last one is answered, so a slow contender gets fewer checks. Latency is the time
// of one check. Client and server share the cores, so CPU seconds per million checks tell more than checks per second.
//
// Clients have their default settings, except that rueidis neither caches nor pings. "Weir's EVALSHA, bare" sends by rueidis,
// without anything around it, what Weir's store was seen to send for each key.
//
// Memory is the growth of Redis' used_memory divided by the number of counters.
//
// The hostile client does whatever could be costly to sliding logs that it has filled. Redis' slow log tells how long each
// script call took, during which Redis serves no other client.
package main
