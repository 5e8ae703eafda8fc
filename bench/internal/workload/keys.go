// Package workload makes the keys that every contender is asked about, and their order.
package workload

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"strings"
)

// Keys are API keys such as sk_prod_9e3779b97f4a7c15, side by side in one string:
// the garbage collector has nothing to scan, which would be charged to contenders that allocate.
type Keys struct{ all string }

// What keys look like.
const (
	KeyPrefix = "sk_prod_"
	KeyLength = len(KeyPrefix) + 16
)

// MakeKeys makes n keys, the same in every run.
func MakeKeys(n int) Keys {
	var b strings.Builder
	b.Grow(n * KeyLength)
	var id [8]byte
	var text [16]byte
	for i := range n {
		binary.BigEndian.PutUint64(id[:], scramble(uint64(i)))
		hex.Encode(text[:], id[:])
		b.WriteString(KeyPrefix)
		b.Write(text[:])
	}
	return Keys{b.String()}
}

// At is one key.
func (k Keys) At(i uint32) string { return k.all[int(i)*KeyLength:][:KeyLength] }

// scramble maps numbers to numbers, no two to the same (splitmix64).
func scramble(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Sequence is which key each check is about, computed beforehand: drawing it would cost as much as a check.
// Its length is a power of two.
type Sequence []uint32

// sequenceLength gives every key several turns.
func sequenceLength(keys int) int {
	n := 1
	for n < 2*keys {
		n *= 2
	}
	return n
}

// Hot is one key, the same at every check.
func Hot() Sequence { return make(Sequence, 1) }

// Uniform draws every key as often as any other.
func Uniform(keys int) Sequence {
	rng := rand.New(rand.NewPCG(1, uint64(keys)))
	s := make(Sequence, sequenceLength(keys))
	for i := range s {
		s[i] = uint32(rng.IntN(keys))
	}
	return s
}

// Zipf scatters the ranks, since popular keys don't live next to each other.
func Zipf(keys int, exponent float64) Sequence {
	rng := rand.New(rand.NewPCG(2, uint64(keys)))
	rank := rng.Perm(keys)
	zipf := rand.NewZipf(rng, exponent, 1, uint64(keys-1))
	s := make(Sequence, sequenceLength(keys))
	for i := range s {
		s[i] = uint32(rank[zipf.Uint64()])
	}
	return s
}
