package admin

import (
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/internal/top"
)

// How many clients are shown, if nobody says, and at most: nodes don't tell each other of many more.
const (
	usualTop = 50
	mostTop  = 200
)

func (a *API) top(w http.ResponseWriter, r *http.Request) *jsonerror.Error {
	values := r.URL.Query()
	q := top.Query{K: usualTop, Rule: values.Get("rule")}
	switch by := values.Get("by"); by {
	case "", "requests":
	case "refused":
		q.Refused = true
	default:
		return jsonerror.Bad("by: must be requests or refused, got %q", by)
	}
	if text := values.Get("k"); text != "" {
		k, err := strconv.Atoi(text)
		if err != nil || k < 1 || k > mostTop {
			return jsonerror.Bad("k: must be a number from 1 to %d, got %q", mostTop, text)
		}
		q.K = k
	}
	out := a.Top(r.Context(), q)
	a.onlyInForce(&out, q.Rule)
	if q.Rule != "" && len(out.Rules) == 0 {
		return jsonerror.New(http.StatusNotFound, jsonerror.NotFound, "there is no rule %q: GET /v1/rules has them", q.Rule)
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
