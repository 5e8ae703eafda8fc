package admin

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"

	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/internal/node/rulestore"
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

// find returns the version, or the orphan, with that name.
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

// history returns the rule store, or an error if the rules are in a file, which has no versions.
func (a *API) history(*call) (rulestore.Store, *jsonerror.Error) {
	if file := a.Rules.File(); file != "" {
		return nil, jsonerror.New(http.StatusConflict, jsonerror.RulesInFile, "the rules of this node are those of %s, which keeps no versions: ask the tool that keeps the file", file)
	}
	return a.Rules.Store(), nil
}

// number reads a number from 1 to most from the query.
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

// versionName reads the name of a version from the query: its number or, for an orphan, its number and
// hash.
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
	// Operators who roll back are in a hurry, so only lost blocks and overrides need force.
	return a.make(r, what, &change{whole: true, back: true, message: in.Message, did: what, edit: func([]byte) ([]byte, error) { return v.Text, nil }})
}
