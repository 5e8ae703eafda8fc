package inuse_test

import (
	"testing"

	"github.com/weirhq/weir/internal/inuse"
)

func TestCount(t *testing.T) {
	var c inuse.Count[string]
	c.Add("a", 3)
	c.Add("b", 2)
	c.Add("a", -3)
	if c.All() != 2 || c.Of("a") != 0 || c.Of("b") != 2 {
		t.Error(c)
	}
}

// TestPlaces checks the bound for all keys together, the bound for each key, and that places can be given back.
func TestPlaces(t *testing.T) {
	var p inuse.Places[string]
	for i, step := range []struct {
		key   string
		enter bool
	}{{"a", true}, {"a", true}, {"a", false}, {"b", true}, {"c", false}} {
		if got := p.Enter(step.key, 3, 2); got != step.enter {
			t.Errorf("%d: %s enters: %v", i, step.key, got)
		}
	}
	p.Leave("a")
	if !p.Enter("c", 3, 2) || p.Enter("a", 3, 2) {
		t.Error("the place that was left isn't the next one's")
	}
}
