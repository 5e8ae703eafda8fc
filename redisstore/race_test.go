//go:build race

package redisstore

// slowness is by how much less the long tests do: the race detector makes everything about ten times slower.
const slowness = 10
