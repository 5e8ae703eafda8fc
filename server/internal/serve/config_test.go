package serve

import (
	"strings"
	"testing"
)

// TestBoundsAreNotNegative checks that -1 is an error, because a user who writes it doesn't mean the default.
func TestBoundsAreNotNegative(t *testing.T) {
	for flag, c := range map[string]Config{"--max-in-flight": {MaxInFlight: -1}, "--max-waiting": {MaxWaiting: -1}} {
		if err := c.Validate(); err == nil || !strings.HasPrefix(err.Error(), flag+": ") {
			t.Errorf("%s -1: %v", flag, err)
		}
	}
}
