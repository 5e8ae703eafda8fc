package admin

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aymanbagabas/go-udiff"
	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/internal/node/inforce"
	"github.com/weirhq/weir/internal/node/rulestore"
	"github.com/weirhq/weir/internal/node/stake"
	"github.com/weirhq/weir/internal/private"
	"github.com/weirhq/weir/internal/shown"
	"github.com/weirhq/weir/rulefile"
)

// change is a change to the rules that a caller has asked for.
type change struct {
	edit    func(text []byte) ([]byte, error)
	ifMatch rulestore.Version // the version that must be the newest; Number 0 means any version, and Hash "" means any version with that number
	force   bool
	dryRun  bool
	whole   bool // the edit replaces the whole document, whatever its content is
	removes bool // the caller names a client to remove, so warnings about what that client loses need no force
	unasked bool // the change needs no force, whatever its warnings are
	back    bool // the change restores an earlier version, so only warnings about lost blocks and overrides need force
	author  string
	message string
	hidden  string    // a key to mask in the response, because the caller named its client by a fingerprint
	now     time.Time // when the change is made, which determines which overrides have expired
	regions []string  // the regions that the node knows

	// then, if not nil, is called with the outcome of the change, and returns the outcome for the caller.
	then func(*Changed, *jsonerror.Error) (*Changed, *jsonerror.Error)

	// edit sets did and ends.
	did  string    // what the change did, for the history; if "", the history describes the difference
	ends time.Time // when the override that edit has set ends
}

// attempts is how often a change without If-Match is tried if other changes are faster.
const attempts = 20

// commit changes the newest version, and writes the result as a new version.
func (a *API) commit(ctx context.Context, c *change) (*Changed, *jsonerror.Error) {
	if a.Rules.File() != "" && !c.dryRun {
		return nil, a.inFile()
	}
	c.regions = a.regionNames()
	for range attempts {
		out, f := a.try(ctx, c)
		if f == nil || f.Code != jsonerror.Conflict || c.ifMatch.Number != 0 {
			return out, f
		}
		select {
		case <-time.After(rand.N(10 * time.Millisecond)):
		case <-ctx.Done():
			return nil, storeFault(ctx.Err())
		}
	}
	return nil, jsonerror.New(http.StatusServiceUnavailable, jsonerror.Busy, "others were faster %d times: try again", attempts)
}

func (a *API) inFile() *jsonerror.Error {
	return jsonerror.New(http.StatusConflict, jsonerror.RulesInFile, "the rules of this node are those of %s: change the file, and it applies them", a.Rules.File())
}

