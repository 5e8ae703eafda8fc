package redisstore

import (
	"encoding/base64"
	"encoding/binary"
	"strconv"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/siphash"
)

// Names of keys. The hash with a subject's counters is named
//
//	weir{4k}3q2-7w…        prefix, tag in braces, 128 bits of a keyed hash of the subject
//
// A sliding log has a hash of its own, whose name continues with a slash and the log's field. If a counter has holds, they have
// two more keys, whose names also contain the field, and end in .h (the holds' records) and .e (when they end). No name
// contains text from a client, so a client can't put a secret, a delimiter or a brace there.

// tags is how many hash tags there are. In a Cluster, keys with the same tag share a hash slot, and so a script call. There are
// enough tags to use every server of a Cluster, and few enough that checks in flight at the same moment often share one.
const tags = 1024

// tagNames are spread evenly over the hash slots: the i-th tag lies in the i-th run of 16 slots.
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

// slotOf computes the hash slot of a tag: CRC16 as in XMODEM.
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

// namer names keys. It hashes subjects under a secret that all nodes share.
type namer struct {
	prefix string
	secret []byte
	k0, k1 uint64
}

func newNamer(prefix string, secret []byte) *namer {
	k0, k1 := siphash.Hash128(0x7765697220706572, 0x7375626a65637473, secret)
	return &namer{prefix, secret, k0, k1}
}

// subject returns the name of a counter's key, and its tag.
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

// holdNames returns the names of the two keys with a counter's holds.
func (c *charge) holdNames() (records, ends string) {
	var few [96]byte
	name := append(few[:0], c.key...)
	if c.policy.Limit.Algorithm != counter.SlidingLog {
		name = appendField(name, c.policy)
	}
	records = string(append(name, ".h"...))
	return records, string(append(name, ".e"...))
}

// once names the key that marks an act as done, so that it isn't done again.
func (n *namer) once(o counter.Once, tag int) string {
	return string(base64.RawURLEncoding.AppendEncode(append(n.tagged(nil, tag), "once:"...), o[:]))
}

// probe names a key that is written to find out whether a shard accepts writes.
func (n *namer) probe(tag int) string { return string(n.tagged(nil, tag)) + "probe" }

func (n *namer) tagged(buf []byte, tag int) []byte {
	buf = append(append(buf, n.prefix...), '{')
	return append(append(buf, tagNames[tag]...), '}')
}

// field names a counter within its subject's hash: the first six bytes of the policy's ID.
func field(p *counter.Policy) (f [6]byte) {
	var id [8]byte
	binary.BigEndian.PutUint64(id[:], p.ID)
	copy(f[:], id[:6])
	return f
}
