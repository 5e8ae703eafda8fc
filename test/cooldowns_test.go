package test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirhq/weir/internal/redistest"
)

// From its first response, a node that has just started refuses a client that is in a cooldown on another node. If the
// machine is too busy for a node to read the announcements in time, the test tries again with another node.
func TestACooldownHoldsOnAFreshNode(t *testing.T) {
	t.Parallel()
	store := "redis://" + redistest.New(t, redistest.Options{}).Addr
	rules := write(t, filepath.Join(t.TempDir(), "rules.yaml"), "rules: [{id: api, limit: 5/day, abuse: {refusals: 4/hour, cooldown: 1h}}]")
	keptOut := func(n *node) error {
		if _, text := call(t, "POST", n.HTTP+"/v1/check", `{"key": "offender"}`); !strings.Contains(text, `"COOLDOWN"`) {
			return fmt.Errorf("%s", text)
		}
		return nil
	}
	first, second := serve(t, "--rules", rules, "--store", store), serve(t, "--rules", rules, "--store", store)
	until(t, func() error { return keptOut(first) })
	until(t, func() error { return keptOut(second) }) // the cooldown is announced
	until(t, func() error {
		fresh := serve(t, "--rules", rules, "--store", store)
		defer func() {
			fresh.stop()
			<-fresh.exited
		}()
		return keptOut(fresh)
	})
}
