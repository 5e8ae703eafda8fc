// Package pattern holds what rules match requests with: endpoints, regular expressions, patterns of keys, and allow and deny
// lists. It also finds the ways in which servers may read a path, since endpoints and expressions are matched against each.
package pattern
