package envoy

// Internals for tests.
var (
	WithBudget     = withBudget
	ParseResources = parseResources
)
