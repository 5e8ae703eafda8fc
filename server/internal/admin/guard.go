package admin

import (
	"context"
	"log/slog"
	"net/http"
	"strings"

	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/server/internal/edge/guard"
)

type whoKey struct{}

func whoOf(r *http.Request) guard.Who {
	w, _ := r.Context().Value(whoKey{}).(guard.Who)
	return w
}

type laneKey struct{}

// inTurn does the work of a request whose route is costly, and not the answer: a slow client must not keep the others waiting.
func inTurn(r *http.Request, work func()) *jsonerror.Error {
	return r.Context().Value(laneKey{}).(*lane).work(r.Context(), work)
}

// admitted lets requests through to what answers them. Whatever changes nothing may be looked at.
func (a *API) admitted(route Route, h http.HandlerFunc) http.HandlerFunc {
	if route.Role == guard.Anybody {
		return h // which asks the guard itself
	}
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
			a.refused(r, who, refused.Code, refused.Line)
			refused.Write(w)
		case who.Role < role:
			f := jsonerror.New(http.StatusForbidden, jsonerror.Forbidden, "the token of %s may only read", who.Name)
			a.refused(r, who, f.Code, a.Guard.Line(who.Name))
			f.Write(w)
		default:
			ctx := context.WithValue(r.Context(), whoKey{}, who)
			if route.costly {
				leave, ok := lane.receive(r)
				if !ok {
					busy().Write(w)
					return
				}
				defer leave()
				ctx = context.WithValue(ctx, laneKey{}, lane)
			}
			h(w, r.WithContext(ctx))
		}
	}
}

func (a *API) refused(r *http.Request, who guard.Who, why string, line guard.Line) {
	_, path, _ := strings.Cut(r.Pattern, " ") // of the route: whoever sends a request may write anything into its own, a key also by mistake
	a.line(line, slog.LevelWarn, "admin: refused", "who", who.Name, "from", r.RemoteAddr, "method", r.Method, "path", path, "why", why)
}

// line logs what its doer may repeat as often as they like, if it is worth a line.
func (a *API) line(line guard.Line, level slog.Level, msg string, args ...any) {
	if line.LeftOut > 0 {
		args = append(args, "left_out", line.LeftOut)
	}
	if line.Log {
		a.Audit.Log(context.Background(), level, msg, args...)
	}
}
