package weir

import (
	"slices"
	"time"

	"github.com/weirhq/weir/counter"
)

// Rules is a rule document, such as the content of a rule file, for [Compile].
type Rules struct {
	// Version is the document's number in its history, shown with every decision.
	Version int64
	// Tiers are the numbers of each tier, for rules that have none of their own.
	Tiers []Tier
	// DefaultTier is the tier of requests that have none. "" means the first of Tiers.
	DefaultTier string
	// Keys puts verified keys into tiers; the first pattern that matches wins.
	Keys []KeyTier
	// Rules all apply where they match; the most restrictive wins.
	Rules []Rule
	// Allow lists patterns of verified keys, and IP ranges, that bypass every rule.
	Allow []string
	// Deny lists patterns of keys, and IP ranges, that are refused. It beats Allow.
	Deny []string
	// Abuse is that of every rule which has none of its own. Nil means none.
	Abuse *counter.Abuse
	// Prices compute the amount usd from others, by the model that a request names as "attr:model". The first that matches counts.
	Prices []Sum
	// Weights compute amounts from others, for requests that lack them.
	Weights []Sum
}

// Sum computes an amount from others.
type Sum struct {
	Name  string // the amount's name; for prices, the model's, in which * stands for any characters
	Parts []Weight
}

// Weight is how much one unit of an amount counts, in 10^-12: 2.50 for a million is 2,500,000.
type Weight struct {
	Amount string
	Each   int64
}

// Tier is a tier's numbers.
type Tier struct {
	Name   string
	Limits []Limit
}

// KeyTier puts keys that match a pattern into a tier.
type KeyTier struct{ Pattern, Tier string }

// Rule says which requests it applies to, what it counts by, and its limits.
type Rule struct {
	// ID names the rule: [a-z0-9_-], at most 64 characters.
	ID string
	// Version is for the operator's own records.
	Version int64
	// Tier restricts the rule to requests of a tier; beside Match.APIKeyPattern it is only a label.
	Tier  string
	Match Match
	// Descriptor restricts the rule to one descriptor of Envoy's rate limit service: the domain, then each key, as key or
	// key=value, in which * stands for any characters. The rule counts by the descriptor's values. Without Limits, or with only a
	// Burst, its numbers come from the configuration of envoyproxy/ratelimit.
	Descriptor []string
	// By lists what the rule counts by: api_key, user, org, ip, method, endpoint, tier, path:N (the first N segments, 1 to 8;
	// path means 2), header:NAME, claim:NAME, attr:NAME. Nil means api_key. Empty means one counter for all.
	By []string
	// Missing says what to do with a request that lacks one of them.
	Missing Missing
	// IPv4Prefix and IPv6Prefix are how many bits of an address count. 0 means those of [Options].
	IPv4Prefix, IPv6Prefix int
	// Layer groups rules that are alternatives: of those that match, only the most specific applies.
	Layer string
	// Algorithm is that of all the rule's limits, also of those from a tier or an override.
	Algorithm counter.Algorithm
	// MaxDelay of the rule's limits, for a LeakyQueue. 0 means 30 s.
	MaxDelay time.Duration
	// Limits are the rule's own numbers. Without any, a request gets those of its tier.
	Limits []Limit
	// Tiers are numbers for single tiers; they go before Limits.
	Tiers []Tier
	// Override are numbers for single API keys; they go before Tiers.
	Override map[string][]Limit
	// Cost multiplies the request's. 0 means 1.
	Cost int64
	// Amount is which of a request's amounts the rule counts. "" means its cost.
	Amount string
	// Default is charged to requests that lack the amount and for which no price or weight computes it. 0 means no charge.
	Default counter.Amount
	// GiveBackUnsettled gives back what was reserved and not settled in time. Otherwise it stays taken.
	GiveBackUnsettled bool
	// Calendar says when windows of a day, a week or a month begin: Day is for months, and Weekday for weeks. Leave its Unit out,
	// since each limit has its own. Such limits are fixed windows unless Algorithm says otherwise.
	Calendar counter.Calendar
	// SlotTTL is how long a slot of a Concurrency rule lasts unless it is renewed. 0 means 30 s.
	SlotTTL time.Duration
	// Statuses, if any, are the HTTP statuses that count. Other responses give their charge back. 4 stands for 400 to 499.
	Statuses []int
	// Book is for charges that come too late to be refused, such as the tokens that a stream used. They are always taken, below
	// zero if need be, even if another rule refuses the request. Only peeks are refused while nothing is left.
	Book bool
	// CountRefused makes a fixed window charge what it refuses too, as envoyproxy/ratelimit does.
	CountRefused bool
	// Strict rules ask the store at every check.
	Strict bool
	// Split divides each counter of a strict rule into this many, 2 to 64, on different servers of a Redis Cluster. It is for
	// clients that are too busy for one server. 0 means one counter.
	Split int
	// OnStoreFailure says what to do while the store can't be reached.
	OnStoreFailure counter.FailureMode
	// Global rules have one limit for all regions, of which each region owns a part and can borrow more. Strict ones are counted
	// at their Home, at every check.
	Global bool
	// Home is the region that owns the rest of a Global rule. "" means the home that nodes are configured with.
	Home string
	// Floor is how much of a Global rule each other region owns, even when it is cut off, in percent: 0 to 50.
	Floor int
	// OnPartition says what to do while a Global rule's home can't be reached. FailAllow goes on with what the region has,
	// FailLocal counts the whole limit in each region, and FailRefuse refuses.
	OnPartition counter.FailureMode
	// Shadow rules count and report, but refuse no request.
	Shadow bool
	// Candidate limits are counted in shadow beside the enforced ones.
	Candidate []Limit
	// Abuse replaces that of the document. The zero Abuse is none.
	Abuse *counter.Abuse
}

// Match holds a rule's conditions. All that are given must be met.
type Match struct {
	// Endpoint is a pattern of net/http.ServeMux: "GET /v1/orders/{id}".
	Endpoint string
	// EndpointRegex is a regular expression for the path, decoded and in lower case.
	EndpointRegex string
	// APIKeyPattern is a pattern for the key, in which * stands for any characters.
	APIKeyPattern string
	// HasKey asks for a request with an API key, and NoKey for one without.
	HasKey, NoKey bool
}

// Missing says what to do with a request that lacks a dimension its rule counts by.
type Missing uint8

const (
	// MissingIP counts the request by its IP address in the missing value's place.
	MissingIP Missing = iota
	// MissingSkip leaves the rule out.
	MissingSkip
	// MissingRefuse refuses the request.
	MissingRefuse
)

// definition is private.Definition.
func (r *Rule) definition(l Limit) counter.Definition {
	d := counter.Definition{
		Name: r.ID, Rule: r.ID, Endpoint: r.Match.Endpoint, Limit: l, Split: r.Split, ReadSubject: r.readSubject,
		Amount: r.Amount, GivesBack: r.GiveBackUnsettled && r.Amount != "",
		Strict: r.Strict || r.Global, Shadow: r.Shadow, OnStoreFailure: r.OnStoreFailure,
		Global: r.Global, Home: r.Home, Floor: r.Floor, Travels: r.Global && r.Strict, OnPartition: r.OnPartition,
		Statuses: r.Statuses, Book: r.Book, CountRefused: r.CountRefused,
	}
	if r.Descriptor == nil { // a descriptor is counted by its values
		by := r.dimensions()
		d.PerClient = slices.Contains(by, dimensionNames[byAPIKey]) || slices.Contains(by, dimensionNames[byUser])
		d.ByIP = len(by) == 1 && by[0] == dimensionNames[byIP]
	}
	return d
}
