package main

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"strings"
)

// keys are API keys such as sk_prod_9e3779b97f4a7c15, side by side in one string:
// the garbage collector has nothing to scan, which would be charged to contenders that allocate.
type keys struct{ all string }

const (
	keyPrefix = "sk_prod_"
	keyLength = len(keyPrefix) + 16
)

func makeKeys(n int) keys {
	var b strings.Builder
	b.Grow(n * keyLength)
	var id [8]byte
	var text [16]byte
	for i := range n {
		binary.BigEndian.PutUint64(id[:], scramble(uint64(i)))
		hex.Encode(text[:], id[:])
		b.WriteString(keyPrefix)
		b.Write(text[:])
	}
	return keys{b.String()}
}

func (k keys) at(i uint32) string { return k.all[int(i)*keyLength:][:keyLength] }

// scramble maps numbers to numbers, no two to the same (splitmix64).
func scramble(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// sequence is which key each check is about, computed beforehand: drawing it would cost as much as a check.
type sequence []uint32

// sequenceLength gives every key several turns. It is a power of two.
func sequenceLength(keys int) int {
	n := 1
	for n < 2*keys {
		n *= 2
	}
	return n
}

func hotSequence() sequence { return make(sequence, 1) }

func uniformSequence(keys int) sequence {
	rng := rand.New(rand.NewPCG(1, uint64(keys)))
	s := make(sequence, sequenceLength(keys))
	for i := range s {
		s[i] = uint32(rng.IntN(keys))
	}
	return s
}

// zipfSequence scatters the ranks, since popular keys don't live next to each other.
func zipfSequence(keys int, exponent float64) sequence {
	rng := rand.New(rand.NewPCG(2, uint64(keys)))
	rank := rng.Perm(keys)
	zipf := rand.NewZipf(rng, exponent, 1, uint64(keys-1))
	s := make(sequence, sequenceLength(keys))
	for i := range s {
		s[i] = uint32(rank[zipf.Uint64()])
	}
	return s
}
