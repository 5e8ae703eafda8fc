package checkapi

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
