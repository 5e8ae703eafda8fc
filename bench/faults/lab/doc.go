// Package faults breaks Redis under a node that serves, and watches what its
// clients see. Each of the [Scenarios] starts a Redis, a node on it and a steady load
// over HTTP, brings about one fault, ends it, and waits until limits are exact again.
//
// The scenarios are run two ways: by this package's tests, at a low rate and
// with time to spare, and by the program behind make faults, at full rate and against
// the figures that Weir promises. The [Bounds] make the difference.
package faults
