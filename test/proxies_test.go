package test

import (
	"strings"
	"testing"
)

// TestTrustingEverybodyIsWarnedAbout checks the warning about trusting X-Forwarded-For from everybody, with which
// clients could choose their addresses.
func TestTrustingEverybodyIsWarnedAbout(t *testing.T) {
	t.Parallel()
	for proxies, want := range map[string]bool{"0.0.0.0/0": true, "10.0.0.0/8,::/0": true, "10.0.0.0/8": false} {
		n := serve(t, "--trusted-proxies", proxies)
		warned := false
		n.mu.Lock()
		for _, l := range n.log { // the warning is logged before the node serves
			msg, _ := l["msg"].(string)
			warned = warned || strings.HasPrefix(msg, "--trusted-proxies trusts everybody")
		}
		n.mu.Unlock()
		if warned != want {
			t.Errorf("%s: warned %v", proxies, warned)
		}
	}
}
