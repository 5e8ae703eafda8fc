package checkapi

import (
	"fmt"
	"testing"

	"github.com/weirhq/weir"
)

// However many different limits callers bring, few are kept, and those in use stay.
func TestPoliciesAreBounded(t *testing.T) {
	var p policies
	used, err := p.get("1/second", 0, weir.TokenBucket)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 * generation {
		made, err := p.get(fmt.Sprintf("%d/hour", i+1), 0, weir.TokenBucket)
		if err != nil || made.ID != used.ID {
			t.Fatalf("%v: the numbers of a limit are not to change whose counter it is", err)
		}
		if n := len(p.young) + len(p.old); n > 2*generation {
			t.Fatalf("%d policies are kept", n)
		}
		if i%generation == 0 {
			if again, _ := p.get("1/second", 0, weir.TokenBucket); again != used {
				t.Fatal("a policy in use was forgotten")
			}
		}
	}
	for i := range 10 * generation {
		if _, err := p.get(fmt.Sprintf("%d/nothing", i), 0, weir.TokenBucket); err == nil {
			t.Fatal("this is no limit")
		}
	}
	if again, _ := p.get("1/second", 0, weir.TokenBucket); again != used {
		t.Error("what is no limit was kept")
	}
	if other, _ := p.get("1/second", 5, weir.TokenBucket); other == used || other.Limit.Burst != 5 {
		t.Error("another burst is another policy")
	}
	if other, _ := p.get("1/second", 0, weir.FixedWindow); other == used || other.ID == used.ID {
		t.Error("another algorithm is another counter")
	}
}
