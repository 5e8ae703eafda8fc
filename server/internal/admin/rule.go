package admin

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/internal/node/inforce"
	"github.com/weirhq/weir/internal/node/rulestore"
	"github.com/weirhq/weir/internal/private"
	"github.com/weirhq/weir/rulefile"
)

// OneRule is the response to GET /v1/rules/id/{id}.
type OneRule struct {
	Rule   string   `json:"rule"`
	YAML   string   `json:"yaml"` // the rule's text with its comments, in the form that PUT takes
	Line   int      `json:"line"` // the rule's line in the document
	Limits []string `json:"limits"`
	// Numbers has the same limits as Limits, split into their parts.
	Numbers []RuleNumbers `json:"numbers"`
	// Changed is the version that last changed the rule. If it is nil, Reason says why it isn't
	// known.
	Changed *Version `json:"changed"`
	Reason  string   `json:"reason,omitempty"`
	// Searched is how many versions were compared to find Changed.
	Searched int `json:"searched"`
}

// RuleNumbers has the numbers of one limit of a rule. The rule may take them from a tier.
type RuleNumbers struct {
	Tier  string `json:"tier,omitempty"`
	Limit string `json:"limit"`
	Burst int64  `json:"burst,omitempty"`
}

func (n *RuleNumbers) String() string {
	text := strings.TrimPrefix(n.Tier+" "+n.Limit, " ")
	if n.Burst > 0 {
		text += fmt.Sprintf(" burst %d", n.Burst)
	}
	return text
}

func (a *API) rule(r *call, doc *inforce.Document) (any, *jsonerror.Error) {
	var one *rulefile.One
	var err error
	now := private.Now(a.Limiter)
	if f := r.inTurn(func() { one, err = rulefile.Find(doc.Text, r.PathValue("id"), now) }); f != nil {
		return nil, f
	}
	switch {
	case errors.Is(err, rulefile.ErrNotFound):
		return nil, jsonerror.New(http.StatusNotFound, jsonerror.NotFound, "%v", err)
	case err != nil:
		return nil, jsonerror.New(http.StatusInternalServerError, jsonerror.Internal, "the rules in force can't be read again; GET /v1/rules has them")
	}
	out := OneRule{Rule: one.Rule.ID, YAML: one.Text, Line: one.Line, Limits: []string{}, Numbers: numbersOf(one)}
	for _, n := range out.Numbers {
		out.Limits = append(out.Limits, n.String())
	}
	switch {
	case a.Rules.File() != "":
		out.Reason = "the rules are those of " + a.Rules.File() + ", which keeps no versions: ask the tool that keeps the file"
	case doc.Hash == "":
		out.Reason = "these rules aren't from the rule store, which can't be read"
	default:
		out.Changed, out.Searched, out.Reason = a.lastChange(r, rulestore.Version{Number: doc.Version, Hash: doc.Hash}, one, now)
	}
	if r.Context().Err() != nil {
		return nil, left()
	}
	r.setETag(doc.Version)
	return out, nil
}

// numbersOf returns a rule's numbers: its own, or those of tiers.
func numbersOf(one *rulefile.One) []RuleNumbers {
	out := []RuleNumbers{}
	add := func(tier string, limits []weir.Limit) {
		for _, l := range limits {
			out = append(out, RuleNumbers{tier, l.String(), l.Burst})
		}
	}
	add("", one.Rule.Limits)
	if len(one.Rule.Limits) > 0 {
		return out
	}
	tiers := one.Rule.Tiers
	if len(tiers) == 0 {
		tiers = one.Tiers
	}
	for _, t := range tiers {
		if one.Rule.Tier == "" || one.Rule.Tier == t.Name {
			add(t.Name, t.Limits)
		}
	}
	return out
}

// mostCompared and the constants below limit the search for a rule's last change, which has to
// parse a document for each version. Steps that an earlier search has made cost nothing.
const (
	mostCompared = 500
	longestWalk  = 2 * time.Second
)

// lastChange searches for the version that last changed a rule, from a version back through its
// parents. If it isn't known, reason says why. searched is how many versions were compared.
func (a *API) lastChange(r *call, v rulestore.Version, is *rulefile.One, now time.Time) (changed *Version, searched int, reason string) {
	store, begun, compared := a.Rules.Store(), time.Now(), 0
	var loaded *rulestore.Version // v, with its text
	for {
		at := ruleIn{is.Rule.ID, v.Hash}
		step, known := a.changes.get(at)
		if !known && (compared == mostCompared || time.Since(begun) > longestWalk) {
			return nil, searched, fmt.Sprintf("it is the same in the last %d versions, back to %s: ask again to have older ones compared", searched, v.Name())
		}
		searched++
		if known {
			loaded = nil
		} else {
			compared++
			if loaded == nil {
				found, f := find(r.Context(), store, v)
				if f != nil {
					return nil, searched, fmt.Sprintf("version %s can't be read: %s", v.Name(), f.Message)
				}
				loaded = &found
			}
			var parent rulestore.Version
			if loaded.Parent > 0 {
				var f *jsonerror.Error
				if parent, f = find(r.Context(), store, rulestore.Version{Number: loaded.Parent, Hash: loaded.ParentHash}); f != nil {
					return nil, searched, fmt.Sprintf("it is the same back to version %s, and the one before that can't be read: %s", v.Name(), f.Message)
				}
			}
			var was *rulefile.One
			var err error
			if f := r.inTurn(func() { was, err = rulefile.Find(parent.Text, is.Rule.ID, now) }); f != nil {
				return nil, searched, f.Message
			}
			if loaded.Parent > 0 && err == nil && was.Same(is) { // a parent that this release can't parse counts as different
				step.parent = rulestore.Version{Number: parent.Number, Hash: parent.Hash}
			} else {
				about := onWire(*loaded)
				about.Text = ""
				step.changed = &about
			}
			a.changes.put(at, step)
			loaded = &parent
		}
		if step.changed != nil {
			return step.changed, searched, ""
		}
		v = step.parent
	}
}

// lastChanges caches the steps of earlier searches. Versions never change, so steps stay valid.
type lastChanges struct {
	mu    sync.Mutex // guards steps
	steps map[ruleIn]step
}

type ruleIn struct{ id, version string }

// step says whether a version changed a rule, or took it unchanged from its parent.
type step struct {
	changed *Version
	parent  rulestore.Version // without its text
}

// mostSteps is how many steps are cached. They take a few MB at most.
const mostSteps = 20_000

func (c *lastChanges) get(at ruleIn) (step, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, known := c.steps[at]
	return s, known
}

func (c *lastChanges) put(at ruleIn, s step) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.steps == nil || len(c.steps) >= mostSteps {
		c.steps = map[ruleIn]step{}
	}
	c.steps[at] = s
}
