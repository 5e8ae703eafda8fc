package jsonerror

// Codes of answers, for programs.
const (
	RateLimitExceeded  = "RATE_LIMIT_EXCEEDED" // 429: a limit is used up
	Cooldown           = "COOLDOWN"            // 429: the client kept coming while it was refused
	KeyBlocked         = "KEY_BLOCKED"         // 403: the deny list refuses the request
	IdentityRequired   = "IDENTITY_REQUIRED"   // 403: a rule refuses requests that lack what it counts by
	AmbiguousIdentity  = "AMBIGUOUS_IDENTITY"  // 400: the client's identity can be read in several ways
	UnreadablePath     = "UNREADABLE_PATH"     // 400: the path is too long, or can be read in too many ways
	LimiterUnavailable = "LIMITER_UNAVAILABLE" // 503: the store can't be reached, and a rule refuses requests then
	Overloaded         = "OVERLOADED"          // 503: as many requests are being decided as may be
	QueueFull          = "QUEUE_FULL"          // 503: too many requests wait for their turn
	QueueTimeout       = "QUEUE_TIMEOUT"       // 503: the request ran out of time while it waited for its turn

	BadRequest           = "BAD_REQUEST"            // 400: the request can't be read
	Unauthorized         = "UNAUTHORIZED"           // 401: no token, or a bad one
	Forbidden            = "FORBIDDEN"              // 403: the token may only read
	CrossSite            = "CROSS_SITE"             // 403: a web page of another site may have sent it
	UntrustedPeer        = "UNTRUSTED_PEER"         // 403: it may not speak for clients
	NotFound             = "NOT_FOUND"              // 404: there is no such endpoint, version or rule
	MethodNotAllowed     = "METHOD_NOT_ALLOWED"     // 405: not a POST
	RequestTimeout       = "REQUEST_TIMEOUT"        // 408: the body didn't arrive in time
	BodyTooLarge         = "BODY_TOO_LARGE"         // 413
	UnsupportedMediaType = "UNSUPPORTED_MEDIA_TYPE" // 415: not JSON, or compressed
	TooManyAttempts      = "TOO_MANY_ATTEMPTS"      // 429: many bad tokens from the same address

	ReceiptInvalid = "RECEIPT_INVALID" // 400: not a receipt of ours
	ReceiptUsed    = "RECEIPT_USED"    // 409: given back already
	ReceiptExpired = "RECEIPT_EXPIRED" // 410: the limits have forgotten the charge
	SlotLost       = "SLOT_LOST"       // 409: the slot had ended before it was renewed, and there is no other

	BadTarget           = "BAD_TARGET"           // 400: the gateway can't forward the request's target
	UnsafePath          = "UNSAFE_PATH"          // 400: servers would read the path in different ways
	UpstreamUnavailable = "UPSTREAM_UNAVAILABLE" // 502
	UpstreamTimeout     = "UPSTREAM_TIMEOUT"     // 504

	AmbiguousClient  = "AMBIGUOUS_CLIENT"  // 409: several clients have the fingerprint
	RulesInFile      = "RULES_IN_FILE"     // 409: the rules are changed in their file
	RegionRefused    = "REGION_REFUSED"    // 409: a region can't be moved, drained or forgotten
	Conflict         = "CONFLICT"          // 412: someone was faster
	NewestRejected   = "NEWEST_REJECTED"   // 412: this node can't apply the newest rules
	RulesInvalid     = "RULES_INVALID"     // 422: the rules can't be
	RulesWarn        = "RULES_WARN"        // 422: the change needs force
	IfMatchRequired  = "IF_MATCH_REQUIRED" // 428
	Internal         = "INTERNAL"          // 500
	NotApplied       = "NOT_APPLIED"       // 500: the version is written, and this node can't apply it
	Busy             = "BUSY"              // 503: others are having rules looked at, or a profile made, or ask about the last hour
	RulesUnavailable = "RULES_UNAVAILABLE" // 503: the rule store can't be reached
	StoreUnavailable = "STORE_UNAVAILABLE" // 503: the store of counters can't be reached
)
