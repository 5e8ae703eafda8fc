package admin

import (
	"bytes"
	"encoding/json"
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

func (a *API) rules(w http.ResponseWriter, r *http.Request) *fault {
	doc := a.Source.InForce()
	setETag(w, doc.Version)
	if wants(r, "json") {
		body, err := yaml.YAMLToJSON(doc.Text)
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

// maxMessage is how much a version can say about itself, in bytes.
const maxMessage = 1000

// change reads from a request what all writes have in common.
func (a *API) change(r *http.Request, edit func([]byte) ([]byte, error)) (change, *fault) {
	c := change{edit: edit, author: whoOf(r).name, message: r.URL.Query().Get("message")}
	if len(c.message) > maxMessage {
		return c, newFault(http.StatusBadRequest, checkapi.CodeBadRequest, "message: has %d bytes, and may have %d", len(c.message), maxMessage)
	}
	for name, to := range map[string]*bool{"force": &c.force, "dry_run": &c.dryRun} {
		if text := r.URL.Query().Get(name); text != "" {
			v, err := strconv.ParseBool(text)
			if err != nil {
				return c, newFault(http.StatusBadRequest, checkapi.CodeBadRequest, "%s: must be true or false, got %q", name, text)
			}
			*to = v
		}
	}
	if tag := r.Header.Get("If-Match"); tag != "" && tag != "*" {
		n, err := strconv.ParseInt(strings.Trim(strings.TrimPrefix(tag, "W/"), `"`), 10, 64)
		if err != nil || n < 1 {
			return c, newFault(http.StatusBadRequest, checkapi.CodeBadRequest, `If-Match: must be the ETag of the rules, such as "42", got %s`, tag)
		}
		c.ifMatch = n
	}
	return c, nil
}

// write makes a change, tells what came of it, and keeps a record of who made it.
func (a *API) write(w http.ResponseWriter, r *http.Request, what string, edit func([]byte) ([]byte, error)) *fault {
	c, f := a.change(r, edit)
	if f != nil {
		return f
	}
	return a.make(w, r, what, c)
}

func (a *API) make(w http.ResponseWriter, r *http.Request, what string, c change) *fault {
	out, f := a.Source.write(r.Context(), c)
	if f != nil {
		a.audit(r, what, "refused", f.code)
		return f
	}
	if out.Version != out.before {
		a.audit(r, what, "before", out.before, "after", out.Version)
	}
	setETag(w, out.Version)
	writeJSON(w, http.StatusOK, out)
	return nil
}

// audit tells who did what, and from where. It names no key: those are in the version that came of it.
func (a *API) audit(r *http.Request, what string, args ...any) {
	a.Log.Info("audit", append([]any{"who", whoOf(r).name, "from", r.RemoteAddr, "what", what}, args...)...)
}

func (a *API) putRules(w http.ResponseWriter, r *http.Request) *fault {
	text, f := document(w, r)
	if f != nil {
		return f
	}
	if r.Header.Get("If-Match") == "" {
		return newFault(http.StatusPreconditionRequired, "IF_MATCH_REQUIRED", "send the ETag of the rules that you have changed as If-Match, or If-Match: * to replace whatever is there")
	}
	return a.write(w, r, "put rules", func([]byte) ([]byte, error) { return text, nil })
}

func (a *API) validate(w http.ResponseWriter, r *http.Request) *fault {
	text, f := document(w, r)
	if f != nil {
		return f
	}
	out := struct {
		Valid    bool               `json:"valid"`
		Rules    int                `json:"rules"`
		Problems []rulefile.Problem `json:"problems"`
		Warnings []rulefile.Problem `json:"warnings"`
	}{Problems: []rulefile.Problem{}, Warnings: []rulefile.Problem{}}
	file, err := rulefile.Parse("rules", text)
	if err != nil {
		problems, ok := invalid(err).details.(map[string]any)["problems"].(rulefile.Problems)
		if !ok {
			return invalid(err)
		}
		out.Problems = problems
	} else {
		out.Valid, out.Rules = true, len(file.Rules.Rules)
		out.Warnings = append(append(out.Warnings, file.Warnings...), rulefile.Compare(a.Source.InForce().File, file)...)
	}
	writeJSON(w, http.StatusOK, out)
	return nil
}

func (a *API) putRule(w http.ResponseWriter, r *http.Request) *fault {
	rule, f := document(w, r)
	if f != nil {
		return f
	}
	id := r.PathValue("id")
	return a.write(w, r, "put rule "+id, func(text []byte) ([]byte, error) { return rulefile.PutRule(text, id, rule) })
}

func (a *API) deleteRule(w http.ResponseWriter, r *http.Request) *fault {
	id := r.PathValue("id")
	return a.write(w, r, "delete rule "+id, func(text []byte) ([]byte, error) { return rulefile.DeleteRule(text, id) })
}

// numbers are a tier's or an override's on the wire.
type numbers struct {
	Limit    json.RawMessage `json:"limit"`
	Capacity int64           `json:"capacity"`
}

// read takes a limit as a text, "500/minute", or a number, which leaves the window as it is.
func (n *numbers) read() (rulefile.Numbers, *fault) {
	out := rulefile.Numbers{Capacity: n.Capacity}
	if n.Capacity < 0 {
		return out, newFault(http.StatusBadRequest, checkapi.CodeBadRequest, "capacity: must be at least 1, got %d", n.Capacity)
	}
	if len(n.Limit) == 0 {
		if n.Capacity == 0 {
			return out, newFault(http.StatusBadRequest, checkapi.CodeBadRequest, `give a limit, such as {"limit": 500} or {"limit": "500/minute"}, or a capacity`)
		}
		return out, nil
	}
	var text string
	var count int64
	switch {
	case json.Unmarshal(n.Limit, &text) == nil:
		out.Limit = text
	case json.Unmarshal(n.Limit, &count) == nil:
		out.Limit = strconv.FormatInt(count, 10)
	default:
		return out, newFault(http.StatusBadRequest, checkapi.CodeBadRequest, `limit: must be a number, or a text such as "500/minute", got %s`, n.Limit)
	}
	return out, nil
}

func (a *API) putTier(w http.ResponseWriter, r *http.Request) *fault {
	var in numbers
	if f := decode(w, r, &in); f != nil {
		return f
	}
	n, f := in.read()
	if f != nil {
		return f
	}
	tier := r.PathValue("tier")
	return a.write(w, r, "put tier "+tier, func(text []byte) ([]byte, error) { return rulefile.SetTier(text, tier, n) })
}

// keyed names an override.
type keyed struct {
	Key  string `json:"key"`
	Rule string `json:"rule"`
}

func (k *keyed) check() *fault {
	switch {
	case k.Key == "":
		return newFault(http.StatusBadRequest, checkapi.CodeBadRequest, "key: must be the API key that the override is for")
	case k.Rule == "":
		return newFault(http.StatusBadRequest, checkapi.CodeBadRequest, "rule: must be the id of the rule whose numbers it overrides")
	}
	return nil
}

func (a *API) putKey(w http.ResponseWriter, r *http.Request) *fault {
	var in struct {
		keyed
		numbers
		ExpiresIn string `json:"expires_in"`
	}
	if f := decode(w, r, &in); f != nil {
		return f
	}
	if f := in.check(); f != nil {
		return f
	}
	n, f := in.read()
	if f != nil {
		return f
	}
	if in.ExpiresIn != "" {
		d, err := time.ParseDuration(in.ExpiresIn)
		if err != nil || d <= 0 {
			return newFault(http.StatusBadRequest, checkapi.CodeBadRequest, "expires_in: must be a time such as 30m or 24h, got %q", in.ExpiresIn)
		}
		n.Expires = time.Now().Add(d).UTC().Truncate(time.Second).Add(time.Second)
	}
	return a.write(w, r, "override a key in rule "+in.Rule, func(text []byte) ([]byte, error) {
		return rulefile.SetOverride(text, in.Rule, in.Key, n)
	})
}

func (a *API) deleteKey(w http.ResponseWriter, r *http.Request) *fault {
	var in keyed
	if f := decode(w, r, &in); f != nil {
		return f
	}
	if f := in.check(); f != nil {
		return f
	}
	return a.write(w, r, "remove an override in rule "+in.Rule, func(text []byte) ([]byte, error) {
		return rulefile.DeleteOverride(text, in.Rule, in.Key)
	})
}

// versionInfo is a version on the wire.
type versionInfo struct {
	Version int64     `json:"version"`
	Parent  int64     `json:"parent"`
	Author  string    `json:"author"`
	Time    time.Time `json:"time"`
	Message string    `json:"message"`
	Text    string    `json:"text,omitempty"`
}

func infoOf(v rulestore.Version) versionInfo {
	return versionInfo{v.Number, v.Parent, v.Author, v.Time, v.Message, string(v.Text)}
}

// history is where versions are looked up, if there are any.
func (a *API) history() (rulestore.Store, *fault) {
	if a.Source.store == nil {
		return nil, newFault(http.StatusConflict, codeInFile, "the rules of this node are those of %s, which keeps no versions: ask the tool that keeps the file", a.Source.file)
	}
	return a.Source.store, nil
}

// number reads a number from the query.
func number(r *http.Request, name string, otherwise int64) (int64, *fault) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 {
		return 0, newFault(http.StatusBadRequest, checkapi.CodeBadRequest, "%s: must be a number from 1 on, got %q", name, text)
	}
	return n, nil
}

// maxListed is how many versions one answer lists.
const maxListed = 1000

func (a *API) versions(w http.ResponseWriter, r *http.Request) *fault {
	store, f := a.history()
	if f != nil {
		return f
	}
	before, f := number(r, "before", 0)
	if f != nil {
		return f
	}
	limit, f := number(r, "limit", 50)
	if f != nil {
		return f
	}
	list, err := store.List(r.Context(), before, int(min(limit, maxListed)))
	if err != nil {
		return storeFault(err)
	}
	out := make([]versionInfo, len(list))
	for i, v := range list {
		out[i] = infoOf(v)
	}
	writeJSON(w, http.StatusOK, map[string]any{"versions": out})
	return nil
}

func (a *API) version(w http.ResponseWriter, r *http.Request) *fault {
	store, f := a.history()
	if f != nil {
		return f
	}
	n, err := strconv.ParseInt(r.PathValue("version"), 10, 64)
	if err != nil || n < 1 {
		return newFault(http.StatusBadRequest, checkapi.CodeBadRequest, "a version is a number from 1 on, got %q", r.PathValue("version"))
	}
	v, err := store.Get(r.Context(), n)
	if err != nil {
		return storeFault(err)
	}
	writeJSON(w, http.StatusOK, infoOf(v))
	return nil
}

func (a *API) diff(w http.ResponseWriter, r *http.Request) *fault {
	store, f := a.history()
	if f != nil {
		return f
	}
	to, f := number(r, "to", a.Source.InForce().Version)
	if f != nil {
		return f
	}
	from, f := number(r, "from", to-1)
	if f != nil {
		return f
	}
	var texts [2][]byte
	for i, n := range []int64{from, to} {
		v, err := store.Get(r.Context(), n)
		if err != nil {
			return storeFault(err)
		}
		texts[i] = v.Text
	}
	d := diff(from, texts[0], to, texts[1])
	if wants(r, "text/plain") {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write([]byte(d))
		return nil
	}
	writeJSON(w, http.StatusOK, map[string]any{"from": from, "to": to, "diff": d})
	return nil
}

func (a *API) rollback(w http.ResponseWriter, r *http.Request) *fault {
	store, f := a.history()
	if f != nil {
		return f
	}
	var in struct {
		Version int64  `json:"version"`
		Message string `json:"message"`
	}
	if f := decode(w, r, &in); f != nil {
		return f
	}
	if len(in.Message) > maxMessage {
		return newFault(http.StatusBadRequest, checkapi.CodeBadRequest, "message: has %d bytes, and may have %d", len(in.Message), maxMessage)
	}
	if in.Version < 1 {
		return newFault(http.StatusBadRequest, checkapi.CodeBadRequest, "version: must be the number of the version to go back to")
	}
	v, err := store.Get(r.Context(), in.Version)
	if err != nil {
		return storeFault(err)
	}
	what := "rollback to version " + strconv.FormatInt(in.Version, 10)
	c, f := a.change(r, func([]byte) ([]byte, error) { return v.Text, nil })
	if f != nil {
		return f
	}
	// Who goes back wants what was in force then, and is in a hurry.
	c.force = true
	if c.message = in.Message; c.message == "" {
		c.message = what
	}
	return a.make(w, r, what, c)
}

func (a *API) list(w http.ResponseWriter, entries func(*weir.Rules) []string) *fault {
	doc := a.Source.InForce()
	setETag(w, doc.Version)
	out := entries(&doc.File.Rules)
	if out == nil {
		out = []string{}
	}
	writeJSON(w, http.StatusOK, map[string]any{"entries": out})
	return nil
}

func (a *API) putList(w http.ResponseWriter, r *http.Request, list rulefile.List, name string) *fault {
	var in struct {
		Entries []string `json:"entries"`
	}
	if f := decode(w, r, &in); f != nil {
		return f
	}
	if in.Entries == nil {
		return newFault(http.StatusBadRequest, checkapi.CodeBadRequest, `entries: must be the whole list, such as {"entries": ["sk_internal_*"]}`)
	}
	return a.write(w, r, "put "+name, func(text []byte) ([]byte, error) { return rulefile.SetList(text, list, in.Entries) })
}

func (a *API) allowlist(w http.ResponseWriter, _ *http.Request) *fault {
	return a.list(w, func(r *weir.Rules) []string { return r.Allow })
}

func (a *API) denylist(w http.ResponseWriter, _ *http.Request) *fault {
	return a.list(w, func(r *weir.Rules) []string { return r.Deny })
}

func (a *API) putAllowlist(w http.ResponseWriter, r *http.Request) *fault {
	return a.putList(w, r, rulefile.Allowlist, "allowlist")
}

func (a *API) putDenylist(w http.ResponseWriter, r *http.Request) *fault {
	return a.putList(w, r, rulefile.Denylist, "denylist")
}

// nodeInfo is a node on the wire.
type nodeInfo struct {
	Name         string `json:"name"`
	Self         bool   `json:"self"`
	Version      string `json:"version"`
	RulesVersion int64  `json:"rules_version"`
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
		out[i] = nodeInfo{n.Name, n.Name == self.Name, n.Version, n.RulesVersion, n.Store, max(0, time.Since(n.Seen).Milliseconds())}
	}
	writeJSON(w, http.StatusOK, map[string]any{"nodes": out})
	return nil
}

func (a *API) about(w http.ResponseWriter, _ *http.Request) *fault {
	writeJSON(w, http.StatusOK, map[string]any{"version": a.Self().Version, "store": a.Store()})
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
	writeJSON(w, http.StatusOK, Explain(a.Source.InForce().File.Set, &req))
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
	writeJSON(w, http.StatusOK, map[string]any{"counters": out})
	return nil
}

func (a *API) resetCounters(w http.ResponseWriter, r *http.Request) *fault {
	req, f := request(w, r)
	if f != nil {
		return f
	}
	n, err := a.Limiter.Reset(r.Context(), &req)
	if err != nil {
		return newFault(http.StatusServiceUnavailable, "STORE_UNAVAILABLE", "not all counters could be reset: %v", err)
	}
	a.audit(r, "reset counters", "counters", n)
	writeJSON(w, http.StatusOK, map[string]any{"reset": n})
	return nil
}
