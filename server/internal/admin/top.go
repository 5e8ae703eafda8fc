package admin

import (
	"net/http"
	"slices"
	"strings"

	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/server/internal/observe/top"
)

// How many clients are shown, if nobody says, and at most: nodes don't tell each other of many more.
const (
	usualTop = 50
	mostTop  = 200
)

func (a *API) top(w http.ResponseWriter, r *http.Request) *jsonerror.Error {
	q, f := query(r, mostTop)
	if f != nil {
		return f
	}
	out := a.Top(r.Context(), q)
	a.onlyInForce(&out, q.Rule)
	if q.Rule != "" && len(out.Rules) == 0 {
		return noRule(q.Rule)
	}
	WriteJSON(w, http.StatusOK, out)
	return nil
}

// onlyInForce adds rules that nobody has hit yet, and takes out those that were removed. Limits that aren't of a rule, such as
// of POST /v1/take, are shown while they are used.
func (a *API) onlyInForce(out *top.Answer, only string) {
	inForce := map[string]bool{}
	for _, r := range a.Rules.InForce().File.Rules.Rules {
		inForce[r.ID] = only == "" || r.ID == only
	}
	out.Rules = slices.DeleteFunc(out.Rules, func(u top.RuleUse) bool {
		unused := !inForce[u.Rule] && u.Requests == 0
		delete(inForce, u.Rule)
		return unused
	})
	for id, wanted := range inForce {
		if wanted {
			out.Rules = append(out.Rules, top.RuleUse{Rule: id})
		}
	}
	slices.SortFunc(out.Rules, func(a, b top.RuleUse) int { return strings.Compare(a.Rule, b.Rule) })
}
