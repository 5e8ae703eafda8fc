package envoy

// ParseResources is for tests.
var ParseResources = parseResources
