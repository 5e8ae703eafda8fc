package httplimit

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"

	"github.com/felixge/httpsnoop"
	"github.com/weirhq/weir"
)

// serveAndSettle gives back what rules that count by status took for other
// answers. It does so once the handler is done, or earlier if the answer goes on
// after its status is known: a stream or a WebSocket would hold on to its
// charge for as long as it lives.
func (m *Middleware) serveAndSettle(w http.ResponseWriter, r *http.Request, next http.Handler, d weir.Decision) {
	a := &answer{m: m, r: r, d: d}
	returned := false
	defer func() {
		// Whoever hangs up before the answer pays for it: to learn whether a guess was right
		// there are other ways than this answer, and a hang-up must not be a free attempt.
		if a.status == clientClosedRequest || a.status == 0 && r.Context().Err() != nil {
			return
		}
		// A panic is a 500, unless the handler had already told the client of an error.
		if !returned && a.status < 400 {
			a.status = http.StatusInternalServerError
		}
		a.begun(http.StatusOK)
		a.settle()
	}()
	next.ServeHTTP(httpsnoop.Wrap(w, a.hooks()), r)
	returned = true
}

// clientClosedRequest is the status with which proxies note that there was nobody to answer.
const clientClosedRequest = 499

// answer watches what a handler answers with.
type answer struct {
	m       *Middleware
	r       *http.Request
	d       weir.Decision
	status  int // 0 until it is known
	settled bool
}

// begun notes the status of an answer, if it is the first. 1xx are not the
// answer yet, except for the switch to another protocol.
func (a *answer) begun(status int) {
	if a.status == 0 && (status >= 200 || status == http.StatusSwitchingProtocols) {
		a.status = status
	}
}

func (a *answer) settle() {
	if a.settled {
		return
	}
	a.settled = true
	if err := a.m.limiter.Settle(context.WithoutCancel(a.r.Context()), &a.d, a.status); err != nil {
		a.m.tell(a.r, err)
	}
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
				flush() // first: whoever waits for it shouldn't wait for the store as well
				a.settle()
			}
		},
		Hijack: func(hijack httpsnoop.HijackFunc) httpsnoop.HijackFunc {
			return func() (net.Conn, *bufio.ReadWriter, error) {
				conn, rw, err := hijack()
				if err == nil {
					a.begun(http.StatusSwitchingProtocols)
					a.settle()
				}
				return conn, rw, err
			}
		},
	}
}
