package admin

import (
	"net/netip"
	"strings"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/internal/shown"
	"github.com/weirhq/weir/rulefile"
)

// keyOf returns the key that a change is about. The caller names it by key or by client, which is a fingerprint. With a
// fingerprint, hidden is the key, too, and responses must not show it.
func (a *API) keyOf(r *call, key, client, what string) (name, hidden string, f *jsonerror.Error) {
	switch {
	case client == "":
		return key, "", nil
	case key != "":
		return "", "", jsonerror.Bad("give the key, or the client's fingerprint, and not both")
	}
	who, err := a.Top.Resolve(r.Context(), client)
	switch {
	case err != nil:
		return "", "", clientFault(err)
	case who.Kind == "ip" && what != "override":
		return who.Value, "", nil
	case who.Kind != "api_key":
		return "", "", jsonerror.Bad("client: it is known by its %s, and this is for API keys: look at what the rules count by", who.Kind)
	case !plain(who.Value):
		// Clients choose their keys. If a key looked like a range or a pattern, it would block other clients.
		return "", "", jsonerror.Bad("client: its key has characters that a list or a rule might read as something else: paste the key, if it is meant")
	}
	return who.Value, who.Value, nil
}

// plain reports whether a key can't be parsed as an address, a network or a pattern.
func plain(key string) bool {
	_, noAddr := netip.ParseAddr(key)
	_, noNet := netip.ParsePrefix(key)
	return noAddr != nil && noNet != nil && strings.Trim(key, keyBytes) == ""
}

const keyBytes = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.+/=:@~"

// scrub masks a key in a text. An operator who names a client by its fingerprint must not learn the client's key.
func scrub(text, key string) string {
	if key == "" {
		return text
	}
	parts := strings.Split(text, key)
	out := parts[0]
	for i, after := range parts[1:] {
		before := parts[i]
		if before != "" && within(before[len(before)-1]) || after != "" && within(after[0]) { // the match is part of a longer word
			out += key + after
		} else {
			out += shown.Key(key) + after
		}
	}
	return out
}

// within reports whether a byte before or after a key belongs to the same word as the key.
func within(b byte) bool {
	return b == '_' || b >= '0' && b <= '9' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z'
}

func scrubAll(all []rulefile.Problem, key string) []rulefile.Problem {
	if key == "" {
		return all
	}
	for i := range all {
		p := &all[i]
		p.Text, p.Path, p.Hint = scrub(p.Text, key), scrub(p.Path, key), scrub(p.Hint, key)
		p.Excerpt = "" // the excerpt may show part of the key
	}
	return all
}

func scrubFault(f *jsonerror.Error, key string) *jsonerror.Error {
	out := *f
	out.Message = scrub(f.Message, key)
	if d, ok := f.Details.(Rejection); ok {
		out.Details = Rejection{scrubAll(d.Problems, key), scrubAll(d.Warnings, key)}
	}
	return &out
}

// be sets the client of a request to the one with a fingerprint. It returns the client's name, which responses must not
// show.
func (a *API) be(r *call, req *weir.Request, print string) (hidden string, f *jsonerror.Error) {
	if req.APIKey != "" {
		return "", jsonerror.Bad("give the key, or the client's fingerprint, and not both")
	}
	who, err := a.Top.Resolve(r.Context(), print)
	if err != nil {
		return "", clientFault(err)
	}
	switch who.Kind {
	case "api_key":
		req.APIKey, req.KeyVerified = who.Value, true
	case "user":
		req.User = who.Value
	case "org":
		req.Org = who.Value
	case "ip":
		addr, err := netip.ParseAddr(strings.TrimSuffix(who.Value, "/64"))
		if err != nil {
			return "", jsonerror.Bad("client: it has no address")
		}
		req.IP = addr
	default:
		return "", jsonerror.Bad("client: it is known by its %s: write the request that it sends instead", who.Kind)
	}
	return who.Value, nil
}
