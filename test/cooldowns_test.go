package test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirhq/weir/internal/redistest"
)

// A node that has just started refuses, from its first answer, a client that another node keeps out. On a machine that is too
// busy to read the announcements in time, a later node does.
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
	until(t, func() error { return keptOut(second) }) // it is announced
	until(t, func() error {
		fresh := serve(t, "--rules", rules, "--store", store)
		defer func() {
			fresh.stop()
			<-fresh.exited
		}()
		return keptOut(fresh)
	})
}
