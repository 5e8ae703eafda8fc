package cooldown

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash/fnv"
	"strings"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/shown"
	"github.com/weirhq/weir/internal/siphash"
)

// ID identifies a client of a rule. It doesn't reveal the client's key or address.
type ID [16]byte

// ID returns the ID of the client that a counter is for.
func (g *Guard) ID(c *counter.Counter) ID { return nameOf(g.key.Load(), c) }

func nameOf(key *[2]uint64, c *counter.Counter) (id ID) {
	rule := fnv.New64a()
	_, _ = rule.Write([]byte(c.Policy.Rule)) // never fails
	a, b := siphash.Hash128(key[0]^rule.Sum64(), key[1], c.Subject)
	binary.BigEndian.PutUint64(id[:8], a)
	binary.BigEndian.PutUint64(id[8:], b)
	return id
}

func (id ID) String() string { return hex.EncodeToString(id[:]) }

// MarshalText implements encoding.TextMarshaler.
func (id ID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (id *ID) UnmarshalText(text []byte) error {
	if _, err := hex.Decode(id[:], text[:min(len(text), 32)]); err != nil || len(text) != 32 {
		return errors.New("must be 32 hexadecimal digits, as in lists of cooldowns")
	}
	return nil
}

// describe returns the values of a client's subject as text for operators, with secrets masked.
func describe(values [][2]string) string {
	var texts []string
	for _, v := range values {
		texts = append(texts, shown.Value(v[0], v[1]))
	}
	return strings.Join(texts, " ")
}
