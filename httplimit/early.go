package httplimit

import (
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// early is the body of a request that waits in a queue, read meanwhile: over HTTP/1 a server
// notices that a client has left only once its body was read, and until then a client that left
// would keep the place of others.
type early struct {
	room    *room
	held    atomic.Int64 // bytes of room.ahead
	over    atomic.Bool  // the handler is done
	body    io.ReadCloser
	control *http.ResponseController
	turn    atomic.Bool   // the handler is next: read no further ahead
	done    chan struct{} // closed when nothing is read ahead any more
	ahead   []byte        // what was read; the handler's once done is closed
	err     error         // how that ended; likewise

	mu    sync.Mutex
	ended bool // guarded by mu: the body was read to its end, or can't be
	late  bool // guarded by mu: the rest has a deadline
}

const (
	// maxEarly is the longest body that is read ahead. Longer ones, and those of unknown length, are the handler's alone.
	maxEarly = 64 << 10
	// lateBody is how long the rest of a body may take that hadn't arrived when its turn came.
	lateBody = 10 * time.Second
)

// readEarly begins to read a request's body, or returns nil if that is no use or not ours to do.
func readEarly(w http.ResponseWriter, r *http.Request, room *room) *early {
	if r.ProtoMajor != 1 || r.ContentLength <= 0 || r.ContentLength > maxEarly || r.Header["Expect"] != nil {
		return nil
	}
	e := &early{room: room, body: r.Body, control: http.NewResponseController(w), done: make(chan struct{})}
	// The time that a request waits isn't its client's slowness, and a read whose
	// deadline passes would look as if the client had left.
	if e.control.SetReadDeadline(time.Time{}) != nil {
		return nil // nobody is at the other end
	}
	go e.readAhead(int(r.ContentLength) + 1) // with room to see the end
	r.Body = e
	return e
}

// readAhead reads up to most bytes. The buffer grows with what arrives: what a client announces costs it nothing.
func (e *early) readAhead(most int) {
	defer func() {
		close(e.done)
		if e.over.Load() {
			e.release()
		}
	}()
	var buf []byte
	n := 0
	for e.err == nil && n < most && !e.turn.Load() {
		if n == len(buf) {
			grown := make([]byte, min(max(512, 2*n), most))
			if !e.hold(len(grown) - len(buf)) {
				break
			}
			copy(grown, buf)
			buf = grown
		}
		var more int
		more, e.err = e.body.Read(buf[n:])
		n += more
	}
	e.ahead = buf[:n]
	e.end(e.err)
}

// hold takes bytes of what all requests that wait may read ahead.
func (e *early) hold(n int) bool {
	if e.room.ahead.Add(int64(n)) > maxAhead {
		e.room.ahead.Add(int64(-n))
		return false
	}
	e.held.Add(int64(n))
	return true
}

// release gives them back: once the handler is done, or later, if a read is still under way then.
func (e *early) release() {
	if e == nil {
		return
	}
	e.over.Store(true)
	select {
	case <-e.done:
		e.room.ahead.Add(-e.held.Swap(0))
	default:
	}
}

// end notes that a read ended the body. A deadline that hand set a moment later must not stay:
// the server goes on listening for a hang-up, and would take it for one.
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

// hand gives the body to the handler. What is missing of it may take a while, and not for ever.
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

// abandon ends the reading, for a request that gave up its turn.
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
