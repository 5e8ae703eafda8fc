package test

import (
	"strings"
	"testing"
)

// TestTrustingEverybodyIsWarnedOf: whose X-Forwarded-For counts can choose its address.
func TestTrustingEverybodyIsWarnedOf(t *testing.T) {
	t.Parallel()
	for proxies, want := range map[string]bool{"0.0.0.0/0": true, "10.0.0.0/8,::/0": true, "10.0.0.0/8": false} {
		n := serve(t, "--trusted-proxies", proxies)
		warned := false
		n.mu.Lock()
		for _, l := range n.log { // all that comes before it serves
			msg, _ := l["msg"].(string)
			warned = warned || strings.HasPrefix(msg, "--trusted-proxies trusts everybody")
		}
		n.mu.Unlock()
		if warned != want {
			t.Errorf("%s: warned %v", proxies, warned)
		}
	}
}
