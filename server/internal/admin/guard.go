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

type queueKey struct{}

// inTurn does the costly part of a request when it is its turn. Writing the answer isn't part of
// it, because a slow client must not keep the others waiting.
func inTurn(r *http.Request, work func()) *jsonerror.Error {
	return r.Context().Value(queueKey{}).(*queue).work(r.Context(), work)
}

// admitted wraps the handler of a route with authentication. Dry runs need no more than the right
// to read.
func (a *API) admitted(route Route, h http.HandlerFunc) http.HandlerFunc {
	if route.Role == guard.Anybody {
		return h // the handler asks the guard itself
	}
	return func(w http.ResponseWriter, r *http.Request) {
		role, queue := route.Role, a.looks
		if route.rules {
			if dry, err := flag(r, "dry_run"); dry && err == nil {
				role = guard.Read
			} else {
				queue = a.writes
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
				leave, ok := queue.receive(r)
				if !ok {
					busy().Write(w)
					return
				}
				defer leave()
				ctx = context.WithValue(ctx, queueKey{}, queue)
			}
			h(w, r.WithContext(ctx))
		}
	}
}

func (a *API) refused(r *http.Request, who guard.Who, why string, line guard.Line) {
	_, path, _ := strings.Cut(r.Pattern, " ") // log the route's pattern: a request's own path may hold a key
	a.line(line, slog.LevelWarn, "admin: refused", "who", who.Name, "from", r.RemoteAddr, "method", r.Method, "path", path, "why", why)
}

// line logs a message that callers could repeat at will, unless there were too many lately.
func (a *API) line(line guard.Line, level slog.Level, msg string, args ...any) {
	if line.LeftOut > 0 {
		args = append(args, "left_out", line.LeftOut)
	}
	if line.Log {
		a.Audit.Log(context.Background(), level, msg, args...)
	}
}

func (a *API) session(w http.ResponseWriter, r *http.Request) *jsonerror.Error {
	a.writeSession(w, whoOf(r), "")
	return nil
}

func (a *API) writeSession(w http.ResponseWriter, who guard.Who, proof string) {
	self := a.Self()
	out := Session{
		Name: who.Name, Role: who.Role.String(), Session: !who.Ends.IsZero(), Tokens: a.Guard.Asks(), Proof: proof,
		RulesInFile: a.Rules.File(), Node: self.Name, Version: self.Version,
	}
	if out.Session {
		out.Expires = &who.Ends
	}
	WriteJSON(w, http.StatusOK, out)
}

func (a *API) login(w http.ResponseWriter, r *http.Request) *jsonerror.Error {
	var in struct {
		Token string `json:"token"`
	}
	if f := decodeWithin(w, r, maxLogin, &in); f != nil {
		return f
	}
	if in.Token == "" {
		return jsonerror.Bad(`token: is missing: send {"token": "…"}`)
	}
	begun, who, refused := a.Guard.Login(r, in.Token)
	if refused != nil {
		a.refused(r, who, refused.Code, refused.Line)
		return refused.Error
	}
	proof := ""
	if begun != nil {
		http.SetCookie(w, begun.Cookie)
		proof = begun.Proof
		a.line(a.Guard.Line(who.Name), slog.LevelInfo, "audit", "who", who.Name, "from", r.RemoteAddr, "what", "log in")
	}
	a.writeSession(w, who, proof)
	return nil
}

// maxLogin is how many bytes of a login are read: anybody may send one.
const maxLogin = 4 << 10

func (a *API) logout(w http.ResponseWriter, r *http.Request) *jsonerror.Error {
	cookie, refused := a.Guard.Logout(r)
	if refused != nil {
		return refused.Error
	}
	http.SetCookie(w, cookie)
	w.WriteHeader(http.StatusNoContent)
	return nil
}
