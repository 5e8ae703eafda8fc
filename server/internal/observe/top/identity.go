package top

import (
	"cmp"
	"net/netip"
	"strings"

	"github.com/weirhq/weir/internal/private"
	"github.com/weirhq/weir/internal/shown"
	"github.com/weirhq/weir/internal/siphash"
)

// Identity identifies a client. It must not be shown to people.
type Identity struct {
	Kind  string // api_key, user, ip, or another dimension that a rule counts by, such as org or header:X-Tenant
	Value string
}

// Shown returns the client in a form that people may see. It shows a value in full only if clients can't choose it, and
// if it can't be a secret.
func (i Identity) Shown() string {
	kind, _, _ := strings.Cut(i.Kind, ":")
	switch kind {
	case "ip":
		return cmp.Or(i.Value, "(no address)")
	case "method", "endpoint", "tier", "path":
		return shown.Printable(shown.Clip(i.Value, 64))
	}
	return shown.Key(i.Value)
}

// NewIP returns the identity of an address. As in rules, the identity of an IPv6 address is its /64.
func NewIP(addr netip.Addr) Identity {
	if addr = addr.Unmap().WithZone(""); addr.Is4() {
		return Identity{"ip", addr.String()}
	}
	return Identity{"ip", netip.PrefixFrom(addr, 64).Masked().String()}
}

// counted returns the identity of one dimension in a subject.
func counted(kind, value string) Identity {
	if kind != "ip" {
		return Identity{kind, value}
	}
	if _, ok := shown.Network(value); ok {
		return Identity{"ip", shown.Value(kind, value)}
	}
	return Identity{Kind: "ip"} // the request has no address
}

// FingerprintOf returns the fingerprint of a client that a rule counts by a single dimension. If the rule counts by
// several, it returns "".
func (t *Top) FingerprintOf(values [][2]string) string {
	if len(values) != 1 {
		return ""
	}
	return fingerprint(t.key.Load().hash(counted(values[0][0], values[0][1])))
}

// hash returns the keyed hash of a client. For API keys, users and addresses, the hash is the same as in [client].
func (k *key) hash(i Identity) uint64 {
	switch i.Kind {
	case "api_key":
		return siphash.Hash(k.k0^uint64(apiKey), k.k1, []byte(i.Value))
	case "user":
		return siphash.Hash(k.k0^uint64(user), k.k1, []byte(i.Value))
	case "ip":
		addr, err := netip.ParseAddr(strings.TrimSuffix(i.Value, "/64"))
		var c client
		if err == nil {
			c.from(addr, k)
		}
		if err == nil || i.Value == "" {
			return c.id
		}
	}
	return siphash.Hash(k.k0^uint64(other), k.k1, []byte(i.Kind+"\x00"+i.Value))
}

// person is the client that a row counts.
type person struct {
	named
	parts   []Identity // empty if the row keeps only parts of the subject
	special bool       // an override in the rule gives the client its own limits
}

// names returns the client, and each of its parts, if they have the fingerprint.
func (p *person) names(print uint32, k *key) (all []toldName) {
	if len(p.parts) != 1 && uint32(p.ID>>32) == print {
		all = append(all, toldName{named: p.named})
	}
	for _, part := range p.parts {
		if id := k.hash(part); id != 0 && uint32(id>>32) == print { // requests without an address have the id 0
			all = append(all, toldName{named: named{id, part.Shown(), part.Kind}, value: part.Value})
		}
	}
	return all
}

// who returns the client that a row counts.
func (h *hour) who(r *hourRule, k *row) person {
	rule := h.known[r.id]
	p := person{named: named{k.id, shown.Key(string(k.subject)), "other"}}
	switch {
	case rule == nil || rule.Descriptor != nil:
		if rule != nil {
			p.Kind = "descriptor"
		}
		return p
	case rule.By == nil:
		p.Kind = "api_key"
	case len(rule.By) == 0:
		p.Kind, p.Client = "all", "(everybody)"
	default:
		p.Kind = strings.Join(rule.By, "+")
	}
	if k.cut {
		p.Client = shown.Key(string(k.subject[1:]))
		return p
	}
	var names, texts []string
	for _, v := range private.ReadSubject(rule, k.subject) {
		part := counted(v[0], v[1])
		p.parts, names, texts = append(p.parts, part), append(names, part.Kind), append(texts, part.Shown())
		p.special = p.special || part.Kind == "api_key" && len(rule.Override[part.Value]) > 0
	}
	if len(names) > 0 {
		p.Kind, p.Client = strings.Join(names, "+"), strings.Join(texts, " ")
	}
	if len(p.parts) == 1 {
		p.ID = h.key.hash(p.parts[0])
	}
	return p
}
