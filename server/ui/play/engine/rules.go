package engine

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/private"
	"github.com/weirhq/weir/rulefile"
)

// Read is the result of reading the user's rules. If it has no problems, the rules are in force.
type Read struct {
	Problems []rulefile.Problem `json:"problems"`
	Warnings []rulefile.Problem `json:"warnings"`
}

// maxProblems is how many problems are shown at a time. People fix these before they try again.
const maxProblems = 20

// Rules puts the user's own rules in force, and discards all arrivals. If there are problems, it changes nothing.
func (e *Engine) Rules(text string, now time.Time) Read {
	if len(text) > MaxText {
		return Read{Problems: []rulefile.Problem{{
			File: "rules.yaml", Text: fmt.Sprintf("the playground takes at most %d KiB of rules: try larger files with `weir rules lint` and `weir explain`", MaxText>>10),
		}}}
	}
	f, err := rulefile.ParseAt("rules.yaml", []byte(text), now)
	if err != nil {
		var problems rulefile.Problems
		errors.As(err, &problems)
		return Read{Problems: problems[:min(len(problems), maxProblems)]}
	}
	e.own, e.begin = f.Set, aligned(24*time.Hour)
	e.Clear()
	return Read{Warnings: f.Warnings[:min(len(f.Warnings), maxProblems)]}
}

// Request is a request as the user has typed it. Its key and its tier count as verified.
type Request struct {
	Key    string `json:"key"`
	User   string `json:"user"`
	Org    string `json:"org"`
	Tier   string `json:"tier"`
	IP     string `json:"ip"`
	Method string `json:"method"`
	Path   string `json:"path"`
	Cost   int64  `json:"cost"`
}

// Explanation says which of the user's rules apply to a request, and why the others don't.
type Explanation struct {
	// Reason is "within", unless something decides before the limits are checked: a list, or a value that the request
	// lacks.
	Reason  string      `json:"reason"`
	Entry   string      `json:"entry"` // the entry of the list that has decided
	Tier    string      `json:"tier"`
	TierWhy string      `json:"tier_why"`
	Rules   []Explained `json:"rules"`
}

// Explained says whether a rule applies to a request, and why.
type Explained struct {
	ID      string   `json:"id"`
	Applies bool     `json:"applies"`
	Why     string   `json:"why"`
	By      []string `json:"by"`
	Cost    int64    `json:"cost"`
	Limits  []string `json:"limits"`
	From    string   `json:"from"`
}

// maxExplained is the maximum number of rules that are explained. Rules that apply come first.
const maxExplained = 200

// Ask sets the request that is sent from now on. It explains what the user's rules do with the request, and shows the
// limits that count it.
func (e *Engine) Ask(r Request) (Explanation, error) {
	if e.own == nil {
		return Explanation{}, errors.New("there are no rules of your own yet")
	}
	for _, text := range []string{r.Key, r.User, r.Org, r.Tier, r.IP, r.Method, r.Path} {
		if len(text) > private.MaxPath {
			return Explanation{}, fmt.Errorf("what is typed must be at most %d bytes long", private.MaxPath)
		}
	}
	if r.Cost < 0 || r.Cost > counter.MaxTokens {
		return Explanation{}, fmt.Errorf("cost: must be from 1 to %d, got %d", int64(counter.MaxTokens), r.Cost)
	}
	req := weir.Request{
		APIKey: r.Key, KeyVerified: true, User: r.User, Org: r.Org, Tier: r.Tier, TierVerified: true,
		Method: strings.ToUpper(r.Method), Path: r.Path, Cost: r.Cost,
	}
	if r.IP != "" {
		ip, err := netip.ParseAddr(r.IP)
		if err != nil {
			return Explanation{}, fmt.Errorf("ip: must be an address such as 203.0.113.7, got %q", r.IP)
		}
		req.IP = ip
	}
	e.request = req
	e.look()
	return explain(e.own, &req), nil
}

func explain(rules *weir.RuleSet, req *weir.Request) Explanation {
	x := rules.Explain(req)
	out := Explanation{Reason: x.Reason.String(), Entry: x.Pattern, Tier: x.Tier, TierWhy: x.TierWhy}
	for _, applies := range []bool{true, false} {
		for _, r := range x.Rules {
			if r.Applies != applies || len(out.Rules) == maxExplained {
				continue
			}
			one := Explained{ID: r.ID, Applies: r.Applies, Why: r.Why, By: r.By, Cost: r.Cost, From: r.From}
			for _, p := range r.Limits {
				one.Limits = append(one.Limits, p.Limit.String()+" "+p.Limit.Algorithm.String())
			}
			out.Rules = append(out.Rules, one)
		}
	}
	return out
}

// maxLanes is the maximum number of lanes that are shown for a request.
const maxLanes = 12

// look finds out, with a peek, which counters the request would be charged to, and shows them.
func (e *Engine) look() {
	req := e.request
	req.Peek = true
	e.store.looked = nil
	unguarded := weir.NewLimiter(e.store, e.own, weir.Options{Now: func() time.Time { return private.Now(e.limiter) }}) // without cooldowns, because the counters of a client in a cooldown are shown, too
	_, _ = unguarded.Check(context.Background(), &req)                                                                  // can't fail: the store is a memstore
	e.lanes, e.fresh, e.applied = nil, true, len(e.store.looked)
	for _, l := range e.store.looked {
		if len(e.lanes) < maxLanes && !slices.Contains(e.lanes, l) {
			e.lanes = append(e.lanes, l)
		}
	}
}

// answer describes a decision.
func answer(d *weir.Decision) string {
	switch {
	case d.Reason == weir.ReasonUnlimited:
		return "allowed: no rule applies"
	case d.Reason == weir.ReasonBypassed:
		return "allowed: the allow list has it"
	case d.Allowed && d.Delay > 0:
		return "allowed by " + d.Rule + ", after a wait of " + seconds(d.Delay)
	case d.Allowed:
		return "allowed, " + strconv.FormatInt(d.Remaining, 10) + " left of " + d.Rule
	case d.Reason != weir.ReasonLimited:
		return "refused: " + strings.ReplaceAll(d.Reason.String(), "_", " ")
	case d.RetryAfter == weir.Never:
		return "refused by " + d.Rule + ": it costs more than the limit ever admits"
	}
	return "refused by " + d.Rule + ", fits again in " + seconds(d.RetryAfter)
}
