package weir

import (
	"slices"
	"time"

	"github.com/weirhq/weir/counter"
)

// Rules is a rule document, such as the content of a rule file, for [Compile].
type Rules struct {
	// Version is the document's number in its history. Every decision contains it.
	Version int64
	// Tiers are the limits of each tier, for rules without limits of their own.
	Tiers []Tier
	// DefaultTier is the tier of requests without a tier. "" means the first of Tiers.
	DefaultTier string
	// Keys assigns verified keys to tiers. The first pattern that matches wins.
	Keys []KeyTier
	// Rules are the rules. All that match a request apply, and the most restrictive decides.
	Rules []Rule
	// Allow lists patterns of verified keys, and IP ranges, that bypass every rule.
	Allow []string
	// Deny lists patterns of keys, and IP ranges, that are refused. It takes precedence over Allow.
	Deny []string
	// Abuse applies to every rule without an Abuse of its own. If nil, those rules have no cooldowns.
	Abuse *counter.Abuse
	// Prices compute the amount usd from others, by the model in a request's "attr:model". The first that matches counts.
	Prices []Sum
	// Weights compute amounts from other amounts, for requests that lack them.
	Weights []Sum
}

// Sum computes one amount from others.
type Sum struct {
	Name  string // the amount's name, or for prices the model's, in which * stands for any characters
	Parts []Weight
}

// Weight is how much one unit of an amount counts, in 10^-12: a price of 2.50 per million is 2,500,000.
type Weight struct {
	Amount string
	Each   int64
}

// Tier has the limits of a tier.
type Tier struct {
	Name   string
	Limits []Limit
}

// KeyTier assigns keys that match a pattern to a tier.
type KeyTier struct{ Pattern, Tier string }

// Rule says which requests it applies to, what it counts by, and its limits.
type Rule struct {
	// ID names the rule: [a-z0-9_-], at most 64 characters.
	ID string
	// Version is for the operator's own records.
	Version int64
	// Tier restricts the rule to requests of a tier. In a rule with Match.APIKeyPattern, it is only a label.
	Tier  string
	Match Match
	// Descriptor restricts the rule to one descriptor of Envoy's rate limit service: the domain, then each key, as key or
	// key=value, in which * stands for any characters. The rule counts by the descriptor's values. Without Limits, or with only
	// a Burst, the rule gets its limit from a configuration file of envoyproxy/ratelimit.
	Descriptor []string
	// By lists what the rule counts by: api_key, user, org, ip, method, endpoint, tier, path:N (the first N segments, 1 to 8;
	// path alone means 2), header:NAME, claim:NAME, attr:NAME. If nil, it is api_key. If empty, all requests share one counter.
	By []string
	// Missing says what to do with a request that lacks a value that the rule counts by.
	Missing Missing
	// IPv4Prefix and IPv6Prefix are how many bits of an address count. 0 means as in [Options].
	IPv4Prefix, IPv6Prefix int
	// Layer groups rules that are alternatives. Of those that match a request, only the most specific applies.
	Layer string
	// Algorithm is the algorithm of all of the rule's limits, including those from a tier or an override.
	Algorithm counter.Algorithm
	// MaxDelay is the longest delay of a LeakyQueue, for limits without their own. 0 means 30 s.
	MaxDelay time.Duration
	// Limits are the rule's own limits. If there are none, a request gets those of its tier.
	Limits []Limit
	// Tiers are limits for single tiers. They take precedence over Limits.
	Tiers []Tier
	// Override are limits for single API keys. They take precedence over Tiers.
	Override map[string][]Limit
	// Cost multiplies the cost of each request. 0 means 1.
	Cost int64
	// Amount is the name of the amount that the rule counts. "" means that it counts the cost.
	Amount string
	// Default is charged to requests that lack the amount if no price or weight computes it. 0 means that they aren't charged.
	Default counter.Amount
	// GiveBackUnsettled gives reserved amounts back that aren't settled in time. Otherwise they stay taken.
	GiveBackUnsettled bool
	// Calendar says when windows of a day, a week or a month begin: Day is for months, and Weekday for weeks. Leave Unit out,
	// since each limit has its own. Such limits are fixed windows, unless Algorithm says otherwise.
	Calendar counter.Calendar
	// SlotTTL is how long a slot of a Concurrency rule lasts without renewal. 0 means 30 s.
	SlotTTL time.Duration
	// Statuses, if any, are the HTTP statuses that count. Other responses give their charge back. 4 stands for 400 to 499.
	Statuses []int
	// Book is for charges that come too late to refuse, such as the tokens that a stream used. They are always taken, even
	// below zero, and even if another rule refuses the request. Only peeks are refused if nothing is left.
	Book bool
	// CountRefused makes a fixed window also charge the requests that it refuses, as envoyproxy/ratelimit does.
	CountRefused bool
	// Strict makes every check ask the store.
	Strict bool
	// Split divides each counter of a strict rule into this many parts, 2 to 64, on different servers of a Redis Cluster. It is
	// for clients that are too busy for one server. 0 means that the counter isn't split.
	Split int
	// OnStoreFailure says what to do while the store can't be reached.
	OnStoreFailure counter.FailureMode
	// Global makes all regions share one limit. Each region owns a part of it, and can borrow more. If the rule is also Strict,
	// every check counts at its Home.
	Global bool
	// Home is the region that owns the rest of a Global rule's limit. "" means the home in the nodes' configuration.
	Home string
	// Floor is the percentage of a Global rule's limit that each other region owns, even when it is cut off: 0 to 50.
	Floor int
	// OnPartition says what a region does while a Global rule's home can't be reached. FailAllow continues with what the region
	// has, FailLocal counts the whole limit in each region, and FailRefuse refuses requests.
	OnPartition counter.FailureMode
	// Shadow rules count and report, but refuse no request.
	Shadow bool
	// Candidate are new limits to try out. They are counted in shadow beside the enforced ones.
	Candidate []Limit
	// Abuse replaces the document's Abuse. The zero Abuse means no cooldowns.
	Abuse *counter.Abuse
}

