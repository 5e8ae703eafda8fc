package checkapi

import (
	"encoding/json"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/jsonerror"
)

// Bounds of what is read. Everything beyond them is refused with 400, or 413 for whole bodies.
const (
	MaxBody          = 64 << 10       // bytes of a body, and of each check of a batch
	MaxBatchBody     = 1 << 20        // bytes of a batch's body
	MaxChecks        = 1000           // of a batch
	MaxText          = 1 << 10        // bytes of a key, and of any other text but a path or a receipt, which the body's size bounds
	MaxAttributes    = 64             // of a check
	MaxAttributeName = 256            // bytes
	MaxCost          = weir.MaxTokens // and the largest amount: no limit admits more at once
	MaxAmounts       = 16             // of a check
	MaxReserve       = 24 * time.Hour // that amounts may be reserved for
	MaxID            = 128            // bytes of a check's id
	MaxReceipts      = 1000           // of a call of /v1/renew
)

// CheckRequest is the body of POST /v1/check. A field that is left out, empty
// or null is not known; only what the rules look at has to be given.
type CheckRequest struct {
	// Key is the client's API key.
	Key string `json:"key,omitempty"`
	// Method and Path are those of the request to decide; the path as it came.
	Method string `json:"method,omitempty"`
	Path   string `json:"path,omitempty"`
	// IP is the client's address, without a port.
	IP string `json:"ip,omitempty"`
	// Attributes are what else rules may look at: user, org and tier; "header:X-Tenant" and
	// "claim:plan" for rules that count by those; any other name for rules that count by attr:NAME.
	Attributes map[string]string `json:"attributes,omitempty"`
	// Cost is how many tokens the request takes. Nil means 1; 0 asks how a request of cost 1
	// would be answered, and takes nothing.
	Cost *int64 `json:"cost,omitempty"`
	// Receipt asks for a receipt, with which what was taken can be given back.
	Receipt bool `json:"receipt,omitempty"`
	// Amounts are what the request takes beside its cost, by name: tokens, usd.
	Amounts map[string]weir.Amount `json:"amounts,omitempty"`
	// Reserve says that the amounts are an estimate, for /v1/settle to replace by the truth, and for how long it stands at
	// least. It asks for a receipt, too.
	Reserve Duration `json:"reserve,omitempty"`
	// ID names the request: the same one under the same id is charged once within a minute, whichever node it reaches.
	ID string `json:"id,omitempty"`
}

// Duration is a time as it is written: "2m".
type Duration time.Duration

// MarshalJSON writes it as text.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(d).String()) }

// CheckResponse is a decision: the body that answers /v1/check and /v1/take
// with status 200, 429, 403 or 503.
type CheckResponse struct {
	Allowed bool `json:"allowed"`
	// Rule is the id of the rule that speaks: of a refusal the one with the longest wait,
	// otherwise the one with the fewest requests left. "" if none applies, and "take" for /v1/take.
	Rule string `json:"rule"`
	// Limit is that rule's limit, or -1 if none applies.
	Limit int64 `json:"limit"`
	// Burst is how many tokens can be left at most, if that isn't Limit.
	Burst int64 `json:"burst,omitempty"`
	// Remaining is how many tokens are left; -1 if no limit applies or the store couldn't be reached.
	Remaining int64 `json:"remaining"`
	// RetryAfterMS is the time until the request would be allowed, rounded up; -1 if no waiting helps.
	RetryAfterMS int64 `json:"retry_after_ms"`
	// ResetAfterMS is the time until the counter is full again, rounded up.
	ResetAfterMS int64 `json:"reset_after_ms"`
	// DelayMS is how long to hold an allowed request back, for its turn in a queue.
	DelayMS int64 `json:"delay_ms"`
	// Degraded: the store couldn't be reached for a limit that applies.
	Degraded     bool  `json:"degraded"`
	RulesVersion int64 `json:"rules_version"`
	// Limits has every limit that applied, in the order of the rules.
	Limits []LimitStatus `json:"limits"`
	// Receipt is there if it was asked for and something was taken, and whenever a slot was.
	Receipt string `json:"receipt,omitempty"`
	// SlotTTLMS is there if a slot was taken: how long it lasts unless it is renewed.
	SlotTTLMS int64 `json:"slot_ttl_ms,omitempty"`
	// RetryIsAGuess is true if RetryAfterMS is when a slot ends unless it is renewed. It may be released sooner, or renewed.
	RetryIsAGuess bool `json:"retry_is_a_guess,omitempty"`
	// Reason, Code and Message are there on refusals: limited, denied, identity_required,
	// unreadable_path or unavailable; one of the codes above; and a sentence.
	Reason  string `json:"reason,omitempty"`
	Code    string `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
}

// LimitStatus is how one limit stands after a check.
type LimitStatus struct {
	Rule string `json:"rule"`
	// Allowed: this limit has room. Of a refused request it has taken nothing.
	Allowed bool `json:"allowed"`
	// Amount is what the limit counts of a request, if that isn't its cost.
	Amount string `json:"amount,omitempty"`
	// Limit and Burst are as in CheckResponse, but of a limit on an amount Limit and Remaining are decimal.
	Limit float64 `json:"limit"`
	Burst int64   `json:"burst,omitempty"`
	// Remaining is -1 if the store couldn't be reached.
	Remaining float64 `json:"remaining"`
	// WindowEnd is when the window ends, of fixed windows that count amounts or follow the calendar.
	WindowEnd time.Time `json:"window_end,omitzero"`
	// Shadow limits are counted, and refuse nobody.
	Shadow bool `json:"shadow"`
}

// BatchRequest is the body of POST /v1/checks.
type BatchRequest struct {
	Checks []CheckRequest `json:"checks"`
}

// BatchResponse answers it, always with status 200, in the order of the checks.
type BatchResponse struct {
	Results []BatchResult `json:"results"`
}

// BatchResult is one check of a batch: a decision, or the error of a check that couldn't be read.
type BatchResult struct {
	// Status is what /v1/check would have answered with.
	Status int `json:"status"`
	*CheckResponse
	Error *jsonerror.Error `json:"error,omitempty"`
}

// ErrorResponse is the body of every answer that isn't a decision.
type ErrorResponse struct {
	Error jsonerror.Error `json:"error"`
}
