package client

import (
	"maps"
	"strings"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/jsonerror"
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
		maps.Copy(w.Attributes, r.Attributes)
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

// wireResult is one result of /v1/checks: a decision, with times in milliseconds, or an error.
type wireResult struct {
	Decision
	RetryAfterMS int64            `json:"retry_after_ms"`
	ResetAfterMS int64            `json:"reset_after_ms"`
	DelayMS      int64            `json:"delay_ms"`
	SlotTTLMS    int64            `json:"slot_ttl_ms"`
	Limits       []wireLimit      `json:"limits"`
	Error        *jsonerror.Error `json:"error"`
}

func (w *wireResult) decision() (Decision, error) {
	if w.Error != nil {
		return Decision{}, &Error{Status: w.Status, Code: w.Error.Code, Message: w.Error.Message}
	}
	d := w.Decision
	d.RetryAfter = time.Duration(w.RetryAfterMS) * time.Millisecond
	d.ResetAfter = time.Duration(w.ResetAfterMS) * time.Millisecond
	d.Delay = time.Duration(w.DelayMS) * time.Millisecond
	d.SlotTTL = time.Duration(w.SlotTTLMS) * time.Millisecond
	for i := range w.Limits {
		d.Limits = append(d.Limits, w.Limits[i].status())
	}
	return d, nil
}

// wireLimit is one limit of a result.
type wireLimit struct {
	LimitStatus
	Limit     decimal `json:"limit"`
	Remaining decimal `json:"remaining"`
}

func (w *wireLimit) status() LimitStatus {
	const one = counter.Amount(1_000_000)
	s := w.LimitStatus
	s.LimitAmount, s.Left = counter.Amount(w.Limit), counter.Amount(w.Remaining)
	s.Limit, s.Remaining = int64(s.LimitAmount/one), int64(s.Left/one)
	return s
}

// decimal is an Amount that may be negative: -1 means unknown.
type decimal counter.Amount

func (d *decimal) UnmarshalJSON(b []byte) error {
	text, negative := strings.CutPrefix(string(b), "-")
	a, err := counter.ParseAmount(text)
	if *d = decimal(a); negative {
		*d = -*d
	}
	return err
}
