package admin

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/internal/shown"
	"github.com/weirhq/weir/rulefile"
)

// flag reads one from the query.
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

// maxMessage is how much a version can say about itself, in bytes.
const maxMessage = 1000

// change reads from a request what all writes have in common.
func (a *API) change(r *http.Request, edit func([]byte) ([]byte, error)) (change, *jsonerror.Error) {
	c := change{edit: edit, author: whoOf(r).Name, message: r.URL.Query().Get("message")}
	var f *jsonerror.Error
	if c.force, f = flag(r, "force"); f != nil {
		return c, f
	}
	if c.dryRun, f = flag(r, "dry_run"); f != nil {
		return c, f
	}
	if tag := r.Header.Get("If-Match"); tag != "" && tag != "*" {
		var ok bool
		if c.ifMatch, ok = parseName(strings.Trim(strings.TrimPrefix(tag, "W/"), `"`)); !ok {
			return c, jsonerror.Bad(`If-Match: must be the ETag of the rules, such as "42", or with the hash, "42-abcdef12"`)
		}
	}
	return c, nil
}

// write makes a change, answers with its result, and records its author. What it is called names no
// key: that is for the audit.
func (a *API) write(w http.ResponseWriter, r *http.Request, what string, edit func([]byte) ([]byte, error)) *jsonerror.Error {
	c, f := a.change(r, edit)
	if f != nil {
		return f
	}
	return a.make(w, r, what, &c)
}

// remove is a write that is meant to take something away.
func (a *API) remove(w http.ResponseWriter, r *http.Request, what string, edit func([]byte) ([]byte, error)) *jsonerror.Error {
	c, f := a.change(r, edit)
	if f != nil {
		return f
	}
	c.removes = true
	return a.make(w, r, what, &c)
}

func (a *API) make(w http.ResponseWriter, r *http.Request, what string, c *change) *jsonerror.Error {
	if len(c.message) > maxMessage {
		return jsonerror.Bad("message: has %d bytes, and may have %d", len(c.message), maxMessage)
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
		if !c.dryRun { // which anybody may send who may look
			a.audit(r, shown.Hide(what), "answer", f.Code) // a name that isn't there may be a key
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

// audit logs the author, the address and the change. It names no key: keys are in the version that
// the change made.
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
	c, f := a.change(r, func([]byte) ([]byte, error) { return text, nil })
	if f != nil {
		return f
	}
	c.whole = true
	return a.make(w, r, "put rules", &c)
}

func (a *API) putRule(w http.ResponseWriter, r *http.Request) *jsonerror.Error {
	rule, f := document(w, r)
	if f != nil {
		return f
	}
	id := r.PathValue("id")
	return a.write(w, r, "put rule "+id, func(text []byte) ([]byte, error) { return rulefile.PutRule(text, id, rule) })
}

func (a *API) deleteRule(w http.ResponseWriter, r *http.Request) *jsonerror.Error {
	id := r.PathValue("id")
	return a.remove(w, r, "delete rule "+id, func(text []byte) ([]byte, error) { return rulefile.DeleteRule(text, id) })
}

// read takes a limit as a text, "500/minute", or a number, which leaves the window as it is.
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
	case json.Unmarshal(n.Limit, &text) == nil && len(shown.Keys(text)) == 0: // what parses it repeats it
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
	return a.write(w, r, "put tier "+tier, func(text []byte) ([]byte, error) { return rulefile.SetTier(text, tier, n) })
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
	c, f := a.change(r, nil)
	if f != nil {
		return f
	}
	c.hidden = hidden
	c.edit = func(text []byte) ([]byte, error) {
		n := n
		if in.ExpiresIn == "" {
			// Whoever gives a customer more today, and then still more, hasn't said "for ever".
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
	return a.make(w, r, "override a key in rule "+in.Rule, &c)
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
	c, f := a.change(r, func(text []byte) ([]byte, error) { return rulefile.DeleteOverride(text, in.Rule, in.Key) })
	if f != nil {
		return f
	}
	c.hidden, c.removes, c.did = hidden, true, "take from "+shown.Entry(in.Key)+" its own numbers in rule "+in.Rule
	return a.make(w, r, "remove an override in rule "+in.Rule, &c)
}

func (a *API) putList(w http.ResponseWriter, r *http.Request, list rulefile.List, name string) *jsonerror.Error {
	var in List
	if f := decode(w, r, &in); f != nil {
		return f
	}
	if in.Entries == nil {
		return jsonerror.Bad(`entries: must be the whole list, such as {"entries": ["sk_internal_*"]}`)
	}
	c, f := a.change(r, func(text []byte) ([]byte, error) { return rulefile.SetList(text, list, in.Entries) })
	if f != nil {
		return f
	}
	// A caller that doesn't say which list it has read may drop an entry that was just added,
	// unseen.
	c.removes = c.ifMatch.Number != 0
	return a.make(w, r, "put "+name, &c)
}

func (a *API) putAllowlist(w http.ResponseWriter, r *http.Request) *jsonerror.Error {
	return a.putList(w, r, rulefile.Allowlist, "allowlist")
}

func (a *API) putDenylist(w http.ResponseWriter, r *http.Request) *jsonerror.Error {
	return a.putList(w, r, rulefile.Denylist, "denylist")
}
