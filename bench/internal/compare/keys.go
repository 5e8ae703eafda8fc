package compare

import (
	"encoding/binary"
	"encoding/hex"
	"strings"
)

// Keys are API keys such as sk_prod_9e3779b97f4a7c15, side by side in one string. So the garbage collector has nothing to
// scan, which would slow down contenders that allocate.
type Keys struct{ all string }

const (
	keyPrefix = "sk_prod_"
	keyLength = len(keyPrefix) + 16
)

// MakeKeys makes n keys, the same in every run.
func MakeKeys(n int) Keys {
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
	return Keys{b.String()}
}

// At is one key.
func (k Keys) At(i uint32) string { return k.all[int(i)*keyLength:][:keyLength] }

// scramble maps numbers to numbers, no two to the same (splitmix64).
func scramble(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
