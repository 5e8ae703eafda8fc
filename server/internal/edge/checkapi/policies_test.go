package checkapi

import (
	"fmt"
	"testing"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/server/internal/edge/recent"
)

// Whatever limits callers bring, the policies in use stay, and what is no limit isn't kept.
func TestPolicies(t *testing.T) {
	var p recent.Cache[policyKey, *weir.Policy]
	get := func(limit string, burst int64, algorithm weir.Algorithm) (*weir.Policy, error) {
		return p.Get(policyKey{limit, burst, algorithm}, newPolicy)
	}
	used, err := get("1/second", 0, weir.TokenBucket)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 * recent.Generation {
		made, err := get(fmt.Sprintf("%d/hour", i+1), 0, weir.TokenBucket)
		if err != nil || made.ID != used.ID {
			t.Fatalf("%v: the numbers of a limit are not to change whose counter it is", err)
		}
		if i%recent.Generation == 0 {
			if again, _ := get("1/second", 0, weir.TokenBucket); again != used {
				t.Fatal("a policy in use was forgotten")
			}
		}
	}
	for i := range 10 * recent.Generation {
		if _, err := get(fmt.Sprintf("%d/nothing", i), 0, weir.TokenBucket); err == nil {
			t.Fatal("this is no limit")
		}
	}
	if again, _ := get("1/second", 0, weir.TokenBucket); again != used {
		t.Error("what is no limit was kept")
	}
	if other, _ := get("1/second", 5, weir.TokenBucket); other == used || other.Limit.Burst != 5 {
		t.Error("another burst is another policy")
	}
	if other, _ := get("1/second", 0, weir.FixedWindow); other == used || other.ID == used.ID {
		t.Error("another algorithm is another counter")
	}
}
