package httplimit

import (
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// early reads the body of a request ahead while the request waits in a queue. Over HTTP/1 a server
// notices that a client has left only after the body was read, and without that a client that has
// left would keep its place in the queue.
type early struct {
	all     *atomic.Int64 // bytes that all waiting requests have read ahead
	held    atomic.Int64  // bytes that this request has read ahead
	over    atomic.Bool   // the handler has returned
	body    io.ReadCloser
	control *http.ResponseController
	turn    atomic.Bool   // the handler is next: stop reading ahead
	done    chan struct{} // closed when reading ahead has ended
	ahead   []byte        // bytes read; owned by the handler once done is closed
	err     error         // why reading ended; owned likewise

	mu    sync.Mutex
	ended bool // guarded by mu: the body has ended or failed
	late  bool // guarded by mu: the rest of the body has a deadline
}

const (
	// maxEarly is the longest body that is read ahead. Longer bodies, and those of unknown length,
	// are left to the handler.
	maxEarly = 64 << 10
	// maxAhead bounds the bytes of all bodies that are read ahead.
	maxAhead = 16 << 20
	// lateBody is how long the rest of a body may take that hadn't arrived when the request's turn
	// came.
	lateBody = 10 * time.Second
)

// readEarly begins to read a request's body, or returns nil if reading ahead is useless or not
// allowed.
func readEarly(w http.ResponseWriter, r *http.Request, all *atomic.Int64) *early {
	if r.ProtoMajor != 1 || r.ContentLength <= 0 || r.ContentLength > maxEarly || r.Header["Expect"] != nil {
		return nil
	}
	e := &early{all: all, body: r.Body, control: http.NewResponseController(w), done: make(chan struct{})}
	// Lift the read deadline: waiting in the queue isn't the client's slowness, and a read that
	// times out would look as if the client had left.
	if e.control.SetReadDeadline(time.Time{}) != nil {
		return nil // there is no connection
	}
	go e.readAhead(int(r.ContentLength) + 1) // one more, to see the end
	r.Body = e
	return e
}

// readAhead reads up to most bytes, into a buffer that grows as they arrive.
func (e *early) readAhead(most int) {
	defer func() {
		close(e.done)
		if e.over.Load() {
			e.release()
		}
	}()
	for e.err == nil && len(e.ahead) < most && !e.turn.Load() {
		if len(e.ahead) == cap(e.ahead) {
			grown := make([]byte, len(e.ahead), min(max(512, 2*len(e.ahead)), most))
			if !e.hold(cap(grown) - cap(e.ahead)) {
				break
			}
			copy(grown, e.ahead)
			e.ahead = grown
		}
		var n int
		n, e.err = e.body.Read(e.ahead[len(e.ahead):cap(e.ahead)])
		e.ahead = e.ahead[:len(e.ahead)+n]
	}
	e.end(e.err)
}

// hold reserves n of the bytes that all waiting requests may read ahead, and reports whether there
// were so many.
func (e *early) hold(n int) bool {
	if e.all.Add(int64(n)) > maxAhead {
		e.all.Add(int64(-n))
		return false
	}
	e.held.Add(int64(n))
	return true
}

// release gives the bytes back once the handler and the read that may be under way have ended.
func (e *early) release() {
	if e == nil {
		return
	}
	e.over.Store(true)
	select {
	case <-e.done:
		e.all.Add(-e.held.Swap(0))
	default:
	}
}

// end records that the body has ended. It clears a deadline that hand may have set meanwhile: the
// server goes on reading to notice a hang-up, and would take the deadline for one.
func (e *early) end(err error) {
	if err == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ended = true
	if e.late && err == io.EOF {
		_ = e.control.SetReadDeadline(time.Time{})
	}
}

// hand gives the body to the handler, with a deadline for the part that hasn't arrived.
func (e *early) hand() {
	if e == nil {
		return
	}
	e.turn.Store(true)
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.ended {
		e.late = true
		_ = e.control.SetReadDeadline(time.Now().Add(lateBody))
	}
}

// abandon stops reading, for a request that has lost its turn.
func (e *early) abandon() {
	if e == nil {
		return
	}
	e.mu.Lock()
	if !e.ended {
		_ = e.control.SetReadDeadline(time.Now())
	}
	e.mu.Unlock()
	<-e.done
}

func (e *early) Read(p []byte) (int, error) {
	<-e.done
	if len(e.ahead) > 0 {
		n := copy(p, e.ahead)
		e.ahead = e.ahead[n:]
		return n, nil
	}
	if e.err != nil {
		return 0, e.err
	}
	n, err := e.body.Read(p)
	e.end(err)
	return n, err
}

func (e *early) Close() error { return e.body.Close() }
