package weir

import (
	"fmt"
	"slices"
	"time"

	"github.com/weirhq/weir/counter"
)

// Rules is a rule document: what a rule file holds. [Compile] makes it usable.
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
	// Prices make the amount usd of others, by the model that the request names as "attr:model"; the first that matches counts.
	Prices []Sum
	// Weights make amounts of others, of requests that don't have them.
	Weights []Sum
}

// Sum is an amount that is made of others.
type Sum struct {
	// Name is the amount's. Of a price it is the model's: a pattern, in which * stands for any characters.
	Name  string
	Parts []Weight
}

// Weight is how much one of an amount counts, in 10^-12: 2.50 for a million is 2,500,000.
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
	// Version is kept for operators' own records.
	Version int64
	// Tier restricts the rule to requests of a tier; beside Match.APIKeyPattern it is only a label.
	Tier  string
	Match Match
	// Descriptor makes the rule one for a descriptor of Envoy's rate limit service, and for nothing else: the domain, then
	// each key, alone for any value or as key=value, in which * stands for any characters. It counts by the
	// descriptor's values. Without Limits, or with a Burst alone, it takes its numbers from envoyproxy/ratelimit's configuration.
	Descriptor []string
	// By lists the dimensions that make a subject: api_key, user, org, ip, method, endpoint, tier, path:N
	// (the first N segments, 1 to 8; path means 2), header:NAME, claim:NAME, attr:NAME. Nil means
	// api_key; empty means one counter for all.
	By []string
	// Missing says what happens to a request that lacks one of them.
	Missing Missing
	// IPv4Prefix and IPv6Prefix are how many bits of an address count, in By and in place of a missing value: 1 to 32, and 1 to
	// 128. 0 means those of [Options].
	IPv4Prefix, IPv6Prefix int
	// Layer groups rules that are alternatives: of those that match, only the most specific applies.
	Layer string
	// Algorithm of all the rule's limits, which leave theirs out or repeat it. What a tier or an override
	// gives the rule is counted by it, too.
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
	// Amount is what the rule counts of a request: one of its amounts. "" means its cost. A request that lacks the amount, and
	// for which neither Prices nor Weights make it, is charged the Default.
	Amount string
	// Default is the amount of requests that lack it. 0 means that they aren't charged.
	Default counter.Amount
	// GiveBackUnsettled returns what was reserved and not settled in the time that was asked for. Otherwise it stays taken.
	GiveBackUnsettled bool
	// Calendar says where the rule's windows of a day, a week or a month begin, in place of the epoch's days and weeks, and UTC's
	// months. Its Unit is left out, and is that of each limit; Day is for months, and Weekday for weeks. Such limits are fixed
	// windows, also of a rule whose Algorithm is left out, and its other limits are as without it.
	Calendar counter.Calendar
	// SlotTTL is how long a slot of a Concurrency rule lasts that isn't renewed. 0 means 30 s. The rule's limits have a Count
	// alone, and it takes none from the document's tiers.
	SlotTTL time.Duration
	// Statuses, if any, are the HTTP statuses that count: what was charged is
	// given back when the answer's status isn't among them. 4 stands for 400 to 499.
	Statuses []int
	// Book is for charges that come too late to be refused, such as the tokens that a stream has used by its end: they are
	// always taken, below zero if need be, also from a request that another rule refuses. Only a peek is refused, for as long
	// as nothing is left. Logs and queues can't book.
	Book bool
	// CountRefused fixed windows take the tokens of what they refuse as well, as envoyproxy/ratelimit does.
	CountRefused bool
	// Strict rules ask the store at every check.
	Strict bool
	// Split makes so many counters of each one of a strict rule, on different servers of a Redis Cluster, for clients that are
	// too busy for one server: 2 to 64. Each has its part of the limit. 0 means one counter.
	Split int
	// OnStoreFailure says what happens when the store can't be reached.
	OnStoreFailure counter.FailureMode
	// Global rules are one limit over all regions. Each region decides by what it owns of the limit and has borrowed of others.
	// Strict ones are counted at their Home, which every check asks. Otherwise each region has a limit of its own.
	Global bool
	// Home is the region that owns what the others don't own of a Global rule. "" means the one that nodes are told.
	Home string
	// Floor is how much of a Global rule each other region owns, and keeps when it is cut off, in percent: 0 to 50.
	Floor int
	// OnPartition says what happens when a Global rule's home can't be asked. FailAllow goes on with what the region has.
	// FailLocal counts in the region's own store, the whole limit in each region. FailRefuse refuses.
	OnPartition counter.FailureMode
	// Shadow rules are counted and reported, and refuse nobody.
	Shadow bool
	// Candidate are other numbers, counted in shadow beside the enforced ones.
	Candidate []Limit
	// Abuse goes before that of all rules. The zero Abuse is none.
	Abuse *counter.Abuse
}

// Match is a rule's conditions; all that are given must hold.
type Match struct {
	// Endpoint is a pattern as net/http.ServeMux has them: "GET /v1/orders/{id}".
	Endpoint string
	// EndpointRegex is a regular expression over the path, decoded and in lower case.
	EndpointRegex string
	// APIKeyPattern matches the key; * stands for any characters.
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
	if r.Descriptor == nil { // which is counted by its values
		by := r.dimensions()
		d.PerClient = slices.Contains(by, dimensionNames[byAPIKey]) || slices.Contains(by, dimensionNames[byUser])
		d.ByIP = len(by) == 1 && by[0] == dimensionNames[byIP]
	}
	return d
}

// problems collects what is wrong with a rule document.
type problems counter.Problems

func (ps *problems) addf(path, format string, args ...any) {
	*ps = append(*ps, counter.Problem{Path: path, Text: fmt.Sprintf(format, args...)})
}
