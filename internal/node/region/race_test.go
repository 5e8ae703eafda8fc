//go:build race

package region

import "flag"

// Random sequences run in one goroutine, and the race detector makes them ten times slower, so this runs only a few.
// make plain runs all of them.
func init() {
	if err := flag.Set("rapid.checks", "20"); err != nil {
		panic(err)
	}
}
