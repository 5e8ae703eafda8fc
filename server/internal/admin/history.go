package admin

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
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

func onWire(v rulestore.Version) Version {
	return Version{v.Number, v.Hash, v.Parent, v.ParentHash, v.Orphan, v.Author, v.Time, v.Message, string(v.Text)}
}

// parseName parses the name of a version, such as 42 or 42-abcdef12. The hash may be shortened.
func parseName(text string) (v rulestore.Version, ok bool) {
	number, hash, hashed := strings.Cut(text, "-")
	n, err := strconv.ParseInt(number, 10, 64)
	return rulestore.Version{Number: n, Hash: hash}, err == nil && n > 0 && (!hashed || len(hash) >= 4)
}

// find returns the version, or the orphan, with the given name.
func find(ctx context.Context, store rulestore.Store, name rulestore.Version) (rulestore.Version, *jsonerror.Error) {
	v, err := store.Get(ctx, name.Number)
	if name.Hash != "" && !strings.HasPrefix(v.Hash, name.Hash) {
		v, err = store.Orphan(ctx, name.Number, name.Hash)
	}
	switch {
	case errors.Is(err, rulestore.ErrNotFound) && name.Hash != "":
		return v, jsonerror.New(http.StatusNotFound, jsonerror.NotFound, "%v: %s", rulestore.ErrNotFound, name.Name())
	case err != nil:
		return v, storeFault(err)
	}
	return v, nil
}

// history returns the rule store. If the rules are in a file, which has no versions, it returns an error.
func (a *API) history(*call) (rulestore.Store, *jsonerror.Error) {
	if file := a.Rules.File(); file != "" {
		return nil, jsonerror.New(http.StatusConflict, jsonerror.RulesInFile, "the rules of this node are those of %s, which keeps no versions: ask the tool that keeps the file", file)
	}
	return a.Rules.Store(), nil
}

// number reads a number from 1 to most from the query. If the parameter is missing, it returns otherwise.
func (r *call) number(name string, otherwise, most int64) (int64, *jsonerror.Error) {
	must := "a number from 1 on"
	if most < math.MaxInt64 {
		must = fmt.Sprintf("a number from 1 to %d", most)
	}
	return parameter(r, name, must, otherwise, func(text string) (int64, bool) {
		n, err := strconv.ParseInt(text, 10, 64)
		return n, err == nil && n >= 1 && n <= most
	})
}

// versionName reads the name of a version from the query: its number or, for an orphan, its number and hash.
func (r *call) versionName(name string, otherwise int64) (rulestore.Version, *jsonerror.Error) {
	return parameter(r, name, "a number from 1 on, or with its hash as in 42-abcdef12", rulestore.Version{Number: otherwise}, parseName)
}

const maxListed = 1000

func (a *API) versions(r *call, store rulestore.Store) (any, *jsonerror.Error) {
	before, f := r.number("before", 0, math.MaxInt64)
	if f != nil {
		return nil, f
	}
	limit, f := r.number("limit", 50, math.MaxInt64)
	if f != nil {
		return nil, f
	}
	list, err := store.List(r.Context(), before, int(min(limit, maxListed)))
	if err != nil {
		return nil, storeFault(err)
	}
	out := make([]Version, len(list))
	for i, v := range list {
		out[i] = onWire(v)
	}
	return Versions{out}, nil
}

func (a *API) version(r *call, store rulestore.Store) (any, *jsonerror.Error) {
	name, ok := parseName(r.PathValue("version"))
	if !ok {
		return nil, jsonerror.Bad("a version is a number from 1 on, or with its hash as in 42-abcdef12")
	}
	v, f := find(r.Context(), store, name)
	if f != nil {
		return nil, f
	}
	return onWire(v), nil
}

func (a *API) diff(r *call, store rulestore.Store) (any, *jsonerror.Error) {
	to, f := r.versionName("to", a.Rules.InForce().Version)
	if f != nil {
		return nil, f
	}
	from, f := r.versionName("from", to.Number-1)
	if f != nil {
		return nil, f
	}
	var texts [2][]byte
	for i, name := range []rulestore.Version{from, to} {
		v, f := find(r.Context(), store, name)
		if f != nil {
			return nil, f
		}
		texts[i] = v.Text
	}
	var d string
	if f := r.inTurn(func() { d = diff(from.Number, texts[0], to.Number, texts[1]) }); f != nil {
		return nil, f
	}
	if r.wants("text/plain") {
		r.write("text/plain; charset=utf-8", []byte(d))
		return nil, nil
	}
	return Difference{from.Number, to.Number, d}, nil
}

func (a *API) rollback(r *call, store rulestore.Store) (any, *jsonerror.Error) {
	in, f := decode[Rollback](r, rulefile.MaxSize)
	if f != nil {
		return nil, f
	}
	if in.Version < 1 {
		return nil, jsonerror.Bad("version: must be the number of the version to go back to")
	}
	v, f := find(r.Context(), store, rulestore.Version{Number: in.Version, Hash: in.Hash})
	if f != nil {
		return nil, f
	}
	what := "rollback to version " + strconv.FormatInt(in.Version, 10)
	if v.Orphan {
		what = "rollback to version " + v.Name()
	}
	// Operators who roll back are in a hurry, so warnings need force only if they are about lost blocks or overrides.
	return a.make(r, what, &change{whole: true, back: true, message: in.Message, did: what, edit: func([]byte) ([]byte, error) { return v.Text, nil }})
}

// OneRule is the response to GET /v1/rules/id/{id}.
type OneRule struct {
	Rule   string   `json:"rule"`
	YAML   string   `json:"yaml"` // the rule's text with its comments, as PUT accepts it
	Line   int      `json:"line"` // line of the rule in the document
	Limits []string `json:"limits"`
	// Numbers are the limits, split into their parts.
	Numbers []RuleNumbers `json:"numbers"`
	// Changed is the version that last changed the rule. If it is unknown, Changed is nil, and Reason says why.
	Changed *Version `json:"changed"`
	Reason  string   `json:"reason,omitempty"`
	// Searched is how many versions were compared to find Changed.
	Searched int `json:"searched"`
}

// RuleNumbers has the numbers of one limit of a rule. They may come from a tier.
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

// numbersOf returns the numbers in a rule: those of the rule itself, or those of its tiers.
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

// mostCompared and longestWalk bound the search for a rule's last change, which has to parse a document for each
// version. Steps that an earlier search has made are cached and don't count.
const (
	mostCompared = 500
	longestWalk  = 2 * time.Second
)

// lastChange searches for the version that last changed a rule. The search goes from v back through its parents. If the
// version can't be found, reason says why. searched is how many versions were compared.
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

// lastChanges caches the steps of searches. Versions never change, so the steps stay valid.
type lastChanges struct {
	mu    sync.Mutex // guards steps
	steps map[ruleIn]step
}

type ruleIn struct{ id, version string }

// step says whether a version changed a rule, or has the same rule as its parent.
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
