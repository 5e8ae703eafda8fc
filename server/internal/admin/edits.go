package admin

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/internal/shown"
	"github.com/weirhq/weir/rulefile"
)

// flag reads a boolean from the query.
func flag(r *http.Request, name string) (bool, *jsonerror.Error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return false, nil
	}
	v, err := strconv.ParseBool(text)
	if err != nil {
		return false, jsonerror.Bad("%s: must be true or false", name)
	}
	return v, nil
}

// maxMessage is the longest message of a version, in bytes.
const maxMessage = 1000

// read reads from a request what all changes have in common.
func (c *change) read(r *http.Request) (f *jsonerror.Error) {
	c.author, c.message = whoOf(r).Name, cmp.Or(c.message, r.URL.Query().Get("message"))
	if len(c.message) > maxMessage {
		return jsonerror.Bad("message: has %d bytes, and may have %d", len(c.message), maxMessage)
	}
	if c.force, f = flag(r, "force"); f != nil {
		return f
	}
	if c.dryRun, f = flag(r, "dry_run"); f != nil {
		return f
	}
	if tag := ifMatch(r); tag != "" {
		var ok bool
		if c.ifMatch, ok = parseName(strings.Trim(strings.TrimPrefix(tag, "W/"), `"`)); !ok {
			return jsonerror.Bad(`If-Match: must be the ETag of the rules, such as "42", or with the hash, "42-abcdef12"`)
		}
	}
	return nil
}

// ifMatch returns the version that a change is meant for, or "" if any will do.
func ifMatch(r *http.Request) string {
	if tag := r.Header.Get("If-Match"); tag != "*" {
		return tag
	}
	return ""
}

// make makes a change, answers with the outcome, and records the author. What names the change in the audit log, so it
// must not hold a key.
func (a *API) make(w http.ResponseWriter, r *http.Request, what string, c *change) *jsonerror.Error {
	if f := c.read(r); f != nil {
		return f
	}
	var out *Changed
	var f *jsonerror.Error
	if gone := inTurn(r, func() { out, f = a.commit(r.Context(), c) }); gone != nil {
		return gone
	}
	if c.then != nil {
		out, f = c.then(out, f)
	}
	if f != nil {
		if !c.dryRun { // readers may send dry runs
			a.audit(r, shown.Hide(what), "answer", f.Code) // a name that doesn't exist may be a misplaced key
		}
		return scrubFault(f, c.hidden)
	}
	out.Diff, out.Warnings = scrub(out.Diff, c.hidden), scrubAll(out.Warnings, c.hidden)
	if out.Version != out.before {
		a.audit(r, what, "before", out.before, "after", out.Version)
	}
	setETag(w, out.Version)
	WriteJSON(w, http.StatusOK, out)
	return nil
}

// audit logs the author, the address and the change, without keys: those are in the version that the change made.
func (a *API) audit(r *http.Request, what string, args ...any) {
	a.Audit.Info("audit", append([]any{"who", whoOf(r).Name, "from", r.RemoteAddr, "what", what}, args...)...)
}

func (a *API) putRules(w http.ResponseWriter, r *http.Request) *jsonerror.Error {
	text, f := document(w, r)
	if f != nil {
		return f
	}
	if r.Header.Get("If-Match") == "" {
		return jsonerror.New(http.StatusPreconditionRequired, jsonerror.IfMatchRequired, "send the ETag of the rules that you have changed as If-Match, or If-Match: * to replace whatever is there")
	}
	return a.make(w, r, "put rules", &change{whole: true, edit: func([]byte) ([]byte, error) { return text, nil }})
}

func (a *API) putRule(w http.ResponseWriter, r *http.Request) *jsonerror.Error {
	rule, f := document(w, r)
	if f != nil {
		return f
	}
	id := r.PathValue("id")
	return a.make(w, r, "put rule "+id, &change{edit: func(text []byte) ([]byte, error) { return rulefile.PutRule(text, id, rule) }})
}

