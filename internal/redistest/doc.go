// Package redistest starts real Redis servers for tests and benchmarks: a single server, a primary and a replica with three
// Sentinels, or a Cluster of three primaries and three replicas. Each server is a process of its own on its own loopback
// address. It can be killed, stopped, continued and restarted, and it never outlives the program that started it. The
// environment variable WEIR_TEST_REDIS names the binary, if it isn't redis-server.
//
// A test begins with [New], [NewSentinel] or [NewCluster]. They close the servers when the test ends. [NewProxy]
// simulates a faulty network in front of a server. [Until] waits until a fault has taken effect.
//
// [Server.Do] sends commands over the server's Unix socket, and doesn't use a client library. So what a
// test finds in Redis depends neither on the client that it tests, nor on the network that it breaks.
package redistest
