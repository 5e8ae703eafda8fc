// Package pattern implements the conditions by which rules match requests: endpoints, regular expressions, patterns of
// keys, and allow and deny lists. It also finds the different readings of a path, that is, how servers may read it,
// because endpoints and expressions are matched with each reading.
package pattern
