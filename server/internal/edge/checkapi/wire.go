package checkapi

import (
	"encoding/json"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/jsonerror"
)

// Bounds of what is read. Anything beyond them gets 400, or 413 for whole bodies.
const (
	MaxBody          = 64 << 10 // bytes of a body, and of each check in a batch
	MaxBatchBody     = 1 << 20  // bytes of a batch's body
	MaxChecks        = 1000     // in a batch
	MaxText          = 1 << 10  // bytes of any text except paths and receipts, which the body's size bounds
	MaxAttributes    = 64       // of a check
	MaxAttributeName = 256
	MaxCost          = counter.MaxTokens // also of amounts: no limit admits more at once
	MaxAmounts       = 16                // of a check
	MaxReserve       = 24 * time.Hour    // for which amounts can be reserved
	MaxID            = 128               // bytes of a check's id
	MaxReceipts      = 1000              // in a call of /v1/renew
)

// CheckRequest is the body of POST /v1/check. Fields that are missing, empty or null are unknown;
// only what the rules look at is needed.
type CheckRequest struct {
	// Key is the client's API key.
	Key string `json:"key,omitempty"`
	// Method and Path describe the request to decide. Path is the path as it came.
	Method string `json:"method,omitempty"`
	Path   string `json:"path,omitempty"`
	// IP is the client's address, without a port.
	IP string `json:"ip,omitempty"`
	// Attributes are anything else that rules may look at: user, org and tier; "header:X-Tenant"
	// and "claim:plan" for rules that count by those; any other name for rules that count by
	// attr:NAME.
	Attributes map[string]string `json:"attributes,omitempty"`
	// Cost is how many tokens the request takes. Nil means 1. 0 asks how a request of cost 1 would
	// be answered, and takes nothing.
	Cost *int64 `json:"cost,omitempty"`
	// Receipt asks for a receipt, with which what was taken can be given back.
	Receipt bool `json:"receipt,omitempty"`
	// Amounts are what the request takes beside its cost, by name: tokens, usd.
	Amounts map[string]counter.Amount `json:"amounts,omitempty"`
	// Reserve means that the amounts are estimates, which /v1/settle replaces, and is how long they
	// stand at least. It implies Receipt.
	Reserve Duration `json:"reserve,omitempty"`
	// ID names the request: repeated with the same id within a minute, it is charged once.
	ID string `json:"id,omitempty"`
}

// Duration is a time as text: "2m".
type Duration time.Duration

// MarshalJSON writes it as text.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(d).String()) }

// CheckResponse is a decision: the body of answers to /v1/check and /v1/take with status 200, 429,
// 403 or 503.
type CheckResponse struct {
	Allowed bool `json:"allowed"`
	// Rule is the id of the rule that binds: of a refusal, the one with the longest wait; otherwise
	// the one with the fewest requests left. It is "" if none applies, and "take" for /v1/take.
	Rule string `json:"rule"`
	// Limit is that rule's limit, or -1 if none applies.
	Limit int64 `json:"limit"`
	// Burst is the most that can be left, if it isn't Limit.
	Burst int64 `json:"burst,omitempty"`
	// Remaining is how many tokens are left, or -1 if no limit applies or the store couldn't be
	// reached.
	Remaining int64 `json:"remaining"`
	// RetryAfterMS is the time until the request would be allowed, rounded up, or -1 if waiting
	// doesn't help.
	RetryAfterMS int64 `json:"retry_after_ms"`
	// ResetAfterMS is the time until the counter is full again, rounded up.
	ResetAfterMS int64 `json:"reset_after_ms"`
	// DelayMS is how long to delay an allowed request for its turn in a queue.
	DelayMS int64 `json:"delay_ms"`
	// Degraded means that the store couldn't be reached for a limit that applies.
	Degraded     bool  `json:"degraded"`
	RulesVersion int64 `json:"rules_version"`
	// Limits has every limit that applied, in the order of the rules.
	Limits []LimitStatus `json:"limits"`
	// Receipt is set if it was asked for and something was taken, and always if a slot was taken.
	Receipt string `json:"receipt,omitempty"`
	// SlotTTLMS is how long a slot lasts unless it is renewed, if one was taken.
	SlotTTLMS int64 `json:"slot_ttl_ms,omitempty"`
	// RetryIsAGuess means that RetryAfterMS is when a slot ends unless renewed. It may end sooner
	// or later.
	RetryIsAGuess bool `json:"retry_is_a_guess,omitempty"`
	// Reason, Code and Message are set on refusals. Reason is limited, denied, identity_required,
	// unreadable_path, unavailable or cooldown.
	Reason  string `json:"reason,omitempty"`
	Code    string `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
}

// LimitStatus is the state of one limit after a check.
type LimitStatus struct {
	Rule string `json:"rule"`
	// Allowed means that this limit has room. A refused request takes nothing from it.
	Allowed bool `json:"allowed"`
	// Amount is what the limit counts, if that isn't the request's cost.
	Amount string `json:"amount,omitempty"`
	// Limit and Burst are as in CheckResponse. Limit and Remaining of an amount are decimal.
	Limit float64 `json:"limit"`
	Burst int64   `json:"burst,omitempty"`
	// Remaining is -1 if the store couldn't be reached.
	Remaining float64 `json:"remaining"`
	// WindowEnd is when the window ends, for fixed windows that count amounts or follow the
	// calendar.
	WindowEnd time.Time `json:"window_end,omitzero"`
	// Shadow limits are counted and refuse nobody.
	Shadow bool `json:"shadow"`
}

// BatchRequest is the body of POST /v1/checks.
type BatchRequest struct {
	Checks []CheckRequest `json:"checks"`
}

// BatchResponse answers a BatchRequest, always with status 200, in the order of the checks.
type BatchResponse struct {
	Results []BatchResult `json:"results"`
}

// BatchResult is one check of a batch: a decision, or the error of a check that couldn't be read.
type BatchResult struct {
	// Status is the status that /v1/check would have sent.
	Status int `json:"status"`
	*CheckResponse
	Error *jsonerror.Error `json:"error,omitempty"`
}

// ErrorResponse is the body of every answer that isn't a decision.
type ErrorResponse struct {
	Error jsonerror.Error `json:"error"`
}
