package pattern

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// Ranks match their definition: the next endpoint is the first one left such that no other one left is more specific.
func TestRanks(t *testing.T) {
	paths := []string{"", "/", "/a/", "/a", "/{x}", "/{x}/", "/a/b", "/a/{y}", "/{x}/b", "GET /a/", "GET /{x}/b", "HEAD /a/b", "/a/b/"}
	everything := &Endpoint{Subtree: true}
	for range 500 {
		var all, left []*Endpoint
		for range 1 + rand.IntN(12) {
			e, given := everything, (*Endpoint)(nil)
			if path := paths[rand.IntN(len(paths))]; path != "" {
				parsed, err := ParseEndpoint(path)
				if err != nil {
					t.Fatal(err)
				}
				e, given = &parsed, &parsed
			}
			all, left = append(all, given), append(left, e)
		}
		order := make([]int, len(all)) // indexes of the endpoints that are left
		for i := range order {
			order[i] = i
		}
		ranks := Ranks(all)
		for rank := range all {
			first := slices.IndexFunc(left, func(e *Endpoint) bool {
				return !slices.ContainsFunc(left, func(o *Endpoint) bool { return o.MoreSpecific(e) })
			})
			if ranks[order[first]] != rank {
				t.Fatalf("%+v has rank %d, want %d", left[first], ranks[order[first]], rank)
			}
			left, order = slices.Delete(left, first, first+1), slices.Delete(order, first, first+1)
		}
	}
}
