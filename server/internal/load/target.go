package load

import "context"

// Target receives requests.
type Target interface {
	// String names the target in reports.
	String() string
	// Sender returns a sender for one worker.
	Sender() Sender
}

// Sender sends one request at a time.
type Sender interface {
	// Send sends a request of client n. It waits for the answer, or until ctx is done.
	Send(ctx context.Context, n uint32) Answer
}

// Batcher is a Sender that can send many requests in one call. It is for limiters in this process, whose decisions take
// less time than a method call. Its requests must not fail.
type Batcher interface {
	Sender
	// SendBatch sends one request for each of the clients, and returns how many requests were refused.
	SendBatch(clients []uint32) (refused int64)
}

// Answer is the result of one request.
type Answer struct {
	Outcome Outcome
	// Degraded means that the request was decided without the store.
	Degraded bool
	// Status is the HTTP status, or 0 if there is none.
	Status uint16
	// Err says why there is no answer, or why the answer is degraded.
	Err error
}

// Outcome is the kind of result of a request.
type Outcome uint8

const (
	// Allowed means that the limiter allowed the request, or that the status was 2xx.
	Allowed Outcome = iota
	// Refused means that the limiter refused the request, or that the status was 429.
	Refused
	// Other means any other status.
	Other
	// Failed means that there was no answer, because of an error.
	Failed
	// TimedOut means that there was no answer in time.
	TimedOut
	// Unfinished means that the request was abandoned because the run was stopped.
	Unfinished

	outcomes
)

// timed reports whether a request's time counts as latency. Timeouts count, because otherwise the slowest requests
// would be left out.
func (o Outcome) timed() bool { return o <= Other || o == TimedOut }
