package checkapi

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/internal/jsonerror"
)

// Limits on input. Larger input gets status 400, or 413 if the body is too large.
const (
	MaxBody          = 64 << 10 // bytes of a body, and of each check in a batch
	MaxBatchBody     = 1 << 20  // bytes of a batch's body
	MaxChecks        = 1000     // checks in a batch
	MaxText          = 1 << 10  // bytes of any text, except paths and receipts, which only MaxBody bounds
	MaxAttributes    = 64       // attributes of a check
	MaxAttributeName = 256
	MaxCost          = counter.MaxTokens // also for amounts: no limit ever admits more at once
	MaxAmounts       = 16                // amounts of a check
	MaxReserve       = 24 * time.Hour    // longest time for which amounts can be reserved
	MaxID            = 128               // bytes of a check's id
	MaxReceipts      = 1000              // receipts in a call of /v1/renew
)

// CheckRequest is the body of POST /v1/check. It needs only the fields that the rules use. A missing, empty or null
// field means that the value is unknown.
type CheckRequest struct {
	Key    string `json:"key,omitempty"` // the client's API key
	Method string `json:"method,omitempty"`
	Path   string `json:"path,omitempty"` // as the client sent it, including escapes
	IP     string `json:"ip,omitempty"`   // the client's address, without a port
	// Attributes are other properties that rules may use: user, org and tier; "header:X-Tenant" and "claim:plan" for
	// rules that count by header or claim; and any other name, for rules that count by attr:NAME.
	Attributes map[string]string `json:"attributes,omitempty"`
	// Cost is how many tokens the request takes. Nil means 1. If it is 0, the check takes nothing, and the response is
	// the one that a request of cost 1 would get.
	Cost *int64 `json:"cost,omitempty"`
	// Receipt asks for a receipt, which can be used to give back what the check took.
	Receipt bool                      `json:"receipt,omitempty"`
	Amounts map[string]counter.Amount `json:"amounts,omitempty"` // taken in addition to the cost, such as tokens or usd
	// Reserve means that the amounts are estimates, which /v1/settle will replace. Its value is how long they stay
	// reserved. It implies Receipt.
	Reserve Duration `json:"reserve,omitempty"`
	// ID identifies the request. If the request is repeated with the same id within a minute, it is charged only once.
	ID string `json:"id,omitempty"`
}

// Duration is a duration that is encoded as text, such as "2m".
type Duration time.Duration

// MarshalJSON encodes the duration as text.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(d).String()) }

