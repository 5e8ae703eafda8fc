package top

import (
	"bytes"
	"fmt"
	"net/netip"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/shown"
	"github.com/weirhq/weir/internal/siphash"
)

// kind says what a client is known by.
type kind uint8

const (
	nobody kind = iota // the request has no key, no user and no address
	apiKey
	user
	ip
	other // of what rules count by
)

var kindNames = [...]string{"none", "api_key", "user", "ip", "other"}

func (k kind) String() string { return kindNames[k] }

// sample is a decision that was looked at.
type sample struct {
	client
	address client // beside a key that nobody has verified: whoever makes keys up has another one for each request
	key     *key   // of both hashes
	rule    string
	charges int     // rules that it was charged to, of those of its lane
	share   float64 // of how many each of them stands for, where some were left out
	weight  float64 // how many decisions it stands for
	refused bool
}

// client is whoever sent a request. It has no pointers, so that thousands of them are nothing to the garbage collector.
type client struct {
	id   uint64 // a keyed hash
	kind kind
	n    uint8
	cut  bool                        // the text is how it begins and ends
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
}

// mostCharges is how many rules of a decision are written down. Few have more.
const mostCharges = 8

// charge writes down the rules that a decision was charged to, and for whom. Limits of a rule that count the same follow each other, and are one.
func (l *lane) charge(s *sample, o *weir.Observation, k *key) {
	limits, charges := o.Decision.Limits(), o.Charges
	if len(limits) == 0 || len(limits) != len(charges) {
		return // nothing was counted
	}
	s.share = 1
	rules, first := 1, 0
	if len(limits) > mostCharges {
		for i := range charges[1:] {
			if !together(&charges[i], &charges[i+1]) {
				rules++
			}
		}
		if rules > mostCharges { // each then gets its turn
			first, s.share = int(o.Spread%uint64(rules)), float64(rules)/mostCharges
		}
	}
	var last *charged
	var subject []byte
	rule := 0
	for at := range limits {
		c, limit := &charges[at], &limits[at]
		another := at == 0 || !together(&charges[at-1], c)
		if another && at > 0 {
			rule++
		}
		if s.share > 1 && (rule-first+rules)%rules >= mostCharges {
			continue
		}
		if another {
			same := last != nil && bytes.Equal(c.Subject, subject)
			l.charges = append(l.charges, charged{rule: c.Policy.Rule, tokens: c.N})
			now := &l.charges[len(l.charges)-1]
			if same {
				now.from, now.to, now.id, now.cut = last.from, last.to, last.id, last.cut
			} else {
				l.write(now, c.Subject, k)
				if now.cut && string(c.Subject[1:]) == o.Request.APIKey {
					now.id = s.id // as it is known everywhere else
				}
			}
			last, subject = now, c.Subject
			s.charges++
		}
		last.of(o.Decision, limit)
	}
}

// together reports whether two limits are of one rule, and count the same.
func together(a, b *counter.Charge) bool {
	return a.Policy.Rule == b.Policy.Rule && bytes.Equal(a.Subject, b.Subject)
}

// write writes a subject down.
func (l *lane) write(c *charged, subject []byte, k *key) {
	c.from = uint32(len(l.text))
	if len(subject) <= subjectBytes {
		l.text = append(l.text, subject...)
	} else {
		l.text = append(append(l.text, subject[:headBytes]...), subject[len(subject)-tailBytes:]...)
		c.cut, c.id = true, k.subject(subject)
	}
	c.to = uint32(len(l.text))
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
		c.n, c.cut = uint8(len(c.text)), true
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
