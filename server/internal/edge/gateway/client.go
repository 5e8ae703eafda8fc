package gateway

import (
	"context"
	"io"
	"maps"
	"net/http"
	"sync"
	"time"
)

// client wraps the ResponseWriter of a client. The client must accept each part of the response
// within its patience. Otherwise it could hold a connection to the upstream forever.
type client struct {
	http.ResponseWriter
	control  *http.ResponseController
	patience time.Duration
}

func (c *client) Write(p []byte) (int, error) {
	defer c.hurry()()
	return c.ResponseWriter.Write(p)
}

// FlushError flushes the response. [http.ResponseController] calls it.
func (c *client) FlushError() error {
	defer c.hurry()()
	return c.control.Flush()
}

// Unwrap lets [http.ResponseController] find the methods that client lacks, such as Hijack.
func (c *client) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// hurry sets a write deadline, and returns the function that removes it. The deadline must be removed
// while nothing is written, because the upstream may pause, and HTTP/2 resets a stream whose deadline
// passes.
func (c *client) hurry() (relax func()) {
	_ = c.control.SetWriteDeadline(time.Now().Add(c.patience))
	return func() { _ = c.control.SetWriteDeadline(time.Time{}) }
}

// requestBody is a client's body on its way to the upstream. It cancels the exchange if the client
// stalls, or sends only a byte now and then, and remembers why a body failed. Only the time that the
// gateway waits for the client counts, not the time that the upstream takes to read.
type requestBody struct {
	io.ReadCloser
	in     *http.Request
	client *client
	cancel context.CancelFunc // cancels the upstream's request

	mu      sync.Mutex
	idle    sync.Cond // signals the end of a read
	timer   *time.Timer
	wait    grace       // how much longer to wait for the client
	trailer http.Header // the trailer that the upstream gets; its values are set at the end of the body
	reading bool
	replied bool  // the response has begun
	done    bool  // the handler returns, and the connection belongs to the server again
	ended   bool  // the body was read to its end
	stalled bool  // the gateway gave up on the client
	err     error // why reading the body failed
}

// newRequestBody wraps a request's body. On HTTP/1, it stops the server from reading and closing the
// body when the response begins: the transport may still be reading it, and would send a body with
// gaps or abort the response.
func newRequestBody(r *http.Request, c *client, cancel context.CancelFunc) *requestBody {
	b := &requestBody{ReadCloser: r.Body, in: r, client: c, cancel: cancel, wait: grace{most: c.patience, rate: minBodyRate}}
	b.idle.L = &b.mu
	b.timer = time.AfterFunc(time.Hour, b.stall)
	b.timer.Stop() // until the first read
	if b.ended = !hasBody(r); b.ended {
		return b
	}
	if b.isHTTP1() {
		_ = c.control.EnableFullDuplex()
		_ = c.control.SetReadDeadline(time.Time{}) // ServeHTTP set a deadline in case of a refusal
	}
	r.Body = b
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
	if by := b.wait.begin(); !b.replied {
		b.timer.Reset(time.Until(by))
	}
	return nil
}

func (b *requestBody) end(n int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reading = false
	b.wait.end(n)
	b.idle.Broadcast()
	b.timer.Stop()
	switch err {
	case nil:
	case io.EOF:
		b.ended = true
		for name := range b.trailer { // forward only announced fields, because the upstream doesn't know of others
			b.trailer[name] = b.in.Trailer[name]
		}
	default:
		b.err = err
	}
}

// stall gives up on a client. It also ends the pending read, because the transport waits for it.
func (b *requestBody) stall() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.reading || b.replied || b.done {
		return // the read ended just as the timer fired
	}
	b.stalled = true // set this before what follows, which looks as if the client had left
	_ = b.client.control.SetReadDeadline(time.Now())
	b.cancel()
}

// answered is called when the response begins. From then on, the client may pause for any time.
func (b *requestBody) answered() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.replied = true
	b.timer.Stop()
}

// unfinished reports whether a response that begins now must close its connection, so that the rest
// of an HTTP/1 body isn't read as the next request.
func (b *requestBody) unfinished() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.ended && b.isHTTP1()
}

// takeTrailer remembers where to put the values of the announced trailer fields.
func (b *requestBody) takeTrailer(trailer http.Header) {
	maps.DeleteFunc(trailer, func(name string, _ []string) bool { return isForwarding(name) })
	b.mu.Lock()
	defer b.mu.Unlock()
	b.trailer = trailer
}

// finish gives the connection back to the server, after the transport has stopped reading from it.
func (b *requestBody) finish() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.done = true
	b.timer.Stop()
	if b.reading && b.isHTTP1() && b.client.control.SetReadDeadline(time.Now()) == nil {
		for b.reading {
			b.idle.Wait()
		}
	}
}

func (b *requestBody) fault() (stalled bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.stalled, b.err
}
