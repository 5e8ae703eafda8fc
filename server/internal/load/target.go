package load

import "context"

// Target receives requests.
type Target interface {
	// String names the target in reports.
	String() string
	// Sender returns a sender for one worker.
	Sender() Sender
}

// Sender sends requests, one at a time.
type Sender interface {
	// Send sends a request of client n and waits for the answer, or until ctx is done.
	Send(ctx context.Context, n uint32) Answer
}

// Batcher is a Sender that can send many requests in one call. It is for limiters in this process, which decide faster than
// a call takes. None of its requests may fail.
type Batcher interface {
	Sender
	// SendBatch sends a request of each client, and returns how many were refused.
	SendBatch(clients []uint32) (refused int64)
}

// Answer is what came of one request.
type Answer struct {
	Outcome Outcome
	// Degraded says that the request was decided without the store.
	Degraded bool
	// Status is the HTTP status, or 0.
	Status uint16
	// Err is why there is no answer, or why it is degraded.
	Err error
}

// Outcome is the kind of an answer.
type Outcome uint8

const (
	// Allowed by the limiter, or any answer 2xx.
	Allowed Outcome = iota
	// Refused by the limiter, or an answer 429.
	Refused
	// Other answers are those with another status.
	Other
	// Failed requests got no answer.
	Failed
	// TimedOut requests got none in the time they had.
	TimedOut
	// Unfinished requests were abandoned because the run was stopped.
	Unfinished

	outcomes
)

// timed reports whether a request's time counts as latency. Timeouts do, or the slowest requests would be left out.
func (o Outcome) timed() bool { return o <= Other || o == TimedOut }
