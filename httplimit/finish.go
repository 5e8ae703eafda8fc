package httplimit

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/felixge/httpsnoop"
	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/onclose"
	"github.com/weirhq/weir/internal/private"
	"github.com/weirhq/weir/internal/renew"
)

// serveAndFinish serves a request. If a rule counts only certain statuses and the response has another one, it then
// gives back that rule's charge. It does so when the handler has returned, or when a stream or a WebSocket has begun. A
// request without a response keeps its charge, whatever the cause: the service may have done the work, and a client may
// learn in other ways whether a guess was right.
func (m *Middleware) serveAndFinish(w http.ResponseWriter, r *http.Request, next http.Handler, d weir.Decision) {
	a := &answer{m: m, r: r, d: d}
	a.reserved = private.Reserved(&a.d)
	if a.late = a.reserved || d.Slots() > 0; a.late {
		if m.opts.OnError != nil { // it may run while the handler changes its own request
			a.r = r.Clone(context.WithoutCancel(r.Context()))
		}
		a.stop = renew.Keep(r.Context(), m.limiter, &d, func(err error) { m.tell(a.r, err) })
		defer func() {
			if !a.hijacked.Load() { // otherwise the connection ends the request when it closes
				a.end()
			}
		}()
	}
	r = r.WithContext(context.WithValue(r.Context(), answerKey{}, a))
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = &watchedBody{r.Body, a}
	}
	next.ServeHTTP(httpsnoop.Wrap(w, a.hooks()), r) // after a panic there is no answer to report
	const clientClosedRequest = 499                 // as proxies record that the client has left
	if a.status == 0 && r.Context().Err() != nil || a.status == clientClosedRequest || a.hijacked.Load() {
		return
	}
	a.begun(http.StatusOK)
	a.ended = true
	a.finish()
}

// end finishes a request that has slots or has reserved something.
func (a *answer) end() {
	a.once.Do(func() {
		a.stop() // before releasing the slots: a renewal would take them again
		var o weir.Outcome
		if settled := a.settled.Load(); settled != nil {
			o = *settled
		}
		if a.ended && !a.lost.Load() {
			o.Status = a.status
		}
		a.m.finish(a.r.Context(), a.r, &a.d, o)
	})
}

// watchedBody records that reading the client's body failed. An answer that starts after that may
// be about the broken body, so it says nothing about the request.
type watchedBody struct {
	io.ReadCloser
	answer *answer
}

func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF && !errors.Is(err, http.ErrBodyReadAfterClose) {
		b.answer.broken.Store(true)
	}
	return n, err
}

type answerKey struct{}

// NoAnswer tells the limiter in front of a handler that the handler's response isn't the service's own, for example
// because a proxy has lost that response. Rules that count by status then keep their charge. Without such rules,
// NoAnswer does nothing.
func NoAnswer(r *http.Request) {
	if a, ok := r.Context().Value(answerKey{}).(*answer); ok {
		a.lost.Store(true)
	}
}

// answer observes what a handler answers.
type answer struct {
	m        *Middleware
	r        *http.Request
	d        weir.Decision
	status   int         // 0 until known
	lost     atomic.Bool // the response isn't the service's own
	broken   atomic.Bool // reading the request's body failed
	finished bool

	// The rest is for requests that have slots or have reserved something.
	late     bool // finish it when it ends
	reserved bool
	ended    bool // there was an answer; not written after the connection is hijacked
	stop     func()
	once     sync.Once
	hijacked atomic.Bool
	settled  atomic.Pointer[weir.Outcome]
}

// begun records the first status of the answer. 1xx statuses don't count, except a switch of
// protocols.
func (a *answer) begun(status int) {
	if a.status == 0 && (status >= 200 || status == http.StatusSwitchingProtocols) {
		a.status = status
		if a.broken.Load() {
			a.lost.Store(true)
		}
	}
}

func (a *answer) finish() {
	if a.late || a.finished || a.lost.Load() {
		return
	}
	a.finished = true
	a.m.finish(a.r.Context(), a.r, &a.d, weir.Outcome{Status: a.status})
}

func (a *answer) hooks() httpsnoop.Hooks {
	return httpsnoop.Hooks{
		WriteHeader: func(write httpsnoop.WriteHeaderFunc) httpsnoop.WriteHeaderFunc {
			return func(status int) {
				write(status) // first, since it panics if the status is invalid
				a.begun(status)
			}
		},
		Write: func(write httpsnoop.WriteFunc) httpsnoop.WriteFunc {
			return func(b []byte) (int, error) {
				a.begun(http.StatusOK)
				return write(b)
			}
		},
		WriteString: func(write httpsnoop.WriteStringFunc) httpsnoop.WriteStringFunc {
			return func(s string) (int, error) {
				a.begun(http.StatusOK)
				return write(s)
			}
		},
		ReadFrom: func(read httpsnoop.ReadFromFunc) httpsnoop.ReadFromFunc {
			return func(src io.Reader) (int64, error) {
				a.begun(http.StatusOK)
				return read(src)
			}
		},
		Flush: func(flush httpsnoop.FlushFunc) httpsnoop.FlushFunc {
			return func() {
				a.begun(http.StatusOK)
				flush() // first: the client shouldn't have to wait for the store
				a.finish()
			}
		},
		Hijack: func(hijack httpsnoop.HijackFunc) httpsnoop.HijackFunc {
			return func() (net.Conn, *bufio.ReadWriter, error) {
				conn, rw, err := hijack()
				if err != nil {
					return conn, rw, err
				}
				a.begun(http.StatusSwitchingProtocols)
				a.finish()
				if a.ended = true; a.late {
					a.hijacked.Store(true)
					conn = onclose.Wrap(conn, a.end)
				}
				return conn, rw, nil
			}
		},
	}
}
