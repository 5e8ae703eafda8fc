package checkapi

import (
	"encoding/json"
	"errors"
	"strings"

	"github.com/weirhq/weir/counter"
)

// TakeRequest is the body of POST /v1/take.
type TakeRequest struct {
	// Key names the counter.
	Key string `json:"key"`
	// Limit is a count and a window: "100/minute", "5/15m". The same key keeps its counter when the
	// numbers change; another algorithm, or another window of one that counts by windows, has another counter.
	Limit string `json:"limit"`
	// Burst is the capacity of a bucket, or the length of a queue. 0 means the limit's count.
	Burst int64 `json:"burst,omitempty"`
	// Cost and Receipt are as in CheckRequest.
	Cost    *int64 `json:"cost,omitempty"`
	Receipt bool   `json:"receipt,omitempty"`
	// Algorithm is a name of the rule language; "" means token_bucket.
	Algorithm string `json:"algorithm,omitempty"`
	// Mode of a leaky_bucket: meter, which "" means, or queue.
	Mode string `json:"mode,omitempty"`
}

// RefundResponse answers POST /v1/refund with status 200.
type RefundResponse struct {
	Refunded bool `json:"refunded"`
}

// ReleaseResponse answers POST /v1/release with status 200.
type ReleaseResponse struct {
	Released bool `json:"released"`
}

// SettleRequest is the body of POST /v1/settle: amounts, a status or both, or that neither is known.
type SettleRequest struct {
	Receipt string                    `json:"receipt"`
	Amounts map[string]counter.Amount `json:"amounts,omitempty"`
	Status  int                       `json:"status,omitempty"`
	Unknown bool                      `json:"unknown,omitempty"`
}

// SettleResponse answers it with status 200.
type SettleResponse struct {
	// Settled: this call has booked it. Already: an earlier one has, or has given it back.
	Settled bool `json:"settled"`
	Already bool `json:"already,omitempty"`
}

// RenewRequest is the body of POST /v1/renew: one receipt, or a list.
type RenewRequest struct {
	Receipt  string   `json:"receipt,omitempty"`
	Receipts []string `json:"receipts,omitempty"`
}

// RenewResponse answers a list, with status 200, in the order of the receipts.
type RenewResponse struct {
	Results []Renewal `json:"results"`
}

// Renewal answers one receipt.
type Renewal struct {
	Renewed bool `json:"renewed"`
	// Reason, of one that wasn't renewed: slot_lost, receipt_invalid, receipt_expired or unavailable.
	Reason string `json:"reason,omitempty"`
}

// UnmarshalJSON reads a time as it is written, or a number of seconds.
func (d *Duration) UnmarshalJSON(b []byte) error {
	text, quoted := string(b), false
	if quoted = strings.HasPrefix(text, `"`); quoted {
		if err := json.Unmarshal(b, &text); err != nil {
			return err
		}
	}
	if text == "null" && !quoted {
		return nil
	}
	v, ok := parseReserve(text, !quoted)
	if !ok {
		return errors.New("this is no time that amounts can be reserved for")
	}
	*d = Duration(v)
	return nil
}
