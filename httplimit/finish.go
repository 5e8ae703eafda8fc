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
	"github.com/weirhq/weir/internal/renew"
)

// serveAndFinish gives back what rules that count by status took for other
// answers. It does so once the handler is done, or earlier if the answer goes on
// after its status is known: a stream or a WebSocket would hold on to its
// charge for as long as it lives.
//
// A request that got no answer has used its attempt, whatever the cause: what it asked for may have
// been done all the same, and to learn whether a guess was right there are other ways than its
// answer.
func (m *Middleware) serveAndFinish(w http.ResponseWriter, r *http.Request, next http.Handler, d weir.Decision) {
	a := &answer{m: m, r: r, d: d, reserved: d.Reserved()}
	if a.late = a.reserved || d.Slots() > 0; a.late {
		if m.opts.OnError != nil {
			a.r = r.Clone(context.WithoutCancel(r.Context())) // it may be told while the handler does what it likes with its own
		}
		a.stop = renew.Keep(r.Context(), m.limiter, &d, func(err error) { m.tell(a.r, err) })
		defer a.left()
	}
	r = r.WithContext(context.WithValue(r.Context(), answerKey{}, a))
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = &watchedBody{r.Body, a}
	}
	next.ServeHTTP(httpsnoop.Wrap(w, a.hooks()), r) // a panic is no answer
	if a.status == 0 && r.Context().Err() != nil || a.status == clientClosedRequest || a.hijacked.Load() {
		return
	}
	a.begun(http.StatusOK)
	a.ended = true
	a.finish()
}

// left is called when the handler has ended, however it did. Whoever has hijacked the connection ends the request by closing
// that.
func (a *answer) left() {
	if !a.hijacked.Load() {
		a.end()
	}
}

// end finishes a request that has slots or has reserved something: those are its own for as long as it lasts.
func (a *answer) end() {
	a.once.Do(func() {
		a.stop() // before they are released: a renewal would take them again
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

// clientClosedRequest is the status with which proxies note that there was nobody to answer.
const clientClosedRequest = 499

// watchedBody notes that a client's body broke. Whatever a handler, or a proxy of someone else's, begins to say then
// is about the body, and what came before the break may have been a guess.
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

// NoAnswer tells the limiter in front of a handler that what the handler writes isn't the answer of the service that it
// stands for: that may have got the request, and its answer is lost. Rules that count by the answer's status then keep
// what they took. It does nothing without such rules.
func NoAnswer(r *http.Request) {
	if a, ok := r.Context().Value(answerKey{}).(*answer); ok {
		a.lost.Store(true)
	}
}

// answer watches what a handler answers with.
type answer struct {
	m        *Middleware
	r        *http.Request
	d        weir.Decision
	status   int         // 0 until it is known
	lost     atomic.Bool // what is written isn't the answer
	broken   atomic.Bool // the request's body is
	finished bool

	// Of a request that has slots or has reserved something:
	late     bool // it is finished when it ends
	reserved bool
	ended    bool // there was an answer; not written once the connection is hijacked
	stop     func()
	once     sync.Once
	hijacked atomic.Bool
	settled  atomic.Pointer[weir.Outcome]
}

// begun notes the status of an answer, if it is the first. 1xx are not the
// answer yet, except for the switch to another protocol.
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
				write(status) // first, since it panics at a status that can't be
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
				flush() // first: a client that waits for it shouldn't wait for the store as well
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