func (a *API) try(ctx context.Context, c *change) (*Changed, *jsonerror.Error) {
	base, err := a.Rules.Newest(ctx)
	switch {
	case errors.Is(err, rulestore.ErrDamaged) && c.whole: // a damaged version has no text, so it can only be replaced as a whole
	case errors.Is(err, rulestore.ErrDamaged):
		return nil, jsonerror.New(http.StatusServiceUnavailable, jsonerror.RulesUnavailable, "%v: ask another node, go back to a version before it, or put a whole document", err)
	case errors.Is(err, inforce.ErrEmpty):
		return nil, jsonerror.New(http.StatusServiceUnavailable, jsonerror.RulesUnavailable, "%v: try again in a moment", err)
	case err != nil:
		return nil, storeFault(err)
	}
	if m := c.ifMatch; m.Number != 0 && (m.Number != base.Number || !strings.HasPrefix(base.Hash, m.Hash)) {
		if why := a.Rules.Rejected(); why != "" && m.Number == a.Rules.InForce().Version {
			// Explain the reason: the rules in force here are the ones that the operator has read, so the operator
			// would look in vain for another change.
			return nil, jsonerror.New(http.StatusPreconditionFailed, jsonerror.NewestRejected,
				"this node rejects the newest rules and goes on with version %s (%s): put a whole document in their place, as weir rules apply --if-version %d does, or go back, with weir rules rollback",
				m.Name(), why, base.Number)
		}
		return nil, jsonerror.New(http.StatusPreconditionFailed, jsonerror.Conflict,
			"the rules are at version %s by now, not %s: look at what has changed, and apply yours to that", base.Name(), m.Name())
	}
	text, err := c.edit(base.Text)
	if err != nil {
		if f, ok := errors.AsType[*jsonerror.Error](err); ok {
			return nil, f
		}
		if errors.Is(err, rulefile.ErrNotFound) {
			return nil, jsonerror.New(http.StatusNotFound, jsonerror.NotFound, "%v", err)
		}
		return nil, invalid(err)
	}
	out := &Changed{Version: base.Number, DryRun: c.dryRun, Warnings: []rulefile.Problem{}, Expires: c.ends, before: base.Number}
	if bytes.Equal(text, base.Text) {
		return out, nil
	}
	c.now = private.Now(a.Limiter)
	if f := c.judge(ctx, base.Text, text, a.Rules.InForce().File, out); f != nil {
		return nil, f
	}
	if ctx.Err() != nil {
		return nil, left()
	}
	out.Diff = diff(base.Number, base.Text, 0, text)
	if c.dryRun {
		return out, nil
	}
	if out.NeedsForce && !c.force {
		f := jsonerror.New(http.StatusUnprocessableEntity, jsonerror.RulesWarn, "%s: look at the warnings, and repeat it with force=true if it is meant", out.Warnings[0].String())
		f.Details = Rejection{Warnings: out.Warnings}
		return nil, f
	}
	next := base.Next()
	next.Author, next.Message, next.Time, next.Text = c.author, cmp.Or(c.message, c.did, out.did), private.Now(a.Limiter).UTC(), text
	v, err := a.Rules.Publish(ctx, next)
	switch {
	case errors.Is(err, rulestore.ErrAwaited):
		return nil, retryLater(jsonerror.RulesUnavailable, "3", "%v", err)
	case errors.Is(err, rulestore.ErrConflict):
		return nil, jsonerror.New(http.StatusPreconditionFailed, jsonerror.Conflict, "%v: look at what has changed, and apply yours to that", err)
	case err != nil && v.Number > 0:
		return nil, jsonerror.New(http.StatusInternalServerError, jsonerror.NotApplied, "%v", err)
	case err != nil:
		f := storeFault(err)
		f.Message += "; as far as this node knows, nothing was changed"
		return nil, f
	}
	out.Version = v.Number
	return out, nil
}

// judge rejects invalid rules, and collects the warnings that the previous document didn't have. Warnings about what
// single clients lose come first. If this node can't parse the previous document, judge compares with the rules in
// force, which probably have the same blocks.
func (c *change) judge(ctx context.Context, before, after []byte, inForce *rulefile.File, out *Changed) *jsonerror.Error {
	next, err := rulefile.ParseAt("rules", after, c.now)
	if err != nil {
		return invalid(err)
	}
	if ctx.Err() != nil {
		return left()
	}
	old, err := rulefile.ParseAt("rules", before, c.now)
	if err == nil {
		out.did = describe(&old.Rules, &next.Rules)
	} else {
		out.did, old = "replace the rules", inForce
	}
	if !c.removes {
		out.Warnings = append(out.Warnings, rulefile.Lost(old, next, c.back)...)
	}
	out.NeedsForce = len(out.Warnings) > 0
	warnings := added(c.regions, old, next)
	if ctx.Err() != nil {
		return left()
	}
	warnings = append(warnings, rulefile.Compare(old, next)...)
	out.Warnings = append(out.Warnings, warnings...)
	out.NeedsForce = (out.NeedsForce || len(warnings) > 0 && !c.back) && !c.unasked
	return nil
}

// added returns the warnings of a document that the previous one didn't have.
func added(regions []string, old, next *rulefile.File) []rulefile.Problem {
	known := map[string]int{} // how often each warning occurs, because several entries may cause the same text
	for _, w := range warnings(regions, old) {
		known[w.Text]++
	}
	return slices.DeleteFunc(warnings(regions, next), func(w rulefile.Problem) bool {
		known[w.Text]--
		return known[w.Text] >= 0
	})
}

// warnings returns the warnings about a document, including those that depend on the regions.
func warnings(regions []string, f *rulefile.File) []rulefile.Problem {
	return slices.Concat(f.Warnings, rulefile.InRegions(f, regions, stake.LeastPerRegion))
}

// regionNames returns the names of the regions that the node knows, or nil if it knows only its own.
func (a *API) regionNames() (names []string) {
	all := a.Regions()
	for _, p := range all.Peers {
		names = append(names, p.Region)
	}
	if len(names) > 0 {
		names = append(names, all.Name)
	}
	return names
}

