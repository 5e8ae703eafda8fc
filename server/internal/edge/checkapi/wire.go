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
	Key    string `json:"key,omitempty"` // the client's API key
	Method string `json:"method,omitempty"`
	Path   string `json:"path,omitempty"` // as it came
	IP     string `json:"ip,omitempty"`   // the client's address, without a port
	// Attributes are anything else that rules may look at: user, org and tier; "header:X-Tenant"
	// and "claim:plan" for rules that count by those; any other name for rules that count by
	// attr:NAME.
	Attributes map[string]string `json:"attributes,omitempty"`
	// Cost is how many tokens the request takes. Nil means 1. 0 asks how a request of cost 1 would
	// be answered, and takes nothing.
	Cost *int64 `json:"cost,omitempty"`
	// Receipt asks for a receipt, with which what was taken can be given back.
	Receipt bool                      `json:"receipt,omitempty"`
	Amounts map[string]counter.Amount `json:"amounts,omitempty"` // taken beside the cost: tokens, usd
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
	Rule  string `json:"rule"`
	Limit int64  `json:"limit"`           // that rule's limit, or -1 if none applies
	Burst int64  `json:"burst,omitempty"` // the most that can be left, if it isn't Limit
	// Remaining is how many tokens are left, or -1 if no limit applies or the store couldn't be
	// reached.
	Remaining int64 `json:"remaining"`
	// RetryAfterMS is the time until the request would be allowed, or -1 if waiting doesn't help, and
	// ResetAfterMS until the counter is full again. DelayMS is how long to delay an allowed request
	// for its turn in a queue.
	RetryAfterMS int64 `json:"retry_after_ms"`
	ResetAfterMS int64 `json:"reset_after_ms"`
	DelayMS      int64 `json:"delay_ms"`
	Degraded     bool  `json:"degraded"` // the store couldn't be reached for a limit that applies
	RulesVersion int64 `json:"rules_version"`
	// Limits has every limit that applied, in the order of the rules.
	Limits []LimitStatus `json:"limits"`
	// Receipt is set if it was asked for and something was taken, and always if a slot was taken,
	// which lasts for SlotTTLMS unless it is renewed.
	Receipt   string `json:"receipt,omitempty"`
	SlotTTLMS int64  `json:"slot_ttl_ms,omitempty"`
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
	Rule      string    `json:"rule"`
	Allowed   bool      `json:"allowed"`             // the limit has room; a refused request takes nothing from it
	Amount    string    `json:"amount,omitempty"`    // what it counts, if that isn't the request's cost
	Limit     float64   `json:"limit"`               // as in CheckResponse; decimal for an amount
	Burst     int64     `json:"burst,omitempty"`     // as in CheckResponse
	Remaining float64   `json:"remaining"`           // -1 if the store couldn't be reached; decimal for an amount
	WindowEnd time.Time `json:"window_end,omitzero"` // of fixed windows that count amounts or follow the calendar
	Shadow    bool      `json:"shadow"`              // it is counted and refuses nobody
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
	Status int `json:"status"` // that /v1/check would have sent
	*CheckResponse
	Error *jsonerror.Error `json:"error,omitempty"`
}

// ErrorResponse is the body of every answer that isn't a decision.
type ErrorResponse struct {
	Error jsonerror.Error `json:"error"`
}
