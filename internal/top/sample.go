package top

import (
	"fmt"
	"net/netip"

	"github.com/dchest/siphash"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/shown"
)

// kind says what a client is known by.
type kind uint8

const (
	nobody kind = iota // the request has no key, no user and no address
	apiKey
	user
	ip
)

var kindNames = [...]string{"none", "api_key", "user", "ip"}

func (k kind) String() string { return kindNames[k] }

// sample is a decision that was looked at.
type sample struct {
	client
	address client // beside a key that nobody has verified: whoever makes keys up has another one for each request
	key     *key   // of both hashes
	rule    string
	also    [3]string // further rules that apply
	weight  float64   // how many decisions it stands for
	refused bool
}

// client is whoever sent a request. It has no pointers, so that thousands of them are nothing to the garbage collector.
type client struct {
	id   uint64 // a keyed hash
	kind kind
	n    uint8
	text [headBytes + tailBytes]byte // of a key what its mask is made of; or an address
}

// A mask shows up to eight characters in front and four behind, of up to four bytes each.
const headBytes, tailBytes = 32, 16

// of writes a decision down.
func (s *sample) of(o *weir.Observation, k *key, weight float64) {
	s.client.of(o.Request, k)
	if s.kind != ip && !o.Request.KeyVerified {
		s.address.from(o.Request.IP, k)
	}
	s.key, s.weight, s.rule, s.refused = k, weight, o.Decision.Rule, !o.Decision.Allowed
	// Few requests have more limits than there is room for. Each then gets its turn.
	limits := o.Decision.Limits()
	first := 0
	if len(limits) > len(s.also) {
		first = int(o.Spread % uint64(len(limits)))
	}
	for i := range min(len(limits), len(s.also)) {
		if rule := limits[(first+i)%len(limits)].Policy.Rule; rule != s.rule {
			s.also[i] = rule
		}
	}
}

func (c *client) of(r *weir.Request, k *key) {
	value := r.APIKey
	switch {
	case value != "":
		c.kind = apiKey
	case r.User != "":
		c.kind, value = user, r.User
	case r.IP.IsValid():
		c.from(r.IP, k)
		return
	}
	if len(value) <= len(c.text) {
		c.n = uint8(copy(c.text[:], value))
	} else {
		copy(c.text[:headBytes], value)
		copy(c.text[headBytes:], value[len(value)-tailBytes:])
		c.n = uint8(len(c.text))
	}
	c.id = siphash.Hash(k.k0^uint64(c.kind), k.k1, []byte(value))
}

// from makes an address the client, if there is one.
func (c *client) from(addr netip.Addr, k *key) {
	if !addr.IsValid() {
		return
	}
	c.kind = ip
	all := addr.As16()
	if !addr.Unmap().Is4() {
		clear(all[8:]) // limits count networks, too: a client has as many addresses in its /64 as it likes
	}
	c.n = uint8(copy(c.text[:], all[:]))
	c.id = siphash.Hash(k.k0^uint64(c.kind), k.k1, all[:])
}

// String is the client as people may see it.
func (c *client) String() string {
	switch c.kind {
	case nobody:
		return "(nobody)"
	case ip:
		addr := netip.AddrFrom16([16]byte(c.text[:16])).Unmap()
		if addr.Is4() {
			return addr.String()
		}
		return netip.PrefixFrom(addr, 64).String()
	}
	return shown.Key(string(c.text[:c.n]))
}

// Fingerprint is the client of a request as answers show it: see [Client].
func (t *Top) Fingerprint(r *weir.Request) string {
	var c client
	if c.of(r, t.key.Load()); c.kind == nobody {
		return ""
	}
	return fingerprint(c.id)
}

func fingerprint(id uint64) string { return fmt.Sprintf("%08x", uint32(id>>32)) }
