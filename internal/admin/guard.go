package admin

import (
	"context"
	"fmt"
	"net/http"

	"github.com/weirhq/weir/internal/guard"
)

type whoKey struct{}

func whoOf(r *http.Request) guard.Who {
	w, _ := r.Context().Value(whoKey{}).(guard.Who)
	return w
}

type laneKey struct{}

// inTurn does the work of a request whose route is costly, and not the answer: a slow client must not keep the others waiting.
func inTurn(r *http.Request, work func()) *fault {
	return r.Context().Value(laneKey{}).(*lane).work(r.Context(), work)
}

// admitted lets requests through to what answers them. Whatever changes nothing may be looked at.
func (a *API) admitted(route Route, h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		role, lane := route.Role, a.looks
		if route.rules {
			if dry, err := flag(r, "dry_run"); dry && err == nil {
				role = guard.Read
			} else {
				lane = a.writes
			}
		}
		who, refused := a.Guard.Admit(r)
		switch {
		case refused != nil:
			if refused.Log {
				a.refused(r, who, refused.Code)
			}
			(&fault{status: refused.Status, code: refused.Code, message: refused.Message, header: refused.Header}).write(w)
		case who.Role < role:
			f := newFault(http.StatusForbidden, "FORBIDDEN", "the token of %s may only read", who.Name)
			a.refused(r, who, f.code)
			f.write(w)
		case route.costly && !lane.enter():
			busy().write(w)
		default:
			ctx := context.WithValue(r.Context(), whoKey{}, who)
			if route.costly {
				defer lane.leave()
				ctx = context.WithValue(ctx, laneKey{}, lane)
			}
			h(w, r.WithContext(ctx))
		}
	}
}

func (a *API) refused(r *http.Request, who guard.Who, why string) {
	a.Audit.Warn("admin: refused", "who", who.Name, "from", r.RemoteAddr, "method", r.Method, "path", r.URL.Path, "why", why)
}

// fault is an answer that isn't the one that was wanted.
type fault struct {
	status  int
	code    string
	message string
	details any
	header  http.Header
}

func newFault(status int, code, format string, args ...any) *fault {
	return &fault{status: status, code: code, message: fmt.Sprintf(format, args...)}
}

func (f *fault) Error() string { return f.message }

func (f *fault) write(w http.ResponseWriter) {
	for name, values := range f.header {
		w.Header()[name] = values
	}
	body := map[string]any{"code": f.code, "message": f.message}
	if f.details != nil {
		body["details"] = f.details
	}
	WriteJSON(w, f.status, map[string]any{"error": body})
}
