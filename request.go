package weir

import (
	"net/netip"
	"time"

	"github.com/weirhq/weir/counter"
)

// Request describes a request to a service. Fill in the fields that your rules use.
type Request struct {
	// Edge says which code makes the check, for observers: http, check, gateway, or "" for a program that uses the library.
	Edge string
	// APIKey identifies the client. KeyVerified means that the key is genuine, because it was looked up or was signed.
	// Unverified keys get no tier and no bypass, since anyone can send a header that begins with sk_internal_.
	APIKey      string
	KeyVerified bool
	User, Org   string
	// Tier is the client's tier. It is ignored unless TierVerified is true, for example because a signed token has it.
	Tier         string
	TierVerified bool
	// IP is the client's address. Take it only from proxies that you trust.
	IP netip.Addr
	// Method and Path are those of an HTTP request. Path is as the client sent it, without the query.
	Method, Path string
	// Preflight marks a CORS preflight without a body and credentials. Rules that don't name OPTIONS don't apply to it, but
	// [Options.Preflight] does.
	Preflight bool
	// Attr returns other values that rules count by, such as "header:X-Tenant", "claim:plan" and "attr:region", or "" for none.
	Attr func(name string) string
	// Cost is how many tokens the request takes. 0 means 1.
	Cost int64
	// Amounts are what the request takes besides its cost, by name, such as tokens or usd. See [Rule.Amount].
	Amounts map[string]counter.Amount
	// Assumed is for requests whose amounts are only partly known, such as a call to a model whose output is yet to come. It
	// repeats Amounts, with assumed numbers for what is unknown. Where the two differ, a rule charges its Default, or else the
	// assumed number, but never less than what is known. If nil, Amounts are complete.
	Assumed map[string]counter.Amount
	// Choices is how many answers the request wants from a model. A rule charges its Default once for each. 0 means 1.
	Choices int64
	// Reserve, if positive, marks the amounts as estimates that [Limiter.Finish] will replace. They stay charged for at least
	// this long: see [Rule.GiveBackUnsettled]. Rules for an amount then ignore the request's method, since servers often do too.
	Reserve time.Duration
	// Repeat, if set, is an idempotency key: requests with the same key are charged once a minute, on all nodes together.
	Repeat counter.Once
	// Peek asks for the decision without taking anything.
	Peek bool
	// Rejected tells observers why an identity was rejected, such as an expired token. It must not repeat what the client sent.
	Rejected string
	// Receipt asks for a receipt, with which [Limiter.Finish] can give back what was taken.
	Receipt bool

	guess bool // Amounts are guesses, so cap them at the limit's capacity
}
