package client

import (
	"strings"
	"time"

	"github.com/weirhq/weir/counter"
)

// wireRequest is the body of /v1/check.
type wireRequest struct {
	Key        string            `json:"key,omitempty"`
	Method     string            `json:"method,omitempty"`
	Path       string            `json:"path,omitempty"`
	IP         string            `json:"ip,omitempty"`
	Attributes map[string]string `json:"attributes,omitempty"`
	Cost       *int64            `json:"cost,omitempty"`
	Receipt    bool              `json:"receipt,omitempty"`

	Amounts map[string]counter.Amount `json:"amounts,omitempty"`
	Reserve string                    `json:"reserve,omitempty"`
	ID      string                    `json:"id,omitempty"`
}

func (r *Request) wire() wireRequest {
	w := wireRequest{Key: r.Key, Method: r.Method, Path: r.Path, Receipt: r.Receipt, Attributes: r.Attributes, Amounts: r.Amounts, ID: r.ID}
	if r.Reserve != 0 {
		w.Reserve = r.Reserve.String()
	}
	if r.User != "" || r.Org != "" || r.Tier != "" {
		w.Attributes = make(map[string]string, len(r.Attributes)+3)
		for k, v := range r.Attributes {
			w.Attributes[k] = v
		}
		for k, v := range map[string]string{"user": r.User, "org": r.Org, "tier": r.Tier} {
			if v != "" {
				w.Attributes[k] = v
			}
		}
	}
	if r.IP.IsValid() {
		w.IP = r.IP.WithZone("").String()
	}
	if peek := int64(0); r.Peek {
		w.Cost = &peek
	} else if r.Cost != 0 {
		w.Cost = &r.Cost
	}
	return w
}

// wireResult is one result of /v1/checks.
type wireResult struct {
	Status       int         `json:"status"`
	Allowed      bool        `json:"allowed"`
	Rule         string      `json:"rule"`
	Limit        int64       `json:"limit"`
	Burst        int64       `json:"burst"`
	Remaining    int64       `json:"remaining"`
	RetryAfterMS int64       `json:"retry_after_ms"`
	ResetAfterMS int64       `json:"reset_after_ms"`
	DelayMS      int64       `json:"delay_ms"`
	Degraded     bool        `json:"degraded"`
	RulesVersion int64       `json:"rules_version"`
	Limits       []wireLimit `json:"limits"`
	Receipt      string      `json:"receipt"`
	SlotTTLMS    int64       `json:"slot_ttl_ms"`
	RetryIsGuess bool        `json:"retry_is_a_guess"`
	Reason       string      `json:"reason"`
	Code         string      `json:"code"`
	Message      string      `json:"message"`
	Error        *struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

func (w *wireResult) decision() (Decision, error) {
	if w.Error != nil {
		return Decision{}, &Error{Status: w.Status, Code: w.Error.Code, Message: w.Error.Message}
	}
	d := Decision{
		Allowed: w.Allowed, Status: w.Status, Rule: w.Rule, Limit: w.Limit, Burst: w.Burst, Remaining: w.Remaining,
		RetryAfter: time.Duration(w.RetryAfterMS) * time.Millisecond, ResetAfter: time.Duration(w.ResetAfterMS) * time.Millisecond,
		Delay: time.Duration(w.DelayMS) * time.Millisecond, Degraded: w.Degraded, RulesVersion: w.RulesVersion,
		Receipt: w.Receipt, SlotTTL: time.Duration(w.SlotTTLMS) * time.Millisecond, RetryIsGuess: w.RetryIsGuess,
		Reason: w.Reason, Code: w.Code, Message: w.Message,
	}
	for i := range w.Limits {
		d.Limits = append(d.Limits, w.Limits[i].status())
	}
	return d, nil
}

// wireLimit is one limit of a result.
type wireLimit struct {
	Rule      string    `json:"rule"`
	Allowed   bool      `json:"allowed"`
	Amount    string    `json:"amount"`
	Limit     decimal   `json:"limit"`
	Burst     int64     `json:"burst"`
	Remaining decimal   `json:"remaining"`
	WindowEnd time.Time `json:"window_end"`
	Shadow    bool      `json:"shadow"`
}

func (w *wireLimit) status() LimitStatus {
	const one = counter.Amount(1_000_000)
	limit, left := counter.Amount(w.Limit), counter.Amount(w.Remaining)
	return LimitStatus{
		Rule: w.Rule, Allowed: w.Allowed, Amount: w.Amount, Limit: int64(limit / one), Burst: w.Burst, Remaining: int64(left / one),
		LimitAmount: limit, Left: left, WindowEnd: w.WindowEnd, Shadow: w.Shadow,
	}
}

// decimal is an Amount that may be negative: -1 is what isn't known.
type decimal counter.Amount

func (d *decimal) UnmarshalJSON(b []byte) error {
	text, negative := strings.CutPrefix(string(b), "-")
	a, err := counter.ParseAmount(text)
	if *d = decimal(a); negative {
		*d = -*d
	}
	return err
}
