package checkapi

import "github.com/weirhq/weir/internal/jsonerror"

// BatchRequest is the body of POST /v1/checks.
type BatchRequest struct {
	Checks []CheckRequest `json:"checks"`
}

// BatchResponse is the response to a BatchRequest. Its status is always 200, and its results are in
// the order of the checks.
type BatchResponse struct {
	Results []BatchResult `json:"results"`
}

// BatchResult is the result of one check: a decision, or an error if the check is invalid.
type BatchResult struct {
	Status int `json:"status"` // the status that /v1/check would have sent
	*CheckResponse
	Error *jsonerror.Error `json:"error,omitempty"`
}
