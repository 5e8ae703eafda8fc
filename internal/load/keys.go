package load

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strconv"
	"strings"
)

// Distribution says how often each client asks.
type Distribution uint8

const (
	// Uniform: all clients ask equally often.
	Uniform Distribution = iota
	// Zipf: few ask often and many seldom, as in most real traffic.
	Zipf
	// Hot: one client asks, however many there are.
	Hot
)

var distributionNames = [...]string{"uniform", "zipf", "hot"}

func (d Distribution) String() string { return distributionNames[d] }

// MarshalText returns the name.
func (d Distribution) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads the name.
func (d *Distribution) UnmarshalText(text []byte) error {
	for i, name := range distributionNames {
		if name == string(text) {
			*d = Distribution(i)
			return nil
		}
	}
	return fmt.Errorf("must be uniform, zipf or hot, got %q", text)
}

// minSequence keeps sequences of few keys from repeating soon.
const minSequence = 1 << 16

// sequence is which client each request is from, computed beforehand: drawing
// it would cost as much as a check. Workers share it, and take a few requests here and a few there.
type sequence []uint32

// newSequence draws four requests of each client, on average.
func newSequence(d Distribution, keys int, exponent float64) sequence {
	if d == Hot {
		return make(sequence, 1)
	}
	s := make(sequence, max(4*keys, minSequence))
	rng := rand.New(rand.NewPCG(1, uint64(keys)))
	if d == Uniform || keys == 1 {
		for i := range s {
			s[i] = rng.Uint32N(uint32(keys))
		}
		return s
	}
	// The ranks are scattered, since popular clients don't have neighbouring names.
	client := rng.Perm(keys)
	zipf := rand.NewZipf(rng, exponent, 1, uint64(keys-1))
	for i := range s {
		s[i] = uint32(client[zipf.Uint64()])
	}
	return s
}

// names are texts that differ in a number, side by side in one string: the
// garbage collector has nothing to scan, and a name costs no allocation.
type names struct {
	all         string
	width, step int
}

// newNames writes the number of each of n clients, all with the same number of
// digits, in place of {n}. A pattern without it names them all alike.
func newNames(pattern string, n int) names {
	if !strings.Contains(pattern, "{n}") {
		return names{all: pattern, width: len(pattern)}
	}
	digits := len(strconv.Itoa(n - 1))
	one := func(i int) string {
		return strings.ReplaceAll(pattern, "{n}", fmt.Sprintf("%0*d", digits, i))
	}
	width := len(one(0))
	var b strings.Builder
	b.Grow(n * width)
	for i := range n {
		b.WriteString(one(i))
	}
	return names{all: b.String(), width: width, step: width}
}

func (s *names) at(n uint32) string { return s.all[int(n)*s.step:][:s.width] }

// clientAddr is a client's address, from the range that RFC 2544 sets aside for
// benchmarks, so that rules that count by address have something to count by.
func clientAddr(n uint32) netip.Addr {
	return netip.AddrFrom4([4]byte{198, 18 | byte(n>>16&1), byte(n >> 8), byte(n)})
}