func (a *API) deleteRule(w http.ResponseWriter, r *http.Request) *jsonerror.Error {
	id := r.PathValue("id")
	return a.make(w, r, "delete rule "+id, &change{removes: true, edit: func(text []byte) ([]byte, error) { return rulefile.DeleteRule(text, id) }})
}

// read reads a limit, which is text such as "500/minute", or a number, which keeps the window.
func (n *Numbers) read() (rulefile.Numbers, *jsonerror.Error) {
	out := rulefile.Numbers{Capacity: n.Capacity}
	if n.Capacity < 0 {
		return out, jsonerror.Bad("capacity: must be at least 1, got %d", n.Capacity)
	}
	if len(n.Limit) == 0 {
		if n.Capacity == 0 {
			return out, jsonerror.Bad(`give a limit, such as {"limit": 500} or {"limit": "500/minute"}, or a capacity`)
		}
		return out, nil
	}
	var text string
	var number json.Number
	switch {
	case json.Unmarshal(n.Limit, &text) == nil && len(shown.Keys(text)) == 0: // the parser's errors quote it, and it may be a misplaced key
		out.Limit = text
	case json.Unmarshal(n.Limit, &number) == nil && n.Limit[0] != '"':
		out.Limit = number.String()
	default:
		return out, jsonerror.Bad(`limit: must be a number, or a text such as "500/minute"`)
	}
	return out, nil
}

func (a *API) putTier(w http.ResponseWriter, r *http.Request) *jsonerror.Error {
	var in Numbers
	if f := decode(w, r, &in); f != nil {
		return f
	}
	n, f := in.read()
	if f != nil {
		return f
	}
	tier := r.PathValue("tier")
	return a.make(w, r, "put tier "+tier, &change{edit: func(text []byte) ([]byte, error) { return rulefile.SetTier(text, tier, n) }})
}

func (k *OverrideName) check() *jsonerror.Error {
	switch {
	case k.Key == "":
		return jsonerror.Bad(`key: must be the API key that the override is for; or give "client", a fingerprint`)
	case k.Rule == "":
		return jsonerror.Bad("rule: must be the id of the rule whose numbers it overrides")
	}
	return nil
}

func (a *API) putKey(w http.ResponseWriter, r *http.Request) *jsonerror.Error {
	var in Override
	if f := decode(w, r, &in); f != nil {
		return f
	}
	var hidden string
	var f *jsonerror.Error
	if in.Key, hidden, f = a.keyOf(r, in.Key, in.Client, "override"); f != nil {
		return f
	}
	if f := in.check(); f != nil {
		return f
	}
	n, f := in.read()
	if f != nil {
		return f
	}
	now := a.Limiter.Now()
	if in.ExpiresIn != "" && in.ExpiresIn != "never" {
		d, err := time.ParseDuration(in.ExpiresIn)
		if err != nil || d <= 0 {
			return jsonerror.Bad(`expires_in: must be a time such as 30m or 24h, or "never"`)
		}
		n.Expires = now.Add(d).UTC().Truncate(time.Second).Add(time.Second)
	}
	c := &change{hidden: hidden}
	c.edit = func(text []byte) ([]byte, error) {
		n := n
		if in.ExpiresIn == "" {
			// An operator who raises a temporary override doesn't mean to make it permanent.
			old, err := rulefile.ParseAt("rules", text, now)
			if err != nil {
				return nil, err
			}
			n.Expires = old.Expiry(in.Rule, in.Key)
		}
		c.ends, c.did = n.Expires, "give "+shown.Entry(in.Key)+" "+numbersText(n)+" in rule "+in.Rule
		if !c.ends.IsZero() {
			c.did += " until " + c.ends.Format(time.DateTime) + " UTC"
		}
		text, err := rulefile.DropExpired(text, now)
		if err != nil {
			return nil, err
		}
		return rulefile.SetOverride(text, in.Rule, in.Key, n)
	}
	return a.make(w, r, "override a key in rule "+in.Rule, c)
}

