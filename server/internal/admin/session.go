package admin

import (
	"log/slog"
	"net/http"

	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/server/internal/edge/guard"
)

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

// maxLogin is how much is read of a login, in bytes: anybody may send one.
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
