package admin

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/weirhq/weir/cooldown"
	"github.com/weirhq/weir/internal/jsonerror"
)

// Cooldowns is the response to GET /v1/cooldowns.
type Cooldowns struct {
	InForce   int                 `json:"in_force"`
	Shadow    int                 `json:"shadow"`
	Cooldowns []cooldown.Cooldown `json:"cooldowns"` // sorted by their ends, latest first
}

// usualCooldowns is how many cooldowns are listed by default, and mostCooldowns is the maximum.
const (
	usualCooldowns = 100
	mostCooldowns  = 10_000
)

func (a *API) cooldowns(r *call) (any, *jsonerror.Error) {
	k, f := r.number("k", usualCooldowns, mostCooldowns)
	if f != nil {
		return nil, f
	}
	inForce := map[string]bool{} // whether each rule is in force; cooldowns of removed rules refuse nothing
	for _, r := range a.Rules.InForce().File.Rules.Rules {
		inForce[strings.ToLower(r.ID)] = true
	}
	out := Cooldowns{Cooldowns: []cooldown.Cooldown{}}
	for _, c := range a.Cooldowns.All() {
		switch {
		case !inForce[c.Rule]:
			continue
		case c.Shadow:
			out.Shadow++
		default:
			out.InForce++
		}
		if int64(len(out.Cooldowns)) < k {
			out.Cooldowns = append(out.Cooldowns, c)
		}
	}
	return out, nil
}

// liftTime is how long the store may take to lift a cooldown. The other nodes learn from the store that it was lifted.
const liftTime = 2 * time.Second

func (a *API) liftCooldown(r *call) (any, *jsonerror.Error) {
	var id cooldown.ID
	if err := id.UnmarshalText([]byte(r.PathValue("id"))); err != nil {
		return nil, jsonerror.Bad("id: %v", err)
	}
	ctx, cancel := context.WithTimeout(r.Context(), liftTime)
	defer cancel()
	c, err := a.Cooldowns.Lift(ctx, id)
	switch {
	case c == nil:
		return nil, jsonerror.New(http.StatusNotFound, jsonerror.NotFound, "no client with this id is in a cooldown: it may have ended; GET /v1/cooldowns lists them")
	case err != nil:
		a.audit(r, "lift a cooldown", "answer", jsonerror.StoreUnavailable, "rule", c.Rule, "client", c.Client)
		return nil, jsonerror.New(http.StatusServiceUnavailable, jsonerror.StoreUnavailable, "this node has lifted the cooldown, and the others can't be told: %v", err)
	}
	a.audit(r, "lift a cooldown", "rule", c.Rule, "client", c.Client)
	return c, nil
}
