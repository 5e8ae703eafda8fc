package admin

import (
	"context"
	"net/http"

	"github.com/weirhq/weir/internal/jsonerror"
)

// lane lets one request at a time do what costs a node up to some seconds of a core: parse, compile and compare
// documents of any sender's making. A few more may wait, or have their bodies read. The rest are told to come back.
type lane struct{ seats, turn chan struct{} }

// Seats bound the documents that a lane holds in memory: even trusted operators may come in crowds.
const (
	lookSeats  = 8
	writeSeats = 256
)

func newLane(seats int) *lane { return &lane{make(chan struct{}, seats), make(chan struct{}, 1)} }

// enter takes a seat, if one is free.
func (l *lane) enter() bool {
	select {
	case l.seats <- struct{}{}:
		return true
	default:
		return false
	}
}

func (l *lane) leave() { <-l.seats }

// work waits for the turn of a request for no longer than its client does, and does its work.
func (l *lane) work(ctx context.Context, work func()) *jsonerror.Error {
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

// busy is the answer to requests that find no seat.
func busy() *jsonerror.Error {
	f := jsonerror.New(http.StatusServiceUnavailable, jsonerror.Busy, "others are having rules looked at: try again in a second")
	f.Header = http.Header{"Retry-After": {"1"}}
	return f
}

// left is the answer to a client that has gone, which nobody reads.
func left() *jsonerror.Error {
	return jsonerror.New(http.StatusServiceUnavailable, jsonerror.Busy, "the client has left")
}
