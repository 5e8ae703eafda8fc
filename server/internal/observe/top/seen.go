package top

import "github.com/weirhq/weir"

// Seen is the client of a request as people may see it: see [Client].
type Seen struct{ Client, Kind, Fingerprint string }

// See tells which client sent a request.
func (t *Top) See(r *weir.Request) Seen {
	var c client
	c.of(r, t.key.Load())
	out := Seen{Client: c.String(), Kind: c.kind.String()}
	if c.kind != nobody {
		out.Fingerprint = fingerprint(c.id)
	}
	return out
}

// Prints are the fingerprints that a request is counted under, as numbers: that of its client, and beside a key that nobody has
// verified that of its address. 0 means none. It allocates nothing.
func (t *Top) Prints(r *weir.Request) (client, address uint32) {
	var s sample
	k := t.key.Load()
	if s.client.of(r, k); s.client.kind == nobody {
		return 0, 0
	}
	if s.client.kind != ip && !r.KeyVerified {
		s.address.from(r.IP, k)
	}
	return uint32(s.client.id >> 32), uint32(s.address.id >> 32)
}