func invalid(err error) *jsonerror.Error {
	f := jsonerror.New(http.StatusUnprocessableEntity, jsonerror.RulesInvalid, "%v", err)
	if problems, ok := errors.AsType[rulefile.Problems](err); ok {
		f.Message, f.Details = problems[0].String(), Rejection{Problems: problems}
		if n := len(problems) - 1; n > 0 {
			f.Message += fmt.Sprintf(", and %d more", n)
		}
	}
	return f
}

func storeFault(err error) *jsonerror.Error {
	switch {
	case errors.Is(err, rulestore.ErrNotFound):
		return jsonerror.New(http.StatusNotFound, jsonerror.NotFound, "%v", err)
	case errors.Is(err, rulestore.ErrDamaged):
		return jsonerror.New(http.StatusServiceUnavailable, jsonerror.RulesUnavailable, "%v", err)
	}
	return jsonerror.New(http.StatusServiceUnavailable, jsonerror.RulesUnavailable, "the rule store can't be reached: %v", err)
}

// diff compares two texts like diff -u. Version 0 stands for a version that hasn't been written.
func diff(from int64, before []byte, to int64, after []byte) string {
	name := func(n int64) string {
		if n == 0 {
			return "new"
		}
		return "version " + strconv.FormatInt(n, 10)
	}
	return udiff.Unified(name(from), name(to), normal(before), normal(after))
}

// normal makes a text end with exactly one newline, so that a missing newline doesn't show up in a diff.
func normal(text []byte) string { return strings.TrimRight(string(text), "\n") + "\n" }

func numbersText(n rulefile.Numbers) string {
	burst := "a burst of " + strconv.FormatInt(n.Capacity, 10)
	switch {
	case n.Limit == "":
		return burst
	case n.Capacity > 0:
		return n.Limit + " with " + burst
	}
	return n.Limit
}

// describe summarizes the difference between two documents for the history. It masks keys.
func describe(old, new *weir.Rules) string {
	itself := func(name string) string { return name }
	of := func(what string) [3]string { return [3]string{"add " + what, "change " + what, "delete " + what} }
	sum := func(s weir.Sum) string { return s.Name }
	d := slices.Concat(
		compare(of("rule"), old.Rules, new.Rules, func(r weir.Rule) string { return r.ID }, itself),
		compare(of("tier"), old.Tiers, new.Tiers, func(t weir.Tier) string { return t.Name }, itself),
		compare(of("price"), old.Prices, new.Prices, sum, itself),
		compare(of("weight"), old.Weights, new.Weights, sum, itself),
		compare([3]string{"block", "", "unblock"}, old.Deny, new.Deny, itself, shown.Entry),
		compare([3]string{"allow", "", "no longer allow"}, old.Allow, new.Allow, itself, shown.Entry))
	if len(d) == 0 && !reflect.DeepEqual(old.Prices, new.Prices) {
		d = append(d, "change the order of prices")
	}
	if !reflect.DeepEqual(old.Keys, new.Keys) || old.DefaultTier != new.DefaultTier {
		d = append(d, "change who is in which tier")
	}
	return cmp.Or(strings.Join(d, "; "), "change nothing but the text")
}

// compare describes which items were added, changed and deleted. verbs are the words for these three. name returns an
// item's identity.
func compare[T any](verbs [3]string, old, new []T, name func(T) string, show func(string) string) (parts []string) {
	was, is := map[string]T{}, map[string]bool{}
	for _, v := range old {
		was[name(v)] = v
	}
	var names [3][]string // names of the items that were added, changed and deleted
	for _, v := range new {
		n := name(v)
		before, there := was[n]
		switch {
		case is[n]: // the item is listed twice
		case !there:
			names[0] = append(names[0], show(n))
		case !reflect.DeepEqual(before, v):
			names[1] = append(names[1], show(n))
		}
		is[n] = true
	}
	for _, v := range old {
		if n := name(v); !is[n] {
			names[2] = append(names[2], show(n))
			is[n] = true
		}
	}
	for i, all := range names {
		if len(all) == 0 {
			continue
		}
		text := verbs[i] + " " + strings.Join(all[:min(len(all), mostNames)], ", ")
		if more := len(all) - mostNames; more > 0 {
			text += " and " + strconv.Itoa(more) + " more"
		}
		parts = append(parts, text)
	}
	return parts
}

const mostNames = 3
