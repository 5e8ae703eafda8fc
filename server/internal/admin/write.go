package admin

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aymanbagabas/go-udiff"
	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/internal/node/inforce"
	"github.com/weirhq/weir/internal/node/rulestore"
	"github.com/weirhq/weir/internal/node/stake"
	"github.com/weirhq/weir/rulefile"
)

// change is a write as somebody asked for it.
type change struct {
	edit    func(text []byte) ([]byte, error)
	ifMatch rulestore.Version // the version that it is meant for; Number 0: whichever is the newest; Hash "": whichever has the number
	force   bool
	dryRun  bool
	whole   bool // the edit replaces the document, whatever it is
	removes bool // it takes something from a client on purpose, by name
	unasked bool // it needs no force, whatever the warnings
	back    bool // to a version that was in force once: only what it takes from single clients needs force
	author  string
	message string
	hidden  string    // a key that the answer masks, since whoever asked named its client by a fingerprint
	now     time.Time // when it is tried, which decides what overrides have expired
	regions []string  // that the node knows

	// then, if not nil, is given the result and returns the one that the client gets.
	then func(*Changed, *jsonerror.Error) (*Changed, *jsonerror.Error)

	// What edit says of what it did:
	did  string    // in the words of a person, for the history; "" describes the difference
	ends time.Time // when the override ends that it has set, if it does
}

// attempts at a change that isn't meant for one version, when others are faster.
const attempts = 20

// commit makes a new version of the newest one.
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

// inFile is the answer to changes of rules that are in a file.
func (a *API) inFile() *jsonerror.Error {
	return jsonerror.New(http.StatusConflict, jsonerror.RulesInFile, "the rules of this node are those of %s: change the file, and it applies them", a.Rules.File())
}

func (a *API) try(ctx context.Context, c *change) (*Changed, *jsonerror.Error) {
	base, f := a.newest(ctx, c.whole)
	if f != nil {
		return nil, f
	}
	if m := c.ifMatch; m.Number != 0 && (m.Number != base.Number || !strings.HasPrefix(base.Hash, m.Hash)) {
		if why := a.Rules.Rejected(); why != "" && m.Number == a.Rules.InForce().Version {
			// An operator who looks for the change finds nothing: the rules in force here are those
			// that they have read.
			return nil, jsonerror.New(http.StatusPreconditionFailed, jsonerror.NewestRejected,
				"this node rejects the newest rules and goes on with version %s (%s): put a whole document in their place, as weir rules apply --if-version %d does, or go back, with weir rules rollback",
				m.Name(), why, base.Number)
		}
		return nil, jsonerror.New(http.StatusPreconditionFailed, jsonerror.Conflict,
			"the rules are at version %s by now, not %s: look at what has changed, and apply yours to that", base.Name(), m.Name())
	}
	text, err := c.edit(base.Text)
	if err != nil {
		return nil, editFault(err)
	}
	out := &Changed{Version: base.Number, DryRun: c.dryRun, Warnings: []rulefile.Problem{}, before: base.Number}
	if !c.ends.IsZero() {
		out.Expires = &c.ends
	}
	if bytes.Equal(text, base.Text) {
		return out, nil
	}
	c.now = a.Limiter.Now()
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
	next.Author, next.Message, next.Time, next.Text = c.author, cmp.Or(c.message, c.did, out.did), a.Limiter.Now().UTC(), text
	v, err := a.Rules.Publish(ctx, next)
	switch {
	case errors.Is(err, rulestore.ErrAwaited):
		f := jsonerror.New(http.StatusServiceUnavailable, jsonerror.RulesUnavailable, "%v", err)
		f.Header = http.Header{"Retry-After": {"3"}}
		return nil, f
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

// newest is the version that a change is made to. A damaged one has no text, and can only be replaced as a whole.
func (a *API) newest(ctx context.Context, whole bool) (rulestore.Version, *jsonerror.Error) {
	v, err := a.Rules.Newest(ctx)
	switch {
	case err == nil, errors.Is(err, rulestore.ErrDamaged) && whole:
		return v, nil
	case errors.Is(err, rulestore.ErrDamaged):
		return v, jsonerror.New(http.StatusServiceUnavailable, jsonerror.RulesUnavailable, "%v: ask another node, go back to a version before it, or put a whole document", err)
	case errors.Is(err, inforce.ErrEmpty):
		return v, jsonerror.New(http.StatusServiceUnavailable, jsonerror.RulesUnavailable, "%v: try again in a moment", err)
	}
	return v, storeFault(err)
}

// judge rejects what can't be, and notes the warnings that the text before didn't have. What single clients would lose comes first. If
// this node can't read the text before, what is in force here stands for it: a block in that may well be in the other, too.
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

// added are the warnings of a document that the one before didn't have.
func added(regions []string, old, next *rulefile.File) []rulefile.Problem {
	known := map[string]int{} // how often: a text can be about one entry of many
	for _, w := range warnings(regions, old) {
		known[w.Text]++
	}
	return slices.DeleteFunc(warnings(regions, next), func(w rulefile.Problem) bool {
		known[w.Text]--
		return known[w.Text] >= 0
	})
}

// warnings are those of a document, and what is odd about it in these regions.
func warnings(regions []string, f *rulefile.File) []rulefile.Problem {
	return slices.Concat(f.Warnings, rulefile.InRegions(f, regions, stake.LeastPerRegion))
}

// regionNames are the regions that the node knows, if there are others.
func (a *API) regionNames() (names []string) {
	if a.Regions == nil {
		return nil
	}
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
	var problems rulefile.Problems
	if !errors.As(err, &problems) {
		return jsonerror.New(http.StatusUnprocessableEntity, jsonerror.RulesInvalid, "%v", err)
	}
	f := jsonerror.New(http.StatusUnprocessableEntity, jsonerror.RulesInvalid, "%s", problems[0].String())
	if n := len(problems) - 1; n > 0 {
		f.Message += fmt.Sprintf(", and %d more", n)
	}
	f.Details = Rejection{Problems: problems}
	return f
}

// editFault is for an edit that can't be made.
func editFault(err error) *jsonerror.Error {
	var f *jsonerror.Error
	var problems rulefile.Problems
	switch {
	case errors.As(err, &f):
		return f
	case errors.Is(err, rulefile.ErrNotFound):
		return jsonerror.New(http.StatusNotFound, jsonerror.NotFound, "%v", err)
	case errors.As(err, &problems):
		return invalid(err)
	}
	return jsonerror.New(http.StatusUnprocessableEntity, jsonerror.RulesInvalid, "%v", err)
}

func storeFault(err error) *jsonerror.Error {
	if errors.Is(err, rulestore.ErrNotFound) {
		return jsonerror.New(http.StatusNotFound, jsonerror.NotFound, "%v", err)
	}
	if errors.Is(err, rulestore.ErrDamaged) {
		return jsonerror.New(http.StatusServiceUnavailable, jsonerror.RulesUnavailable, "%v", err)
	}
	return jsonerror.New(http.StatusServiceUnavailable, jsonerror.RulesUnavailable, "the rule store can't be reached: %v", err)
}

// diff is how texts differ, as diff -u shows it. Version 0 hasn't been written yet.
func diff(from int64, before []byte, to int64, after []byte) string {
	name := func(n int64) string {
		if n == 0 {
			return "new"
		}
		return "version " + strconv.FormatInt(n, 10)
	}
	return udiff.Unified(name(from), name(to), normal(before), normal(after))
}

// normal ends with a line's end, which isn't worth a line in a diff.
func normal(text []byte) string { return strings.TrimRight(string(text), "\n") + "\n" }