// CheckResponse is a decision. It is the body of responses from /v1/check and /v1/take with status
// 200, 429, 403 or 503.
type CheckResponse struct {
	Allowed bool `json:"allowed"`
	// Rule is the id of the rule that decides. For a refusal, that is the refusing rule with the longest wait, and
	// otherwise the rule with the fewest tokens left. It is "" if no rule applies, and "take" for /v1/take.
	Rule  string `json:"rule"`
	Limit int64  `json:"limit"`           // that rule's limit, or -1 if none applies
	Burst int64  `json:"burst,omitempty"` // the most tokens that can be left, if that isn't Limit
	// Remaining is how many tokens are left, or -1 if no limit applies or the store couldn't be
	// reached.
	Remaining int64 `json:"remaining"`
	// RetryAfterMS is the time until the request would be allowed, or -1 if waiting doesn't help.
	// ResetAfterMS is the time until the counter is full again. DelayMS is how long an allowed
	// request must wait for its turn in a queue.
	RetryAfterMS int64 `json:"retry_after_ms"`
	ResetAfterMS int64 `json:"reset_after_ms"`
	DelayMS      int64 `json:"delay_ms"`
	Degraded     bool  `json:"degraded"` // a limit that applies was decided without the store
	RulesVersion int64 `json:"rules_version"`
	// Limits has every limit that applied, in the order of the rules.
	Limits []LimitStatus `json:"limits"`
	// Receipt is set if the request asked for a receipt and took something, or if it took a slot. A slot lasts for
	// SlotTTLMS unless it is renewed.
	Receipt   string `json:"receipt,omitempty"`
	SlotTTLMS int64  `json:"slot_ttl_ms,omitempty"`
	// RetryIsAGuess means that RetryAfterMS is an estimate: the time until the next slot expires. Slots may be released
	// sooner, or renewed.
	RetryIsAGuess bool `json:"retry_is_a_guess,omitempty"`
	// Reason, Code and Message are set on refusals. Reason is one of: limited, denied,
	// identity_required, unreadable_path, unavailable or cooldown.
	Reason  string `json:"reason,omitempty"`
	Code    string `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
}

// LimitStatus is the state of one limit after a check.
type LimitStatus struct {
	Rule      string    `json:"rule"`
	Allowed   bool      `json:"allowed"`             // the limit has enough left. If another limit refuses the request, nothing is taken from this one
	Amount    string    `json:"amount,omitempty"`    // the amount that the limit counts; "" means the request's cost
	Limit     float64   `json:"limit"`               // as in CheckResponse; decimal for an amount
	Burst     int64     `json:"burst,omitempty"`     // as in CheckResponse
	Remaining float64   `json:"remaining"`           // -1 if the store couldn't be reached; decimal for an amount
	WindowEnd time.Time `json:"window_end,omitzero"` // for fixed windows that count amounts or follow the calendar
	Shadow    bool      `json:"shadow"`              // the limit counts requests, but doesn't refuse any
}

// ErrorResponse is the body of every response without a decision.
type ErrorResponse struct {
	Error jsonerror.Error `json:"error"`
}

// appendDecision appends the fields of a CheckResponse and the closing brace. The result is the same as with
// encoding/json, but takes a tenth of the time. x describes the refusal, if there is one.
func appendDecision(b []byte, d *weir.Decision, x *httplimit.Refused, now time.Time) []byte {
	b = strconv.AppendBool(append(b, `"allowed":`...), d.Allowed)
	b = jsonerror.AppendString(append(b, `,"rule":`...), d.Rule)
	b = appendLimit(b, d.Policy, d.Remaining, d.Uncounted())
	b = appendInt(append(b, `,"retry_after_ms":`...), retryAfterMS(d, x))
	b = appendInt(append(b, `,"reset_after_ms":`...), milliseconds(d.ResetAfter))
	b = appendInt(append(b, `,"delay_ms":`...), milliseconds(d.Delay))
	b = strconv.AppendBool(append(b, `,"degraded":`...), d.Degraded)
	b = appendInt(append(b, `,"rules_version":`...), d.RulesVersion)
	b = appendLimits(append(b, `,"limits":`...), d, now)
	if d.Receipt != "" {
		b = jsonerror.AppendString(append(b, `,"receipt":`...), d.Receipt)
		if ttl := d.Slots(); ttl > 0 {
			b = appendInt(append(b, `,"slot_ttl_ms":`...), ttl.Milliseconds())
		}
	}
	if !d.Allowed {
		if d.Reason == weir.ReasonLimited && d.RetryAfter > 0 && d.Policy != nil && d.Policy.Limit.Algorithm == weir.Concurrency {
			b = append(b, `,"retry_is_a_guess":true`...)
		}
		b = jsonerror.AppendString(append(b, `,"reason":`...), d.Reason.String())
		b = jsonerror.AppendString(append(b, `,"code":`...), x.Code)
		b = jsonerror.AppendString(append(b, `,"message":`...), x.Message)
	}
	return append(b, '}')
}

func appendLimits(b []byte, d *weir.Decision, now time.Time) []byte {
	b = append(b, '[')
	limits := d.Limits()
	for i := range limits {
		l := &limits[i]
		if i > 0 {
			b = append(b, ',')
		}
		b = jsonerror.AppendString(append(b, `{"rule":`...), l.Policy.Rule)
		b = strconv.AppendBool(append(b, `,"allowed":`...), l.Allowed)
		if l.Policy.Amount != "" {
			b = appendAmounts(b, l)
		} else {
			b = appendLimit(b, l.Policy, l.Remaining, l.Degraded)
		}
		if end := windowEnd(d, l, now); !end.IsZero() {
			b = append(end.AppendFormat(append(b, `,"window_end":"`...), time.RFC3339Nano), '"')
		}
		b = strconv.AppendBool(append(b, `,"shadow":`...), l.Policy.Shadow)
		b = append(b, '}')
	}
	return append(b, ']')
}

