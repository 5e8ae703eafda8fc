// Package lint finds mistakes in rule documents that package weir accepts: patterns in the syntax of other products, rules
// that never apply, requests that no rule limits.
package lint
