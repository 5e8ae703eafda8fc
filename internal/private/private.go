// Package private is the part of package weir that only Weir's own edges, nodes and observers use. It isn't in the public API,
// so it can change from release to release.
package private

import (
	"context"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/pattern"
	"github.com/weirhq/weir/internal/private/link"
)

// MaxPath is how long a request's path may be, in bytes. A longer path is refused.
const MaxPath = pattern.MaxPath

// Functions for edges.
var (
	// Tell reports a decision that an edge made without a check, such as to shed a request, to the limiter's observer.
	Tell = link.Tell.(func(*weir.Limiter, context.Context, *weir.Request, weir.Decision))

	// Take decides charges that an edge makes by policies of its own, all or nothing, without looking at the rules. The IP of
	// the request, or else its APIKey, and its Cost serve the emergency limit that applies while the store can't be reached.
	// Peek makes every charge a peek; a peek for 0 tokens is refused only if the counter is past its limit. If override isn't
	// nil, it may change the decision before observers see it; what the store took is then the edge's to give back.
	Take = link.Take.(func(l *weir.Limiter, ctx context.Context, req *weir.Request, charges []counter.Charge, override func(*weir.Decision)) (weir.Decision, error))

	// GiveBack returns tokens that Take took. A Slot of 0 stands for the current window. A return with a Hold ends the hold.
	GiveBack = link.GiveBack.(func(*weir.Limiter, context.Context, []counter.Return) error)

	// CheckTogether decides several requests by the rules, together with charges that an edge makes by policies of its
	// own: all or nothing. It writes the part of the decision about requests[i] into each[i]. The limits of the edge's
	// own charges come first in the decision; a refusal by a cooldown doesn't list them. The IP of client, or else its
	// APIKey, and its Cost are used for the emergency limit. Receipt, Reserve and Repeat have no effect.
	CheckTogether = link.CheckTogether.(func(l *weir.Limiter, ctx context.Context, client *weir.Request, own []counter.Charge, requests []*weir.Request, each []weir.Decision) (weir.Decision, error))

	// Credit gives a request's cost back to every counter that the request would be charged to, for callers that kept
	// no receipt of the requests that took it. The tokens go back to the current window, up to what it has taken.
	Credit = link.Credit.(func(*weir.Limiter, context.Context, *weir.Request) error)

	// Seal returns a receipt for a decision that has slots, if it has none yet, so that the caller can renew and release them.
	// The receipt covers the slots, reserved amounts, and charges that depend on the response's status. It doesn't cover other
	// charges: they may have come from borrowed tokens, which can't go back.
	Seal = link.Seal.(func(*weir.Limiter, weir.Decision) (receipt string))

	// Reserves reports whether the check of a receipt reserved an amount. It is true for a receipt that can't be read.
	Reserves = link.Reserves.(func(l *weir.Limiter, receipt string) bool)

	// Reserved reports whether a request has reserved an amount, which Finish settles.
	Reserved = link.Reserved.(func(*weir.Decision) bool)

	// Guess marks a request's amounts as guesses, for example from the amounts that earlier requests used. They are
	// capped at the limit's capacity, because a guess must not lock a client out forever.
	Guess = link.Guess.(func(*weir.Request))

	// Attributes lists the names that the rules ask [weir.Request.Attr] for. Edges fetch only these, and check only these headers
	// for ambiguity, so a condition or dimension that isn't listed never finds its value.
	Attributes = link.Attributes.(func(*weir.RuleSet) []string)

	// PerUser returns a limiter that counts by user alone, with the options of [weir.New].
	PerUser = link.PerUser.(func(weir.Limit, []weir.Option) *weir.Limiter)

	// Price returns what amounts cost in usd if the model isn't certain: the highest price of the models that the request and
	// its response name, in any letter case. A model without a price costs what the weights of usd say or, without those, as
	// much as the most expensive model; so does a call that names no model. A response's model that extends a requested name,
	// for example by a date, is the requested model unless it has a price of its own. If there are no prices, known is false.
	Price = link.Price.(func(rules *weir.RuleSet, asked []string, answered string, of map[string]counter.Amount) (usd counter.Amount, known bool))

	// Definition returns the definition of a policy for one limit of a rule. The policy is named after the rule.
	Definition = link.Definition.(func(*weir.Rule, weir.Limit) counter.Definition)
)

// Functions for nodes and for their observers.
var (
	// Now returns the time that nodes share: see [weir.Options].
	Now = link.Now.(func(*weir.Limiter) time.Time)

	// SetSecret changes the secret that seals and opens receipts, because nodes learn the shared one only after they start.
	SetSecret = link.SetSecret.(func(l *weir.Limiter, secret []byte))

	// Counters returns the counters that a request would be charged to, in the order of [weir.Decision.Limits], and charges
	// nothing. Without rules it returns none.
	Counters = link.Counters.(func(*weir.Limiter, *weir.Request) []counter.Counter)

	// WithVersion returns the same rules with another version number.
	WithVersion = link.WithVersion.(func(*weir.RuleSet, int64) *weir.RuleSet)

	// WithDenied returns the same rules with more entries on the deny list. It changes neither the document nor its warnings.
	// If an entry can't be on a deny list, the error is [counter.Problems].
	WithDenied = link.WithDenied.(func(rules *weir.RuleSet, entries ...string) (*weir.RuleSet, error))

	// Covers reports whether the deny and the allow list hold a key, a pattern or an IP range, or something wider.
	Covers = link.Covers.(func(rules *weir.RuleSet, entry string) (denied, allowed bool))

	// Dimensions lists what a rule can count by, in the words of the rule language.
	Dimensions = link.Dimensions.(func() []string)

	// ReadSubject returns the name and the value of each dimension that a subject of the rule was made of. An IPv4 address is
	// 4 bytes, a /64 of IPv6 is 8, and any other network is what [netip.Prefix.UnmarshalBinary] reads. ReadSubject returns nil
	// for bytes that are no subject of the rule, and for rules for Envoy's descriptors.
	ReadSubject = link.ReadSubject.(func(rule *weir.Rule, subject []byte) [][2]string)
)

// Functions for package lint.
var (
	// PoliciesOf returns the policies of a rule, by its index.
	PoliciesOf = link.PoliciesOf.(func(*weir.RuleSet, int) Policies)

	// By returns what a rule counts by.
	By = link.By.(func(*weir.Rule) []string)

	// Borrows reports whether a rule for a descriptor takes its numbers from a configuration of envoyproxy/ratelimit.
	Borrows = link.Borrows.(func(*weir.Rule) bool)
)

// Policies are the policies of a compiled rule.
type Policies = link.Policies
