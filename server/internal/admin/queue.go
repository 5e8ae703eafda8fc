package admin

import (
	"bytes"
	"context"
	"io"
	"net/http"

	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/rulefile"
)

// queue makes expensive requests, such as those that parse and compare documents, take turns. Each may use up to some
// seconds of a core. A request needs a seat to wait in the queue. If no seat is free, it gets an error that says to
// retry.
//
// A request takes its seat after its body has arrived, so that slow senders don't keep others out. While a large body
// arrives, the request needs a seat of another kind.
type queue struct{ seats, turn, large chan struct{} }

// The numbers of seats bound how many documents a queue holds in memory.
const (
	lookSeats  = 8
	writeSeats = 256
	largeSeats = 8
	// hourSeats limits how many responses about the last hour are in memory. Requests keep their seats until the
	// response is sent, because some responses have ten megabytes.
	hourSeats = 16
	// small is how many bytes of a body are read without a seat. Few documents are larger.
	small = 64 << 10
)

func newQueue(seats int) *queue {
	return &queue{make(chan struct{}, seats), make(chan struct{}, 1), make(chan struct{}, largeSeats)}
}

// receive reads a request's body and takes a seat. If no seat is free, ok is false. leave gives the seat up. receive
// ignores errors of the body, because the handler gets them, too.
func (l *queue) receive(r *http.Request) (leave func(), ok bool) {
	give := func() {} // gives up the seat of a large body
	var text bytes.Buffer
	if _, err := io.CopyN(&text, r.Body, small); err == nil {
		if !take(l.large) {
			return nil, false
		}
		give = func() { <-l.large }
		_, _ = io.CopyN(&text, r.Body, rulefile.MaxSize+1-small)
	}
	if !take(l.seats) {
		give()
		return nil, false
	}
	r.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(&text, r.Body), r.Body}
	return func() { give(); <-l.seats }, true
}

func take(seats chan struct{}) bool {
	select {
	case seats <- struct{}{}:
		return true
	default:
		return false
	}
}

// work calls work when it is the request's turn. If the client disconnects first, it returns an error instead.
func (l *queue) work(ctx context.Context, work func()) *jsonerror.Error {
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
	}
	if ctx.Err() != nil {
		return left()
	}
	work()
	return nil
}

func busy() *jsonerror.Error {
	return retryLater(jsonerror.Busy, "1", "the node is busy checking the rules of other requests: try again in a second")
}

// left returns the response to a client that has disconnected. Nobody reads this response.
func left() *jsonerror.Error {
	return jsonerror.New(http.StatusServiceUnavailable, jsonerror.Busy, "the client has left")
}
