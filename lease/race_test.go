//go:build race

package lease

import "flag"

const slow = true

// Random sequences run in one goroutine, where the race detector only makes them slow. make plain runs all of them.
func init() {
	if err := flag.Set("rapid.checks", "20"); err != nil {
		panic(err)
	}
}
