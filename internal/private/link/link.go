// Package link lets package weir pass functions to package private, although private imports weir. Package weir sets
// the variables when it is initialized, and package private gives the functions their types.
package link

import (
	"slices"

	"github.com/weirhq/weir/counter"
)

// The functions of package private.
var (
	Attributes, Borrows, By, CheckTogether, Counters, Covers, Credit, Definition, Dimensions, GiveBack, Guess, Now, PerUser,
	PoliciesOf, Price, ReadSubject, Reserved, Reserves, Seal, SetSecret, Take, Tell, WithDenied, WithVersion any
)

// Policies are the policies of a compiled rule.
type Policies struct {
	Base       []*counter.Policy            // for requests whose tier has no limits of its own in the rule
	ByTier     map[string][]*counter.Policy // by tier, for tiers that have limits of their own
	ByKey      map[string][]*counter.Policy // by key, for keys with overrides
	Candidates []*counter.Policy
}

// All returns all policies: those in Base, ByTier and ByKey.
func (p *Policies) All() []*counter.Policy {
	all := slices.Clone(p.Base)
	for _, policies := range p.ByTier {
		all = append(all, policies...)
	}
	for _, policies := range p.ByKey {
		all = append(all, policies...)
	}
	return append(all, p.Candidates...)
}
