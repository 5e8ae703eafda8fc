// Package siphash computes SipHash-2-4, a fast keyed hash for short inputs. Without the key, nobody can predict hashes
// or construct collisions. The names of keys in Redis contain these hashes, so the results must never change.
package siphash

import (
	"encoding/binary"
	"math/bits"
)

// Hash returns the 64-bit hash of b. k0 and k1 are the halves of the key's 16 bytes in
// little-endian order.
func Hash(k0, k1 uint64, b []byte) uint64 {
	v0, v1, v2, v3 := absorb(k0, k1, 0, b)
	v2 ^= 0xff
	for range 4 {
		v0, v1, v2, v3 = round(v0, v1, v2, v3)
	}
	return v0 ^ v1 ^ v2 ^ v3
}

// Hash128 returns the two halves of the 128-bit hash of b. The reference implementation writes them in this order, each
// in little-endian order.
func Hash128(k0, k1 uint64, b []byte) (uint64, uint64) {
	v0, v1, v2, v3 := absorb(k0, k1, 0xee, b)
	v2 ^= 0xee
	for range 4 {
		v0, v1, v2, v3 = round(v0, v1, v2, v3)
	}
	first := v0 ^ v1 ^ v2 ^ v3
	v1 ^= 0xdd
	for range 4 {
		v0, v1, v2, v3 = round(v0, v1, v2, v3)
	}
	return first, v0 ^ v1 ^ v2 ^ v3
}

// absorb returns the state after processing all of b. The 128-bit variant starts with a different state.
func absorb(k0, k1, variant uint64, b []byte) (v0, v1, v2, v3 uint64) {
	v0 = k0 ^ 0x736f6d6570736575
	v1 = k1 ^ 0x646f72616e646f6d ^ variant
	v2 = k0 ^ 0x6c7967656e657261
	v3 = k1 ^ 0x7465646279746573
	last := uint64(len(b)) << 56 // the last block ends with the length modulo 256
	for ; len(b) >= 8; b = b[8:] {
		m := binary.LittleEndian.Uint64(b)
		v3 ^= m
		v0, v1, v2, v3 = round(v0, v1, v2, v3)
		v0, v1, v2, v3 = round(v0, v1, v2, v3)
		v0 ^= m
	}
	for i, c := range b {
		last |= uint64(c) << (8 * i)
	}
	v3 ^= last
	v0, v1, v2, v3 = round(v0, v1, v2, v3)
	v0, v1, v2, v3 = round(v0, v1, v2, v3)
	v0 ^= last
	return v0, v1, v2, v3
}

// round mixes the state. It is small enough to be inlined.
func round(v0, v1, v2, v3 uint64) (uint64, uint64, uint64, uint64) {
	v0 += v1
	v1 = bits.RotateLeft64(v1, 13) ^ v0
	v0 = bits.RotateLeft64(v0, 32)
	v2 += v3
	v3 = bits.RotateLeft64(v3, 16) ^ v2
	v0 += v3
	v3 = bits.RotateLeft64(v3, 21) ^ v0
	v2 += v1
	v1 = bits.RotateLeft64(v1, 17) ^ v2
	v2 = bits.RotateLeft64(v2, 32)
	return v0, v1, v2, v3
}
