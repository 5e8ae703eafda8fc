package jsonerror

// Error codes, for programs.
const (
	RateLimitExceeded = "RATE_LIMIT_EXCEEDED" // 429: a limit is exhausted
	Cooldown          = "COOLDOWN"            // 429: the client kept sending requests while it was told to wait
	KeyBlocked        = "KEY_BLOCKED"         // 403: the client is on the deny list
	IdentityRequired  = "IDENTITY_REQUIRED"   // 403: a rule requires an identity that the request lacks
	AmbiguousIdentity = "AMBIGUOUS_IDENTITY"  // 400: servers could read the client's identity in several ways
	// 400: the path is too long, or servers could read it in too many ways
	UnreadablePath     = "UNREADABLE_PATH"
	LimiterUnavailable = "LIMITER_UNAVAILABLE" // 503: the store can't be reached, and a rule fails closed
	Overloaded         = "OVERLOADED"          // 503: too many requests are being decided
	QueueFull          = "QUEUE_FULL"          // 503: too many requests are waiting in queues
	QueueTimeout       = "QUEUE_TIMEOUT"       // 503: the request's time ran out in a queue

	BadRequest           = "BAD_REQUEST"            // 400: the request can't be parsed
	Unauthorized         = "UNAUTHORIZED"           // 401: the token is missing or wrong
	Forbidden            = "FORBIDDEN"              // 403: the token's role doesn't allow this
	CrossSite            = "CROSS_SITE"             // 403: a web page of another site may have sent the request
	UntrustedPeer        = "UNTRUSTED_PEER"         // 403: the peer isn't trusted to speak for clients
	NotFound             = "NOT_FOUND"              // 404: no such endpoint, version or rule
	MethodNotAllowed     = "METHOD_NOT_ALLOWED"     // 405: the method isn't POST
	RequestTimeout       = "REQUEST_TIMEOUT"        // 408: the body didn't arrive in time
	BodyTooLarge         = "BODY_TOO_LARGE"         // 413: the body is too large
	UnsupportedMediaType = "UNSUPPORTED_MEDIA_TYPE" // 415: the body isn't JSON, or it is compressed
	TooManyAttempts      = "TOO_MANY_ATTEMPTS"      // 429: too many wrong tokens from this address

	ReceiptInvalid = "RECEIPT_INVALID" // 400: the receipt wasn't issued by this cluster
	ReceiptUsed    = "RECEIPT_USED"    // 409: the receipt was already used
	ReceiptExpired = "RECEIPT_EXPIRED" // 410: the charge is too old to change
	SlotLost       = "SLOT_LOST"       // 409: the slot ended before it was renewed, and no other is free

	BadTarget           = "BAD_TARGET"           // 400: the gateway can't forward this request target
	UnsafePath          = "UNSAFE_PATH"          // 400: servers would read the path in different ways
	UpstreamUnavailable = "UPSTREAM_UNAVAILABLE" // 502: the upstream couldn't be reached, or broke off
	UpstreamTimeout     = "UPSTREAM_TIMEOUT"     // 504: the upstream didn't respond in time

	AmbiguousClient  = "AMBIGUOUS_CLIENT"  // 409: several clients share the fingerprint
	RulesInFile      = "RULES_IN_FILE"     // 409: the rules come from a file, which must be edited instead
	RegionRefused    = "REGION_REFUSED"    // 409: the region can't be moved, drained or forgotten
	Conflict         = "CONFLICT"          // 412: somebody else has changed the rules in the meantime
	NewestRejected   = "NEWEST_REJECTED"   // 412: this node can't apply the newest rules
	RulesInvalid     = "RULES_INVALID"     // 422: the rules are invalid
	RulesWarn        = "RULES_WARN"        // 422: the change causes warnings, and needs force
	IfMatchRequired  = "IF_MATCH_REQUIRED" // 428: the header If-Match is missing
	Internal         = "INTERNAL"          // 500: an internal error
	NotApplied       = "NOT_APPLIED"       // 500: the version was stored, but this node can't apply it
	Busy             = "BUSY"              // 503: too many requests of this kind are being handled
	RulesUnavailable = "RULES_UNAVAILABLE" // 503: the rule store can't be reached
	StoreUnavailable = "STORE_UNAVAILABLE" // 503: the counter store can't be reached
)
