package load

import (
	"math/rand/v2"
	"net/netip"
	"strconv"
	"strings"
	"unsafe"
)

// Distribution says how often each client sends requests. "" means Uniform.
type Distribution string

const (
	// Uniform means that all clients send equally many.
	Uniform Distribution = "uniform"
	// Zipf means that few clients send many requests and many send few, as in most real traffic.
	Zipf Distribution = "zipf"
	// Hot means that one client sends all requests.
	Hot Distribution = "hot"
)

// minSequence keeps sequences of few keys from repeating soon.
const minSequence = 1 << 16

// sequence lists the client of each request. It is drawn beforehand, since drawing a client costs as much as a check.
type sequence []uint32

// newSequence draws four requests of each client, on average.
func newSequence(d Distribution, keys int, exponent float64) sequence {
	if d == Hot {
		return make(sequence, 64*stretch) // workers seldom reach the end
	}
	s := make(sequence, max(4*keys, minSequence))
	rng := rand.New(rand.NewPCG(1, uint64(keys)))
	if d != Zipf || keys == 1 {
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

// name is a text with a client's number in it. Rewriting it is faster than fetching one of a million names from memory.
type name struct {
	text   []byte
	ends   []int // of the number
	digits int
}

// newName makes names for n clients. Their numbers replace {n}, all with the same number of digits.
func newName(pattern string, n int) *name {
	s := &name{digits: len(strconv.Itoa(n - 1))}
	for i, part := range strings.Split(pattern, "{n}") {
		if i > 0 {
			s.text = append(s.text, strings.Repeat("0", s.digits)...)
			s.ends = append(s.ends, len(s.text))
		}
		s.text = append(s.text, part...)
	}
	return s
}

// of returns the name of a client, which is valid until the next call.
func (s *name) of(n uint32) string {
	for _, end := range s.ends {
		for i, rest := 1, n; i <= s.digits; i, rest = i+1, rest/10 {
			s.text[end-i] = '0' + byte(rest%10)
		}
	}
	return unsafe.String(unsafe.SliceData(s.text), len(s.text))
}

// clientAddr is a client's address, from the range that RFC 2544 reserves for benchmarks.
func clientAddr(n uint32) netip.Addr {
	return netip.AddrFrom4([4]byte{198, 18 | byte(n>>16&1), byte(n >> 8), byte(n)})
}
