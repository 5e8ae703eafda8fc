//go:build race

package redisstore

import "flag"

// slowness is by how much less the long tests do: the race detector makes everything about ten times slower.
const slowness = 10

// Random sequences run in one goroutine, and the detector makes them ten times slower: make plain runs all of them.
func init() {
	if err := flag.Set("rapid.checks", "20"); err != nil {
		panic(err)
	}
}
