package weir

import (
	"net/netip"
	"time"

	"github.com/weirhq/weir/counter"
)

// Request is what an edge knows of a call. Only what the rules look at has to be filled in.
type Request struct {
	// Edge names the code that asks, for observers: http, check, gateway. "" means a program that uses the library.
	Edge string
	// APIKey identifies the client.
	APIKey string
	// KeyVerified says that the key was proven to be genuine: by a lookup, a
	// signature, or a caller that vouches for it. Patterns grant nothing
	// (a tier, a bypass) to a key that isn't: anyone can send a header that begins with sk_internal_.
	KeyVerified bool
	User, Org   string
	// Tier is the client's tier if the edge knows it, and TierVerified that it was
	// proven, as by a signed token. An unproven tier is ignored.
	Tier         string
	TierVerified bool
	// IP is the client's address, as established from trusted proxies only.
	IP netip.Addr
	// Method and Path are those of an HTTP request; the path as it came, without query.
	Method, Path string
	// Preflight marks a real CORS preflight: as a browser sends them, without body and credentials. Those are exempt from rules
	// that don't name OPTIONS, and have a limit of their own: see [Options].
	Preflight bool
	// Attr looks up what else rules may count by: "header:X-Tenant", "claim:plan",
	// "attr:region". It answers "" for what the request lacks.
	Attr func(name string) string
	// Cost is how many tokens the request takes. 0 means 1.
	Cost int64
	// Amounts are what the request takes beside its cost, by name: tokens, usd. See [Rule.Amount].
	Amounts map[string]counter.Amount
	// Assumed is for requests of which some amounts aren't known yet, such as the output of a call to a model. It has the same
	// amounts as Amounts, with an assumed number for what isn't known. Where the two differ, a rule charges its Default, or
	// what is assumed if it has no Default, but no less than what is known. If nil, Amounts are complete.
	Assumed map[string]counter.Amount
	// Choices is how many answers the request asks a model for. A rule charges its Default for each of them. 0 means 1.
	Choices int64
	// Reserve, if positive, says that the amounts are an estimate, which [Limiter.Finish] replaces by the truth. It is for how
	// long the estimate stands at least: see [Rule.GiveBackUnsettled]. Rules that count an amount apply to such a request whatever
	// its method is, since many servers answer a call under methods that the rule doesn't name.
	Reserve time.Duration
	// Repeat names the request, if it isn't zero: the same request under this name is charged once within a minute, whichever
	// node it reaches.
	Repeat counter.Once
	// Peek asks how a request of this cost would be answered, and takes nothing.
	Peek bool
	// Rejected says, for observers, why an identity that the client has sent doesn't count, such as that its token has expired:
	// in words that don't repeat it. "" means that none was rejected.
	Rejected string
	// Receipt asks for a receipt, with which what was taken can be given back.
	Receipt bool

	guess bool // see private.Guess
}
