package checkapi

import (
	"fmt"
	"testing"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/server/internal/edge"
)

// However many limits callers use, policies in use stay cached, and invalid limits aren't cached.
func TestPolicies(t *testing.T) {
	var p edge.Cache[policyKey, *counter.Policy]
	get := func(limit string, burst int64, algorithm counter.Algorithm) (*counter.Policy, error) {
		return p.Get(policyKey{limit, burst, algorithm}, newPolicy)
	}
	used, err := get("1/second", 0, counter.TokenBucket)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 * edge.Generation {
		made, err := get(fmt.Sprintf("%d/hour", i+1), 0, counter.TokenBucket)
		if err != nil || made.ID != used.ID {
			t.Fatalf("%v: other numbers changed the limit's counter", err)
		}
		if i%edge.Generation == 0 {
			if again, _ := get("1/second", 0, counter.TokenBucket); again != used {
				t.Fatal("a policy in use was forgotten")
			}
		}
	}
	for i := range 10 * edge.Generation {
		if _, err := get(fmt.Sprintf("%d/nothing", i), 0, counter.TokenBucket); err == nil {
			t.Fatal("an invalid limit is accepted")
		}
	}
	if again, _ := get("1/second", 0, counter.TokenBucket); again != used {
		t.Error("the cache kept an invalid limit")
	}
	if other, _ := get("1/second", 5, counter.TokenBucket); other == used || other.Limit.Burst != 5 {
		t.Error("another burst is another policy")
	}
	if other, _ := get("1/second", 0, counter.FixedWindow); other == used || other.ID == used.ID {
		t.Error("another algorithm is another counter")
	}
}
