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
//
// A client that sends a byte now and then stalls, too, or it would hold the upstream for as long as it likes. What counts is the time
// that the gateway has waited for the client, so an upstream that reads slowly isn't the client's fault.
type requestBody struct {
	io.ReadCloser
	in     *http.Request
	client *client
	cancel context.CancelFunc // of the upstream's request

	mu      sync.Mutex
	idle    sync.Cond // of reading
	timer   *time.Timer
	wait    grace       // for the client
	trailer http.Header // what the upstream gets; filled in at the end
	reading bool
	replied bool  // the answer has begun
	done    bool  // the handler returns: the connection is the server's again
	ended   bool  // read whole
	stalled bool  // given up on
	err     error // why it broke
}

// newRequestBody prepares a request's body. On HTTP/1, the server is to leave it
// alone from now on: left to itself, it reads and closes the body when an answer begins. The transport,
// which may not be done with it, would send a body with holes, or break off the answer.
func newRequestBody(r *http.Request, c *client, cancel context.CancelFunc) *requestBody {
	b := &requestBody{ReadCloser: r.Body, in: r, client: c, cancel: cancel, wait: grace{most: c.patience}}
	b.idle.L = &b.mu
	if b.isHTTP1() {
		_ = c.control.EnableFullDuplex()
		_ = c.control.SetReadDeadline(time.Time{}) // ServeHTTP had set one, in case of a refusal
	}
	return b
}

func (b *requestBody) isHTTP1() bool { return b.in.ProtoMajor == 1 }

func (b *requestBody) Read(p []byte) (int, error) {
	if err := b.begin(); err != nil {
		return 0, err
	}
	n, err := b.ReadCloser.Read(p)
	b.end(n, err)
	return n, err
}

func (b *requestBody) begin() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done {
		return http.ErrBodyReadAfterClose
	}
	b.reading = true
	b.wait.begin()
	switch {
	case b.replied || b.client.patience <= 0:
	case b.timer == nil:
		b.timer = time.AfterFunc(b.wait.mayWait(), b.stall)
	default:
		b.timer.Reset(b.wait.mayWait())
	}
	return nil
}

func (b *requestBody) end(n int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reading = false
	b.wait.end(n)
	b.idle.Broadcast()
	b.stopTimerLocked()
	switch err {
	case nil:
	case io.EOF:
		b.ended = true
		for name := range b.trailer { // of those announced: the upstream was told no others
			b.trailer[name] = b.in.Trailer[name]
		}
	default:
		b.err = err
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

// answered is called when the upstream's answer begins: from then on, pauses
// between parts of the body are a conversation's.
func (b *requestBody) answered() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.replied = true
	b.stopTimerLocked()
}

// unfinished reports whether an answer that begins now must be the last on its
// connection: what is left of an HTTP/1 body must not be taken for the next request.
func (b *requestBody) unfinished() bool {
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.ended && b.isHTTP1()
}

// takeTrailer remembers where to put the values of the trailer fields that were announced.
func (b *requestBody) takeTrailer(trailer http.Header) {
	if b == nil {
		return
	}
	for name := range trailer {
		if isForwarding(name) {
			delete(trailer, name)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.trailer = trailer
}

// finish hands the connection back to the server: the transport may still be
// reading from it, and of an HTTP/1 connection the server reads next.
func (b *requestBody) finish() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.done = true
	b.stopTimerLocked()
	if b.reading && b.isHTTP1() && b.client.control.SetReadDeadline(time.Now()) == nil {
		for b.reading {
			b.idle.Wait()
		}
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

func (b *requestBody) stopTimerLocked() {
	if b.timer != nil {
		b.timer.Stop()
	}
}
