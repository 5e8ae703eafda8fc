package admin

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/internal/node/inforce"
	"github.com/weirhq/weir/internal/node/region"
	"github.com/weirhq/weir/internal/node/rulestore"
	"github.com/weirhq/weir/internal/private"
	"github.com/weirhq/weir/internal/shown"
	"github.com/weirhq/weir/rulefile"
	"github.com/weirhq/weir/server/internal/edge/checkapi"
)

func (r *call) wants(what string) bool { return strings.Contains(r.Header.Get("Accept"), what) }

// inForce returns the rules in force. If there are none yet, it returns an error.
func (a *API) inForce(*call) (*inforce.Document, *jsonerror.Error) {
	if why := a.Rules.Waiting(); why != "" {
		return nil, jsonerror.New(http.StatusServiceUnavailable, jsonerror.RulesUnavailable, "%s", why)
	}
	return a.Rules.InForce(), nil
}

func (a *API) rules(r *call, doc *inforce.Document) (any, *jsonerror.Error) {
	r.setETag(doc.Version)
	media, body := "application/yaml; charset=utf-8", doc.Text
	if r.wants("json") {
		var f *jsonerror.Error
		if body, f = a.rulesAsJSON(r.Context(), doc); f != nil {
			return nil, f
		}
		media = "application/json"
	}
	r.write(media, body)
	return nil, nil
}

// shownRules is a document encoded as JSON. Encoding ten thousand rules takes some tenths of a second.
type shownRules struct {
	of   *inforce.Document
	json []byte
}

// rulesAsJSON returns a document encoded as JSON. It encodes each document only once.
func (a *API) rulesAsJSON(ctx context.Context, doc *inforce.Document) ([]byte, *jsonerror.Error) {
	if s := a.shown.Load(); s != nil && s.of == doc {
		return s.json, nil
	}
	if !take(a.looks.seats) {
		return nil, busy()
	}
	defer func() { <-a.looks.seats }()
	s := &shownRules{of: doc}
	var err error
	f := a.looks.work(ctx, func() {
		if before := a.shown.Load(); before != nil && before.of == doc {
			s = before // another request encoded it while this one waited for its turn
		} else if s.json, err = rulefile.JSON(doc.Text); err == nil {
			a.shown.Store(s)
		}
	})
	if err != nil {
		f = jsonerror.New(http.StatusInternalServerError, jsonerror.Internal, "the rules in force can't be shown as JSON; ask for YAML")
	}
	return s.json, f
}

func (a *API) validate(r *call, text []byte) (any, *jsonerror.Error) {
	var f *jsonerror.Error
	out := Validation{Problems: []rulefile.Problem{}, Warnings: []rulefile.Problem{}}
	gone := r.inTurn(func() { f = out.of(a, r, text) })
	if f = cmp.Or(gone, f); f != nil {
		return nil, f
	}
	return out, nil
}

// of validates a document and computes what it would change, unless the client disconnects. If the query names a rule,
// the text is only that rule, which replaces it in the rules in force. Warnings that the rules in force already have
// aren't repeated.
func (v *Validation) of(a *API, r *call, text []byte) *jsonerror.Error {
	id, inForce, regions := r.URL.Query().Get("rule"), a.Rules.InForce(), a.regionNames()
	var err error
	if id != "" {
		text, err = rulefile.PutRule(inForce.Text, id, text)
	}
	var file *rulefile.File
	if err == nil {
		file, err = rulefile.ParseAt("rules", text, private.Now(a.Limiter))
	}
	if err != nil {
		problems, ok := errors.AsType[rulefile.Problems](err)
		if !ok {
			return invalid(err)
		}
		v.Problems = problems
		return nil
	}
	if r.Context().Err() != nil {
		return left()
	}
	v.Valid, v.Rules = true, len(file.Rules.Rules)
	own := append(warnings(regions, file), Unlisted(a.emergencyList(), file.Set)...)
	if id != "" {
		own = added(regions, inForce.File, file)
	}
	v.Warnings = append(v.Warnings, slices.Concat(rulefile.Lost(inForce.File, file, false), own, rulefile.Compare(inForce.File, file))...)
	return nil
}

func (l keyList) show(a *API, r *call, doc *inforce.Document) (any, *jsonerror.Error) {
	r.setETag(doc.Version)
	out := List{Entries: append([]string{}, l.entries(&doc.File.Rules)...)}
	if l.list == rulefile.Denylist {
		out.Emergency = a.emergencyList()
	}
	return out, nil
}

// silent is the longest time between a node's last message and the moment at which the list of nodes was read. If that
// time is longer, the state of the node's store counts as unknown. It is a little more than two heartbeats. For the age
// of the list itself, see [redisstore.Heard].
const silent = 5 * time.Second

// nodes responds from memory, because operators also ask while Redis is down.
func (a *API) nodes(_ *call) (any, *jsonerror.Error) {
	self, heard := a.Self(), a.Heard()
	all := []rulestore.Node{self}
	for _, n := range rulestore.NodesOf(heard.Peers) {
		if n.Name != self.Name {
			all = append(all, n)
		}
	}
	slices.SortFunc(all, func(a, b rulestore.Node) int { return strings.Compare(a.Name, b.Name) })
	out := Nodes{Nodes: make([]Node, len(all)), Stale: heard.Stale, Store: a.Store(), AsOf: Moment(heard.At)}
	if out.AsOf != nil {
		age := time.Since(heard.At).Round(time.Millisecond).Seconds()
		out.AgeSeconds = &age
	}
	for i, n := range all {
		ago := max(0, time.Since(n.Seen))
		row := Node{Name: n.Name, Region: n.Region, Self: n.Name == self.Name, Version: n.Version, RulesVersion: n.RulesVersion, RulesHash: n.RulesHash, RulesText: n.RulesText,
			Store: n.Store, Since: n.Since, Lost: n.Lost, Warning: n.Warning, SeenMSAgo: ago.Milliseconds()}
		if !row.Self && (heard.Stale || heard.At.Sub(n.Seen) > silent) {
			row.Store, row.Since, row.Lost = "unknown", time.Time{}, nil
		}
		out.Nodes[i] = row
	}
	return out, nil
}