// Match has a rule's conditions. A request must meet all that are set.
type Match struct {
	// Endpoint is a pattern as in net/http.ServeMux, such as "GET /v1/orders/{id}".
	Endpoint string
	// EndpointRegex is a regular expression for the path, which is decoded and in lower case.
	EndpointRegex string
	// APIKeyPattern is a pattern for the key, in which * stands for any characters.
	APIKeyPattern string
	// HasKey requires a request with an API key, and NoKey one without.
	HasKey, NoKey bool
}

// Missing says what to do with a request that lacks a value that its rule counts by.
type Missing uint8

const (
	// MissingIP counts the request by its IP address instead of the missing value.
	MissingIP Missing = iota
	// MissingSkip doesn't apply the rule.
	MissingSkip
	// MissingRefuse refuses the request.
	MissingRefuse
)

// definition returns the definition of a policy for one limit of the rule.
func (r *Rule) definition(l Limit) counter.Definition {
	d := counter.Definition{
		Name: r.ID, Rule: r.ID, Endpoint: r.Match.Endpoint, Limit: l, Split: r.Split, ReadSubject: r.readSubject,
		Amount: r.Amount, GivesBack: r.GiveBackUnsettled && r.Amount != "",
		Strict: r.Strict || r.Global, Shadow: r.Shadow, OnStoreFailure: r.OnStoreFailure,
		Global: r.Global, Home: r.Home, Floor: r.Floor, Travels: r.Global && r.Strict, OnPartition: r.OnPartition,
		Statuses: r.Statuses, Book: r.Book, CountRefused: r.CountRefused,
	}
	if r.Descriptor == nil { // descriptors have no dimensions
		by := r.dimensions()
		d.PerClient = slices.Contains(by, dimensionNames[byAPIKey]) || slices.Contains(by, dimensionNames[byUser])
		d.ByIP = len(by) == 1 && by[0] == dimensionNames[byIP]
	}
	return d
}
