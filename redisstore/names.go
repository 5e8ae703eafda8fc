package redisstore

import (
	"encoding/base64"
	"encoding/binary"
	"strconv"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/siphash"
)

// Names of keys. A subject's hash is
//
//	weir{4k}3q2-7w…        prefix, tag in braces, 128 bits of a keyed hash of the subject
//
// and a log's own hash has its field behind that, after a slash. A counter's holds are two keys beside it, with
// its field, and .h for their records or .e for their ends. No name holds anything that a client sent: neither a
// key in clear, nor a delimiter or a brace of its making.

// tags is how many hash tags there are: in a Cluster, what shares a tag shares a
// slot, and so a script call. Enough of them to spread over any Cluster, few
// enough that checks in flight at the same moment meet.
const tags = 1024

// tagNames are spread evenly over the slots: the i-th lies in the i-th run of 16 slots.
var tagNames = func() (names [tags]string) {
	for n, missing := int64(0), tags; missing > 0; n++ {
		name := strconv.FormatInt(n, 36)
		if at := &names[slotOf(name)*tags/slots]; *at == "" {
			*at = name
			missing--
		}
	}
	return names
}()

// slots is how many hash slots a Redis Cluster has.
const slots = 16384

// slotOf is the slot of a hash tag: CRC16 as XMODEM computes it.
func slotOf(tag string) int {
	var crc uint16
	for i := range len(tag) {
		crc ^= uint16(tag[i]) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return int(crc) % slots
}

// namer names keys under a secret that all nodes share.
type namer struct {
	prefix string
	secret []byte
	k0, k1 uint64
}

func newNamer(prefix string, secret []byte) *namer {
	k0, k1 := siphash.Hash128(0x7765697220706572, 0x7375626a65637473, secret)
	return &namer{prefix, secret, k0, k1}
}

// subject names the key of a counter, and says which tag it has.
func (n *namer) subject(c *counter.Counter) (name string, tag int) {
	a, b := siphash.Hash128(n.k0, n.k1, c.Subject)
	var hash [16]byte
	binary.BigEndian.PutUint64(hash[:8], a)
	binary.BigEndian.PutUint64(hash[8:], b)
	tag = (int(a%tags) + int(c.Policy.Place)*tags>>16) % tags
	var few [96]byte
	buf := n.tagged(few[:0], tag)
	buf = base64.RawURLEncoding.AppendEncode(buf, hash[:])
	if c.Policy.Limit.Algorithm == counter.SlidingLog {
		buf = appendField(buf, c.Policy)
	}
	return string(buf), tag
}

func appendField(name []byte, p *counter.Policy) []byte {
	f := field(p)
	return base64.RawURLEncoding.AppendEncode(append(name, '/'), f[:])
}

// holdNames names the keys of a counter's holds.
func (c *charge) holdNames() (records, ends string) {
	var few [96]byte
	name := append(few[:0], c.key...)
	if c.policy.Limit.Algorithm != counter.SlidingLog {
		name = appendField(name, c.policy)
	}
	records = string(append(name, ".h"...))
	return records, string(append(name, ".e"...))
}

// once names the key that marks an act as done.
func (n *namer) once(o counter.Once, tag int) string {
	return string(base64.RawURLEncoding.AppendEncode(append(n.tagged(nil, tag), "once:"...), o[:]))
}

// probe names a key that is written to see whether a shard takes writes.
func (n *namer) probe(tag int) string { return string(n.tagged(nil, tag)) + "probe" }

func (n *namer) tagged(buf []byte, tag int) []byte {
	buf = append(append(buf, n.prefix...), '{')
	return append(append(buf, tagNames[tag]...), '}')
}

// field names a counter within the hash of its subject.
func field(p *counter.Policy) (f [6]byte) {
	var id [8]byte
	binary.BigEndian.PutUint64(id[:], p.ID)
	copy(f[:], id[:6])
	return f
}
