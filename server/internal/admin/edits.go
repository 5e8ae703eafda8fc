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
	"github.com/weirhq/weir/internal/private"
	"github.com/weirhq/weir/internal/shown"
	"github.com/weirhq/weir/rulefile"
)

// parameter parses a query parameter. If it is missing, it returns otherwise.
func parameter[T any](r *call, name, must string, otherwise T, parse func(string) (v T, ok bool)) (T, *jsonerror.Error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return otherwise, nil
	}
	v, ok := parse(text)
	if !ok {
		return otherwise, jsonerror.Bad("%s: must be %s", name, must)
	}
	return v, nil
}

func (r *call) flag(name string) (bool, *jsonerror.Error) {
	return parameter(r, name, "true or false", false, func(text string) (bool, bool) {
		v, err := strconv.ParseBool(text)
		return v, err == nil
	})
}

const maxMessage = 1000

func (c *change) read(r *call) (f *jsonerror.Error) {
	c.author, c.message = r.who.Name, cmp.Or(c.message, r.URL.Query().Get("message"))
	if len(c.message) > maxMessage {
		return jsonerror.Bad("message: has %d bytes, and may have %d", len(c.message), maxMessage)
	}
	if c.force, f = r.flag("force"); f != nil {
		return f
	}
	if c.dryRun, f = r.flag("dry_run"); f != nil {
		return f
	}
	if tag := r.ifMatch(); tag != "" {
		var ok bool
		if c.ifMatch, ok = parseName(strings.Trim(strings.TrimPrefix(tag, "W/"), `"`)); !ok {
			return jsonerror.Bad(`If-Match: must be the ETag of the rules, such as "42", or with the hash, "42-abcdef12"`)
		}
	}
	return nil
}

// ifMatch returns the version that must be the newest for the change to succeed, or "" for any version.
func (r *call) ifMatch() string {
	if tag := r.Header.Get("If-Match"); tag != "*" {
		return tag
	}
	return ""
}

// make makes a change and logs its author. what describes the change in the audit log, so it must not contain a key.
func (a *API) make(r *call, what string, c *change) (any, *jsonerror.Error) {
	if f := c.read(r); f != nil {
		return nil, f
	}
	var out *Changed
	var f *jsonerror.Error
	if gone := r.inTurn(func() { out, f = a.commit(r.Context(), c) }); gone != nil {
		return nil, gone
	}
	if c.then != nil {
		out, f = c.then(out, f)
	}
	if f != nil {
		if !c.dryRun { // dry runs aren't logged, because readers may send them
			a.audit(r, shown.Hide(what), "answer", f.Code) // what may contain an unknown name, which may be a key in the wrong place
		}
		return nil, scrubFault(f, c.hidden)
	}
	out.Diff, out.Warnings = scrub(out.Diff, c.hidden), scrubAll(out.Warnings, c.hidden)
	if out.Version != out.before {
		a.audit(r, what, "before", out.before, "after", out.Version)
	}
	r.setETag(out.Version)
	return out, nil
}

// audit logs the author, the caller's address and the change, without keys. The keys are in the version that the change
// made.
func (a *API) audit(r *call, what string, args ...any) {
	a.Audit.Info("audit", append([]any{"who", r.who.Name, "from", r.RemoteAddr, "what", what}, args...)...)
}

func (a *API) putRules(r *call, text []byte) (any, *jsonerror.Error) {
	if r.Header.Get("If-Match") == "" {
		return nil, jsonerror.New(http.StatusPreconditionRequired, jsonerror.IfMatchRequired, "send the ETag of the rules that you have changed as If-Match, or If-Match: * to replace whatever is there")
	}
	return a.make(r, "put rules", &change{whole: true, edit: func([]byte) ([]byte, error) { return text, nil }})
}

func (a *API) putRule(r *call, rule []byte) (any, *jsonerror.Error) {
	id := r.PathValue("id")
	return a.make(r, "put rule "+id, &change{edit: func(text []byte) ([]byte, error) { return rulefile.PutRule(text, id, rule) }})
}

func (a *API) deleteRule(r *call) (any, *jsonerror.Error) {
	id := r.PathValue("id")
	return a.make(r, "delete rule "+id, &change{removes: true, edit: func(text []byte) ([]byte, error) { return rulefile.DeleteRule(text, id) }})
}

