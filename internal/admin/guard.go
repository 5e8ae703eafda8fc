package admin

import (
	"context"
	"net/http"

	"github.com/weirhq/weir/internal/guard"
	"github.com/weirhq/weir/internal/jsonerror"
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
			refused.Write(w)
		case who.Role < role:
			f := jsonerror.New(http.StatusForbidden, jsonerror.Forbidden, "the token of %s may only read", who.Name)
			a.refused(r, who, f.Code)
			f.Write(w)
		case route.costly && !lane.enter():
			busy().Write(w)
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
