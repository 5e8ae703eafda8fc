package serve

import (
	"strings"
	"testing"
)

// TestBoundsAreNotNegative: who writes -1 means something, and it isn't the default.
func TestBoundsAreNotNegative(t *testing.T) {
	for flag, c := range map[string]Config{"--max-in-flight": {MaxInFlight: -1}, "--max-waiting": {MaxWaiting: -1}} {
		if err := c.Validate(); err == nil || !strings.HasPrefix(err.Error(), flag+": ") {
			t.Errorf("%s -1: %v", flag, err)
		}
	}
}
