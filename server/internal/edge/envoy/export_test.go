package envoy

import "context"

// WithBudget is for tests.
func WithBudget(parent context.Context) (ctx context.Context, end func()) {
	b := withBudget(parent)
	return b, b.end
}

// ParseResources is for tests.
var ParseResources = parseResources
