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
	// Limit is a count and a window: "100/minute", "5/15m". If the numbers change, the key keeps its counter. Another
	// algorithm has another counter, and so has another window if the algorithm counts by windows.
	Limit string `json:"limit"`
	// Burst is the capacity of a bucket, or the length of a queue. 0 means the limit's count.
	Burst int64 `json:"burst,omitempty"`
	// Cost and Receipt mean the same as in CheckRequest.
	Cost    *int64 `json:"cost,omitempty"`
	Receipt bool   `json:"receipt,omitempty"`
	// Algorithm is a name as in rule files. "" means token_bucket.
	Algorithm string `json:"algorithm,omitempty"`
	// Mode of a leaky_bucket is meter, the default, or queue.
	Mode string `json:"mode,omitempty"`
}

// RefundResponse is the body of a successful response to POST /v1/refund.
type RefundResponse struct {
	Refunded bool `json:"refunded"`
}

// ReleaseResponse is the body of a successful response to POST /v1/release.
type ReleaseResponse struct {
	Released bool `json:"released"`
}

// SettleRequest is the body of POST /v1/settle: amounts, a status or both, or Unknown if neither is known.
type SettleRequest struct {
	Receipt string                    `json:"receipt"`
	Amounts map[string]counter.Amount `json:"amounts,omitempty"`
	Status  int                       `json:"status,omitempty"`
	Unknown bool                      `json:"unknown,omitempty"`
}

// SettleResponse is the body of a successful response to POST /v1/settle.
type SettleResponse struct {
	// Settled means that this call has settled the receipt. Already means that the receipt was settled or refunded
	// before.
	Settled bool `json:"settled"`
	Already bool `json:"already,omitempty"`
}

// RenewRequest is the body of POST /v1/renew: one receipt, or a list.
type RenewRequest struct {
	Receipt  string   `json:"receipt,omitempty"`
	Receipts []string `json:"receipts,omitempty"`
}

// RenewResponse is the body of a successful response to a list of receipts. Results are in the order of the receipts.
type RenewResponse struct {
	Results []Renewal `json:"results"`
}

// Renewal is the result for one receipt.
type Renewal struct {
	Renewed bool `json:"renewed"`
	// Reason says why a slot wasn't renewed: slot_lost, receipt_invalid, receipt_expired or unavailable.
	Reason string `json:"reason,omitempty"`
}

// UnmarshalJSON reads a time such as "2m", or a number of seconds.
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
