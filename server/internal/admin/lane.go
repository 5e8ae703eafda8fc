package admin

import (
	"bytes"
	"context"
	"io"
	"net/http"

	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/rulefile"
)

// lane lets one request at a time do what costs a node up to some seconds of a core: parse, compile and compare
// documents of any sender's making. A few more may wait. The rest are told to come back.
//
// A request takes its seat when its body is there, so that clients which send slowly, or not at all, keep nobody out. Large bodies have
// seats of their own while they arrive.
type lane struct{ seats, turn, large chan struct{} }

// Seats bound the documents that a lane holds in memory: even trusted operators may come in crowds.
const (
	lookSeats  = 8
	writeSeats = 256
	largeSeats = 8
	// hourSeats bound the answers about the last hour, which have a seat until they are written: some have ten megabytes.
	hourSeats = 16
	// small is how much of a body is read without a seat, in bytes. Few documents have more.
	small = 64 << 10
)

func newLane(seats int) *lane {
	return &lane{make(chan struct{}, seats), make(chan struct{}, 1), make(chan struct{}, largeSeats)}
}

// receive waits for a request's body, and takes a seat. It returns what gives up all that it took, or false if others have all seats.
// What is wrong with the body is told by whoever reads it.
func (l *lane) receive(r *http.Request) (leave func(), ok bool) {
	taken := []chan struct{}{}
	leave = func() {
		for _, seats := range taken {
			<-seats
		}
	}
	defer func() {
		if !ok {
			leave()
		}
	}()
	var text bytes.Buffer
	if _, err := io.CopyN(&text, r.Body, small); err == nil {
		if !take(l.large) {
			return leave, false
		}
		taken = append(taken, l.large)
		_, _ = io.CopyN(&text, r.Body, rulefile.MaxSize+1-small)
	}
	if !take(l.seats) {
		return leave, false
	}
	taken = append(taken, l.seats)
	r.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(&text, r.Body), r.Body}
	return leave, true
}

// enter takes a seat, if one is free.
func (l *lane) enter() bool { return take(l.seats) }

func take(seats chan struct{}) bool {
	select {
	case seats <- struct{}{}:
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
