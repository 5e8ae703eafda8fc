package gateway

import (
	"context"
	"io"
	"net/http"
	"sync"
	"time"
)

// client is the client's end of an exchange. Each part of the answer must be
// taken within its patience, so that a client that reads nothing doesn't hold a connection to the upstream for ever.
type client struct {
	http.ResponseWriter
	control  *http.ResponseController
	patience time.Duration // 0: endless
}

func (c *client) Write(p []byte) (int, error) {
	defer c.hurry()()
	return c.ResponseWriter.Write(p)
}

// FlushError is how a [http.ResponseController] flushes.
func (c *client) FlushError() error {
	defer c.hurry()()
	return c.control.Flush()
}

// Unwrap lets a [http.ResponseController] find the rest, such as Hijack.
func (c *client) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// hurry sets a deadline, and returns what lifts it: an HTTP/2 stream whose deadline
// passes is reset even if nothing is being written, and pauses between parts are the upstream's right.
func (c *client) hurry() (relax func()) {
	if c.patience <= 0 {
		return func() {}
	}
	_ = c.control.SetWriteDeadline(time.Now().Add(c.patience))
	return func() { _ = c.control.SetWriteDeadline(time.Time{}) }
}

// requestBody is a client's body on its way to the upstream. It ends the
// exchange if the client stalls, and remembers whose fault a broken body is.
type requestBody struct {
	io.ReadCloser
	in       *http.Request
	client   *client
	cancel   context.CancelFunc // of the upstream's request
	deadline bool               // the connection has a read deadline, and it is this request's alone

	mu      sync.Mutex
	timer   *time.Timer
	trailer http.Header // what the upstream gets; filled in at the end
	reading bool
	replied bool  // the answer has begun
	done    bool  // the handler has returned: the connection is the server's again
	ended   bool  // whole
	stalled bool  // given up on
	err     error // why it broke
}

func newRequestBody(r *http.Request, c *client, cancel context.CancelFunc) *requestBody {
	b := &requestBody{ReadCloser: r.Body, in: r, client: c, cancel: cancel, deadline: r.ProtoMajor == 1}
	b.setDeadlineLocked(time.Time{}) // ServeHTTP had set one, in case of a refusal
	return b
}

func (b *requestBody) Read(p []byte) (int, error) {
	b.begin()
	n, err := b.ReadCloser.Read(p)
	b.end(err)
	return n, err
}

func (b *requestBody) begin() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reading = true
	switch {
	case b.replied || b.done || b.client.patience <= 0:
	case b.timer == nil:
		b.timer = time.AfterFunc(b.client.patience, b.stall)
	default:
		b.timer.Reset(b.client.patience)
	}
}

func (b *requestBody) end(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reading = false
	if b.timer != nil {
		b.timer.Stop()
	}
	if err == nil {
		return
	}
	if err != io.EOF {
		b.err = err
		return
	}
	b.ended = true
	for name := range b.trailer { // of those announced: the upstream was told no others
		b.trailer[name] = b.in.Trailer[name]
	}
	if b.replied {
		// The server now watches the connection for the client's leaving; a deadline left there would look like it.
		b.setDeadlineLocked(time.Time{})
	}
}

// stall gives up on a client that sends nothing. The transport waits for the
// read that is under way, so that has to end too, and not only the upstream's request.
func (b *requestBody) stall() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.reading || b.replied || b.done {
		return // it fired while something happened after all
	}
	b.stalled = true // before the rest, which looks like the client's leaving
	_ = b.client.control.SetReadDeadline(time.Now())
	b.cancel()
}

// answered is called when the upstream's answer begins. From then on pauses
// between parts of an HTTP/2 body are a conversation's. An HTTP/1 server first
// reads what is left of the body, to which it needs a limit.
func (b *requestBody) answered() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.replied = true
	if b.timer != nil {
		b.timer.Stop()
	}
	if !b.ended && b.client.patience > 0 {
		b.setDeadlineLocked(time.Now().Add(b.client.patience))
	}
}

// takeTrailer remembers where to put the values of the trailer fields that were announced.
func (b *requestBody) takeTrailer(trailer http.Header) {
	for name := range trailer {
		if isForwarding(name) {
			delete(trailer, name)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.trailer = trailer
}

// finish leaves the connection alone from now on: a read may still be in flight.
func (b *requestBody) finish() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.done = true
	if b.timer != nil {
		b.timer.Stop()
	}
}

// fault reports whether the body stopped arriving, or why it broke.
func (b *requestBody) fault() (stalled bool, err error) {
	if b == nil {
		return false, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.stalled, b.err
}

func (b *requestBody) setDeadlineLocked(t time.Time) {
	if b.deadline && !b.done {
		_ = b.client.control.SetReadDeadline(t)
	}
}
