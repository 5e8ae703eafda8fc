//go:build race

package memstore_test

import "flag"

// Random sequences run in one goroutine, and the detector makes them ten times slower: make plain runs all of them.
func init() {
	if err := flag.Set("rapid.checks", "20"); err != nil {
		panic(err)
	}
}
