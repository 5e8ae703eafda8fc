package cooldown

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash/fnv"
	"slices"
	"strings"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/shown"
	"github.com/weirhq/weir/internal/siphash"
)

// ID identifies a client of a rule. The client can't be derived from it.
type ID [2]uint64

// ID returns the ID of the client that a counter is for.
func (g *Guard) ID(c *counter.Counter) ID { return nameOf(g.key.Load(), c) }

func nameOf(key *[2]uint64, c *counter.Counter) ID {
	rule := fnv.New64a()
	_, _ = rule.Write([]byte(c.Policy.Rule)) // never fails
	a, b := siphash.Hash128(key[0]^rule.Sum64(), key[1], c.Subject)
	return ID{a, b}
}

func (id ID) compare(other ID) int { return slices.Compare(id[:], other[:]) }

func (id ID) String() string {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:], id[0])
	binary.BigEndian.PutUint64(b[8:], id[1])
	return hex.EncodeToString(b[:])
}

// MarshalText implements encoding.TextMarshaler.
func (id ID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (id *ID) UnmarshalText(text []byte) error {
	var b [16]byte
	if n, err := hex.Decode(b[:], text[:min(len(text), 32)]); err != nil || n != 16 || len(text) != 32 {
		return errors.New("must be 32 hexadecimal digits, as in lists of cooldowns")
	}
	id[0], id[1] = binary.BigEndian.Uint64(b[:]), binary.BigEndian.Uint64(b[8:])
	return nil
}

// describe returns a client's values, masked for people.
func describe(values [][2]string) string {
	var texts []string
	for _, v := range values {
		texts = append(texts, shown.Value(v[0], v[1]))
	}
	return strings.Join(texts, " ")
}
