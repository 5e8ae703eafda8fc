package top

import (
	"bytes"
	"fmt"
	"net/netip"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/siphash"
)

// kind says what identifies a client.
type kind uint8

const (
	nobody kind = iota // the request has no API key, no user and no address
	apiKey
	user
	ip
	other // any other dimension that rules count by
)

var kindNames = [...]string{"none", "api_key", "user", "ip", "other"}

func (k kind) String() string { return kindNames[k] }

type sample struct {
	client
	address client // also counted if the API key is unverified, because attackers can send a new key with each request
	key     *key   // the secret key of both hashes
	rule    string
	charges int     // how many elements of buffer.charges belong to this sample
	weight  float64 // how many decisions the sample stands for
	refused bool
}

// client identifies the sender of a request. It has no pointers, so the garbage collector doesn't scan thousands of
// clients.
type client struct {
	id   uint64 // a keyed hash
	kind kind
	n    uint8
	cut  bool                        // text has only the beginning and the end of the key
	text [headBytes + tailBytes]byte // an address, or the parts of an API key that are shown when it is masked
}

// A masked key shows up to eight characters at the beginning and four at the end. Each character has up to four bytes.
const headBytes, tailBytes = 32, 16

// from sets the client of a request. If the request's API key is unverified, it also sets the address.
func (s *sample) from(r *weir.Request, k *key) {
	s.client.of(r, k)
	if s.kind != ip && !r.KeyVerified {
		s.address.from(r.IP, k)
	}
}

func (s *sample) of(o *weir.Observation, k *key, weight float64) {
	s.from(o.Request, k)
	s.key, s.weight, s.rule, s.refused = k, weight, o.Decision.Rule, !o.Decision.Allowed
}

// mostCharges is the maximum number of limits that are recorded for a decision.
const mostCharges = 256

// charge records the rules that a decision was charged to, and their subjects. If successive limits of one rule have
// the same subject, they are recorded together.
func (l *buffer) charge(s *sample, o *weir.Observation, k *key) {
	limits, charges := o.Decision.Limits(), o.Charges
	if len(limits) != len(charges) {
		return // the decision charged nothing
	}
	var last *charged
	for i := range limits[:min(len(limits), mostCharges)] {
		c := &charges[i]
		same := last != nil && bytes.Equal(c.Subject, charges[i-1].Subject)
		if !same || c.Policy.Rule != last.rule {
			l.charges = append(l.charges, charged{rule: c.Policy.Rule, tokens: c.N})
			now := &l.charges[len(l.charges)-1]
			if same {
				now.from, now.to, now.id, now.cut = last.from, last.to, last.id, last.cut
			} else {
				l.write(now, c.Subject, k)
				if now.cut && string(c.Subject[1:]) == o.Request.APIKey {
					now.id = s.id // the subject is the client, so use the client's hash
				}
			}
			last = now
			s.charges++
		}
		last.of(o.Decision, &limits[i])
	}
}

func (l *buffer) write(c *charged, subject []byte, k *key) {
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

// from makes addr the client's identity. If addr is invalid, from does nothing.
func (c *client) from(addr netip.Addr, k *key) {
	if !addr.IsValid() {
		return
	}
	c.kind = ip
	all := addr.As16()
	if !addr.Unmap().Is4() {
		clear(all[8:]) // rules count an IPv6 address by its /64, which belongs to one client
	}
	c.n = uint8(copy(c.text[:], all[:]))
	c.id = siphash.Hash(k.k0^uint64(c.kind), k.k1, all[:])
}

// identity returns the identity of the client, as far as text contains it.
func (c *client) identity() Identity {
	if c.kind == ip {
		return NewIP(netip.AddrFrom16([16]byte(c.text[:16])))
	}
	return Identity{c.kind.String(), string(c.text[:c.n])}
}

func (c *client) named() named {
	if c.kind == nobody {
		return named{c.id, "(nobody)", c.kind.String()}
	}
	return named{c.id, c.identity().Shown(), c.kind.String()}
}

// Fingerprint returns the fingerprint of a request's client, or "" if the request has no client.
func (t *Top) Fingerprint(r *weir.Request) string { return t.See(r).Fingerprint }

func fingerprint(id uint64) string { return fmt.Sprintf("%08x", uint32(id>>32)) }

// Shown describes a client in a form that people may see.
type Shown struct {
	Client      string `json:"client"`      // masked
	Fingerprint string `json:"fingerprint"` // distinguishes clients that look the same when they are masked; it is the same on all nodes
	Kind        string `json:"kind"`
}

// See returns the client of a request in a form that people may see.
func (t *Top) See(r *weir.Request) Shown {
	var c client
	c.of(r, t.key.Load())
	out := c.named().shown()
	if c.kind == nobody {
		out.Fingerprint = ""
	}
	return out
}

// Prints returns the fingerprints under which a request is counted: that of its client and, if the API key is
// unverified, that of its address. A fingerprint of 0 means that there is none. Prints makes no allocations.
func (t *Top) Prints(r *weir.Request) (client, address uint32) {
	var s sample
	if s.from(r, t.key.Load()); s.kind == nobody {
		return 0, 0
	}
	return uint32(s.client.id >> 32), uint32(s.address.id >> 32)
}