// appendAmounts appends a limit that counts an amount, and the exact amount that is left.
func appendAmounts(b []byte, l *weir.LimitStatus) []byte {
	p := l.Policy
	b = jsonerror.AppendString(append(b, `,"amount":`...), p.Amount)
	b = append(append(b, `,"limit":`...), p.Limit.Amount().String()...)
	if p.Limit.Burst > 0 && counter.Whole(p.Limit.Burst) != p.Limit.Amount() {
		b = appendInt(append(b, `,"burst":`...), p.Limit.Burst)
	}
	b = append(b, `,"remaining":`...)
	if l.Degraded {
		return append(b, "-1"...)
	}
	return append(b, l.Left().String()...)
}

// windowEnd returns when the window of a budget ends. A budget is a limit that counts amounts or follows the calendar.
// For other limits, it returns the zero time.
func windowEnd(d *weir.Decision, l *weir.LimitStatus, now time.Time) (end time.Time) {
	limit := &l.Policy.Limit
	if limit.Algorithm != weir.FixedWindow || l.Policy.Amount == "" && limit.Calendar.Unit == counter.NoUnit || l.Degraded || d.Reason == weir.ReasonCooldown {
		return end
	}
	end = now.Add(l.ResetAfter).UTC()
	if limit.Window%time.Second == 0 {
		return end.Round(time.Second) // now is a little earlier than the decision, so round: these windows end on full seconds
	}
	return end.Round(time.Millisecond)
}

// appendLimit appends a limit, its burst if that differs from the limit, and the remaining tokens.
func appendLimit(b []byte, p *counter.Policy, remaining int64, uncounted bool) []byte {
	if p == nil {
		return append(b, `,"limit":-1,"remaining":-1`...)
	}
	b = appendInt(append(b, `,"limit":`...), p.Limit.Count)
	if most := p.Limit.Max(); most != p.Limit.Count {
		b = appendInt(append(b, `,"burst":`...), most)
	}
	if uncounted {
		remaining = -1
	}
	return appendInt(append(b, `,"remaining":`...), remaining)
}

// retryAfterMS returns the time until a refused request would be allowed, or -1 if waiting doesn't help. If the store
// is down, the time is that of the header Retry-After.
func retryAfterMS(d *weir.Decision, x *httplimit.Refused) int64 {
	switch {
	case d.Allowed:
		return 0
	case d.Reason == weir.ReasonUnavailable:
		return 1000 * x.RetryAfterSeconds
	case d.RetryAfter < 0:
		return -1
	}
	return milliseconds(d.RetryAfter)
}

// milliseconds rounds up, so that a client that waits this long isn't too early.
func milliseconds(d time.Duration) int64 { return int64((d + time.Millisecond - 1) / time.Millisecond) }

func appendInt(b []byte, n int64) []byte { return strconv.AppendInt(b, n, 10) }

// send sends a complete response. net/http adds a Content-Length to short responses, but would send
// long ones in chunks.
func send(w http.ResponseWriter, status int, body []byte) {
	w.Header()["Content-Type"] = jsonType
	if len(body) > 1024 {
		w.Header()["Content-Length"] = []string{strconv.Itoa(len(body))}
	}
	if status != http.StatusOK {
		w.WriteHeader(status)
	}
	_, _ = w.Write(body) // the client may have disconnected
}
