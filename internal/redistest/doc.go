// Package redistest starts real Redis servers for tests and for programs that
// measure: one alone, a primary and a replica under three Sentinels, or a
// Cluster of three primaries and three replicas. Each server is a process of
// its own on a loopback address of its own. It can be killed, stopped, continued
// and restarted, and it never outlives the program that started it. The environment variable
// WEIR_TEST_REDIS names the binary, if it isn't redis-server.
//
// A test begins with [New], [NewSentinel] or [NewCluster], which close what
// they start; a program with [Start], [StartSentinel] or [StartCluster].
// [StartProxy] puts a faulty network before a server. [Until] waits for what a
// fault leads to.
//
// Commands go through a connection of the package's own, [Server.Do], over the server's Unix socket:
// what a test finds in Redis shall not hang on the client that it tests, nor on the network that it breaks.
package redistest
