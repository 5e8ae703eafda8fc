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
	// Tell reports a decision to the limiter's observer. Edges call it for a decision that they made without a check,
	// for example when they shed a request.
	Tell = link.Tell.(func(*weir.Limiter, context.Context, *weir.Request, weir.Decision))

	// Take decides charges by policies that belong to an edge, without looking at the rules. It debits all of the
	// charges or none. While the store can't be reached, an emergency limit applies, which uses the request's Cost, and
	// its IP or, without one, its APIKey. If req.Peek is set, no charge debits anything; a peek for 0 tokens is refused
	// only if the counter is past its limit. If override isn't nil, it may change the decision before observers see it.
	// The edge must then give back what the store has taken.
	Take = link.Take.(func(l *weir.Limiter, ctx context.Context, req *weir.Request, charges []counter.Charge, override func(*weir.Decision)) (weir.Decision, error))

	// GiveBack returns tokens that Take took. A Slot of 0 means the current window. A return with a Hold ends that
	// hold.
	GiveBack = link.GiveBack.(func(*weir.Limiter, context.Context, []counter.Return) error)

	// CheckTogether decides several requests by the rules, together with charges by policies that belong to an edge. It
	// debits everything or nothing. It sets each[i] to the part of the decision that is about requests[i]. The limits
	// of the edge's own charges come first in the decision; a refusal by a cooldown doesn't list them. The emergency
	// limit uses client's Cost, and its IP or, without one, its APIKey. Receipt, Reserve and Repeat have no effect.
	CheckTogether = link.CheckTogether.(func(l *weir.Limiter, ctx context.Context, client *weir.Request, own []counter.Charge, requests []*weir.Request, each []weir.Decision) (weir.Decision, error))

	// Credit gives a request's cost back to every counter that the request would be charged to. It is for callers that
	// kept no receipts of the requests that were charged. The tokens go back to the current window, at most as many as
	// were taken from it.
	Credit = link.Credit.(func(*weir.Limiter, context.Context, *weir.Request) error)

	// Seal returns a receipt for a decision that has slots but no receipt, so that the caller can renew and release the
	// slots. The receipt covers the slots, reserved amounts, and charges that depend on the response's status. It
	// doesn't cover other charges: they may have been paid with borrowed tokens, which can't be given back.
	Seal = link.Seal.(func(*weir.Limiter, weir.Decision) (receipt string))

	// Reserves reports whether the check that returned a receipt has reserved an amount. For a receipt that can't be
	// read, it returns true.
	Reserves = link.Reserves.(func(l *weir.Limiter, receipt string) bool)

	// Reserved reports whether a decision has reserved an amount, which Finish settles.
	Reserved = link.Reserved.(func(*weir.Decision) bool)

	// Guess marks a request's amounts as guesses, which for example were estimated from earlier requests. Guesses are
	// capped at the limit's capacity, because a guess must not lock a client out forever.
	Guess = link.Guess.(func(*weir.Request))

	// Attributes returns the names that the rules ask [weir.Request.Attr] for. Edges fetch only these attributes, and
	// check only these headers for ambiguity. So a condition or dimension whose attribute isn't listed never gets a
	// value.
	Attributes = link.Attributes.(func(*weir.RuleSet) []string)

	// PerUser returns a limiter that counts only by user, with the options of [weir.New].
	PerUser = link.PerUser.(func(weir.Limit, []weir.Option) *weir.Limiter)

	// Price returns the price of amounts in usd if it isn't certain which model was called. It takes the highest price
	// of the models that the request and its response name, in any letter case. A model without a price costs what the
	// weights of usd say or, without weights, as much as the most expensive model. The same is true for a call that
	// names no model. If the response's model is a requested name with a suffix, such as a date, it counts as the
	// requested model, unless it has its own price. known is false if there are no prices.
	Price = link.Price.(func(rules *weir.RuleSet, asked []string, answered string, of map[string]counter.Amount) (usd counter.Amount, known bool))

	// Definition returns the definition of the policy for one limit of a rule. The policy has the rule's name.
	Definition = link.Definition.(func(*weir.Rule, weir.Limit) counter.Definition)
)

// Functions for nodes and for their observers.
var (
	// Now returns the time that nodes share: see [weir.Options].
	Now = link.Now.(func(*weir.Limiter) time.Time)

	// SetSecret replaces the secret that seals and opens receipts. Nodes learn the shared secret only after they have
	// started.
	SetSecret = link.SetSecret.(func(l *weir.Limiter, secret []byte))

	// Counters returns the counters that a request would be charged to, in the order of [weir.Decision.Limits]. It
	// charges nothing. If there are no rules, it returns none.
	Counters = link.Counters.(func(*weir.Limiter, *weir.Request) []counter.Counter)

	// WithVersion returns the same rules with another version number.
	WithVersion = link.WithVersion.(func(*weir.RuleSet, int64) *weir.RuleSet)

	// WithDenied returns the same rules with more entries on the deny list. The document and its warnings stay
	// unchanged. If an entry can't be on a deny list, the error is [counter.Problems].
	WithDenied = link.WithDenied.(func(rules *weir.RuleSet, entries ...string) (*weir.RuleSet, error))

	// Covers reports whether the deny list and the allow list contain the given key, pattern or IP range, or an entry
	// that includes it.
	Covers = link.Covers.(func(rules *weir.RuleSet, entry string) (denied, allowed bool))

	// Dimensions returns everything that a rule can count by, in the words of rule files.
	Dimensions = link.Dimensions.(func() []string)

	// ReadSubject returns the name and the value of each dimension in a subject of the rule. An IPv4 address has 4
	// bytes and a /64 of IPv6 has 8; any other network is in the format of [netip.Prefix.UnmarshalBinary]. If the bytes
	// aren't a subject of the rule, or if the rule is for Envoy's descriptors, ReadSubject returns nil.
	ReadSubject = link.ReadSubject.(func(rule *weir.Rule, subject []byte) [][2]string)
)

// Functions for package lint.
var (
	// PoliciesOf returns the policies of the rule with the given index.
	PoliciesOf = link.PoliciesOf.(func(*weir.RuleSet, int) Policies)

	// By returns the dimensions that a rule counts by.
	By = link.By.(func(*weir.Rule) []string)

	// Borrows reports whether a rule for a descriptor uses the limits in a configuration of envoyproxy/ratelimit.
	Borrows = link.Borrows.(func(*weir.Rule) bool)
)

// Policies are the policies of a compiled rule.
type Policies = link.Policies
