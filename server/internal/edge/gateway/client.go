package gateway

import (
	"context"
	"io"
	"maps"
	"net/http"
	"sync"
	"time"
)

// client wraps the ResponseWriter of a client. The client must accept each part of the response within the duration
// patience. Otherwise the client could keep a connection to the upstream busy forever.
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

// hurry sets a write deadline, and returns a function that removes it. The deadline must be removed while the gateway
// isn't writing: the upstream may pause, and HTTP/2 resets a stream whose deadline passes.
func (c *client) hurry() (relax func()) {
	_ = c.control.SetWriteDeadline(time.Now().Add(c.patience))
	return func() { _ = c.control.SetWriteDeadline(time.Time{}) }
}

// requestBody is a client's body on its way to the upstream. If the client stalls, or sends only a byte now and then,
// it cancels the exchange. It remembers why reading the body failed. Only the time in which the gateway waits for the
// client counts, and not the time that the upstream takes to read.
type requestBody struct {
	io.ReadCloser
	in     *http.Request
	client *client
	cancel context.CancelFunc // cancels the request to the upstream

	mu      sync.Mutex
	idle    sync.Cond // signaled when a read ends
	timer   *time.Timer
	wait    grace       // how long to wait for the client
	trailer http.Header // the trailer of the request to the upstream; its values are set at the end of the body
	reading bool
	replied bool  // the response has begun, so the client may pause
	done    bool  // the handler has returned, so the connection belongs to the server again
	ended   bool  // the body was read to its end
	stalled bool  // the gateway has stopped waiting for the client
	err     error // why reading the body failed
}

// newRequestBody wraps a request's body. On HTTP/1, it prevents the server from reading and closing the body when the
// response begins. At that time, the transport may still be reading the body, and would send it with gaps or abort the
// response.
func newRequestBody(r *http.Request, c *client, cancel context.CancelFunc) *requestBody {
	b := &requestBody{ReadCloser: r.Body, in: r, client: c, cancel: cancel, wait: grace{most: c.patience, rate: minBodyRate}}
	b.idle.L = &b.mu
	b.timer = time.AfterFunc(time.Hour, b.stall)
	b.timer.Stop() // stopped until the first read
	if b.ended = !hasBody(r); b.ended {
		return b
	}
	if b.isHTTP1() {
		_ = c.control.EnableFullDuplex()
		_ = c.control.SetReadDeadline(time.Time{}) // remove the deadline that ServeHTTP has set in case the request is refused
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
		for name := range b.trailer { // forward only announced fields, because the upstream doesn't expect others
			b.trailer[name] = b.in.Trailer[name]
		}
	default:
		b.err = err
	}
}

// stall stops waiting for a client. It also ends the read in progress, because the transport waits for that read.
func (b *requestBody) stall() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.reading || b.replied || b.done {
		return // the read ended just as the timer fired
	}
	b.stalled = true // set this first: the read that ends now looks as if the client had disconnected
	_ = b.client.control.SetReadDeadline(time.Now())
	b.cancel()
}

// answered is called when the response begins. From then on, the client may pause for as long as it likes.
func (b *requestBody) answered() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.replied = true
	b.timer.Stop()
}

// unfinished reports whether a response that begins now must close its connection. Otherwise the rest of an HTTP/1 body
// would be read as the next request.
func (b *requestBody) unfinished() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.ended && b.isHTTP1()
}

// takeTrailer remembers the header in which the values of the announced trailer fields are to be set.
func (b *requestBody) takeTrailer(trailer http.Header) {
	maps.DeleteFunc(trailer, func(name string, _ []string) bool { return isForwarding(name) })
	b.mu.Lock()
	defer b.mu.Unlock()
	b.trailer = trailer
}

// finish gives the connection back to the server. It waits until the transport has stopped reading from the connection.
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
