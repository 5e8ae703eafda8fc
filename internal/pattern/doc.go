// Package pattern has the conditions by which rules match requests: endpoints, regular expressions, patterns of keys, and
// allow and deny lists. It also finds the ways in which servers may read a path, because endpoints and expressions are
// matched with each of them.
package pattern
