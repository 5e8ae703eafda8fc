// Package faults breaks Redis under a node that serves, and watches what its clients see. Each of the [Scenarios] starts
// a Redis, a node on it and a steady load over HTTP, causes one fault, ends it, and waits until limits are exact again.
//
// The scenarios are run in two ways, with different [Bounds]: by this package's tests, at a low rate and with time to
// spare, and by make faults, at full rate and against the figures that Weir promises.
package faults
