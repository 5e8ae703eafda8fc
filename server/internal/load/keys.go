package load

import (
	"math/rand/v2"
	"net/netip"
	"strconv"
	"strings"
	"unsafe"
)

// Distribution says how requests are distributed over clients. "" means Uniform.
type Distribution string

const (
	// Uniform means that all clients send the same number of requests.
	Uniform Distribution = "uniform"
	// Zipf means that a few clients send many requests and many send few, as in most real traffic.
	Zipf Distribution = "zipf"
	// Hot means that one client sends all requests.
	Hot Distribution = "hot"
)

// minSequence is the minimum length of a sequence, so that the sequence doesn't repeat soon if there are few clients.
const minSequence = 1 << 16

// sequence has the client of each request. It is drawn in advance, because drawing a client costs as much as a check.
type sequence []uint32

// newSequence draws the clients of requests. On average, each client gets four requests.
func newSequence(d Distribution, keys int, exponent float64) sequence {
	if d == Hot {
		return make(sequence, 64*stretch) // long enough that workers seldom reach its end
	}
	s := make(sequence, max(4*keys, minSequence))
	rng := rand.New(rand.NewPCG(1, uint64(keys)))
	if d != Zipf || keys == 1 {
		for i := range s {
			s[i] = rng.Uint32N(uint32(keys))
		}
		return s
	}
	// Shuffle the clients, because in reality popular clients don't have adjacent names.
	client := rng.Perm(keys)
	zipf := rand.NewZipf(rng, exponent, 1, uint64(keys-1))
	for i := range s {
		s[i] = uint32(client[zipf.Uint64()])
	}
	return s
}

// name is a text that contains a client's number. To get the name of another client, only the number is rewritten. That
// is faster than reading one of a million names from memory.
type name struct {
	text   []byte
	ends   []int // offsets at which the number ends
	digits int
}

// newName makes the names of n clients from a pattern, in which the client's number replaces {n}. All numbers have the
// same number of digits.
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

// of returns the name of a client. It is valid until the next call.
func (s *name) of(n uint32) string {
	for _, end := range s.ends {
		for i, rest := 1, n; i <= s.digits; i, rest = i+1, rest/10 {
			s.text[end-i] = '0' + byte(rest%10)
		}
	}
	return unsafe.String(unsafe.SliceData(s.text), len(s.text))
}

// clientAddr returns the address of a client, in the range that RFC 2544 reserves for benchmarks.
func clientAddr(n uint32) netip.Addr {
	return netip.AddrFrom4([4]byte{198, 18 | byte(n>>16&1), byte(n >> 8), byte(n)})
}