func (a *API) about(_ *call) (any, *jsonerror.Error) {
	return map[string]any{"version": a.Self().Version, "store": a.Store()}, nil
}

func (a *API) profile(r *call) (any, *jsonerror.Error) {
	if a.Profiles == nil {
		return nil, jsonerror.New(http.StatusNotFound, jsonerror.NotFound, "this node gives no profiles: start it with --pprof")
	}
	a.audit(r, "profile", "profile", shown.Name(r.PathValue("profile")))
	a.Profiles(r.w, r.Request)
	return nil, nil
}

func (a *API) metrics(r *call) (any, *jsonerror.Error) {
	a.Metrics.ServeHTTP(r.w, r.Request)
	return nil, nil
}

// question is a request in the format of /v1/check, with the fields that only some endpoints have.
type question struct {
	weir.Request
	hidden     string // the key of a client that the caller names by its fingerprint; responses must not show it
	slot, rule string
}

// question reads a request in the format of /v1/check. Its key and tier count as verified unless the field unverified
// is set, which treats them as the gateway would. The body may name a client by its fingerprint and, if slot is true, a
// slot and a rule.
func (a *API) question(r *call, slot bool) (q question, f *jsonerror.Error) {
	text, f := r.body(checkapi.MaxBody)
	if f != nil {
		return q, f
	}
	var client string
	more := []checkapi.Text{{Name: "client", Value: &client}}
	if slot {
		more = append(more, checkapi.Text{Name: "slot", Value: &q.slot}, checkapi.Text{Name: "rule", Value: &q.rule})
	}
	var err error
	if q.Request, err = checkapi.DecodeCheck(text, more...); err != nil {
		return q, jsonerror.Bad("%v", err)
	}
	if client != "" {
		if q.hidden, f = a.be(r, &q.Request, client); f != nil {
			return q, f
		}
	}
	unverified, f := r.flag("unverified")
	if unverified {
		q.KeyVerified, q.TierVerified = false, false
	}
	return q, f
}

func (a *API) explain(r *call, q question) (any, *jsonerror.Error) {
	if _, f := a.inForce(r); f != nil {
		return nil, f
	}
	var out Explanation
	// This call waits for its turn without a seat: its body is small, and a slow sender must not keep others out.
	if f := a.looks.work(r.Context(), func() { out = Explain(a.Limiter.Rules(), &q.Request) }); f != nil {
		return nil, f
	}
	here := a.Regions().Name
	for i := range out.Rules {
		if e := &out.Rules[i]; here != "" && e.Applies && e.Scope == "" {
			e.Scope = "region: counted in " + here + " alone, apart from other regions"
		}
	}
	out.Emergency = out.Reason == weir.ReasonDenied.String() && a.Rules.Blocks().Has(out.Pattern)
	out.Pattern = scrub(out.Pattern, q.hidden)
	for i := range out.Ignored {
		out.Ignored[i] = scrub(out.Ignored[i], q.hidden)
	}
	return out, nil
}

func (a *API) resetCounters(r *call, q question) (any, *jsonerror.Error) {
	a.leastAmounts(&q.Request) // without amounts, rules that count an amount wouldn't apply to the request
	n, err := a.Limiter.Reset(r.Context(), &q.Request)
	if err != nil {
		a.audit(r, "reset counters", "answer", jsonerror.StoreUnavailable)
		return nil, jsonerror.New(http.StatusServiceUnavailable, jsonerror.StoreUnavailable, "not all counters could be reset: %v", err)
	}
	a.audit(r, "reset counters", "counters", n)
	return Reset{n}, nil
}

func (a *API) regions(_ *call) (any, *jsonerror.Error) {
	return a.Regions(), nil
}

func (a *API) regroup(r *call, c RegionChange) (any, *jsonerror.Error) {
	switch {
	case !slices.Contains([]string{"move", "drain", "forget", "restore"}, c.Do):
		return nil, jsonerror.Bad(`do: must be move, drain, forget or restore, got %q`, c.Do)
	case c.Region == "":
		return nil, jsonerror.Bad(`region: name the region, such as {"do": "drain", "region": "eu"}`)
	case (c.To != "") != (c.Do == "move"):
		return nil, jsonerror.Bad(`to: is the new home, for move and no other: {"do": "move", "region": "us", "to": "eu"}`)
	case a.Regroup == nil:
		return nil, jsonerror.New(http.StatusConflict, jsonerror.RegionRefused, "this node knows no other regions: see regions.peers")
	}
	err := a.Regroup(r.Context(), c)
	answer := "done"
	if err != nil {
		answer = err.Error()
	}
	a.audit(r, "regions "+c.Do, "region", c.Region, "to", c.To, "force", c.Force, "answer", answer)
	switch {
	case errors.Is(err, region.ErrRefused):
		return nil, jsonerror.New(http.StatusConflict, jsonerror.RegionRefused, "%v", err)
	case err != nil:
		return nil, jsonerror.New(http.StatusServiceUnavailable, jsonerror.StoreUnavailable, "%v", err)
	}
	return a.regions(r)
}
