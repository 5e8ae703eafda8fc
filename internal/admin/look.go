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

	"github.com/goccy/go-yaml"
	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/checkapi"
	"github.com/weirhq/weir/internal/rulestore"
	"github.com/weirhq/weir/rulefile"
)

func setETag(w http.ResponseWriter, version int64) {
	w.Header().Set("ETag", `"`+strconv.FormatInt(version, 10)+`"`)
}

func wants(r *http.Request, what string) bool { return strings.Contains(r.Header.Get("Accept"), what) }

// inForce returns the rules that decide, if there are any.
func (a *API) inForce() (*Document, *fault) {
	if why := a.Source.Waiting(); why != "" {
		return nil, newFault(http.StatusServiceUnavailable, codeUnavailable, "%s", why)
	}
	return a.Source.InForce(), nil
}

func (a *API) rules(w http.ResponseWriter, r *http.Request) *fault {
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
		if f := a.looks.work(r.Context(), func() { body, err = yaml.YAMLToJSON(doc.Text) }); f != nil {
			return f
		}
		if err != nil {
			return newFault(http.StatusInternalServerError, "INTERNAL", "the rules in force can't be shown as JSON; ask for YAML")
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(body)
		return nil
	}
	w.Header().Set("Content-Type", "application/yaml; charset=utf-8")
	_, _ = w.Write(doc.Text)
	return nil
}

// validation is what is wrong with a document, on the wire.
type validation struct {
	Valid    bool               `json:"valid"`
	Rules    int                `json:"rules"`
	Problems []rulefile.Problem `json:"problems"`
	Warnings []rulefile.Problem `json:"warnings"`
}

func (a *API) validate(w http.ResponseWriter, r *http.Request) *fault {
	text, f := document(w, r)
	if f != nil {
		return f
	}
	out := validation{Problems: []rulefile.Problem{}, Warnings: []rulefile.Problem{}}
	if gone := inTurn(r, func() { f = out.of(r.Context(), text, a.Source.InForce().File) }); gone != nil {
		return gone
	}
	if f != nil {
		return f
	}
	WriteJSON(w, http.StatusOK, out)
	return nil
}

// of looks at a document, and at what it would change, for as long as somebody wants to know.
func (v *validation) of(ctx context.Context, text []byte, old *rulefile.File) *fault {
	file, err := rulefile.Parse("rules", text)
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

func (a *API) list(w http.ResponseWriter, entries func(*weir.Rules) []string) *fault {
	doc, f := a.inForce()
	if f != nil {
		return f
	}
	setETag(w, doc.Version)
	out := entries(&doc.File.Rules)
	if out == nil {
		out = []string{}
	}
	WriteJSON(w, http.StatusOK, map[string]any{"entries": out})
	return nil
}

func (a *API) allowlist(w http.ResponseWriter, _ *http.Request) *fault {
	return a.list(w, func(r *weir.Rules) []string { return r.Allow })
}

func (a *API) denylist(w http.ResponseWriter, _ *http.Request) *fault {
	return a.list(w, func(r *weir.Rules) []string { return r.Deny })
}

// nodeInfo is a node on the wire.
type nodeInfo struct {
	Name         string `json:"name"`
	Self         bool   `json:"self"`
	Version      string `json:"version"`
	RulesVersion int64  `json:"rules_version"`
	RulesHash    string `json:"rules_hash"`
	Store        string `json:"store"`
	SeenAgo      int64  `json:"seen_ms_ago"`
}

func (a *API) nodes(w http.ResponseWriter, r *http.Request) *fault {
	self := a.Self()
	all := []rulestore.Node{self}
	if a.Source.store != nil {
		others, err := a.Source.store.Nodes(r.Context())
		if err != nil {
			return storeFault(err)
		}
		for _, n := range others {
			if n.Name != self.Name {
				all = append(all, n)
			}
		}
	}
	slices.SortFunc(all, func(a, b rulestore.Node) int { return strings.Compare(a.Name, b.Name) })
	out := make([]nodeInfo, len(all))
	for i, n := range all {
		out[i] = nodeInfo{n.Name, n.Name == self.Name, n.Version, n.RulesVersion, n.RulesHash, n.Store, max(0, time.Since(n.Seen).Milliseconds())}
	}
	WriteJSON(w, http.StatusOK, map[string]any{"nodes": out})
	return nil
}

func (a *API) about(w http.ResponseWriter, _ *http.Request) *fault {
	WriteJSON(w, http.StatusOK, map[string]any{"version": a.Self().Version, "store": a.Store()})
	return nil
}

// request reads a request as for /v1/check.
func request(w http.ResponseWriter, r *http.Request) (req weir.Request, f *fault) {
	text, f := body(w, r, checkapi.MaxBody)
	if f != nil {
		return req, f
	}
	req, err := checkapi.DecodeCheck(bytes.TrimSpace(text))
	if err != nil {
		return req, newFault(http.StatusBadRequest, checkapi.CodeBadRequest, "%v", err)
	}
	return req, nil
}

func (a *API) explain(w http.ResponseWriter, r *http.Request) *fault {
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

// counterInfo is how a counter stands, on the wire.
type counterInfo struct {
	Rule       string `json:"rule"`
	Limit      string `json:"limit"`
	Max        int64  `json:"max"`
	Remaining  int64  `json:"remaining"`
	ResetAfter int64  `json:"reset_after_ms"`
	RetryAfter int64  `json:"retry_after_ms"`
	Degraded   bool   `json:"degraded"`
}

func (a *API) counters(w http.ResponseWriter, r *http.Request) *fault {
	req, f := request(w, r)
	if f != nil {
		return f
	}
	req.Peek, req.Cost = true, 1
	d, _ := a.Limiter.Check(r.Context(), &req) // what couldn't be reached is told as degraded
	out := []counterInfo{}
	for _, l := range d.Limits() {
		c := counterInfo{
			Rule: l.Policy.Rule, Limit: l.Policy.Limit.String(), Max: l.Policy.Limit.Max(), Remaining: l.Remaining,
			ResetAfter: l.ResetAfter.Milliseconds(), RetryAfter: max(-1, l.RetryAfter.Milliseconds()), Degraded: l.Degraded,
		}
		out = append(out, c)
	}
	WriteJSON(w, http.StatusOK, map[string]any{"counters": out})
	return nil
}

func (a *API) resetCounters(w http.ResponseWriter, r *http.Request) *fault {
	req, f := request(w, r)
	if f != nil {
		return f
	}
	n, err := a.Limiter.Reset(r.Context(), &req)
	if err != nil {
		a.audit(r, "reset counters", "answer", "STORE_UNAVAILABLE")
		return newFault(http.StatusServiceUnavailable, "STORE_UNAVAILABLE", "not all counters could be reset: %v", err)
	}
	a.audit(r, "reset counters", "counters", n)
	WriteJSON(w, http.StatusOK, map[string]any{"reset": n})
	return nil
}