func (a *API) deleteKey(w http.ResponseWriter, r *http.Request) *jsonerror.Error {
	var in OverrideName
	if f := decode(w, r, &in); f != nil {
		return f
	}
	var hidden string
	var f *jsonerror.Error
	if in.Key, hidden, f = a.keyOf(r, in.Key, in.Client, "override"); f != nil {
		return f
	}
	if f := in.check(); f != nil {
		return f
	}
	return a.make(w, r, "remove an override in rule "+in.Rule, &change{
		hidden: hidden, removes: true, did: "take from " + shown.Entry(in.Key) + " its own numbers in rule " + in.Rule,
		edit: func(text []byte) ([]byte, error) { return rulefile.DeleteOverride(text, in.Rule, in.Key) },
	})
}

// keyList is the allow list or the deny list.
type keyList struct {
	name    string
	list    rulefile.List
	entries func(*weir.Rules) []string
}

var (
	allowlist = keyList{"allowlist", rulefile.Allowlist, func(r *weir.Rules) []string { return r.Allow }}
	denylist  = keyList{"denylist", rulefile.Denylist, func(r *weir.Rules) []string { return r.Deny }}
)

// of makes the handler for one of the lists.
func (l keyList) of(h func(*API, http.ResponseWriter, *http.Request, keyList) *jsonerror.Error) func(*API, http.ResponseWriter, *http.Request) *jsonerror.Error {
	return func(a *API, w http.ResponseWriter, r *http.Request) *jsonerror.Error { return h(a, w, r, l) }
}

func (a *API) putList(w http.ResponseWriter, r *http.Request, l keyList) *jsonerror.Error {
	var in List
	if f := decode(w, r, &in); f != nil {
		return f
	}
	if in.Entries == nil {
		return jsonerror.Bad(`entries: must be the whole list, such as {"entries": ["sk_internal_*"]}`)
	}
	return a.make(w, r, "put "+l.name, &change{
		removes: ifMatch(r) != "", // without it, the caller may drop an entry that was just added and that it hasn't seen
		edit:    func(text []byte) ([]byte, error) { return rulefile.SetList(text, l.list, in.Entries) },
	})
}

func (a *API) editList(w http.ResponseWriter, r *http.Request, l keyList) *jsonerror.Error {
	var in ListEntry
	if f := decode(w, r, &in); f != nil {
		return f
	}
	entry, hidden, f := a.keyOf(r, strings.TrimSpace(in.Key), in.Client, l.name)
	if f != nil {
		return f
	}
	if entry == "" {
		return jsonerror.Bad(`key: must be a key, a pattern such as sk_internal_* or an IP range; or give "client", a fingerprint`)
	}
	now := a.Limiter.Now()
	c := &change{removes: in.Remove, hidden: hidden, edit: func(text []byte) ([]byte, error) {
		old, err := rulefile.ParseAt("rules", text, now)
		if err != nil {
			return nil, err
		}
		entries := l.entries(&old.Rules)
		there := slices.Contains(entries, entry)
		switch {
		case there && !in.Remove:
			return text, nil
		case !there && in.Remove:
			return nil, noEntry(l.name, entry)
		case in.Remove:
			entries = slices.DeleteFunc(slices.Clone(entries), func(e string) bool { return e == entry })
		default:
			entries = append(slices.Clip(entries), entry)
		}
		return rulefile.SetList(text, l.list, entries)
	}}
	if l.list == rulefile.Denylist {
		if f := a.block(r, c, entry, in.Remove); f != nil {
			return f
		}
	}
	what := "add an entry to the " + l.name
	if in.Remove {
		what = "remove an entry of the " + l.name
	}
	return a.make(w, r, what, c)
}
