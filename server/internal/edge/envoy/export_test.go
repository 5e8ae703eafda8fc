package envoy

// Internals that tests look at.
var (
	WithBudget     = withBudget
	ParseResources = parseResources
)
