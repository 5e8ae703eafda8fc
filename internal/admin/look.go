package admin

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/checkapi"
	"github.com/weirhq/weir/internal/inforce"
	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/internal/rulestore"
	"github.com/weirhq/weir/rulefile"
)

func setETag(w http.ResponseWriter, version int64) {
	w.Header().Set("ETag", `"`+strconv.FormatInt(version, 10)+`"`)
}

func wants(r *http.Request, what string) bool { return strings.Contains(r.Header.Get("Accept"), what) }

// inForce returns the rules that decide, if there are any.
func (a *API) inForce() (*inforce.Document, *jsonerror.Error) {
	if why := a.Rules.Waiting(); why != "" {
		return nil, jsonerror.New(http.StatusServiceUnavailable, jsonerror.RulesUnavailable, "%s", why)
	}
	return a.Rules.InForce(), nil
}

func (a *API) rules(w http.ResponseWriter, r *http.Request) *jsonerror.Error {
	doc, f := a.inForce()
	if f != nil {
		return f
	}
	setETag(w, doc.Version)
	if wants(r, "json") {
		if !a.looks.enter() {
			return busy()
		}
		defer a.looks.leave()
		var body []byte
		var err error
		if f := a.looks.work(r.Context(), func() { body, err = rulefile.JSON(doc.Text) }); f != nil {
			return f
		}
		if err != nil {
			return jsonerror.New(http.StatusInternalServerError, jsonerror.Internal, "the rules in force can't be shown as JSON; ask for YAML")
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(body)
		return nil
	}
	w.Header().Set("Content-Type", "application/yaml; charset=utf-8")
	_, _ = w.Write(doc.Text)
	return nil
}

func (a *API) validate(w http.ResponseWriter, r *http.Request) *jsonerror.Error {
	text, f := document(w, r)
	if f != nil {
		return f
	}
	out := Validation{Problems: []rulefile.Problem{}, Warnings: []rulefile.Problem{}}
	if gone := inTurn(r, func() { f = out.of(r.Context(), text, a.Limiter.Now(), a.Rules.InForce().File) }); gone != nil {
		return gone
	}
	if f != nil {
		return f
	}
	WriteJSON(w, http.StatusOK, out)
	return nil
}

// of looks at a document, and at what it would change, for as long as somebody wants to know.
func (v *Validation) of(ctx context.Context, text []byte, now time.Time, old *rulefile.File) *jsonerror.Error {
	file, err := rulefile.ParseAt("rules", text, now)
	if err != nil {
		var problems rulefile.Problems
		if !errors.As(err, &problems) {
			return invalid(err)
		}
		v.Problems = problems
		return nil
	}
	if ctx.Err() != nil {
		return left()
	}
	v.Valid, v.Rules = true, len(file.Rules.Rules)
	v.Warnings = append(v.Warnings, slices.Concat(rulefile.Lost(old, file, false), file.Warnings, rulefile.Compare(old, file))...)
	return nil
}

func (a *API) list(w http.ResponseWriter, entries func(*weir.Rules) []string) *jsonerror.Error {
	doc, f := a.inForce()
	if f != nil {
		return f
	}
	setETag(w, doc.Version)
	out := entries(&doc.File.Rules)
	if out == nil {
		out = []string{}
	}
	WriteJSON(w, http.StatusOK, List{out})
	return nil
}

func (a *API) allowlist(w http.ResponseWriter, _ *http.Request) *jsonerror.Error {
	return a.list(w, func(r *weir.Rules) []string { return r.Allow })
}

func (a *API) denylist(w http.ResponseWriter, _ *http.Request) *jsonerror.Error {
	return a.list(w, func(r *weir.Rules) []string { return r.Deny })
}

// silent is for how long a node may not have beaten, when the list was heard, before nobody knows how its store is: two heartbeats,
// and some more. How old the list itself may be depends on how many nodes there are: see [redisstore.Heard].
const silent = 5 * time.Second

// nodes answers from memory: who is there, and who has lost what, is asked when Redis is lost.
func (a *API) nodes(w http.ResponseWriter, _ *http.Request) *jsonerror.Error {
	self, heard := a.Self(), a.Heard()
	all := []rulestore.Node{self}
	for _, n := range rulestore.NodesOf(heard.Peers) {
		if n.Name != self.Name {
			all = append(all, n)
		}
	}
	slices.SortFunc(all, func(a, b rulestore.Node) int { return strings.Compare(a.Name, b.Name) })
	out := Nodes{Nodes: make([]Node, len(all)), Stale: heard.Stale, Store: a.Store()}
	if !heard.At.IsZero() {
		at, age := heard.At.UTC().Truncate(time.Millisecond), time.Since(heard.At).Round(time.Millisecond).Seconds()
		out.AsOf, out.AgeSeconds = &at, &age
	}
	for i, n := range all {
		ago := max(0, time.Since(n.Seen))
		row := Node{Name: n.Name, Self: n.Name == self.Name, Version: n.Version, RulesVersion: n.RulesVersion, RulesHash: n.RulesHash, RulesText: n.RulesText,
			Store: n.Store, Lost: n.Lost, Warning: n.Warning, SeenMSAgo: ago.Milliseconds()}
		if !n.Since.IsZero() {
			row.Since = &n.Since
		}
		if !row.Self && (heard.Stale || heard.At.Sub(n.Seen) > silent) {
			row.Store, row.Since, row.Lost = "unknown", nil, nil
		}
		out.Nodes[i] = row
	}
	WriteJSON(w, http.StatusOK, out)
	return nil
}

func (a *API) about(w http.ResponseWriter, _ *http.Request) *jsonerror.Error {
	WriteJSON(w, http.StatusOK, map[string]any{"version": a.Self().Version, "store": a.Store()})
	return nil
}

func (a *API) profile(w http.ResponseWriter, r *http.Request) *jsonerror.Error {
	if a.Profiles == nil {
		return jsonerror.New(http.StatusNotFound, jsonerror.NotFound, "this node gives no profiles: start it with --pprof")
	}
	a.audit(r, "profile", "profile", r.PathValue("profile"))
	return a.Profiles(w, r)
}

func (a *API) metrics(w http.ResponseWriter, r *http.Request) *jsonerror.Error {
	a.Metrics.ServeHTTP(w, r)
	return nil
}

// request reads a request as for /v1/check, whose callers vouch for the key and the tier; with unverified, as the gateway takes a stranger's.
func request(w http.ResponseWriter, r *http.Request) (req weir.Request, f *jsonerror.Error) {
	text, f := body(w, r, checkapi.MaxBody)
	if f != nil {
		return req, f
	}
	req, err := checkapi.DecodeCheck(bytes.TrimSpace(text))
	if err != nil {
		return req, jsonerror.Bad("%v", err)
	}
	unverified, f := flag(r, "unverified")
	if unverified {
		req.KeyVerified, req.TierVerified = false, false
	}
	return req, f
}

func (a *API) explain(w http.ResponseWriter, r *http.Request) *jsonerror.Error {
	req, f := request(w, r)
	if f != nil {
		return f
	}
	doc, f := a.inForce()
	if f != nil {
		return f
	}
	var out Explanation
	// It waits for its turn, and holds no seat: its body is small, and one that comes slowly must keep nobody out.
	if f := a.looks.work(r.Context(), func() { out = Explain(doc.File.Set, &req) }); f != nil {
		return f
	}
	WriteJSON(w, http.StatusOK, out)
	return nil
}

func (a *API) counters(w http.ResponseWriter, r *http.Request) *jsonerror.Error {
	req, f := request(w, r)
	if f != nil {
		return f
	}
	req.Peek, req.Cost = true, 1
	d, _ := a.Limiter.Check(r.Context(), &req) // what couldn't be reached is told as degraded
	out := []Counter{}
	for _, l := range d.Limits() {
		c := Counter{
			Rule: l.Policy.Rule, Policy: l.Policy.Name, Limit: l.Policy.Limit.String(), Max: l.Policy.Limit.Max(), Remaining: l.Remaining,
			ResetAfterMS: l.ResetAfter.Milliseconds(), RetryAfterMS: max(-1, l.RetryAfter.Milliseconds()), Degraded: l.Degraded,
		}
		if c.Remaining == c.Max {
			c.ResetAfterMS = 0 // a window that nobody has used has an end, too, but is full already
		}
		out = append(out, c)
	}
	WriteJSON(w, http.StatusOK, Counters{out})
	return nil
}

func (a *API) resetCounters(w http.ResponseWriter, r *http.Request) *jsonerror.Error {
	req, f := request(w, r)
	if f != nil {
		return f
	}
	n, err := a.Limiter.Reset(r.Context(), &req)
	if err != nil {
		a.audit(r, "reset counters", "answer", jsonerror.StoreUnavailable)
		return jsonerror.New(http.StatusServiceUnavailable, jsonerror.StoreUnavailable, "not all counters could be reset: %v", err)
	}
	a.audit(r, "reset counters", "counters", n)
	WriteJSON(w, http.StatusOK, Reset{n})
	return nil
}
