package serve

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/weirhq/weir"
)

// noAddress is what a node knows of checks that come without the client's address.
type noAddress struct {
	seen atomic.Pointer[weir.RuleSet] // the rules by which one was last looked at
	said sync.Once
}

// warnOfNoAddress says once that a check has come without an address although a rule counts by it.
// A caller that never sends one has all its clients share that limit, and wonders why they are refused.
func (n *node) warnOfNoAddress() {
	rules := n.limiter.Rules()
	if n.noAddr.seen.Load() == rules || n.noAddr.seen.Swap(rules) == rules {
		return // most checks end here
	}
	for _, r := range rules.Rules().Rules {
		if slices.Contains(r.By, "ip") {
			n.noAddr.said.Do(func() {
				n.log.Warn(`a check came without "ip", and a rule counts by it: all such checks share one counter; send the address of the client`, "rule", r.ID)
			})
		}
	}
}
