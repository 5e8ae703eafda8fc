//go:build race

package redisstore

import "flag"

// slowness is by how much to shorten long tests, because the race detector makes everything about ten times slower.
const slowness = 10

// Random sequences run in one goroutine, where the race detector only makes them slow. make plain runs all of them.
func init() {
	if err := flag.Set("rapid.checks", "20"); err != nil {
		panic(err)
	}
}
