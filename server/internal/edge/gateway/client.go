package gateway

import (
	"context"
	"io"
	"maps"
	"net/http"
	"sync"
	"time"
)

// client is the client's end of an exchange. The client must take each part of the answer within
// its patience, or it would hold a connection to the upstream forever.
type client struct {
	http.ResponseWriter
	control  *http.ResponseController
	patience time.Duration
}

func (c *client) Write(p []byte) (int, error) {
	defer c.hurry()()
	return c.ResponseWriter.Write(p)
}

// FlushError is for [http.ResponseController].
func (c *client) FlushError() error {
	defer c.hurry()()
	return c.control.Flush()
}

// Unwrap lets it find other methods, such as Hijack.
func (c *client) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// hurry sets a write deadline and returns the function that lifts it: HTTP/2 resets a stream whose
// deadline passes even if nothing is being written, and the upstream may pause between parts.
func (c *client) hurry() (relax func()) {
	_ = c.control.SetWriteDeadline(time.Now().Add(c.patience))
	return func() { _ = c.control.SetWriteDeadline(time.Time{}) }
}

// requestBody is a client's body on its way to the upstream. It ends the exchange if the client
// stalls, as one does that sends a byte now and then, and remembers why a body broke. Only the time
// counts for which the gateway waits for the client, not for an upstream that reads slowly.
type requestBody struct {
	io.ReadCloser
	in     *http.Request
	client *client
	cancel context.CancelFunc // cancels the upstream's request

	mu      sync.Mutex
	idle    sync.Cond // signals the end of a read
	timer   *time.Timer
	wait    grace       // how long the client may still be waited for
	trailer http.Header // what the upstream gets; filled in at the end
	reading bool
	replied bool  // the answer has begun
	done    bool  // the handler returns, and the connection is the server's again
	ended   bool  // read completely
	stalled bool  // the gateway gave up on the client
	err     error // why the body broke
}

// newRequestBody prepares a request's body. On HTTP/1 it makes the server leave the body alone, which
// the server otherwise reads and closes when an answer begins: the transport, which may not be done
// with it, would send a body with holes or break off the answer.
func newRequestBody(r *http.Request, c *client, cancel context.CancelFunc) *requestBody {
	b := &requestBody{ReadCloser: r.Body, in: r, client: c, cancel: cancel, wait: grace{most: c.patience}}
	b.idle.L = &b.mu
	b.timer = time.AfterFunc(time.Hour, b.stall)
	b.timer.Stop() // until the first read
	if b.ended = !hasBody(r); b.ended {
		return b
	}
	if b.isHTTP1() {
		_ = c.control.EnableFullDuplex()
		_ = c.control.SetReadDeadline(time.Time{}) // ServeHTTP set one in case of a refusal
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
	b.wait.begin()
	if !b.replied {
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
	b.timer.Stop()
	switch err {
	case nil:
	case io.EOF:
		b.ended = true
		for name := range b.trailer { // forward announced fields only: the upstream was told of no others
			b.trailer[name] = b.in.Trailer[name]
		}
	default:
		b.err = err
	}
}

// stall gives up on a client. It must end the read, too, since the transport waits for it.
func (b *requestBody) stall() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.reading || b.replied || b.done {
		return // something happened just as the timer fired
	}
	b.stalled = true // set it first: what follows looks as if the client had left
	_ = b.client.control.SetReadDeadline(time.Now())
	b.cancel()
}

// answered is called when the answer begins. From then on the client may pause as long as it likes.
func (b *requestBody) answered() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.replied = true
	b.timer.Stop()
}

// unfinished reports whether an answer that begins now must be the last on its connection, so that
// the rest of an HTTP/1 body isn't read as the next request.
func (b *requestBody) unfinished() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.ended && b.isHTTP1()
}

// takeTrailer remembers where to put the values of announced trailer fields.
func (b *requestBody) takeTrailer(trailer http.Header) {
	maps.DeleteFunc(trailer, func(name string, _ []string) bool { return isForwarding(name) })
	b.mu.Lock()
	defer b.mu.Unlock()
	b.trailer = trailer
}

// finish hands the connection back to the server, from which the transport may still be reading.
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
