//go:build race

package memstore_test

import "flag"

// Random sequences run in one goroutine, and the race detector makes them ten times slower. So this runs few of them, and make
// plain runs all.
func init() {
	if err := flag.Set("rapid.checks", "20"); err != nil {
		panic(err)
	}
}
