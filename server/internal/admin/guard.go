package admin

import (
	"context"
	"log/slog"
	"net/http"
	"strings"

	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/server/internal/edge/guard"
	"github.com/weirhq/weir/server/internal/observe/top"
)

// inTurn waits for the call's turn, and then runs the expensive part of the call. Sending the response isn't part of
// that, because a slow client must not delay other calls.
func (r *call) inTurn(work func()) *jsonerror.Error { return r.queue.work(r.Context(), work) }

// admit checks that the caller may make the call. For an expensive call, it also takes a seat in the call's queue, and
// the caller must call leave to give the seat up. A dry run needs only permission to read.
func (a *API) admit(route *Route, r *call) (leave func(), f *jsonerror.Error) {
	leave = func() {}
	if route.Role == guard.Anybody {
		return leave, nil // the handler calls the guard itself
	}
	role := route.Role
	r.queue = a.looks
	if route.does == changes {
		if dry, err := r.flag("dry_run"); dry && err == nil {
			role = guard.Read
		} else {
			r.queue = a.writes
		}
	}
	who, refused := a.Guard.Admit(r.Request)
	r.who = who
	switch {
	case refused != nil:
		return leave, a.refused(r, refused)
	case who.Role < role:
		return leave, a.refused(r, jsonerror.New(http.StatusForbidden, jsonerror.Forbidden, "the token of %s may only read", who.Name))
	case route.does == shows:
		return leave, nil
	}
	full := busy()
	if route.does == recalls {
		r.queue, full = a.hours, hourFault(top.ErrBusy)
	}
	leave, ok := r.queue.receive(r.Request)
	if !ok {
		return leave, full
	}
	return leave, nil
}

// refused logs that a call was refused, and returns the error.
func (a *API) refused(r *call, why *jsonerror.Error) *jsonerror.Error {
	_, path, _ := strings.Cut(r.Pattern, " ") // log the route's pattern, because the path may contain a key
	a.line(r, slog.LevelWarn, "admin: refused", "who", r.who.Name, "from", r.RemoteAddr, "method", r.Method, "path", path, "why", why.Code)
	return why
}

// line logs a message that callers can cause at will. If there were too many such messages recently, it doesn't.
func (a *API) line(r *call, level slog.Level, msg string, args ...any) {
	log, leftOut := a.Guard.Line(r.who.Name)
	if leftOut > 0 {
		args = append(args, "left_out", leftOut)
	}
	if log {
		a.Audit.Log(context.Background(), level, msg, args...)
	}
}

func (a *API) session(r *call) (any, *jsonerror.Error) { return a.sessionOf(r.who, ""), nil }

func (a *API) sessionOf(who guard.Who, proof string) Session {
	self := a.Self()
	return Session{
		Name: who.Name, Role: who.Role.String(), Session: !who.Ends.IsZero(), Tokens: a.Guard.Asks(), Expires: who.Ends, Proof: proof,
		RulesInFile: a.Rules.File(), Node: self.Name, Version: self.Version,
	}
}

type credentials struct {
	Token string `json:"token"`
}

func (a *API) login(r *call, in credentials) (any, *jsonerror.Error) {
	if in.Token == "" {
		return nil, jsonerror.Bad(`token: is missing: send {"token": "…"}`)
	}
	proof, who, refused := a.Guard.Login(r.w, r.Request, in.Token)
	r.who = who
	if refused != nil {
		return nil, a.refused(r, refused)
	}
	if proof != "" {
		a.line(r, slog.LevelInfo, "audit", "who", who.Name, "from", r.RemoteAddr, "what", "log in")
	}
	return a.sessionOf(who, proof), nil
}

// maxLogin is how many bytes of a login are read. It is small because anybody may send one.
const maxLogin = 4 << 10

func (a *API) logout(r *call) (any, *jsonerror.Error) {
	if refused := a.Guard.Logout(r.w, r.Request); refused != nil {
		return nil, refused
	}
	r.w.WriteHeader(http.StatusNoContent)
	return nil, nil
}