// read parses a limit. The limit is a text such as "500/minute", or a number, which leaves the window unchanged.
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
	case json.Unmarshal(n.Limit, &text) == nil && len(shown.Keys(text)) == 0: // don't parse a text that looks like a key, because errors of the parser quote the text
		out.Limit = text
	case json.Unmarshal(n.Limit, &number) == nil && n.Limit[0] != '"':
		out.Limit = number.String()
	default:
		return out, jsonerror.Bad(`limit: must be a number, or a text such as "500/minute"`)
	}
	return out, nil
}

func (a *API) putTier(r *call, in Numbers) (any, *jsonerror.Error) {
	n, f := in.read()
	if f != nil {
		return nil, f
	}
	tier := r.PathValue("tier")
	return a.make(r, "put tier "+tier, &change{edit: func(text []byte) ([]byte, error) { return rulefile.SetTier(text, tier, n) }})
}

// resolve sets Key if the client is named by its fingerprint. In that case, it returns the key as hidden, and responses
// must not show it.
func (k *OverrideName) resolve(a *API, r *call) (hidden string, f *jsonerror.Error) {
	k.Key, hidden, f = a.keyOf(r, k.Key, k.Client, "override")
	switch {
	case f != nil:
		return "", f
	case k.Key == "":
		return "", jsonerror.Bad(`key: must be the API key that the override is for; or give "client", a fingerprint`)
	case k.Rule == "":
		return "", jsonerror.Bad("rule: must be the id of the rule whose numbers it overrides")
	}
	return hidden, nil
}

func (a *API) putKey(r *call, in Override) (any, *jsonerror.Error) {
	hidden, f := in.resolve(a, r)
	if f != nil {
		return nil, f
	}
	n, f := in.read()
	if f != nil {
		return nil, f
	}
	now := private.Now(a.Limiter)
	if in.ExpiresIn != "" && in.ExpiresIn != "never" {
		d, err := time.ParseDuration(in.ExpiresIn)
		if err != nil || d <= 0 {
			return nil, jsonerror.Bad(`expires_in: must be a time such as 30m or 24h, or "never"`)
		}
		n.Expires = now.Add(d).UTC().Truncate(time.Second).Add(time.Second)
	}
	c := &change{hidden: hidden}
	c.edit = func(text []byte) ([]byte, error) {
		n := n
		if in.ExpiresIn == "" {
			// A temporary override keeps its end: an operator who raises its limit doesn't mean to make it permanent.
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
	return a.make(r, "override a key in rule "+in.Rule, c)
}

func (a *API) deleteKey(r *call, in OverrideName) (any, *jsonerror.Error) {
	hidden, f := in.resolve(a, r)
	if f != nil {
		return nil, f
	}
	return a.make(r, "remove an override in rule "+in.Rule, &change{
		hidden: hidden, removes: true, did: "take from " + shown.Entry(in.Key) + " its own numbers in rule " + in.Rule,
		edit: func(text []byte) ([]byte, error) { return rulefile.DeleteOverride(text, in.Rule, in.Key) },
	})
}

type keyList struct {
	name    string
	list    rulefile.List
	entries func(*weir.Rules) []string
}

var (
	allowlist = keyList{"allowlist", rulefile.Allowlist, func(r *weir.Rules) []string { return r.Allow }}
	denylist  = keyList{"denylist", rulefile.Denylist, func(r *weir.Rules) []string { return r.Deny }}
)

func (l keyList) put(a *API, r *call, in List) (any, *jsonerror.Error) {
	if in.Entries == nil {
		return nil, jsonerror.Bad(`entries: must be the whole list, such as {"entries": ["sk_internal_*"]}`)
	}
	return a.make(r, "put "+l.name, &change{
		removes: r.ifMatch() != "", // without If-Match, the caller may remove an entry that somebody has just added, and that the caller hasn't seen
		edit:    func(text []byte) ([]byte, error) { return rulefile.SetList(text, l.list, in.Entries) },
	})
}

func (l keyList) edit(a *API, r *call, in ListEntry) (any, *jsonerror.Error) {
	entry, hidden, f := a.keyOf(r, strings.TrimSpace(in.Key), in.Client, l.name)
	if f != nil {
		return nil, f
	}
	if entry == "" {
		return nil, jsonerror.Bad(`key: must be a key, a pattern such as sk_internal_* or an IP range; or give "client", a fingerprint`)
	}
	now := private.Now(a.Limiter)
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
			return nil, f
		}
	}
	what := "add an entry to the " + l.name
	if in.Remove {
		what = "remove an entry of the " + l.name
	}
	return a.make(r, what, c)
}
