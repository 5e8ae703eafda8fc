package weir

import (
	"net/netip"
	"time"

	"github.com/weirhq/weir/counter"
)

// Request describes a call. Fill in what the rules look at.
type Request struct {
	// Edge names the code that asks, for observers: http, check, gateway, or "" for a program that uses the library.
	Edge string
	// APIKey identifies the client. KeyVerified means that the key is genuine, because it was looked up or signed. Other keys
	// get no tier and no bypass: anyone can send a header that begins with sk_internal_.
	APIKey      string
	KeyVerified bool
	User, Org   string
	// Tier is the client's tier. It is ignored unless TierVerified is true, for example because it comes from a signed token.
	Tier         string
	TierVerified bool
	// IP is the client's address. Believe only proxies that you trust.
	IP netip.Addr
	// Method and Path are those of an HTTP request. The path is as it was sent, without the query.
	Method, Path string
	// Preflight marks a CORS preflight without a body and credentials. Rules that don't name OPTIONS don't apply to it:
	// [Options.Preflight] does.
	Preflight bool
	// Attr returns other values that rules count by: "header:X-Tenant", "claim:plan", "attr:region". It returns "" if there is
	// none.
	Attr func(name string) string
	// Cost is how many tokens the request takes. 0 means 1.
	Cost int64
	// Amounts are what the request takes besides its cost, by name: tokens, usd. See [Rule.Amount].
	Amounts map[string]counter.Amount
	// Assumed is for requests whose amounts are only partly known, such as a model call whose output is yet to come. It repeats
	// Amounts, with an assumed number for what is unknown. Where they differ, a rule charges its Default, or else the assumed
	// number, and never less than what is known. If nil, Amounts are complete.
	Assumed map[string]counter.Amount
	// Choices is how many answers the request wants from a model. A rule charges its Default for each. 0 means 1.
	Choices int64
	// Reserve, if positive, marks the amounts as estimates that [Limiter.Finish] replaces. They stand for at least this long: see
	// [Rule.GiveBackUnsettled]. Rules that count an amount ignore the method of such a request, since servers often do too.
	Reserve time.Duration
	// Repeat, if set, is an idempotency key: a request with the same key is charged once a minute, on whichever node.
	Repeat counter.Once
	// Peek asks for the decision without taking anything.
	Peek bool
	// Rejected tells observers why an identity was rejected, such as an expired token. It doesn't repeat what the client sent.
	Rejected string
	// Receipt asks for a receipt, which can give back what was taken.
	Receipt bool

	guess bool // see private.Guess
}
